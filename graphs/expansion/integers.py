"""Quantised operators in the forms of ONNX Runtime's quantisers: Q/DQ pairs around the float operator.

QLinear* are by definition what the float operator gives between a DequantizeLinear and a QuantizeLinear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx

from graphs.expansion.parts import Impossible, Parts

if TYPE_CHECKING:
    from collections.abc import Callable

# DequantizeLinear has an axis from here on.
_FIRST_WITH_AXIS: Final = 13
_MIDDLE: Final = 128


def qlinear_conv(parts: Parts) -> list[str]:
    """Replace QLinearConv(x, scale, zero, w, scale, zero, scale, zero, bias)."""
    x, weight = _dequantised(parts, 0), _weights(parts, 3, axis=0)
    operands = [x, weight]
    if parts.has(8):
        scale = parts.known(1, "input scale").reshape(()) * parts.known(4, "weight scale").reshape(-1)
        operands.append(_bias(parts, 8, scale))
    return [_quantised(parts, _copied(parts, "Conv", *operands), 6)]


def qlinear_matmul(parts: Parts) -> list[str]:
    """Replace QLinearMatMul(a, scale, zero, b, scale, zero, scale, zero)."""
    a, b = _dequantised(parts, 0), _weights(parts, 3, axis=len(parts.shape(3)) - 1)
    return [_quantised(parts, parts("MatMul", a, b), 6)]


def qgemm(parts: Parts) -> list[str]:
    """Replace com.microsoft.QGemm(a, scale, zero, b, scale, zero, bias, scale, zero), which may stay float."""
    transposed = int(parts.attr("transB", 0))
    a, b = _dequantised(parts, 0), _weights(parts, 3, axis=0 if transposed else 1)
    operands = [a, b]
    if parts.has(6):
        scale = parts.known(1, "input scale").reshape(()) * parts.known(4, "weight scale").reshape(-1)
        operands.append(_bias(parts, 6, np.asarray(parts.attr("alpha", 1.0) * scale, np.float32)))
    value = parts("Gemm", *operands, alpha=parts.attr("alpha", 1.0), transA=parts.attr("transA", 0), transB=transposed)
    return [_quantised(parts, value, 7) if parts.has(7) else value]


def qlinear_binary(op_type: str) -> Callable[[Parts], list[str]]:
    """Replace com.microsoft.QLinearAdd and the like: (a, scale, zero, b, scale, zero, scale, zero)."""
    return lambda parts: [_quantised(parts, parts(op_type, _dequantised(parts, 0), _dequantised(parts, 3)), 6)]


def qlinear_unary(op_type: str) -> Callable[[Parts], list[str]]:
    """Replace com.microsoft.QLinearSigmoid and the like: (x, scale, zero, scale, zero)."""

    def rule(parts: Parts) -> list[str]:
        if parts.attr("channels_last", 0):
            raise Impossible("its channels are last")
        return [_quantised(parts, _copied(parts, op_type, _dequantised(parts, 0)), 3)]

    return rule


def qlinear_concat(parts: Parts) -> list[str]:
    """Replace com.microsoft.QLinearConcat(scale, zero, (x, scale, zero)...)."""
    values = [_dequantised(parts, position) for position in range(2, len(parts.node.input), 3)]
    return [_quantised(parts, parts("Concat", *values, axis=parts.attr("axis", 0)), 0)]


def standard(parts: Parts) -> list[str]:
    """Replace a com.microsoft operator that is the standard one of the same name."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in parts.node.attribute}
    return parts.many(parts.node.op_type, *parts.node.input, count=len(parts.node.output), **attributes)


def dynamic_matmul(parts: Parts) -> list[str]:
    """Replace com.microsoft.DynamicQuantizeMatMul(a, b, b's scale, b's zero, bias)."""
    steps, scale, zero = parts.many("DynamicQuantizeLinear", parts.input(0), count=3)
    return [_integer_product(parts, (steps, scale, zero), parts.input(2), 3, 4)]


