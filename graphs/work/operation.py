"""What a counting rule sees of one node: its attributes and the shapes at its ports."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from graphs.graph import TensorSpec


class Work(NamedTuple):
    """What a rule returns."""

    macs: int = 0
    elementwise: int = 0


class UnknownError(Exception):
    """A rule asked for a shape or a value that is not known before run time."""


class Scope(NamedTuple):
    """The tensors that the nodes of one graph (or of a body in it) can read."""

    specs: Mapping[str, TensorSpec]
    """Every tensor in sight, weights included."""
    weights: frozenset[str]
    """Which of them are constants."""
    value: Callable[[str], np.ndarray | None]
    """The values of a small constant."""
    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    opset_imports: tuple[onnx.OperatorSetIdProto, ...]


class Operation:
    """One node in its scope; ports are numbered as in the operator's documentation."""

    __slots__ = ("_attributes", "inputs", "node", "outputs", "scope")

    def __init__(self, node: onnx.NodeProto, scope: Scope) -> None:
        self.node = node
        self.scope = scope
        self.inputs = tuple(node.input)
        self.outputs = tuple(node.output)
        self._attributes: dict[str, onnx.AttributeProto] | None = None

    def attribute(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # ONNX attributes are of any type
        """Return an attribute's value, or the default when the node does not state it."""
        if self._attributes is None:
            self._attributes = {attribute.name: attribute for attribute in self.node.attribute}
        found = self._attributes.get(name)
        return default if found is None else onnx.helper.get_attribute_value(found)

    def has(self, port: int) -> bool:
        """Return whether an optional input is there."""
        return port < len(self.inputs) and self.inputs[port] != ""

    def shape(self, port: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        if not self.has(port):
            raise UnknownError(f"input {port} is missing")
        return self._shape_of(self.inputs[port])

    def out(self, port: int = 0) -> tuple[int, ...]:
        """Return the shape of an output."""
        if port >= len(self.outputs) or not self.outputs[port]:
            raise UnknownError(f"output {port} is missing")
        return self._shape_of(self.outputs[port])

    def size(self, port: int = 0) -> int:
        """Return the number of elements of an input."""
        return math.prod(self.shape(port))

    def out_size(self) -> int:
        """Return the number of elements of the first output."""
        return math.prod(self.out())

    def value(self, port: int) -> np.ndarray | None:
        """Return the values of a small constant input, or None."""
        return self.scope.value(self.inputs[port]) if self.has(port) else None

    def _shape_of(self, name: str) -> tuple[int, ...]:
        spec = self.scope.specs.get(name)
        if spec is None or spec.shape is None:
            raise UnknownError(f"the shape of '{name}' is not known")
        return spec.shape
