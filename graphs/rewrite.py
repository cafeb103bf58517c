"""Lossless rewrites of single nodes: the same values, bit for bit, from operators that more backends take."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphs.expansion.definitions import by_definition
from graphs.expansion.parts import Impossible, Source
from graphs.graph import DTYPES, GraphError
from graphs.nodes import unused
from graphs.onnx_io import from_proto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphs.graph import Graph, Node

_FIRST_SLICE_WITH_INPUTS: Final = 10


def rewrite_of(graph: Graph, node: str) -> tuple[str, Graph] | None:
    """Return what the node can be replaced by, in words, and the graph with it replaced; None when nothing is known.

    Known are a Pad by constants (Slices and Concats) and an operator that ONNX itself defines by simpler ones. The
    values stay what they were up to what a runtime makes of the definition: compare both on a run before using it.

    Raises:
        GraphError: The graph has no node of that name.
    """
    found = next((candidate for candidate in graph.nodes() if candidate.name == node), None)
    if found is None:
        raise GraphError(f"{graph.name} has no node '{node}': `nodes()` lists them")
    if found.op_type == "Pad":
        return _unrolled_pad(graph, found)
    return _by_definition(graph, found)


def _unrolled_pad(graph: Graph, node: Node) -> tuple[str, Graph] | None:
    """Replace a Pad by what it cuts off, and by rows that are sliced out and concatenated on both sides, by axis."""
    model = graph.proto()
    position, pad = _find(model, node.name)
    padding = _padding(graph, pad)
    if padding is None:
        return None
    parts = _Unrolled(pad, graph, padding)
    for axis, (before, after) in enumerate(padding.pads):
        parts.cut(axis, max(-before, 0), max(-after, 0))
        if not parts.widen(axis, max(before, 0), max(after, 0)):
            return None
    _replace(model, position, parts.finish(pad.output[0]))
    model.graph.initializer.extend(parts.constants)
    kinds = Counter(new.op_type for new in parts.nodes)
    made = " and ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(kinds.items()))
    try:
        rewritten = from_proto(model, name=graph.name, base_dir=graph.base_dir)
    except GraphError:  # Pad takes types that Slice and Concat do not: the 8-bit floats
        return None
    return f"{made} in place of the {padding.mode} Pad", rewritten


class _Padding(NamedTuple):
    """What a Pad by constants does: its mode, (before, after) for each axis, and what mode constant fills in."""

    mode: str
    pads: tuple[tuple[int, int], ...]
    fill: np.ndarray


def _padding(graph: Graph, pad: onnx.NodeProto) -> _Padding | None:
    """Read a Pad of any operator set; None where its shape or a parameter is not known."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in pad.attribute}
    spec = graph.tensors().get(pad.input[0])
    if spec is None or spec.shape is None or any(name and name not in graph.initializers() for name in pad.input[1:]):
        return None
    given = [graph.constant(name) if name else None for name in pad.input[1:]] + [None] * 3
    counts, value, named = given[:3]
    counts = attributes.get("pads", ()) if counts is None else counts.tolist()
    rank = len(spec.shape)
    axes = range(rank) if named is None else named.tolist()
    if len(counts) != 2 * len(axes):
        return None
    pads = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        pads[axis % rank] = (counts[index], counts[index + len(axes)])
    number = next(number for number, name in DTYPES.items() if name == spec.dtype)
    nothing = "" if number == onnx.TensorProto.STRING else 0
    fill = np.asarray(attributes.get("value", nothing) if value is None else value)
    return _Padding(
        mode=attributes.get("mode", b"constant").decode(),
        pads=tuple(pads),
        fill=fill.astype(helper.tensor_dtype_to_np_dtype(number)).reshape(()),
    )


def _borders(mode: str, size: int, before: int, after: int) -> tuple[list[range], list[range]] | None:
    """Return the spans of the axis that go before and after it; None where the axis is too short for that."""
    if mode == "edge" and size:
        return [range(1)] * before, [range(size - 1, size)] * after
    if mode == "wrap" and max(before, after) <= size:
        return [range(size - before, size)][: min(before, 1)], [range(after)][: min(after, 1)]
    if mode == "reflect" and max(before, after) < size:
        ends = range(before, 0, -1), range(size - 2, size - 2 - after, -1)
        return [range(row, row + 1) for row in ends[0]], [range(row, row + 1) for row in ends[1]]
    return None


