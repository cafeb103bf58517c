"""Activation functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from compilers.coreml.lower.arithmetic import log
from compilers.coreml.lower.table import TABLE, lowers
from compilers.coreml.lower.value import FLOATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar

_PLAIN: Final = {"Relu": "relu", "Sigmoid": "sigmoid", "Softsign": "softsign"}
_WITH_ALPHA: Final = {"LeakyRelu": "leaky_relu", "Elu": "elu"}


def _plain(mil_op: str) -> Callable[[Node], None]:
    def lowering(node: Node) -> None:
        node.need_dtype(*FLOATS)
        node.out(getattr(node.mil, mil_op)(x=node.x()))

    return lowering


def _with_alpha(mil_op: str) -> Callable[[Node], None]:
    def lowering(node: Node) -> None:
        node.need_dtype(*FLOATS)
        node.out(getattr(node.mil, mil_op)(x=node.x(), alpha=node.like(node.attr("alpha"))))

    return lowering


TABLE.update({op: _plain(mil) for op, mil in _PLAIN.items()})
TABLE.update({op: _with_alpha(mil) for op, mil in _WITH_ALPHA.items()})


@lowers("HardSigmoid")
def _hard_sigmoid(node: Node) -> None:
    node.need_dtype(*FLOATS)
    alpha, beta = node.like(node.attr("alpha")), node.like(node.attr("beta"))
    node.out(node.mil.sigmoid_hard(x=node.x(), alpha=alpha, beta=beta))


@lowers("HardSwish")
def _hard_swish(node: Node) -> None:
    node.need_dtype(*FLOATS)
    gate = node.mil.sigmoid_hard(x=node.x(), alpha=node.like(1 / 6), beta=node.like(0.5))
    node.out(node.mil.mul(x=node.x(), y=gate))


@lowers("Swish")
def _swish(node: Node) -> None:
    node.need_dtype(*FLOATS)
    x = node.x()
    scaled = node.mil.mul(x=x, y=node.like(node.attr("alpha")))
    node.out(node.mil.mul(x=x, y=node.mil.sigmoid(x=scaled)))


@lowers("Selu")
def _selu(node: Node) -> None:
    node.need_dtype(*FLOATS)
    inner = node.mil.elu(x=node.x(), alpha=node.like(node.attr("alpha")))
    node.out(node.mil.mul(x=inner, y=node.like(node.attr("gamma"))))


@lowers("Celu")
def _celu(node: Node) -> None:
    # max(0, x) + alpha * min(0, exp(x / alpha) - 1): an elu of the negative part.
    node.need_dtype(*FLOATS)
    alpha = node.like(node.attr("alpha"))
    scaled = node.mil.real_div(x=node.x(), y=alpha)
    node.out(node.mil.mul(x=node.mil.elu(x=scaled, alpha=node.like(1)), y=alpha))


@lowers("ThresholdedRelu")
def _thresholded_relu(node: Node) -> None:
    # MIL's thresholded_relu keeps x == alpha, ONNX drops it.
    node.need_dtype(*FLOATS)
    x = node.x()
    above = node.mil.greater(x=x, y=node.like(node.attr("alpha")))
    zeros = node.mil.mul(x=x, y=node.like(0))
    node.out(node.mil.select(cond=above, a=x, b=zeros))


@lowers("PRelu")
def _prelu(node: Node) -> None:
    node.need_dtype(*FLOATS)
    shape, slope = node.shape(0), node.shape(1)
    per_channel = len(shape) >= 3 and slope == (shape[1],) + (1,) * (len(shape) - 2)
    if per_channel and node.is_const(1):
        node.out(node.mil.prelu(x=node.x(), alpha=node.constant(node.const(1).reshape(-1))))
        return
    mil = node.mil
    negative = mil.minimum(x=node.x(0), y=node.like(0))
    node.out(mil.add(x=mil.relu(x=node.x(0)), y=mil.mul(x=negative, y=node.x(1))))


@lowers("Gelu", "com.microsoft::Gelu")
def _gelu(node: Node) -> None:
    node.need_dtype(*FLOATS)
    mode = node.attr("approximate", "none")
    modes = {"none": "EXACT", "tanh": "TANH_APPROXIMATION"}
    if mode not in modes:
        node.refuse(f"attribute approximate={mode} is not handled")
    node.out(node.mil.gelu(x=node.x(), mode=modes[mode]))


@lowers("Softplus")
def _softplus(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.out(softplus(node, node.x()))


def softplus(node: Node, x: MilVar) -> MilVar:
    """log(1 + exp(x)) that neither overflows nor uses MIL's softplus, which drops to 0 on the Neural Engine."""
    mil = node.mil
    tail = mil.exp(x=mil.mul(x=mil.abs(x=x), y=node.like(-1)))
    return mil.add(x=mil.relu(x=x), y=log(node, mil.add(x=tail, y=node.like(1))))


@lowers("Mish")
def _mish(node: Node) -> None:
    node.need_dtype(*FLOATS)
    x = node.x()
    node.out(node.mil.mul(x=x, y=node.mil.tanh(x=softplus(node, x))))


@lowers("Shrink")
def _shrink(node: Node) -> None:
    node.need_dtype(*FLOATS)
    x, mil = node.x(), node.mil
    lambd, bias = float(node.attr("lambd")), float(node.attr("bias"))
    zeros = mil.mul(x=x, y=node.like(0))
    high = mil.select(cond=mil.greater(x=x, y=node.like(lambd)), a=mil.sub(x=x, y=node.like(bias)), b=zeros)
    low = mil.less(x=x, y=node.like(-lambd))
    node.out(mil.select(cond=low, a=mil.add(x=x, y=node.like(bias)), b=high))


@lowers("Softmax", "LogSoftmax", "Hardmax")
def _softmax_family(node: Node) -> None:
    node.need_dtype(*FLOATS)
    shape = node.shape()
    axis = node.axis()
    function = {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}[node.op_type]
    if node.opset >= 13 or axis == len(shape) - 1:
        node.out(function(node, node.x(), axis, shape))
        return
    # Before opset 13 the input is a matrix: all axes from `axis` on share one normalisation.
    matrix = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
    flat = node.mil.reshape(x=node.x(), shape=list(matrix))
    node.out(node.mil.reshape(x=function(node, flat, 1, matrix), shape=list(shape)))


def _softmax(node: Node, x: MilVar, axis: int, shape: tuple[int, ...]) -> MilVar:  # noqa: ARG001
    return node.mil.softmax(x=x, axis=axis)


def _log_softmax(node: Node, x: MilVar, axis: int, shape: tuple[int, ...]) -> MilVar:  # noqa: ARG001
    # log(softmax) would floor at the smallest float.
    mil = node.mil
    shifted = mil.sub(x=x, y=mil.reduce_max(x=x, axes=[axis], keep_dims=True))
    total = mil.reduce_sum(x=mil.exp(x=shifted), axes=[axis], keep_dims=True)
    return mil.sub(x=shifted, y=log(node, total))


def _hardmax(node: Node, x: MilVar, axis: int, shape: tuple[int, ...]) -> MilVar:
    mil = node.mil
    first = mil.reduce_argmax(x=x, axis=axis, keep_dims=True)
    counter = np.arange(shape[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    hit = mil.equal(x=first, y=node.constant(counter))
    return mil.cast(x=hit, dtype="fp16" if node.dtype() == "float16" else "fp32")
