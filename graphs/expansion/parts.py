"""What takes the place of one node: nodes and constants, under names that the graph does not use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphs.folding import evaluate
from graphs.nodes import unused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphs.graph import Graph, TensorSpec

    Array = np.ndarray[Any, Any]


class Impossible(Exception):  # noqa: N818  # it is an answer, not an error
    """A node cannot be replaced; the text says why, or nothing when there is no rule."""


class Source:
    """The graph that nodes are replaced in."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.body: onnx.ModelProto = graph._body  # noqa: SLF001  # one package; only read
        self.specs: dict[str, TensorSpec] = {**graph.tensors(), **graph.initializers()}
        self._taken = {*self.specs, *(node.name for node in graph.nodes())}

    def fresh(self, wish: str) -> str:
        """Return a name that nothing has yet."""
        return unused(wish, self._taken)

    def dequantised(self, name: str) -> Array | None:
        """Return the values of a tensor that is dequantised from constants, None for any other."""
        maker = next((node for node in self.body.graph.node if name in node.output), None)
        held = self.graph.initializers()
        if maker is None or maker.op_type != "DequantizeLinear" or any(operand not in held for operand in maker.input):
            return None
        operands = {operand: self.graph.constant(operand) for operand in maker.input}
        # ONNX's reference has it from 19 on, which changed nothing of the older types.
        return evaluate(maker, operands, max(self.graph.opset, 19)).get(name)


