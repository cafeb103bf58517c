"""The w4 recipe: int4 weights in blocks with a scale each, activations float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphs.graph import GraphError
from graphs.quantisation.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy.typing as npt

    from graphs.graph import Graph

    Array = npt.NDArray[Any]

BLOCK = 32
OPSET = 21  # the first with int4 and with block_size in DequantizeLinear


def quantise_blocks(graph: Graph, keep_float: Collection[str]) -> onnx.ModelProto:
    """Store the constant weights of MatMul, Gemm and Conv as int4 before a block-wise DequantizeLinear.

    Blocks of ``BLOCK`` values lie along the axis that the product sums over (input channels of a Conv, each kernel
    position by itself); symmetric, scale = largest magnitude of the block / 7. Weights with fewer values than a
    block along that axis stay float (depthwise convolutions, the first layer): a scale per value would cost more
    than it saves.

    Raises:
        GraphError: No weight that qualifies.
    """
    model = prepare(graph, opset=OPSET)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    dequantise: dict[tuple[str, int], onnx.NodeProto] = {}
    for node, axis in _weighted(model, keep_float):
        weight = constants.get(node.input[1])
        if weight is None or weight.data_type != onnx.TensorProto.FLOAT or weight.dims[axis] < BLOCK:
            continue
        key = (weight.name, axis)
        if key not in dequantise:
            dequantise[key] = _dequantised(model, weight, axis)
        node.input[1] = dequantise[key].output[0]
    if not dequantise:
        raise GraphError(f"{graph.name} has no constant MatMul, Gemm or Conv weight of {BLOCK} inputs for w4.")
    _put_first(model, list(dequantise.values()))
    _drop_unused_weights(model, {name for name, _ in dequantise})
    return model


def block_scales(weight: Array, axis: int) -> tuple[Array, Array]:
    """Quantise along ``axis``; give int8 values in -7..7 in the weight's shape, and one float32 scale a block."""
    starts = np.arange(0, weight.shape[axis], BLOCK)
    scales = np.maximum.reduceat(np.abs(weight), starts, axis=axis).astype(np.float32) / 7
    scales[scales == 0] = 1.0  # a block of zeros is exact with any scale
    spread = np.repeat(scales, BLOCK, axis=axis).take(np.arange(weight.shape[axis]), axis=axis)
    return np.clip(np.rint(weight / spread), -7, 7).astype(np.int8), scales


def _weighted(model: onnx.ModelProto, keep_float: Collection[str]) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Give the nodes with a weight at port 1 and the axis of it that is summed over."""
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.name in keep_float or node.domain not in {"", "ai.onnx"} or len(node.input) < 2:
            continue
        rank = ranks.get(node.input[1], 0)
        if node.op_type == "Conv":
            yield node, 1
        elif node.op_type == "MatMul" and rank >= 2:
            yield node, rank - 2
        elif node.op_type == "Gemm":
            yield node, 1 if any(attribute.name == "transB" and attribute.i for attribute in node.attribute) else 0


def _dequantised(model: onnx.ModelProto, weight: onnx.TensorProto, axis: int) -> onnx.NodeProto:
    values, scales = block_scales(onnx.numpy_helper.to_array(weight), axis)
    base = f"{weight.name}_w4_axis{axis}"
    packed = onnx.TensorProto(name=f"{base}_quantized", data_type=onnx.TensorProto.INT4, dims=weight.dims)
    packed.raw_data = _pack(values)
    model.graph.initializer.extend([packed, onnx.numpy_helper.from_array(scales, f"{base}_scale")])
    return onnx.helper.make_node(
        "DequantizeLinear",
        [packed.name, f"{base}_scale"],
        [f"{base}_dequantized"],
        name=f"{base}_DequantizeLinear",
        axis=axis,
        block_size=BLOCK,
    )


def _pack(values: Array) -> bytes:
    """Put two values in a byte, the first in the low half, as ONNX stores int4."""
    halves = values.ravel().astype(np.uint8) & 0x0F
    halves = np.append(halves, np.zeros(halves.size % 2, np.uint8))
    return bytes(halves[0::2] | (halves[1::2] << 4))


def _put_first(model: onnx.ModelProto, added: list[onnx.NodeProto]) -> None:
    nodes = [*added, *model.graph.node]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _drop_unused_weights(model: onnx.ModelProto, candidates: set[str]) -> None:
    from graphs.quantisation.prepare import names_in_bodies

    used = {name for node in model.graph.node for name in node.input} | names_in_bodies(model.graph)
    used |= {value.name for value in model.graph.output}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in candidates - used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
