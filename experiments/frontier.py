"""Dominance, frontier and hypervolume: pure functions on arrays; every objective is minimised."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def frontier(points: Array) -> NDArray[np.bool_]:
    """Mark the rows of `points` [n, m] that no other row dominates; equal rows are all kept.

    Two objectives cost O(n log n), more cost O(n * frontier).

    Raises:
        ValueError: the array is not [n, m] or holds NaN.
    """
    points = _checked(points)
    if len(points) == 0:
        return np.zeros(0, dtype=bool)
    return _frontier_2d(points) if points.shape[1] == 2 else _frontier_nd(points)


def certainly_dominated(low: Array, high: Array) -> NDArray[np.bool_]:
    """Mark the rows that some other row beats in every objective even at the worst of its interval.

    A row that is off the frontier but not certainly dominated is a tie with it.

    Raises:
        ValueError: the arrays are not both of one shape [n, m], or hold NaN.
    """
    low, high = _checked(low), _checked(high)
    if low.shape != high.shape:
        raise ValueError(f"expected a high end for each low end, got shapes {low.shape} and {high.shape}")
    mark = np.zeros(len(low), dtype=bool)
    for i in range(len(low)):
        no_worse = (high <= low[i]).all(axis=1)
        better = (high < low[i]).any(axis=1)
        mark[i] = bool((no_worse & better).any())
    return mark


def hypervolume(points: Array, reference: Array) -> float:
    """Measure the area (two objectives) or volume that `points` dominate within `reference`.

    Raises:
        ValueError: not two or three objectives, or `reference` has not one number for each.
    """
    points = _checked(points)
    reference = np.asarray(reference, dtype=float)
    if reference.shape != points.shape[1:] or np.isnan(reference).any():
        raise ValueError(f"expected one number for each of {points.shape[1]} objectives as reference, got {reference}")
    measures = {2: _hypervolume_2d, 3: _hypervolume_3d}
    if points.shape[1] not in measures:
        raise ValueError(f"hypervolume takes two or three objectives, got {points.shape[1]}")
    inside = points[(points < reference).all(axis=1)]
    return measures[points.shape[1]](inside, reference) if len(inside) else 0.0


def _checked(points: Any) -> Array:  # noqa: ANN401 - anything numpy can read
    array = np.asarray(points, dtype=float)
    if array.ndim != 2:
        raise ValueError(f"expected an array of [points, objectives], got shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError("an objective is NaN; drop points with unknown costs first")
    return array


def _frontier_2d(points: Array) -> NDArray[np.bool_]:
    order = np.lexsort((points[:, 1], points[:, 0]))
    first, second = points[order].T
    # The first row is on it whatever its second objective, which may be infinite.
    better = second[1:] < np.minimum.accumulate(second)[:-1]
    best_row = np.r_[0, np.flatnonzero(better) + 1]
    owner = best_row[np.searchsorted(best_row, np.arange(len(order)), side="right") - 1]
    same_as_owner = (first == first[owner]) & (second == second[owner])
    mark = np.zeros(len(points), dtype=bool)
    mark[order] = same_as_owner
    return mark


def _frontier_nd(points: Array) -> NDArray[np.bool_]:
    mark = np.ones(len(points), dtype=bool)
    for i in range(len(points)):
        if not mark[i]:
            continue
        worse = (points >= points[i]).all(axis=1) & (points > points[i]).any(axis=1)
        mark &= ~worse
    return mark


def _hypervolume_2d(points: Array, reference: Array) -> float:
    front = points[frontier(points)]
    front = front[np.argsort(front[:, 0])]
    right = np.r_[front[1:, 0], reference[0]]
    return float(((right - front[:, 0]) * (reference[1] - front[:, 1])).sum())


def _hypervolume_3d(points: Array, reference: Array) -> float:
    """Sweep the third objective: each slab's area is the 2-D hypervolume of the points below it."""
    points = points[np.argsort(points[:, 2])]
    tops = np.r_[points[1:, 2], reference[2]]
    areas = [_hypervolume_2d(points[: i + 1, :2], reference[:2]) for i in range(len(points))]
    return float(sum(area * (top - z) for area, top, z in zip(areas, tops, points[:, 2], strict=True)))
