"""Resize and Upsample of known sizes: each axis is a Gather, or a product with a constant matrix."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphs.expansion.parts import Impossible, Parts

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

# ONNX Runtime's choice: from coordinates in float32, and within this of a half it is one. In exact arithmetic a row of
# 7 made one has its centre at 3, in float32 just below, and `floor` takes another element.
_HALF: Final = 1e-6
_NEAREST: Final[dict[str, Callable[[Array], Array]]] = {
    "round_prefer_floor": lambda x: np.floor(x) + (x - np.floor(x) > 0.5 + _HALF),
    "round_prefer_ceil": lambda x: np.floor(x) + (x - np.floor(x) >= 0.5 - _HALF),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """One axis: its sizes before and after, the scale as the model states it, and the part that a crop takes."""

    before: int
    after: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def coordinates(self, mode: str, dtype: type[np.floating[Any]] = np.float64) -> Array:
        """Return where each index of the result lies in the input, computed in `dtype`."""
        index, n = np.arange(self.after, dtype=dtype), self.before
        half = (index + 0.5) / self.scale - 0.5
        if mode == "asymmetric":
            return index / self.scale
        if mode == "align_corners":
            if self.after != self.scale * n:
                raise Impossible("align_corners with a scale that gives no whole size means different things")
            return index * (n - 1) / (self.after - 1) if self.after > 1 else index * 0
        if mode == "pytorch_half_pixel":
            return half if self.after > 1 else index * 0
        if mode == "half_pixel_symmetric":
            return n / 2 * (1 - self.after / (self.scale * n)) + half
        if mode == "tf_crop_and_resize":
            width = (self.end - self.start) * (n - 1)
            first = self.start * (n - 1)
            middle = np.full(1, 0.5 * (self.start + self.end) * (n - 1))
            return first + index * width / (self.after - 1) if self.after > 1 else middle
        if mode != "half_pixel":
            raise Impossible(f"its coordinate_transformation_mode {mode} is not handled")
        return half


def resize(parts: Parts) -> list[str]:
    """Replace a Resize of opset 11 or newer."""
    if parts.opset < 11:
        raise Impossible("Resize has another meaning before opset 11")
    rank = len(parts.shape(0))
    chosen = [axis % rank for axis in parts.attr("axes") or range(rank)]
    mode = parts.attr("coordinate_transformation_mode", "half_pixel")
    return _resized(parts, _axes(parts, chosen, mode), mode, parts.attr("nearest_mode", "round_prefer_floor"))


def upsample(parts: Parts) -> list[str]:
    """Replace an Upsample, which is an asymmetric Resize."""
    scales = parts.known(1, "scales") if parts.has(1) else parts.attr("scales")
    sizes = zip(parts.shape(0), parts.output_shape(), scales, strict=True)
    axes = {i: _Axis(before=a, after=b, scale=float(s)) for i, (a, b, s) in enumerate(sizes)}
    return _resized(parts, axes, "asymmetric", "floor")


def _axes(parts: Parts, chosen: list[int], mode: str) -> dict[int, _Axis]:
    before, after = parts.shape(0), parts.output_shape()
    scales = {axis: after[axis] / before[axis] for axis in chosen}
    if parts.has(2):
        scales = dict(zip(chosen, parts.known(2, "scales").tolist(), strict=True))
    elif (policy := parts.attr("keep_aspect_ratio_policy", "stretch")) != "stretch":
        wanted = parts.known(3, "sizes").tolist()
        ratios = [size / before[axis] for axis, size in zip(chosen, wanted, strict=True)]
        scales = dict.fromkeys(chosen, min(ratios) if policy == "not_larger" else max(ratios))
    crop = dict.fromkeys(chosen, (0.0, 1.0))
    if mode == "tf_crop_and_resize":
        starts, ends = np.split(parts.known(1, "region"), 2)
        crop = dict(zip(chosen, zip(starts.tolist(), ends.tolist(), strict=True), strict=True))
    return {
        axis: _Axis(before=before[axis], after=after[axis], scale=scales[axis], start=crop[axis][0], end=crop[axis][1])
        for axis in chosen
    }


def _resized(parts: Parts, axes: dict[int, _Axis], mode: str, nearest: str) -> list[str]:
    kind, value, rank = parts.attr("mode", "nearest"), parts.input(0), len(parts.shape(0))
    dtype = parts.dtype(0)
    if kind != "nearest" and dtype.kind != "f":
        raise Impossible(f"interpolation of {dtype} is not handled")
    outside = np.zeros([1] * rank, np.bool_)
    for index, axis in axes.items():
        where = axis.coordinates(mode, np.float32 if kind == "nearest" else np.float64)
        if mode == "tf_crop_and_resize":
            beyond = (where < 0) | (where > axis.before - 1)
            outside = outside | beyond.reshape([-1 if i == index else 1 for i in range(rank)])
        elif axis.before == axis.after and axis.scale == 1:
            continue
        if kind == "nearest":
            chosen = np.clip(_NEAREST[nearest](where.astype(np.float64)), 0, axis.before - 1).astype(np.int64)
            value = parts("Gather", value, chosen, axis=index)
        else:
            value = _product(parts, value, _matrix(parts, axis, where, kind).astype(dtype), index, rank)
    if outside.any():
        value = parts("Where", outside, np.array(parts.attr("extrapolation_value", 0.0), dtype), value)
    return [value]


def _product(parts: Parts, value: str, matrix: Array, axis: int, rank: int) -> str:
    """Multiply along an axis with a matrix (after, before)."""
    if axis == rank - 1:
        return parts("MatMul", value, np.ascontiguousarray(matrix.T))
    if axis == rank - 2:
        return parts("MatMul", matrix, value)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    last = parts("MatMul", parts("Transpose", value, perm=order), np.ascontiguousarray(matrix.T))
    return parts("Transpose", last, perm=order)


def _matrix(parts: Parts, axis: _Axis, where: Array, kind: str) -> Array:
    """Return the weights (after, before) of each input in each output."""
    reach, kernel = (1, _linear) if kind == "linear" else (2, _cubic(parts.attr("cubic_coeff_a", -0.75)))
    shrink = min(axis.scale, 1.0) if parts.attr("antialias", 0) else 1.0
    offsets = np.arange(int(np.floor(-reach / shrink)) + 1, int(np.ceil(reach / shrink)) + 1)
    floor = np.floor(where)
    places = floor[:, None].astype(np.int64) + offsets
    weights = kernel((places - where[:, None]) * shrink)
    if parts.attr("exclude_outside", 0):
        weights = np.where((places < 0) | (places >= axis.before), 0, weights)
    if parts.attr("exclude_outside", 0) or shrink < 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.after, axis.before))
    np.add.at(matrix, (np.arange(axis.after)[:, None], np.clip(places, 0, axis.before - 1)), weights)
    return matrix


def _linear(distance: Array) -> Array:
    weights: Array = np.maximum(1 - np.abs(distance), 0.0)
    return weights


def _cubic(a: float) -> Callable[[Array], Array]:
    def kernel(distance: Array) -> Array:
        d: Array = np.abs(distance)
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        weights: Array = np.where(d <= 1, near, np.where(d < 2, far, 0))
        return weights

    return kernel
