"""Cut packed projections where they are made: the same values from Slices, where exporters write Gathers.

PyTorch's attention makes queries, keys and values by one product, views its last axis as (3, heads, channels), moves
the 3 to the front and takes each part by a Gather. In 16 bits a Qualcomm NPU then pads the whole packed tensor for each
part: 8.2 of the 13.9 ms of a ViT-B/16, simulated; with Slices of the product it takes 5.1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from onnx import helper, numpy_helper

from graphs.nodes import reads, unused
from graphs.onnx_io import from_proto

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from graphs.graph import Graph

_VIEWS: Final = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"})
_FIRST_SLICE_WITH_INPUTS: Final = 10


class _Cut(NamedTuple):
    """What a Gather takes: `start` to `end` of an axis of `source`, viewed as `shape` and its axes put in `order`."""

    source: str
    axis: int
    start: int
    end: int
    shape: tuple[int, ...]
    order: tuple[int, ...]


def unpacked(graph: Graph) -> Graph:
    """Return a graph of the same values in which no Gather takes one of the parts that an axis was viewed as.

    Rewritten are Gathers with one constant index behind a view (Reshape, Transpose, Squeeze, Unsqueeze) if what they
    take is a range of an axis of the tensor before it. The last node written for a Gather keeps its name. A graph
    without any is returned itself.
    """
    if graph.opset < _FIRST_SLICE_WITH_INPUTS:
        return graph
    model = graph.proto()
    makers = {name: node for node in model.graph.node for name in node.output}
    cuts = {node.output[0]: cut for node in model.graph.node if (cut := _cut(graph, node, makers)) is not None}
    if not cuts:
        return graph
    taken = {*graph.tensors(), *graph.initializers()}
    nodes = [
        new for node in model.graph.node
        for new in (_written(node, cuts[node.output[0]], model, taken) if node.output[0] in cuts else [node])
    ]  # fmt: skip
    del model.graph.node[:]
    model.graph.node.extend(_needed(nodes, {value.name for value in model.graph.output}))
    del model.graph.value_info[:]  # inferred anew: the views of the whole are gone
    return from_proto(model, name=graph.name, base_dir=graph.base_dir)


def _cut(graph: Graph, gather: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> _Cut | None:
    """Say what range of which tensor a Gather takes; None where it is no such range, or no view lies between."""
    if gather.op_type != "Gather" or gather.input[1] not in graph.initializers():
        return None
    index = graph.constant(gather.input[1])
    views, source = _views(graph, gather.input[0], makers)
    shape = _shape(graph, source)
    if index.ndim or not views or shape is None:
        return None
    places = np.arange(math.prod(shape)).reshape(shape)
    seen = places
    for view in views:
        seen = _seen(graph, view, seen)
    axis = next((a.i for a in gather.attribute if a.name == "axis"), 0)
    return _range(source, places, np.take(seen, int(index), axis), seen.shape[axis])


def _views(graph: Graph, name: str, makers: dict[str, onnx.NodeProto]) -> tuple[list[onnx.NodeProto], str]:
    """Return the views between a tensor and what they are views of, first one first, and the name of that."""
    views: list[onnx.NodeProto] = []
    while name in makers and makers[name].op_type in _VIEWS and _shape(graph, name) is not None:
        views.insert(0, makers[name])
        name = makers[name].input[0]
    return views, name


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    spec = graph.tensors().get(name)
    known = spec is not None and spec.shape is not None and all(isinstance(side, int) for side in spec.shape)
    return tuple(spec.shape) if spec is not None and spec.shape is not None and known else None


def _seen(graph: Graph, view: onnx.NodeProto, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if view.op_type != "Transpose":
        return values.reshape(_shape(graph, view.output[0]) or ())
    order = next((helper.get_attribute_value(a) for a in view.attribute if a.name == "perm"), None)
    return values.transpose(order)


def _range(source: str, places: npt.NDArray[Any], found: npt.NDArray[Any], parts: int) -> _Cut | None:
    """Find the range of an axis that holds `found`, and the view of that range that puts it in its order."""
    for axis, side in enumerate(places.shape):
        if side % parts or parts == 1:
            continue
        width = side // parts
        start = int(found.flat[0]) // math.prod(places.shape[axis + 1 :]) % side
        part = places.take(range(start, min(start + width, side)), axis)
        inside = np.minimum(np.searchsorted(part.ravel(), found), part.size - 1)
        if start % width or part.size != found.size or not np.array_equal(part.ravel()[inside], found):
            continue
        outer_first = _outer_first(inside)
        shape = tuple(found.shape[d] for d in outer_first)
        order = tuple(int(place) for place in np.argsort(outer_first, kind="stable"))
        if np.array_equal(np.arange(part.size).reshape(shape).transpose(order), inside):
            return _Cut(source, axis, start, start + width, shape, order)
    return None


def _outer_first(inside: npt.NDArray[Any]) -> list[int]:
    """Order the axes of a view as the tensor behind it has them; axes of one element move for nothing."""
    steps = {d: int(inside.take(1, d).flat[0]) for d, side in enumerate(inside.shape) if side > 1}
    long = sorted(steps, key=lambda d: -steps[d])
    if long == sorted(long):
        return list(range(inside.ndim))
    return [*(d for d in range(inside.ndim) if d not in steps), *long]


def _written(gather: onnx.NodeProto, cut: _Cut, model: onnx.ModelProto, taken: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that take the place of a Gather; their constants go to the model."""

    def constant(wish: str, *values: int) -> str:
        name = unused(f"{result}_{wish}", taken)
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    result = gather.output[0]
    part, viewed = unused(f"{result}_part", taken), unused(f"{result}_view", taken)
    bounds = [constant("start", cut.start), constant("end", cut.end), constant("axis", cut.axis)]
    moved = cut.order != tuple(range(len(cut.order)))
    nodes = [
        helper.make_node("Slice", [cut.source, *bounds], [part], name=part),
        helper.make_node("Reshape", [part, constant("shape", *cut.shape)], [viewed if moved else result], name=viewed),
    ]
    if moved:
        nodes.append(helper.make_node("Transpose", [viewed], [result], perm=cut.order))
    nodes[-1].name = gather.name
    return nodes


def _needed(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Leave out the views that nobody reads any more."""
    read = set(outputs)
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if node.op_type in _VIEWS and not read & set(node.output):
            continue
        read.update(reads(node))
        kept.append(node)
    return kept[::-1]