class View:
    """A node, and what is known of its operands before the model runs."""

    def __init__(self, source: Source, node: onnx.NodeProto) -> None:
        self.node = node
        self.op_type: str = node.op_type
        self.domain: str = node.domain
        self.opset = source.graph.opset
        self._source = source

    def attr(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return an attribute as Python has it, text decoded."""
        found = next((a for a in self.node.attribute if a.name == name), None)
        if found is None:
            return default
        value = helper.get_attribute_value(found)
        if isinstance(value, list):
            return [item.decode() if isinstance(item, bytes) else item for item in value]
        return value.decode() if isinstance(value, bytes) else value

    def has(self, position: int) -> bool:
        """Tell whether an input is given."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def wants(self, position: int) -> bool:
        """Tell whether an output is asked for."""
        return position < len(self.node.output) and bool(self.node.output[position])

    def input(self, position: int) -> str:
        """Return the name of an input that must be there."""
        if not self.has(position):
            raise Impossible(f"its input {position} is missing")
        return str(self.node.input[position])

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self._shape(self.input(position), f"input {position}")

    def output_shape(self, position: int = 0) -> tuple[int, ...]:
        """Return the shape of an output."""
        return self._shape(self.node.output[position], f"output {position}")

    def _shape(self, name: str, what: str) -> tuple[int, ...]:
        spec = self._source.specs.get(name)
        if spec is None or spec.shape is None:
            raise Impossible(f"the shape of its {what} is not known")
        return spec.shape

    def dtype(self, position: int) -> np.dtype[Any]:
        """Return the type of an input."""
        spec = self._source.specs.get(self.input(position))
        if spec is None or spec.dtype not in np.sctypeDict:
            raise Impossible(f"its input {position} is of {spec.dtype if spec else 'an unknown type'}")
        return np.dtype(spec.dtype)

    def type_name(self, position: int) -> str:
        """Return the name of an input's type, "" for none."""
        spec = self._source.specs.get(self.node.input[position]) if self.has(position) else None
        return spec.dtype if spec else ""

    def constant(self, position: int) -> Array | None:
        """Return the values of an input, None when they are known only while the model runs."""
        name = self.input(position)
        return self._source.graph.constant(name) if name in self._source.graph.initializers() else None

    def known(self, position: int, what: str) -> Array:
        """Return the values of an input that must be constant, or dequantised from constants."""
        found = self.constant(position)
        found = self._source.dequantised(self.input(position)) if found is None else found
        if found is None:
            raise Impossible(f"its {what} is computed while the model runs")
        return found


class Parts(View):
    """A node to replace, and what replaces it: call it to add a node.

    Tensors are named; an array in place of a name is a constant.
    """

    def __init__(self, source: Source, node: onnx.NodeProto) -> None:
        super().__init__(source, node)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def fresh(self, wish: str) -> str:
        """Return a name under the node's that nothing has yet."""
        return self._source.fresh(f"{self.node.name}/{wish}")

    def __call__(self, op_type: str, *inputs: str | Array | np.generic, **attributes: Any) -> str:  # noqa: ANN401
        """Add a node with one output, and return its name."""
        (output,) = self.many(op_type, *inputs, count=1, **attributes)
        return output

    def many(self, op_type: str, *inputs: str | Array | np.generic, count: int, **attributes: Any) -> list[str]:  # noqa: ANN401
        """Add a node with several outputs, and return their names."""
        named = [each if isinstance(each, str) else self.named(np.asarray(each)) for each in inputs]
        name = self.fresh(op_type)
        outputs = [self.fresh(f"{op_type}_{index}") for index in range(count)]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, named, outputs, name=name, **given))
        return outputs

    def named(self, array: Array) -> str:
        """Add a constant, and return its name."""
        name = self.fresh("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def copy(self, node: onnx.NodeProto) -> None:
        """Add a node that is made already."""
        self.nodes.append(node)

    def finish(self, results: Sequence[str | None]) -> None:
        """Give the results the names of the node's outputs."""
        made = {name for node in self.nodes for name in node.output}
        renamed: dict[str, str] = {}
        for result, output in zip(results, self.node.output, strict=False):
            if not output:
                continue
            if result is None:
                raise Impossible(f"its output {output!r} has no replacement")
            if result in made and result not in renamed:
                renamed[result] = output
            else:
                self.nodes.append(helper.make_node("Identity", [result], [output], name=self.fresh("Identity")))
        for node in self.nodes:
            rename(node, renamed)

    # Forms that stay the same in all operator sets.

    def reshape(self, value: str, *shape: int) -> str:
        """Reshape to a known shape."""
        return self("Reshape", value, np.array(shape, np.int64))

    def part(self, value: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Take a range of an axis; `step` -1 takes it backwards from `start` down to and without `end`."""
        limits = [np.array([number], np.int64) for number in (start, end, axis, step)]
        if self.opset < 10:
            if step != 1:
                raise Impossible("the model's opset is older than 10, whose Slice has no steps")
            return self("Slice", value, starts=[start], ends=[end], axes=[axis])
        return self("Slice", value, *limits)

    def row(self, value: str, axis: int, index: int) -> str:
        """Take one index of an axis, which goes away."""
        if self.opset < 10:
            return self("Gather", value, np.array(index, np.int64), axis=axis)
        return self.without_axis(self.part(value, axis, index, index + 1), axis)

    def with_axis(self, value: str, axis: int) -> str:
        """Add an axis of one element."""
        if self.opset >= 13:
            return self("Unsqueeze", value, np.array([axis], np.int64))
        return self("Unsqueeze", value, axes=[axis])

    def without_axis(self, value: str, axis: int) -> str:
        """Remove an axis of one element."""
        if self.opset >= 13:
            return self("Squeeze", value, np.array([axis], np.int64))
        return self("Squeeze", value, axes=[axis])

    def reduce(self, kind: str, value: str, axes: Sequence[int], *, keepdims: bool = True) -> str:
        """Reduce over axes: Sum has them as an input from opset 13 on, the others from 18 on."""
        first = 13 if kind == "ReduceSum" else 18
        if self.opset >= first:
            return self(kind, value, np.array(axes, np.int64), keepdims=int(keepdims))
        return self(kind, value, axes=list(axes), keepdims=int(keepdims))

    def cast(self, value: str, dtype: np.dtype[Any] | type[np.generic] | str) -> str:
        """Convert to another type."""
        return self("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename tensors of a node, and what its bodies read of them."""
    for ports in (node.input, node.output):
        for place, name in enumerate(ports):
            if name in names:
                ports[place] = names[name]
    for body in (graph for a in node.attribute for graph in ((a.g,) if a.HasField("g") else a.graphs)):
        for inner in body.node:
            rename(inner, names)
        for info in body.output:
            info.name = names.get(info.name, info.name)
