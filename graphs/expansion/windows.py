"""Operators whose windows are named by their elements' positions: gathers from tables, or samples between elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.expansion.parts import Impossible, Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]


def pool(parts: Parts) -> list[str]:
    """State the padding that `auto_pad` asks for."""
    if not parts.attr("auto_pad", "NOTSET").startswith("SAME"):
        raise Impossible
    spatial, kernel, out = parts.shape(0)[2:], parts.attr("kernel_shape"), parts.output_shape()[2:]
    pads = [pad for side in zip(*_same_pads(parts, spatial, kernel, out), strict=True) for pad in side]
    kept = ("kernel_shape", "strides", "dilations", "count_include_pad", "p")
    return [parts(parts.op_type, parts.input(0), pads=pads, **{name: parts.attr(name) for name in kept})]


def max_pool(parts: Parts) -> list[str]:
    """Pool as before, and gather each window to look up where its first largest element lies in the whole tensor."""
    if not parts.wants(1):
        return pool(parts)
    same = ("kernel_shape", "strides", "pads", "dilations", "auto_pad", "ceil_mode")
    values = parts("MaxPool", parts.input(0), **{name: parts.attr(name) for name in same})
    (batch, channels, *spatial), out = parts.shape(0), parts.output_shape()[2:]
    source, where = _tables(parts, spatial, out)
    windows = parts("Gather", parts.reshape(parts.input(0), batch, channels, math.prod(spatial)), source, axis=2)
    first = parts("ArgMax", windows, axis=3, keepdims=0)
    count, taps = where.shape
    within = parts("Gather", where.reshape(-1), parts("Add", first, np.arange(count) * taps), axis=0)
    planes = np.arange(batch * channels).reshape(batch, channels, 1) * math.prod(spatial)
    return [values, parts.reshape(parts("Add", within, planes), batch, channels, *out)]


def _tables(parts: Parts, spatial: Sequence[int], out: Sequence[int]) -> tuple[Array, Array]:
    """Return the element of a plane that each tap of each window meets, and its index as ONNX counts it.

    A tap in the padding meets the window's first element once more, which changes neither the largest nor the first.
    """
    rank = len(spatial)
    source: Array = np.zeros((), np.int64)
    where: Array = np.zeros((), np.int64)
    inside: Array = np.ones((), np.bool_)
    for axis, at in enumerate(_positions(parts, spatial, parts.attr("kernel_shape"), out)):
        along = at.reshape([at.shape[i // rank] if i % rank == axis else 1 for i in range(2 * rank)])
        inside = inside & (along >= 0) & (along < spatial[axis])
        source = source + along * math.prod(spatial[axis + 1 :])
        before_or_after = spatial[:axis] if parts.attr("storage_order", 0) else spatial[axis + 1 :]
        where = where + along * math.prod(before_or_after)
    source, where, inside = (table.reshape(math.prod(out), -1) for table in (source, where, inside))
    if not inside.any(axis=1).all():
        raise Impossible("one of its windows lies in the padding alone")
    met = np.where(inside, np.arange(inside.shape[1]), inside.argmax(axis=1)[:, None])
    return np.take_along_axis(source, met, 1), np.take_along_axis(where, met, 1)


def _positions(parts: Parts, spatial: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> list[Array]:
    """Return for each axis the index that each tap of each window meets, (windows, taps); a padding's is outside."""
    ones = [1] * len(spatial)
    strides, dilations = parts.attr("strides", ones), parts.attr("dilations", ones)
    pads = parts.attr("pads", [0] * 2 * len(spatial))
    if parts.attr("auto_pad", "NOTSET").startswith("SAME"):
        pads = [before for before, _ in _same_pads(parts, spatial, kernel, out)]
    return [
        np.arange(out[axis])[:, None] * strides[axis] - pads[axis] + np.arange(kernel[axis]) * dilations[axis]
        for axis in range(len(spatial))
    ]


def _same_pads(
    parts: Parts, spatial: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> list[tuple[int, int]]:
    """Return for each axis what `auto_pad` puts before and behind it."""
    ones = [1] * len(spatial)
    strides, dilations = parts.attr("strides", ones), parts.attr("dilations", ones)
    pads = []
    for axis, size in enumerate(spatial):
        total = max(0, (out[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 - size)
        before = (total + (parts.attr("auto_pad") == "SAME_LOWER")) // 2
        pads.append((before, total - before))
    return pads


def deform_conv(parts: Parts) -> list[str]:
    """Sample where the offset of each tap of each window points, and multiply with the weights; float16 in float32."""
    half = parts.dtype(0) == np.float16
    dtype = np.dtype(np.float32) if half else parts.dtype(0)

    def operand(position: int) -> str:
        return parts.cast(parts.input(position), dtype) if half else parts.input(position)

    (batch, channels, *spatial), (filters, _, *kernel), out = parts.shape(0), parts.shape(1), parts.shape(2)[2:]
    if len(spatial) != 2:
        raise Impossible("it is handled in two dimensions")
    split, groups, taps, count = (
        parts.attr("offset_group", 1),
        parts.attr("group", 1),
        math.prod(kernel),
        math.prod(out),
    )
    offsets = parts.reshape(operand(2), batch * split, taps, 2, count)
    # To GridSample -1 is the outer edge of the first element and 1 that of the last, and columns come before rows.
    grid: list[str] = []
    for axis, at in enumerate(_positions(parts, spatial, kernel, out)):
        taps_first = at.T.reshape([at.T.shape[i // 2] if i % 2 == axis else 1 for i in range(4)])
        unmoved = np.broadcast_to(taps_first, (*kernel, *out)).reshape(taps, count)
        moved = parts("Add", parts.row(offsets, 2, axis), unmoved.astype(dtype))
        scaled = parts("Mul", moved, np.asarray(2 / spatial[axis], dtype))
        grid.insert(0, parts.with_axis(parts("Add", scaled, np.asarray(1 / spatial[axis] - 1, dtype)), 3))
    x = parts.reshape(operand(0), batch * split, channels // split, *spatial)
    mode = "linear" if parts.opset >= 20 else "bilinear"
    samples = parts("GridSample", x, parts("Concat", *grid, axis=3), mode=mode, align_corners=0)
    if parts.has(4):
        samples = parts("Mul", samples, parts.reshape(operand(4), batch * split, 1, taps, count))
    samples = parts.reshape(samples, batch, groups, channels // groups * taps, count)
    weights = parts.reshape(operand(1), 1, groups, filters // groups, channels // groups * taps)
    result = parts.reshape(parts("MatMul", weights, samples), batch, filters, *out)
    if parts.has(3):
        result = parts("Add", result, parts.reshape(operand(3), 1, filters, 1, 1))
    return [parts.cast(result, parts.dtype(0)) if half else result]