def matmul_to_float(parts: Parts) -> list[str]:
    """Replace com.microsoft.MatMulIntegerToFloat(a, b, a's scale, b's scale, a's zero, b's zero, bias)."""
    zero = parts.input(4) if parts.has(4) else ""
    return [_integer_product(parts, (parts.input(0), parts.input(2), zero), parts.input(3), 5, 6)]


def _integer_product(parts: Parts, left: tuple[str, str, str], scale: str, zero_at: int, bias_at: int) -> str:
    steps, left_scale, left_zero = left
    zero = parts.input(zero_at) if parts.has(zero_at) else ""
    total = parts.cast(parts("MatMulInteger", steps, parts.input(1), left_zero, zero), np.float32)
    value = parts("Mul", total, parts("Mul", left_scale, scale))
    return parts("Add", value, parts.input(bias_at)) if parts.has(bias_at) else value


def _copied(parts: Parts, op_type: str, *inputs: str) -> str:
    """Add the float operator with the attributes of the quantised one that it has."""
    known = onnx.defs.get_schema(op_type, parts.opset).attributes
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in parts.node.attribute if a.name in known}
    return parts(op_type, *inputs, **attributes)


def _dequantised(parts: Parts, position: int) -> str:
    return parts("DequantizeLinear", *_coded(parts, position))


def _quantised(parts: Parts, value: str, position: int) -> str:
    """Quantise with the scale at a position and the zero point behind it, whose type is the result's."""
    scale, zero = (_scalar(parts, position + index) for index in range(2))
    return parts("QuantizeLinear", value, scale, zero)


def _coded(parts: Parts, position: int) -> tuple[str | Any, ...]:
    return parts.input(position), _scalar(parts, position + 1), _scalar(parts, position + 2)


def _scalar(parts: Parts, position: int) -> str | Any:  # noqa: ANN401
    """Return a scale or zero point of a whole tensor; [1] counts as a scalar, and scales are float32.

    The sum of products is exact in any type of the scale, and float16 would round what is made of it.
    """
    value = parts.constant(position)
    if value is None:
        half = parts.type_name(position) == "float16"
        return parts.cast(parts.input(position), np.float32) if half else parts.input(position)
    if value.size != 1:
        raise Impossible(f"its input {position} differs by channel")
    return (value.astype(np.float32) if value.dtype == np.float16 else value).reshape(())


def _weights(parts: Parts, position: int, *, axis: int) -> str:
    """Dequantise what may have a scale for each channel; constant bytes around 128 become int8 around 0."""
    steps, scale, zero = (parts.constant(position + index) for index in range(3))
    if steps is None or scale is None or zero is None:
        return _dequantised(parts, position)
    scale = scale.astype(np.float32)
    if steps.dtype == np.uint8 and (zero == _MIDDLE).all():
        steps, zero = (steps.astype(np.int16) - _MIDDLE).astype(np.int8), np.zeros(zero.shape, np.int8)
    if scale.size == 1:
        return parts("DequantizeLinear", steps, scale.reshape(()), zero.reshape(-1)[0])
    if parts.opset < _FIRST_WITH_AXIS:
        raise Impossible(f"the model's opset is older than {_FIRST_WITH_AXIS}, which has no scales by channel")
    zeros = np.broadcast_to(zero.reshape(-1), scale.reshape(-1).shape)
    return parts("DequantizeLinear", steps, scale.reshape(-1), zeros, axis=axis)


def _bias(parts: Parts, position: int, scale: np.ndarray[Any, Any]) -> str:
    """Dequantise an int32 bias, whose scale is that of the product."""
    scale = np.asarray(scale, np.float32)
    if scale.size == 1:
        return parts("DequantizeLinear", parts.input(position), scale.reshape(()))
    if parts.opset < _FIRST_WITH_AXIS:
        raise Impossible(f"the model's opset is older than {_FIRST_WITH_AXIS}, which has no scales by channel")
    return parts("DequantizeLinear", parts.input(position), scale, axis=0)
