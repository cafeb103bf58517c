"""Lossless rewrites of single nodes: the same values, bit for bit, from operators that more backends take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphs.graph import DTYPES, GraphError
from graphs.onnx_io import from_proto

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphs.graph import Graph, Node

_FIRST_SLICE_WITH_INPUTS: Final = 10


def rewrite_of(graph: Graph, node: str) -> tuple[str, Graph] | None:
    """Return what the node can be replaced by, in words, and the graph with it replaced; None when nothing is known.

    Known are a Pad in mode reflect (Slices and Concats) and an operator that ONNX itself defines by simpler ones. The
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
    """Replace a reflect Pad by single rows and columns, sliced out and concatenated on both sides, axis by axis."""
    model = graph.proto()
    position, pad = _find(model, node.name)
    pads = _pads(graph, pad)
    if pads is None or graph.opset < _FIRST_SLICE_WITH_INPUTS:
        return None
    parts = _Unrolled(pad.name or node.name, pad.input[0], graph)
    axes = [axis for axis, (before, after) in enumerate(pads) if before or after]
    for axis in axes:
        parts.widen(axis, *pads[axis])
    _replace(model, position, parts.finish(pad.output[0]))
    model.graph.initializer.extend(parts.constants)
    slices = sum(new.op_type == "Slice" for new in parts.nodes)
    text = f"{slices} Slices of one row each and {len(axes)} Concats in place of the reflect Pad"
    return text, from_proto(model, name=graph.name, base_dir=graph.base_dir)


def _pads(graph: Graph, pad: onnx.NodeProto) -> list[tuple[int, int]] | None:
    """Return (before, after) for each axis of a reflect Pad by constants that only widens; None for another Pad."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in pad.attribute}
    spec = graph.tensors().get(pad.input[0])
    named = len(pad.input) > 1 and pad.input[1] in graph.initializers()
    if attributes.get("mode") != b"reflect" or spec is None or spec.shape is None or not named:
        return None
    counts = graph.constant(pad.input[1]).tolist()
    rank = len(spec.shape)
    axes = graph.constant(pad.input[3]).tolist() if len(pad.input) > 3 and pad.input[3] else list(range(rank))
    pads = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        pads[axis % rank] = (counts[index], counts[index + len(axes)])
    fits = all(0 <= max(p) < size and min(p) >= 0 for p, size in zip(pads, spec.shape, strict=True))
    return pads if fits and any(map(any, pads)) else None


class _Unrolled:
    """The nodes and constants that take the place of one Pad."""

    def __init__(self, name: str, source: str, graph: Graph) -> None:
        self._name, self._value = name, source
        self._taken = {*graph.tensors(), *graph.initializers(), *(node.name for node in graph.nodes())}
        self._shape = list(graph.tensors()[source].shape or ())
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def widen(self, axis: int, before: int, after: int) -> None:
        size = self._shape[axis]
        rows = [*range(before, 0, -1), None, *range(size - 2, size - 2 - after, -1)]
        pieces = [self._value if row is None else self._row(axis, row) for row in rows]
        joined = self._fresh(f"axis{axis}")
        self.nodes.append(helper.make_node("Concat", pieces, [joined], name=joined, axis=axis))
        self._value = joined
        self._shape[axis] += before + after

    def finish(self, output: str) -> list[onnx.NodeProto]:
        self.nodes[-1].output[0] = output
        return self.nodes

    def _row(self, axis: int, row: int) -> str:
        name = self._fresh(f"axis{axis}_row{row}")
        limits = [self._constant(f"{name}_{what}", value) for what, value in
                  (("start", row), ("end", row + 1), ("axis", axis))]  # fmt: skip
        self.nodes.append(helper.make_node("Slice", [self._value, *limits], [name], name=name))
        return name

    def _constant(self, wish: str, value: int) -> str:
        name = self._fresh_name(wish)
        self.constants.append(numpy_helper.from_array(np.array([value], np.int64), name))
        return name

    def _fresh(self, suffix: str) -> str:
        return self._fresh_name(f"{self._name}_{suffix}")

    def _fresh_name(self, wish: str) -> str:
        name = wish
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _by_definition(graph: Graph, node: Node) -> tuple[str, Graph] | None:
    """Replace the node by the body that ONNX's operator set gives for it."""
    from onnx.inliner import inline_selected_functions

    if not _is_defined_by_others(node, graph.opset):
        return None
    model = graph.proto()
    position, original = _find(model, node.name)
    alone = _model_of(graph, model, original)
    body = inline_selected_functions(alone, [(node.domain, node.op_type)], inline_schema_functions=True)
    made = list(body.graph.node)
    if len(made) == 1 and made[0].op_type == node.op_type:
        return None
    _rename_inner(made, original, graph)
    _replace(model, position, made)
    model.graph.initializer.extend(
        t for t in body.graph.initializer if t.name not in {i.name for i in model.graph.initializer}
    )
    text = f"{node.op_type} as ONNX defines it: {', '.join(new.op_type for new in made)}"
    return text, from_proto(model, name=graph.name, base_dir=graph.base_dir)


def _is_defined_by_others(node: Node, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _model_of(graph: Graph, model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """Wrap one node as a model, constants as inputs: the definition may ask for the types of its inputs."""
    specs = {**graph.tensors(), **graph.initializers()}
    numbers = {name: number for number, name in DTYPES.items()}

    def info(name: str) -> onnx.ValueInfoProto:
        spec = specs[name]
        return helper.make_tensor_value_info(name, numbers[spec.dtype], spec.shape)

    inputs = [info(name) for name in dict.fromkeys(filter(None, node.input))]
    outputs = [info(name) for name in filter(None, node.output)]
    alone = helper.make_graph([node], "definition", inputs, outputs)
    return helper.make_model(alone, opset_imports=model.opset_import, ir_version=model.ir_version)


def _rename_inner(nodes: Sequence[onnx.NodeProto], original: onnx.NodeProto, graph: Graph) -> None:
    """Give inner tensors and nodes names that the rest of the graph does not use."""
    edge = {*original.input, *original.output}
    prefix = original.name or original.output[0]
    while any(re.match(rf"{re.escape(prefix)}/", name) for name in _all_names(graph)):
        prefix += "_"
    for index, node in enumerate(nodes):
        node.name = f"{prefix}/{node.op_type}_{index}"
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name and name not in edge:
                    names[place] = f"{prefix}/{name}"


def _all_names(graph: Graph) -> Iterator[str]:
    yield from graph.tensors()
    yield from graph.initializers()
    yield from (node.name for node in graph.nodes())


def _find(model: onnx.ModelProto, name: str) -> tuple[int, onnx.NodeProto]:
    return next((i, node) for i, node in enumerate(model.graph.node) if node.name == name)


def _replace(model: onnx.ModelProto, position: int, nodes: Sequence[onnx.NodeProto]) -> None:
    everything = [*model.graph.node[:position], *nodes, *model.graph.node[position + 1 :]]
    del model.graph.node[:]
    model.graph.node.extend(everything)
    del model.graph.value_info[:]  # inferred anew: a stale entry would contradict the new nodes