class _Unrolled:
    """The nodes and constants that take the place of one Pad."""

    def __init__(self, pad: onnx.NodeProto, graph: Graph, padding: _Padding) -> None:
        self._name, self._value, self._padding = pad.name, pad.input[0], padding
        self._taken = {*graph.tensors(), *graph.initializers(), *(node.name for node in graph.nodes())}
        self._shape = list(graph.tensors()[pad.input[0]].shape or ())
        self._by_inputs = graph.opset >= _FIRST_SLICE_WITH_INPUTS
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def cut(self, axis: int, before: int, after: int) -> None:
        """Leave out rows at both ends, which is what a negative pad means."""
        if before or after:
            kept = range(before, self._shape[axis] - after)
            self._value = self._slice(axis, kept)
            self._shape[axis] = len(kept)

    def widen(self, axis: int, before: int, after: int) -> bool:
        """Add rows at both ends; False where the axis is too short for the mode."""
        if not (before or after):
            return True
        if self._padding.mode == "constant":
            left, right = ([self._filled(axis, rows)] if rows else [] for rows in (before, after))
        else:
            borders = _borders(self._padding.mode, self._shape[axis], before, after)
            if borders is None:
                return False
            made = {span: self._slice(axis, span) for span in dict.fromkeys([*borders[0], *borders[1]])}
            left, right = ([made[span] for span in side] for side in borders)
        joined = self._fresh(f"{self._name}_axis{axis}")
        self.nodes.append(helper.make_node("Concat", [*left, self._value, *right], [joined], name=joined, axis=axis))
        self._value = joined
        self._shape[axis] += before + after
        return True

    def finish(self, output: str) -> list[onnx.NodeProto]:
        """Return the nodes, the last of which makes `output`; a Pad by nothing hands its input on."""
        if not self.nodes:
            self.nodes.append(helper.make_node("Identity", [self._value], [output], name=self._fresh(self._name)))
        self.nodes[-1].output[0] = output
        return self.nodes

    def _slice(self, axis: int, span: range) -> str:
        name = self._fresh(f"{self._name}_axis{axis}_{span.start}_{span.stop}")
        limits = {"starts": span.start, "ends": span.stop, "axes": axis}
        if self._by_inputs:
            inputs = [self._constant(f"{name}_{what}", np.array([value])) for what, value in limits.items()]
            self.nodes.append(helper.make_node("Slice", [self._value, *inputs], [name], name=name))
        else:
            node = helper.make_node("Slice", [self._value], [name], name=name)
            node.attribute.extend(helper.make_attribute(what, [value]) for what, value in limits.items())
            self.nodes.append(node)
        return name

    def _filled(self, axis: int, rows: int) -> str:
        shape = [rows if index == axis else size for index, size in enumerate(self._shape)]
        return self._constant(f"{self._name}_axis{axis}_fill{rows}", np.full(shape, self._padding.fill))

    def _constant(self, wish: str, value: np.ndarray) -> str:
        name = self._fresh(wish)
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def _fresh(self, wish: str) -> str:
        return unused(wish, self._taken)


def _by_definition(graph: Graph, node: Node) -> tuple[str, Graph] | None:
    """Replace the node by the body that ONNX's operator set gives for it."""
    model = graph.proto()
    position, original = _find(model, node.name)
    try:
        made = by_definition(Source(graph), original).nodes
    except Impossible:
        return None
    _replace(model, position, made)
    text = f"{node.op_type} as ONNX defines it: {', '.join(new.op_type for new in made)}"
    return text, from_proto(model, name=graph.name, base_dir=graph.base_dir)


def _find(model: onnx.ModelProto, name: str) -> tuple[int, onnx.NodeProto]:
    return next((i, node) for i, node in enumerate(model.graph.node) if node.name == name)


def _replace(model: onnx.ModelProto, position: int, nodes: Sequence[onnx.NodeProto]) -> None:
    everything = [*model.graph.node[:position], *nodes, *model.graph.node[position + 1 :]]
    del model.graph.node[:]
    model.graph.node.extend(everything)
    del model.graph.value_info[:]  # inferred anew: a stale entry would contradict the new nodes
