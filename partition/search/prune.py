"""Label setting between known plans: what no known plan matches is followed, everything else cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partition.search.labels import LOW, PairLabels, pack, staircase, unpack

if TYPE_CHECKING:
    from partition.search.arrays import Bools, Ints
    from partition.search.bounds import Supported
    from partition.search.states import StateGraph


class Filled:
    """The plans of a hull and those label setting finds between them, together matching every plan.

    With `gap_ratio` 0 this is the exact frontier. Pruning compares with complete plans, never with partial ones,
    which is why the error does not add up along the graph.
    """

    def __init__(self, graph: StateGraph, hull: Supported, gap_ratio: float) -> None:
        self._labels = PairLabels(graph, keep=_Uncovered(hull, gap_ratio).keep)
        self._known = {tuple(p): path for p, path in zip(hull.points.tolist(), hull.paths, strict=True)}
        found = self._labels.points
        self._number = {tuple(point): number for number, point in enumerate(found.tolist())}
        self.points = unpack(staircase(pack(np.concatenate([hull.points, found]))))
        self.stored = self._labels.stored

    def paths(self, numbers: Ints) -> list[list[int]]:
        """Return the decisions behind `points[numbers]`."""
        points = [tuple(point) for point in self.points[numbers].tolist()]
        new = [self._number[point] for point in points if point not in self._known]
        found = iter(self._labels.paths(np.array(new, dtype=np.int64)))
        return [self._known[point] if point in self._known else next(found) for point in points]


class _Uncovered:
    """Keeps the labels from which a plan could come that no known plan matches within `gap_ratio`."""

    def __init__(self, hull: Supported, gap_ratio: float) -> None:
        self._share = 1 + gap_ratio
        self._to_go = hull.first.to_go
        self._latency, self._energy = hull.points.T.astype(float)

    def keep(self, states: Ints, keys: Ints) -> Bools:
        """Compare the best that can become of each label, coordinate by coordinate, with the known plans."""
        latency = ((keys >> 32) + self._to_go[states, 0]) * self._share
        energy = ((keys & LOW) + self._to_go[states, 1]) * self._share
        # Of the known plans that are fast enough the last one needs the least energy.
        last = np.searchsorted(self._latency, latency, side="right") - 1
        return np.asarray((last < 0) | (self._energy[last] > energy))
