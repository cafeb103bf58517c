"""Give a graph channels-last images at its edge, as the DLC runtime takes them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    import onnx

    from graphs import Graph

TO_CHANNELS_FIRST: Final = (0, 3, 1, 2)
TO_CHANNELS_LAST: Final = (0, 2, 3, 1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChannelsLast:
    """A graph whose listed inputs and outputs are [N, H, W, C]; their names are unchanged."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def channels_last(graph: Graph) -> ChannelsLast:
    """Turn every rank-4 graph input and output from [N, C, H, W] to [N, H, W, C] by a Transpose at the edge.

    Constants among the outputs, which no DLC gives, stay as they are. The compiler keeps its convolutions
    channels-last, so it cancels these against its own.

    Raises:
        CompilerError: an operator has a body (If, Loop, Scan), whose captures would keep the old layout.
    """
    from graphs import from_proto

    model = graph.proto()
    _refuse_bodies(model.graph)
    inputs = [value for value in model.graph.input if _is_image(value)]
    constants = {constant.name for constant in model.graph.initializer}
    outputs = [value for value in model.graph.output if _is_image(value) and value.name not in constants]
    taken = _names(model.graph)
    front = [_transposed_input(model.graph, value, taken) for value in inputs]
    back = [_transposed_output(model.graph, value, taken) for value in outputs]
    nodes = [*front, *model.graph.node, *back]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]  # the renamed tensors' old entries would contradict the new shapes
    return ChannelsLast(
        graph=from_proto(model, name=graph.name, base_dir=graph.base_dir),
        inputs=tuple(value.name for value in inputs),
        outputs=tuple(value.name for value in outputs),
    )


def _transposed_input(graph: onnx.GraphProto, value: onnx.ValueInfoProto, taken: set[str]) -> onnx.NodeProto:
    from onnx import helper

    inner = _free_name(f"{value.name}_nchw", taken)
    for node in graph.node:
        _replace(node.input, value.name, inner)
    _permute(value, TO_CHANNELS_LAST)
    name = _free_name(f"{value.name}_from_nhwc", taken)
    return helper.make_node("Transpose", [value.name], [inner], name=name, perm=TO_CHANNELS_FIRST)


def _transposed_output(graph: onnx.GraphProto, value: onnx.ValueInfoProto, taken: set[str]) -> onnx.NodeProto:
    from onnx import helper

    inner = _free_name(f"{value.name}_nchw", taken)
    for node in graph.node:
        _replace(node.input, value.name, inner)
        _replace(node.output, value.name, inner)
    _permute(value, TO_CHANNELS_LAST)
    name = _free_name(f"{value.name}_to_nhwc", taken)
    return helper.make_node("Transpose", [inner], [value.name], name=name, perm=TO_CHANNELS_LAST)


def _replace(names: object, old: str, new: str) -> None:
    assert hasattr(names, "__setitem__")
    for index, name in enumerate(list(names)):  # type: ignore[call-overload]
        if name == old:
            names[index] = new


def _permute(value: onnx.ValueInfoProto, order: tuple[int, ...]) -> None:
    dims = [int(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
    for dim, source in zip(value.type.tensor_type.shape.dim, order, strict=True):
        dim.dim_value = dims[source]


def _is_image(value: onnx.ValueInfoProto) -> bool:
    return len(value.type.tensor_type.shape.dim) == 4


def _names(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
    return names | {value.name for value in (*graph.input, *graph.output, *graph.initializer)}


def _free_name(wish: str, taken: set[str]) -> str:
    name = wish
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _refuse_bodies(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise CompilerError(f"operator {node.op_type} ({node.name}) has a body, which no DLC holds; leave it out")
