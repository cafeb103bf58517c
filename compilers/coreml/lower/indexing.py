"""Gather and scatter. From iOS17 on a negative index is undefined in most of them, so none reaches MIL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compilers.coreml.lower.arithmetic import NUMBERS
from compilers.coreml.lower.layout import slice_var
from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS, INTEGERS

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar


def _indices(node: Node, index: int, limits: int | np.ndarray[Any, Any]) -> MilVar:
    """Return index input `index` with negative entries counted from the end; constants are checked."""
    node.need_dtype(*INTEGERS, index=index)
    if node.is_const(index):
        stated = node.const(index)
        if np.any(stated < -np.asarray(limits)) or np.any(stated >= limits):
            node.refuse(f"input {index} has an index outside its axis")
        return node.constant(np.where(stated < 0, stated + limits, stated).astype(np.int32))
    raw, mil = node.x(index), node.mil
    wrapped = mil.add(x=raw, y=node.constant(np.broadcast_to(np.asarray(limits, np.int32), raw.shape).copy()))
    return mil.select(cond=mil.less(x=raw, y=np.int32(0)), a=wrapped, b=raw)


@lowers("Gather")
def _gather(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    axis = node.axis()
    run = _even_run(node, node.shape()[axis]) if node.is_const(1) else None
    if run is not None:
        node.out(_sliced(node, axis, run))
        return
    indices = _indices(node, 1, node.shape()[axis])
    node.out(node.mil.gather(x=node.x(), indices=indices, axis=axis, batch_dims=0, validate_indices=False))


def _even_run(node: Node, size: int) -> slice | None:
    """Return constant indices as a slice when they rise evenly: the Neural Engine slices, and does not gather."""
    indices = node.const(1)
    if indices.ndim > 1 or not indices.size or np.any(indices < -size) or np.any(indices >= size):
        return None
    places = (indices % size).reshape(-1)
    steps = np.diff(places)
    step = int(steps[0]) if steps.size else 1
    if step < 1 or np.any(steps != step):
        return None
    return slice(int(places[0]), int(places[-1]) + 1, step)


def _sliced(node: Node, axis: int, run: slice) -> MilVar:
    whole = [slice(0, size, 1) for size in node.shape()]
    whole[axis] = run
    part = slice_var(node, node.x(), whole)
    if node.shape(1):
        return part
    return node.mil.squeeze(x=part, axes=[axis])


@lowers("GatherElements")
def _gather_elements(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    axis = node.axis()
    _same_but_axis(node, 1, axis)
    indices = _indices(node, 1, node.shape()[axis])
    node.out(node.mil.gather_along_axis(x=node.x(), indices=indices, axis=axis, validate_indices=False))


@lowers("GatherND")
def _gather_nd(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    batch = int(node.attr("batch_dims", 0))
    depth = node.shape(1)[-1]
    indices = _indices(node, 1, np.array(node.shape()[batch : batch + depth]))
    node.out(node.mil.gather_nd(x=node.x(), indices=indices, batch_dims=batch, validate_indices=False))


_MODES = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _mode(node: Node) -> str:
    reduction = node.attr("reduction", "none")
    if reduction not in _MODES:
        node.refuse(f"attribute reduction={reduction} is not handled")
    return _MODES[reduction]


@lowers("ScatterElements", "Scatter")
def _scatter_elements(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    axis, mode = node.axis(), _mode(node)
    _same_but_axis(node, 1, axis)
    indices = _indices(node, 1, node.shape()[axis])
    node.out(
        node.mil.scatter_along_axis(
            data=node.x(0), indices=indices, updates=node.x(2), axis=axis, mode=mode, validate_indices=False
        )
    )


@lowers("ScatterND")
def _scatter_nd(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    mode, depth = _mode(node), node.shape(1)[-1]
    indices = _indices(node, 1, np.array(node.shape()[:depth]))
    node.out(node.mil.scatter_nd(data=node.x(0), indices=indices, updates=node.x(2), mode=mode, validate_indices=False))


def _same_but_axis(node: Node, index: int, axis: int) -> None:
    own, other = node.shape(0), node.shape(index)
    if any(a != b for i, (a, b) in enumerate(zip(own, other, strict=True)) if i != axis):
        node.refuse(f"indices of shape {other} on data of shape {own} are not handled")


@lowers("OneHot")
def _one_hot(node: Node) -> None:
    node.need_dtype(*INTEGERS)
    node.need_dtype(*FLOATS, *INTEGERS, index=2)
    depth = int(node.const(1).reshape(-1)[0])
    off, on = node.const(2).reshape(-1)
    shape = node.shape()
    axis = node.axis(rank=len(shape) + 1)
    grid = np.arange(depth, dtype=np.int32).reshape([depth if i == axis else 1 for i in range(len(shape) + 1)])
    # Compare with a counter: an index outside the range then lights nothing, as ONNX wants.
    mil = node.mil
    raw = node.x()
    wrapped = mil.select(cond=mil.less(x=raw, y=np.int32(0)), a=mil.add(x=raw, y=np.int32(depth)), b=raw)
    hit = mil.equal(x=mil.expand_dims(x=wrapped, axes=[axis]), y=node.constant(grid))
    dtype = node.dtype(2)
    full = tuple(hit.shape)
    bright, dark = (node.constant(np.full(full, v, dtype)) for v in (on, off))
    node.out(mil.select(cond=hit, a=bright, b=dark), dtype)
