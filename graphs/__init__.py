"""ONNX models as values: load, check, shape, count, cut, quantise and build them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from graphs.graph import Graph, GraphError, Node, TensorSpec

if TYPE_CHECKING:
    from graphs import zoo
    from graphs.error import OutputError, Verdict, compare
    from graphs.expansion import Expanded, expanded
    from graphs.expansion.parts import View
    from graphs.feeds import load_tensor, random_inputs, save_tensor
    from graphs.one_node import single
    from graphs.onnx_io import from_proto, load, save
    from graphs.quantisation import Calibration, layer_errors, quantise
    from graphs.quantisation.mixing import Mixer, Mixture, float_form
    from graphs.rewrite import rewrite_of
    from graphs.submodel import extract, fixed_outputs, unused_inputs

# `import graphs` stays cheap (the command line's --help imports it): what needs onnx arrives on first use. No module
# has the name of what it offers here: importing a module binds its name in the package.
_LAZY = {
    "OutputError": "graphs.error",
    "Verdict": "graphs.error",
    "compare": "graphs.error",
    "Calibration": "graphs.quantisation",
    "Expanded": "graphs.expansion",
    "View": "graphs.expansion.parts",
    "expanded": "graphs.expansion",
    "Mixer": "graphs.quantisation.mixing",
    "Mixture": "graphs.quantisation.mixing",
    "extract": "graphs.submodel",
    "fixed_outputs": "graphs.submodel",
    "float_form": "graphs.quantisation.mixing",
    "from_proto": "graphs.onnx_io",
    "layer_errors": "graphs.quantisation",
    "load": "graphs.onnx_io",
    "load_tensor": "graphs.feeds",
    "quantise": "graphs.quantisation",
    "random_inputs": "graphs.feeds",
    "rewrite_of": "graphs.rewrite",
    "save": "graphs.onnx_io",
    "save_tensor": "graphs.feeds",
    "single": "graphs.one_node",
    "unused_inputs": "graphs.submodel",
}

__all__ = [
    "Calibration",
    "Expanded",
    "Graph",
    "GraphError",
    "Mixer",
    "Mixture",
    "Node",
    "OutputError",
    "TensorSpec",
    "Verdict",
    "View",
    "compare",
    "expanded",
    "extract",
    "fixed_outputs",
    "float_form",
    "from_proto",
    "layer_errors",
    "load",
    "load_tensor",
    "quantise",
    "random_inputs",
    "rewrite_of",
    "save",
    "save_tensor",
    "single",
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
