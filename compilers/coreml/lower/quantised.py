"""QuantizeLinear and DequantizeLinear: activations as operations, weights as 8-bit constants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS, Blockwise, Quantised, Value

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node

Array = np.ndarray[Any, Any]

BYTES = ("uint8", "int8")
NARROW = ("int4", "uint4")


@lowers("QuantizeLinear")
def _quantize(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.attr("saturate")  # about float8 only
    node.require("precision", 0, default=0)
    dtype = _quantised_dtype(node)
    axis, scale, zero_point = _parameters(node, dtype)
    arguments = {} if axis is None else {"axis": np.int32(axis)}
    x = node.squeezed() if axis is None else node.x()
    node.out_like(
        node.mil.quantize(input=x, scale=scale, zero_point=zero_point, output_dtype=dtype, **arguments), dtype
    )


def _quantised_dtype(node: Node) -> str:
    import onnx

    stated = int(node.attr("output_dtype", 0))
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(stated)) if stated else "uint8"
    dtype = node.dtype(2) if node.has(2) else dtype
    if dtype not in BYTES:
        node.refuse(f"quantised type {dtype} is not handled, only uint8 and int8, the two that MIL quantises to")
    return dtype


@lowers("DequantizeLinear")
def _dequantize(node: Node) -> None:
    source = node.value(0)
    node.require("output_dtype", 0, *_float_codes(), default=0)
    result = node.dtype(1)
    if source.const is not None and source.dtype == "int32":
        node.out_value(_folded_bias(node))
    elif source.const is not None and _is_blockwise(node, source.dtype):
        node.out_value(_blockwise_constant(node, source.const))
    elif source.dtype not in BYTES:
        node.refuse(f"input 0 of type {source.dtype} is not handled, only uint8, int8, constant int4, uint4 and int32")
    elif source.const is not None:
        node.out_value(_eight_bit_constant(node, source.const))
    else:
        axis, scale, zero_point = _parameters(node, source.dtype)
        arguments = {} if axis is None else {"axis": np.int32(axis)}
        x = node.squeezed() if axis is None else node.x()
        node.out_like(node.mil.dequantize(input=x, scale=scale, zero_point=zero_point, **arguments), result)


def _float_codes() -> tuple[int, ...]:
    import onnx

    return (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


def _folded_bias(node: Node) -> Value:
    """Dequantise an int32 constant now: MIL's dequantize has no int32.

    In float32 as ONNX Runtime does it: a bias above 2^24 is rounded twice, and rounding it once moves
    activations that lie near a rounding step.
    """
    axis, scale, zero_point = _parameters(node, "int32")
    data = node.const(0)
    shape = [1] * data.ndim
    if axis is not None:
        shape[axis] = -1
    steps = (data - zero_point.reshape(shape)).astype(np.float32)
    values = steps * scale.astype(np.float32).reshape(shape)
    return Value(name="", dtype=node.dtype(1), const=values.astype(node.dtype(1)))


def _eight_bit_constant(node: Node, data: Array) -> Value:
    """Keep a constant 8-bit, as uint8: signed bytes come out wrong on the GPU and NPU (coremltools #2114)."""
    axis, scale, zero_point = _parameters(node, str(data.dtype))
    if data.dtype == np.int8:
        data, zero_point = ((v.astype(np.int16) + 128).astype(np.uint8) for v in (data, zero_point))
    if not data.ndim:
        value = (scale * (data.astype(np.float32) - zero_point.astype(np.float32))).astype(scale.dtype)
        return Value(name="", dtype=str(scale.dtype), const=value)
    quantised = Quantised(data=data, scale=scale, zero_point=zero_point, axis=axis or 0)
    return Value(name="", dtype=str(scale.dtype), quantised=quantised)


def _is_blockwise(node: Node, dtype: str) -> bool:
    return dtype in NARROW or (dtype in BYTES and bool(node.attr("block_size", 0)))


def _blockwise_constant(node: Node, data: Array) -> Value:
    """Keep a constant 4-bit, or 8-bit with a scale per block (iOS18).

    MIL has blocks of one size, and ONNX a shorter last one: then the common divisor is the size and scales repeat.
    """
    scale = node.const(1)
    if str(scale.dtype) not in FLOATS:
        node.refuse(f"scale of type {scale.dtype} is not handled")
    zero_point = node.const(2) if node.has(2) else None
    if zero_point is not None and (zero_point.dtype != data.dtype or zero_point.shape != scale.shape):
        node.refuse(f"zero point {zero_point.dtype}{zero_point.shape} does not fit {data.dtype} and {scale.shape}")
    axis = node.normal_axis(int(node.attr("axis", 1)), data.ndim)

    def blocks(parameter: Array) -> Array:
        return _per_block(node, parameter, data.shape, axis)

    quantised = Blockwise(data=data, scale=blocks(scale), zero_point=None if zero_point is None else blocks(zero_point))
    return Value(name="", dtype=str(scale.dtype), quantised=quantised)


def _per_block(node: Node, parameter: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return a scale or zero point with as many axes as the constant, its blocks of one size."""
    size, length = int(node.attr("block_size", 0)), shape[axis]
    if parameter.size == 1 and not size:
        return parameter.reshape([1] * len(shape))
    if not size:
        if parameter.shape != (length,):
            node.refuse(f"scale of shape {parameter.shape} along axis {axis} of {shape} is not handled")
        return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    expected = tuple(-(-n // size) if i == axis else n for i, n in enumerate(shape))
    if parameter.shape != expected:
        node.refuse(f"scale of shape {parameter.shape} does not fit blocks of {size} along axis {axis} of {shape}")
    even = math.gcd(size, length)
    starts = np.arange(0, length, even) // size
    return np.ascontiguousarray(parameter.take(starts, axis=axis)) if length % size else parameter


def _parameters(node: Node, dtype: str) -> tuple[int | None, Array, Array]:
    """Return (axis or None, scale, zero point); one value for the whole tensor is a scalar without axis."""
    node.require("block_size", 0, default=0)
    scale = node.const(1)
    if str(scale.dtype) not in FLOATS:
        node.refuse(f"scale of type {scale.dtype} is not handled")
    zero_point = node.const(2) if node.has(2) else np.zeros(scale.shape, dtype)
    if scale.size == zero_point.size == 1:  # () and (1,) mean the same, and exporters mix them
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    if str(zero_point.dtype) != dtype or zero_point.shape != scale.shape:
        node.refuse(f"zero point {zero_point.dtype}{zero_point.shape} does not fit {dtype} and scale {scale.shape}")
    stated = node.attr("axis", 1)
    if scale.size == 1:
        return None, scale.reshape(()), zero_point.reshape(())
    axis = node.normal_axis(int(stated), len(node.shape()))
    if scale.ndim != 1 or scale.size != node.shape()[axis]:
        node.refuse(f"scale of shape {scale.shape} along axis {axis} of {node.shape()} is not handled")
    return axis, scale, zero_point
