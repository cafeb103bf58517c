"""ONNX models as values: load, check, shape, count, cut, quantise and build them."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from graphs.graph import Graph, GraphError, Node, TensorSpec

if TYPE_CHECKING:
    from graphs import zoo
    from graphs.error import OutputError, Verdict, compare
    from graphs.extract import extract, unused_inputs
    from graphs.feeds import random_inputs
    from graphs.onnx_io import from_proto, load, save
    from graphs.quantise import Calibration, layer_errors, quantise

# `import graphs` stays cheap (the command line's --help imports it): what needs onnx arrives on first use.
_LAZY = {
    "OutputError": "graphs.error",
    "Verdict": "graphs.error",
    "compare": "graphs.error",
    "Calibration": "graphs.quantise",
    "extract": "graphs.extract",
    "from_proto": "graphs.onnx_io",
    "layer_errors": "graphs.quantise",
    "load": "graphs.onnx_io",
    "quantise": "graphs.quantise",
    "random_inputs": "graphs.feeds",
    "save": "graphs.onnx_io",
    "unused_inputs": "graphs.extract",
}

__all__ = [
    "Calibration",
    "Graph",
    "GraphError",
    "Node",
    "OutputError",
    "TensorSpec",
    "Verdict",
    "compare",
    "extract",
    "from_proto",
    "layer_errors",
    "load",
    "quantise",
    "random_inputs",
    "save",
    "unused_inputs",
    "zoo",
]


def __getattr__(name: str) -> object:
    """Import what `name` needs on its first use."""
    if name == "zoo":
        return import_module("graphs.zoo")
    if name not in _LAZY:
        raise AttributeError(f"module 'graphs' has no attribute '{name}'")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


class _FrontDoor(ModuleType):
    """Keep `graphs.extract` and `graphs.quantise` the functions, not the modules that they live in.

    Importing a submodule binds it under its name in the package, whoever imports it and whenever.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
