"""Normalisation layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar


@lowers("BatchNormalization")
def _batch_norm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.require("training_mode", 0, default=0)
    node.require("spatial", 1, default=1)
    node.attr("momentum")  # updates the running statistics, in training only
    epsilon, rank = float(node.attr("epsilon")), len(node.shape())
    gamma, beta, mean, variance = (node.const(i) for i in range(1, 5))
    if 3 <= rank <= 5:
        named = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
        constants = {name: node.constant(array) for name, array in named.items()}
        node.out(node.mil.batch_norm(x=node.x(), epsilon=node.like(epsilon), **constants))
        return
    scale = gamma / np.sqrt(variance + variance.dtype.type(epsilon))
    node.out(_scale_shift(node, node.x(), node.constant(scale), node.constant(beta - mean * scale)))


def _scale_shift(node: Node, x: MilVar, scale: MilVar, shift: MilVar) -> MilVar:
    return node.mil.add(x=node.mil.mul(x=x, y=scale), y=shift)


@lowers("InstanceNormalization")
def _instance_norm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    shape = node.shape()
    epsilon = node.like(float(node.attr("epsilon")))
    if len(shape) in (3, 4) and node.is_const(1) and node.is_const(2):
        gamma, beta = node.constant(node.const(1)), node.constant(node.const(2))
        node.out(node.mil.instance_norm(x=node.x(), gamma=gamma, beta=beta, epsilon=epsilon))
        return
    normal = node.mil.layer_norm(x=node.x(), axes=list(range(2, len(shape))), epsilon=epsilon)
    node.out(_scale_shift(node, normal, *(_per_channel(node, i, shape) for i in (1, 2))))


def _per_channel(node: Node, index: int, shape: tuple[int, ...]) -> MilVar:
    target = [1, shape[1], *[1] * (len(shape) - 2)]
    if node.is_const(index):
        return node.constant(node.const(index).reshape(target))
    return node.mil.reshape(x=node.x(index), shape=target)


@lowers("LayerNormalization")
def _layer_norm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.require("stash_type", 1, default=1)
    shape = node.shape()
    axis = node.axis()
    axes, epsilon = list(range(axis, len(shape))), node.like(float(node.attr("epsilon")))
    for index in (1, 2):
        if node.uses_output(index):
            node.out(_statistic(node, axes, epsilon, index), index=index)
    whole = all(not node.has(i) or (node.is_const(i) and node.shape(i) == shape[axis:]) for i in (1, 2))
    if whole:
        named = {"gamma": 1, "beta": 2}
        constants = {name: node.constant(node.const(i)) for name, i in named.items() if node.has(i)}
        node.out(node.mil.layer_norm(x=node.x(), axes=axes, epsilon=epsilon, **constants))
        return
    result = node.mil.layer_norm(x=node.x(), axes=axes, epsilon=epsilon)
    result = node.mil.mul(x=result, y=node.x(1))
    node.out(node.mil.add(x=result, y=node.x(2)) if node.has(2) else result)


def _statistic(node: Node, axes: list[int], epsilon: MilVar, index: int) -> MilVar:
    """Return output 1, the mean, or output 2, the inverse standard deviation."""
    mil = node.mil
    mean = mil.reduce_mean(x=node.x(), axes=axes, keep_dims=True)
    if index == 1:
        return mean
    centred = mil.sub(x=node.x(), y=mean)
    variance = mil.reduce_mean(x=mil.mul(x=centred, y=centred), axes=axes, keep_dims=True)
    return mil.real_div(x=node.like(1), y=mil.sqrt(x=mil.add(x=variance, y=epsilon)))


@lowers("RMSNormalization")
def _rms_norm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.require("stash_type", 1, default=1)
    axes, mil = list(range(node.axis(), len(node.shape()))), node.mil
    square = mil.reduce_mean(x=mil.mul(x=node.x(), y=node.x()), axes=axes, keep_dims=True)
    root = mil.sqrt(x=mil.add(x=square, y=node.like(float(node.attr("epsilon")))))
    node.out(mil.mul(x=mil.real_div(x=node.x(), y=root), y=node.x(1)))


@lowers("GroupNormalization")
def _group_norm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.require("stash_type", 1, default=1)
    shape, groups, mil = node.shape(), int(node.attr("num_groups")), node.mil
    epsilon = node.like(float(node.attr("epsilon")))
    grouped = mil.reshape(x=node.x(), shape=[shape[0], groups, int(np.prod(shape[1:])) // groups])
    normal = mil.layer_norm(x=grouped, axes=[2], epsilon=epsilon)
    if node.shape(1) == (shape[1],):
        normal = mil.reshape(x=normal, shape=list(shape))
        node.out(_scale_shift(node, normal, *(_per_channel(node, i, shape) for i in (1, 2))))
        return
    # Opset 18 has one scale and bias per group.
    scaled = _scale_shift(node, normal, *(_per_channel(node, i, (1, groups, 1)) for i in (1, 2)))
    node.out(mil.reshape(x=scaled, shape=list(shape)))


@lowers("LpNormalization")
def _lp_norm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    order = int(node.attr("p"))
    node.require("p", 1, 2)
    mil_op = {1: "reduce_l1_norm", 2: "reduce_l2_norm"}[order]
    norm = getattr(node.mil, mil_op)(x=node.x(), axes=[node.axis()], keep_dims=True)
    # ONNX returns zeros for a zero vector; dividing by 1 there does the same.
    mil = node.mil
    is_zero = mil.equal(x=norm, y=node.like(0))
    one = mil.add(x=mil.mul(x=norm, y=node.like(0)), y=node.like(1))
    node.out(mil.real_div(x=node.x(), y=mil.select(cond=is_zero, a=one, b=norm)))


@lowers("LRN")
def _lrn(node: Node) -> None:
    # Sum of squares over a channel window; an even window reaches one further to the end in ONNX.
    node.need_dtype(*FLOATS)
    shape, size, mil = node.shape(), int(node.attr("size")), node.mil
    alpha, beta, bias = (float(node.attr(name)) for name in ("alpha", "beta", "bias"))
    before = (size - 1) // 2
    rows = [shape[0], 1, shape[1], int(np.prod(shape[2:]))]
    square = mil.reshape(x=mil.mul(x=node.x(), y=node.x()), shape=rows)
    mean = mil.avg_pool(
        x=square,
        kernel_sizes=[size, 1],
        strides=[1, 1],
        pad_type="custom",
        pad=[before, size - 1 - before, 0, 0],
        exclude_padding_from_average=False,
    )
    mean = mil.reshape(x=mean, shape=list(shape))
    base = mil.add(x=mil.mul(x=mean, y=node.like(alpha)), y=node.like(bias))
    node.out(mil.real_div(x=node.x(), y=mil.pow(x=base, y=node.like(beta))))


@lowers("MeanVarianceNormalization")
def _mvn(node: Node) -> None:
    node.need_dtype(*FLOATS)
    axes, mil = node.ints("axes") or [0, 2, 3], node.mil
    centred = mil.sub(x=node.x(), y=mil.reduce_mean(x=node.x(), axes=axes, keep_dims=True))
    variance = mil.reduce_mean(x=mil.mul(x=centred, y=centred), axes=axes, keep_dims=True)
    node.out(mil.real_div(x=centred, y=mil.add(x=mil.sqrt(x=variance), y=node.like(1e-9))))
