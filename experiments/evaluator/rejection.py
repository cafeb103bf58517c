"""Outputs that are no outputs: what a miscompiled model gives, told apart from mere quantisation error.

A candidate with such an output never reaches a frontier, whatever its cosine. Each rule asks for a signature that
rounding cannot leave, so that a coarse but honest result is not thrown away.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_FLOAT16_NORMAL: Final = 2.0**-14
_LEAST_SLICE: Final = 8  # single numbers match some other number by chance; whole channels do not
_MOST_CHANNELS: Final = 2048
_EXPLAINED: Final = 0.1  # a reordering is the cause when it takes away nine tenths of the error's energy
_FLUSHED_SHARE: Final = 0.05


class Kind(enum.StrEnum):
    """What is wrong with an output."""

    SHAPE = "wrong shape"
    TYPE = "wrong type"
    NOT_FINITE = "NaN or infinite"
    CONSTANT = "constant"
    REPEATED_BATCH = "repeated batch"
    SWAPPED_CHANNELS = "swapped channels"
    LAYOUT = "wrong layout"
    FLUSHED = "tiny values flushed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Why an output is none; `reason` continues the sentence "output 'y' ..."."""

    kind: Kind
    reason: str


def rejection(expected: Array, got: Array) -> Rejection | None:
    """Say what makes `got` unusable beside the reference `expected`, None when nothing does."""
    if got.shape != expected.shape:
        return Rejection(kind=Kind.SHAPE, reason=f"has shape {got.shape} instead of {expected.shape}")
    if (got.dtype.kind == "f") != (expected.dtype.kind == "f"):
        return Rejection(kind=Kind.TYPE, reason=f"is {got.dtype} instead of {expected.dtype}")
    if got.dtype.kind != "f" or got.size == 0:
        return None  # integers have no tolerance to speak of
    return _not_finite(expected, got) or (_miscomputed(expected, got) if np.isfinite(expected).all() else None)


def _not_finite(expected: Array, got: Array) -> Rejection | None:
    """Catch what has become NaN or infinite; a mask's infinities are the model's own."""
    lost = int((np.isfinite(expected) & ~np.isfinite(got)).sum())
    reason = f"holds {lost} NaN or infinite values where the reference has none"
    return Rejection(kind=Kind.NOT_FINITE, reason=reason) if lost else None


def _miscomputed(expected: Array, got: Array) -> Rejection | None:
    if got.size > 1 and np.ptp(got) == 0 and np.ptp(expected) > 0:
        return Rejection(kind=Kind.CONSTANT, reason=f"is {float(got.flat[0]):g} everywhere")
    left, right = expected.astype(np.float64), got.astype(np.float64)
    return _repeated_batch(left, right) or _flushed(left, right) or _reordered(left, right)


def _repeated_batch(expected: Array, got: Array) -> Rejection | None:
    """Catch a kernel that computes the first item and copies it."""
    if got.ndim < 2 or len(got) < 2 or (expected == expected[:1]).all():
        return None
    if not (got == got[:1]).all() or _noise(expected[:1], got[:1]) > _EXPLAINED * _noise(expected[1:], got[1:]):
        return None
    return Rejection(kind=Kind.REPEATED_BATCH, reason=f"repeats its first item for all {len(got)} of the batch")


def _flushed(expected: Array, got: Array) -> Rejection | None:
    """Catch exact zeros for everything below a tiny bound, while what is above it is exact to 1 %.

    Rounding to integers makes small values zero, too, but then those just above are coarse.
    """
    size = np.abs(expected)
    zeroed = (got == 0) & (size > 0)
    if zeroed.mean() < _FLUSHED_SHARE:
        return None
    bound = float(size[zeroed].max())
    above = size > bound
    near = above & (size < 16 * bound)
    if bound > _FLOAT16_NORMAL or not near.any() or (np.abs(got - expected)[near] > 0.01 * size[near]).any():
        return None
    return Rejection(
        kind=Kind.FLUSHED,
        reason=f"is 0 for all values up to {bound:.2g}, {zeroed.mean():.0%} of them, and right above that",
    )


def _reordered(expected: Array, got: Array) -> Rejection | None:
    """Catch channels in another order, or NHWC read as NCHW: put back, the error is all but gone."""
    before = _noise(expected, got)
    if got.ndim < 2 or before <= 1e-3 * float((expected**2).sum()):
        return None
    if got.ndim == 4:
        n, c, h, w = got.shape
        restored = got.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        if _noise(expected, restored) < _EXPLAINED * before:
            return Rejection(kind=Kind.LAYOUT, reason="has its values in the order NHWC under an NCHW shape")
    for axis in (1, got.ndim - 1):
        order = _best_order(expected, got, axis)
        if order is not None and _noise(expected, np.take(got, order, axis=axis)) < _EXPLAINED * before:
            moved = int((order != np.arange(len(order))).sum())
            return Rejection(
                kind=Kind.SWAPPED_CHANNELS, reason=f"has {moved} of {len(order)} slices of axis {axis} in another place"
            )
    return None


def _best_order(expected: Array, got: Array, axis: int) -> NDArray[np.intp] | None:
    """Return for each slice of the reference the slice of `got` that is most like it; None if that is no order."""
    count = got.shape[axis]
    if not 2 <= count <= _MOST_CHANNELS or got.size // count < _LEAST_SLICE:
        return None
    left, right = (np.moveaxis(a, axis, 0).reshape(count, -1) for a in (expected, got))
    distance = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    order: NDArray[np.intp] = distance.argmin(axis=1)
    is_order = len(np.unique(order)) == count and bool((order != np.arange(count)).any())
    return order if is_order else None


def _noise(expected: Array, got: Array) -> float:
    return float(((expected - got) ** 2).sum())
