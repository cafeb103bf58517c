"""ONNX Runtime's own operators (com.microsoft), as its optimisers write them into models of transformers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphs.expansion.parts import Impossible, Parts

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_LAYER_NORMALIZATION = 17


def gelu(parts: Parts) -> list[str]:
    """Replace Gelu, and BiasGelu, which adds its second input first."""
    x, half = _with_bias(parts), _scalar(parts, 0.5)
    erf = parts("Erf", parts("Mul", x, _scalar(parts, math.sqrt(0.5))))
    return [parts("Mul", parts("Mul", x, half), parts("Add", erf, _scalar(parts, 1)))]


def fast_gelu(parts: Parts) -> list[str]:
    """Replace FastGelu: Gelu by tanh."""
    x = _with_bias(parts)
    cube = parts("Mul", parts("Mul", x, x), x)
    inner = parts("Add", x, parts("Mul", cube, _scalar(parts, 0.044715)))
    tanh = parts("Tanh", parts("Mul", inner, _scalar(parts, math.sqrt(2 / math.pi))))
    return [parts("Mul", parts("Mul", x, _scalar(parts, 0.5)), parts("Add", tanh, _scalar(parts, 1)))]


def quick_gelu(parts: Parts) -> list[str]:
    """Replace QuickGelu: x sigmoid(alpha x)."""
    x = parts.input(0)
    return [parts("Mul", x, parts("Sigmoid", parts("Mul", x, _scalar(parts, parts.attr("alpha", 1.702)))))]


def skip_layer_normalization(parts: Parts) -> list[str | None]:
    """Replace SkipLayerNormalization(x, skip, scale, bias, bias of the sum)."""
    total = _sum(parts, 4)
    bias = [parts.input(3)] if parts.has(3) else []
    if parts.opset < _FIRST_LAYER_NORMALIZATION:
        raise Impossible(f"the model's opset is older than {_FIRST_LAYER_NORMALIZATION}")
    epsilon = parts.attr("epsilon", 1e-5)
    return [parts("LayerNormalization", total, parts.input(2), *bias, axis=-1, epsilon=epsilon), None, None, total]


def skip_rms_normalization(parts: Parts) -> list[str | None]:
    """Replace SkipSimplifiedLayerNormalization(x, skip, scale, bias of the sum)."""
    total = _sum(parts, 3)
    return [_rms(parts, total, parts.input(2), -1), None, None, total]


def rms_normalization(parts: Parts) -> list[str]:
    """Replace SimplifiedLayerNormalization(x, scale)."""
    return [_rms(parts, parts.input(0), parts.input(1), parts.attr("axis", -1))]


def fused_matmul(parts: Parts) -> list[str]:
    """Replace FusedMatMul: operands transposed, and the product scaled."""
    if parts.attr("transBatchA", 0) or parts.attr("transBatchB", 0):
        raise Impossible("transposed batches are not handled")
    operands = []
    for position, name in enumerate(("transA", "transB")):
        rank = len(parts.shape(position))
        order = [*range(rank - 2), rank - 1, rank - 2]
        value = parts.input(position)
        operands.append(parts("Transpose", value, perm=order) if parts.attr(name, 0) else value)
    product, alpha = parts("MatMul", *operands), parts.attr("alpha", 1.0)
    return [product if alpha == 1 else parts("Mul", product, _scalar(parts, alpha))]


def fused(op_type: str) -> Callable[[Parts], list[str]]:
    """Replace FusedConv or FusedGemm: a sum may be added to a convolution, and an activation follows."""

    def rule(parts: Parts) -> list[str]:
        known = onnx.defs.get_schema(op_type, parts.opset).attributes
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in parts.node.attribute if a.name in known}
        inputs = list(parts.node.input)
        value = parts(op_type, *filter(None, inputs[:3]), **attributes)
        if len(inputs) > 3 and inputs[3]:
            value = parts("Add", value, inputs[3])
        activation = parts.attr("activation", "")
        if activation not in ("", "Relu", "Sigmoid", "Tanh"):
            raise Impossible(f"its activation {activation} is not handled")
        return [parts(activation, value) if activation else value]

    return rule


def _with_bias(parts: Parts) -> str:
    return parts("Add", parts.input(0), parts.input(1)) if parts.has(1) else parts.input(0)


def _sum(parts: Parts, bias: int) -> str:
    total = parts("Add", parts.input(0), parts.input(1))
    return parts("Add", total, parts.input(bias)) if parts.has(bias) else total


def _rms(parts: Parts, x: str, scale: str, axis: int) -> str:
    rank = len(parts.shape(0))
    mean = parts.reduce("ReduceMean", parts("Mul", x, x), list(range(axis % rank, rank)))
    root = parts("Sqrt", parts("Add", mean, _scalar(parts, parts.attr("epsilon", 1e-5))))
    return parts("Mul", parts("Div", x, root), scale)


def _scalar(parts: Parts, value: float) -> np.ndarray[Any, Any]:
    return np.array(value, parts.dtype(0))
