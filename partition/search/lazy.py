"""Exact frontiers when a segment's cost is a compile: ask only for the segments that could be on the frontier.

Every segment starts at an admissible lower bound. The frontier of the bounds is optimistic; the unknown segments
on its plans are asked for, and again, until the frontier's plans are all known. Then each optimistic point is a
real plan, and any other plan costs at least its own optimistic cost, which one of those points equals or beats:
the frontier is exact. Before that, the known plans against the optimistic frontier give a proven gap.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.frontier import NO_LIMITS, OBJECTIVES, search_segments
from partition.search.intervals import SegmentTable, segment_of, segments
from partition.search.problem import Infeasible
from partition.search.scheme import BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from partition.search.arrays import Floats
    from partition.search.frontier import Frontier
    from partition.search.problem import Constraints, Cost, Objective, Place, Problem

Index = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LazyFrontier:
    """Plans whose segments are all known, and the proof of how far they can be from the true frontier.

    `gap_ratio` 0 means exact; infinity means that no plan is known completely yet. `oracle_calls` of
    `possible_calls` different segments were asked for. `bound_scale` below 1 means that a lower bound proved
    too high by that factor: the proof then assumes that no bound, so scaled, is too high again.
    """

    frontier: Frontier | None
    gap_ratio: float
    oracle_calls: int
    possible_calls: int
    rounds: int
    bound_scale: float


class _Knowledge:
    """What the oracle has said, by structural key, and the tables that follow from it."""

    def __init__(
        self,
        problem: Problem,
        bounds: SegmentTable,
        oracle: Callable[[Place, tuple[str, ...]], Cost | None],
        key: Callable[[Place, tuple[str, ...]], Hashable],
        fields: list[int],
    ) -> None:
        self.problem, self.oracle, self.bounds, self.fields = problem, oracle, bounds, fields
        self.alike: dict[Hashable, list[Index]] = {}
        self.key_of: dict[Index, Hashable] = {}
        for index in segments(problem):
            if np.isfinite(bounds.rows[index][0]):
                name = key(*self._named(index))
                self.alike.setdefault(name, []).append(index)
                self.key_of[index] = name
        self.true = SegmentTable.empty(problem)
        self.known = np.zeros(bounds.rows.shape[:3], bool)
        self.scale = 1.0
        self.calls = 0

    def _named(self, index: Index) -> tuple[Place, tuple[str, ...]]:
        start, stop, place = index
        return self.problem.places[place], self.problem.nodes[start:stop]

    def ask(self, index: Index) -> None:
        """Ask for one segment and note the answer for all that are alike."""
        cost = self.oracle(*self._named(index))
        self.calls += 1
        for same in self.alike[self.key_of[index]]:
            self.known[same] = True
            if cost is not None:
                self.true.set(same, cost)
                self.scale = min(
                    self.scale, undercut(self.true.rows[same][self.fields], self.bounds.rows[same][self.fields])
                )

    def optimistic(self) -> SegmentTable:
        """Return known costs where there are any and scaled bounds elsewhere."""
        return SegmentTable(np.where(self.known[..., None], self.true.rows, self.bounds.rows * self.scale))


def undercut(true: Floats, bound: Floats) -> float:
    """Return the factor by which a bound was too high, 1 when it held."""
    # The tables are rounded to whole ns and nJ, so a bound may be half a step above what it bounds.
    wrong = true < bound * (1 - 1e-9) - 0.5e-9
    return float((true[wrong] / bound[wrong]).min(initial=1.0))


def lazy_frontier(
    problem: Problem,
    bounds: SegmentTable,
    oracle: Callable[[Place, tuple[str, ...]], Cost | None],
    *,
    gap_ratio: float = 0.0,
    max_calls: int | None = None,
    key: Callable[[Place, tuple[str, ...]], Hashable] | None = None,
    objectives: tuple[Objective, ...] = OBJECTIVES,
    constraints: Constraints = NO_LIMITS,
) -> LazyFrontier:
    """Find the frontier over all cuts of the node order with few oracle calls.

    `bounds` holds a lower bound for every segment; `oracle(place, nodes)` returns the true cost, or None when
    the segment cannot be had. `key` names segments that must cost the same (a structural hash), so that they
    are asked for once. With `gap_ratio` the search stops at a frontier proved to be within that ratio in every
    objective; with `max_calls` it stops there and says what gap it has proved.

    Raises:
        Infeasible: no plan meets the constraints.
    """
    fields = [BASE[kind] for kind in BASE if kind in {"latency", "energy", *objectives}]
    known = _Knowledge(problem, bounds, oracle, key or (lambda place, nodes: (place, nodes)), fields)
    rounds = 0
    while True:
        rounds += 1
        hoped = search_segments(problem, known.optimistic(), objectives=objectives, constraints=constraints)
        real = _real(problem, known, objectives, constraints)
        gap, points = open_points(hoped, real, gap_ratio)
        wanted = _unknown(hoped, known, points)
        room = len(wanted) if max_calls is None else max(max_calls - known.calls, 0)
        if not wanted or not room:
            return LazyFrontier(
                frontier=real,
                gap_ratio=gap,
                oracle_calls=known.calls,
                possible_calls=len(known.alike),
                rounds=rounds,
                bound_scale=known.scale,
            )
        for index in wanted[:room]:
            known.ask(index)


def _real(
    problem: Problem, known: _Knowledge, objectives: tuple[Objective, ...], constraints: Constraints
) -> Frontier | None:
    """Return the frontier of the plans whose segments are all known, None while there is none."""
    try:
        return search_segments(problem, known.true, objectives=objectives, constraints=constraints)
    except Infeasible:
        return None


def open_points(hoped: Frontier, real: Frontier | None, allowed: float) -> tuple[float, list[int]]:
    """Return the proven gap and the optimistic points that no known plan matches within `allowed`."""
    if real is None:
        return np.inf, _spread(hoped.costs, allowed)
    gaps = cover_gaps(real.costs, hoped.costs)
    points = np.flatnonzero(gaps > allowed + ROUNDING)
    return float(max(gaps.max(), 0.0)), points[_spread(hoped.costs[points], allowed)].tolist()


ROUNDING: Final = 1e-12


def cover_gaps(points: Floats, targets: Floats) -> Floats:
    """Return, per target, the least ratio e so that some point is within (1 + e) of it in every objective."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = points[None, :, :] / targets[:, None, :]
    # 0 / 0 is a match; x / 0 stays infinite.
    ratio = np.where(np.isnan(ratio), 1.0, ratio)
    return np.asarray(ratio.max(2).min(1) - 1.0)


def _spread(costs: Floats, allowed: float) -> list[int]:
    """Choose points that would match all others within half of `allowed`, if they were real."""
    chosen: list[int] = []
    open_ = np.ones(len(costs), bool)
    for index in range(len(costs)):
        if open_[index]:
            chosen.append(index)
            open_ &= cover_gaps(costs[index : index + 1], costs) > allowed / 2
            open_[index] = False
    return chosen


def _unknown(hoped: Frontier, known: _Knowledge, points: list[int]) -> list[Index]:
    """List the unknown segments on the plans of `points`, one of each kind, those on most plans first."""
    votes: Counter[Hashable] = Counter()
    for path in hoped.paths(points):
        for what in path:
            index = segment_of(known.problem, what)
            if not known.known[index]:
                votes[known.key_of[index]] += 1
    return [known.alike[name][0] for name, _ in votes.most_common()]
