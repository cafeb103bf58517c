"""Reductions, arg-reductions, TopK, CumSum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from compilers.coreml.lower.arithmetic import NUMBERS, log
from compilers.coreml.lower.table import TABLE, lowers
from compilers.coreml.lower.value import FLOATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from compilers.coreml.lower.node import Node

_REDUCTIONS: Final = {
    "ReduceSum": ("reduce_sum", NUMBERS),
    "ReduceMean": ("reduce_mean", FLOATS),
    "ReduceMax": ("reduce_max", NUMBERS),
    "ReduceMin": ("reduce_min", NUMBERS),
    "ReduceProd": ("reduce_prod", NUMBERS),
    "ReduceL1": ("reduce_l1_norm", FLOATS),
    "ReduceL2": ("reduce_l2_norm", FLOATS),
    "ReduceSumSquare": ("reduce_sum_square", FLOATS),
    "ReduceLogSumExp": ("reduce_log_sum_exp", FLOATS),
}


def _reduction(mil_op: str, dtypes: tuple[str, ...]) -> Callable[[Node], None]:
    def lowering(node: Node) -> None:
        node.need_dtype(*dtypes)
        axes = _axes(node)
        if axes is None:
            node.out_value(node.value(0))
            return
        node.out(getattr(node.mil, mil_op)(x=node.x(), axes=axes, keep_dims=bool(node.attr("keepdims"))))

    return lowering


TABLE.update({op: _reduction(*row) for op, row in _REDUCTIONS.items()})


@lowers("ReduceLogSum")
def _reduce_log_sum(node: Node) -> None:
    # MIL's reduce_log_sum adds an epsilon; a plain sum and a plain logarithm do not.
    node.need_dtype(*FLOATS)
    axes = _axes(node)
    if axes is None:
        node.out(log(node, node.x()))
        return
    total = node.mil.reduce_sum(x=node.x(), axes=axes, keep_dims=bool(node.attr("keepdims")))
    node.out(log(node, total))


def _axes(node: Node) -> list[int] | None:
    """Return the axes to reduce; None = reduce nothing (noop_with_empty_axes)."""
    rank = len(node.shape())
    axes = node.ints("axes", 1)
    noop = bool(node.attr("noop_with_empty_axes", 0))
    if not rank:
        node.refuse("a reduction of a scalar is not handled")
    if axes:
        return [node.normal_axis(a, rank) for a in axes]
    return None if noop else list(range(rank))


@lowers("ArgMax", "ArgMin")
def _arg(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    mil_op = {"ArgMax": "reduce_argmax", "ArgMin": "reduce_argmin"}[node.op_type]
    keep, axis, x = bool(node.attr("keepdims")), node.axis(), node.x()
    last = bool(node.attr("select_last_index", 0))
    # MIL returns the first of equals: for the last one, search backwards.
    x = node.mil.reverse(x=x, axes=[axis]) if last else x
    found = getattr(node.mil, mil_op)(x=x, axis=axis, keep_dims=keep)
    size = np.int32(node.shape()[axis] - 1)
    node.out(node.mil.sub(x=size, y=found) if last else found, "int64")


@lowers("TopK")
def _top_k(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    count = int(node.attr("k")) if node.opset < 10 else int(node.const(1).reshape(-1)[0])
    ascending = not node.attr("largest", 1)
    node.attr("sorted", 1)  # MIL sorts always; ONNX leaves the order open when it is 0
    axis = node.axis()
    if count < 1:
        node.refuse("an empty result (k=0) is not handled")
    values, indices = node.mil.topk(x=node.x(), k=count, axis=axis, ascending=ascending)
    node.out(values)
    node.out(indices, "int64", 1)


@lowers("CumSum")
def _cum_sum(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    axis = node.normal_axis(int(np.asarray(node.const(1)).reshape(-1)[0]), len(node.shape()))
    exclusive, backwards = bool(node.attr("exclusive")), bool(node.attr("reverse"))
    node.out(node.mil.cumsum(x=node.x(), axis=axis, exclusive=exclusive, reverse=backwards))
