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
from partition.search.intervals import SegmentTable, segment_of
from partition.search.problem import Infeasible
from partition.search.scheme import BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from partition.search.arrays import Floats
    from partition.search.frontier import Frontier
    from partition.search.problem import Constraints, Cost, Objective, Place, Problem

    Oracle = Callable[[Place, tuple[str, ...]], Cost | None]


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """The segments of one space, numbered as on the paths of its frontiers.

    `low` has a lower bound of each, infinite where the place refuses it; `named(number)` says what it is, and
    `solve(rows)` finds the frontier when they cost that.
    """

    low: Floats
    named: Callable[[int], tuple[Place, tuple[str, ...]]]
    solve: Callable[[Floats], Frontier]


class _Knowledge:
    """What the oracle has said, by structural key, and the costs that follow from it."""

    def __init__(self, low: Floats, keys: Mapping[int, Hashable], fields: list[int]) -> None:
        self.low, self.key_of, self.fields = low, keys, fields
        self.alike: dict[Hashable, list[int]] = {}
        for number, key in keys.items():
            self.alike.setdefault(key, []).append(number)
        self.true, self.known = np.full_like(low, np.inf), np.zeros(len(low), bool)
        self.scale, self.calls = 1.0, 0

    def note(self, number: int, cost: Cost | None) -> None:
        """Note the answer for one segment and all that are alike."""
        same = self.alike[self.key_of[number]]
        self.calls, self.known[same] = self.calls + 1, True
        if cost is not None:
            self.true[same] = cost.latency_s, cost.energy_j, cost.memory_bytes, cost.error
            which = np.ix_(same, self.fields)
            self.scale = min(self.scale, undercut(self.true[which], self.low[which]))

    def optimistic(self) -> Floats:
        """Return known costs where there are any and scaled bounds elsewhere."""
        scaled = np.multiply(self.low, self.scale, where=np.isfinite(self.low), out=self.low.copy())
        return np.where(self.known[:, None], self.true, scaled)

    def unknown(self, paths: list[list[int]]) -> list[int]:
        """List the unknown segments on plans, one of each kind, those on most plans first."""
        votes = Counter(self.key_of[number] for path in paths for number in path if not self.known[number])
        return [self.alike[key][0] for key, _ in votes.most_common()]


def undercut(true: Floats, bound: Floats) -> float:
    """Return the factor by which a bound was too high, 1 when it held."""
    # The tables are rounded to whole ns and nJ, so a bound may be half a step above what it bounds.
    wrong = true < bound * (1 - 1e-9) - 0.5e-9
    return float((true[wrong] / bound[wrong]).min(initial=1.0))


def lazy_frontier(
    problem: Problem,
    bounds: SegmentTable,
    oracle: Oracle,
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
    shape = bounds.rows.shape

    def named(number: int) -> tuple[Place, tuple[str, ...]]:
        start, stop, place = segment_of(problem, number)
        return problem.places[place], problem.nodes[start:stop]

    def solve(rows: Floats) -> Frontier:
        return search_segments(
            problem, SegmentTable(rows.reshape(shape)), objectives=objectives, constraints=constraints
        )

    found = Candidates(low=bounds.rows.reshape(-1, shape[-1]), named=named, solve=solve)
    return refined(found, oracle, gap_ratio=gap_ratio, max_calls=max_calls, key=key, objectives=objectives)


def refined(
    candidates: Candidates,
    oracle: Oracle,
    *,
    gap_ratio: float,
    max_calls: int | None,
    key: Callable[[Place, tuple[str, ...]], Hashable] | None,
    objectives: tuple[Objective, ...],
) -> LazyFrontier:
    """Find the frontier of the candidates with few oracle calls; arguments as of `lazy_frontier`.

    Raises:
        Infeasible: no plan meets the constraints.
    """
    fields = [BASE[kind] for kind in BASE if kind in {"latency", "energy", *objectives}]
    taken = np.flatnonzero(np.isfinite(candidates.low[:, 0])).tolist()
    known = _Knowledge(candidates.low, {n: (key or _by_name)(*candidates.named(n)) for n in taken}, fields)
    rounds = 0
    while True:
        rounds += 1
        hoped, real = candidates.solve(known.optimistic()), _real(candidates, known)
        gap, points = open_points(hoped, real, gap_ratio)
        wanted = known.unknown(hoped.paths(points))
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
        for number in wanted[:room]:
            known.note(number, oracle(*candidates.named(number)))


def _by_name(place: Place, nodes: tuple[str, ...]) -> Hashable:
    return place, nodes


def _real(candidates: Candidates, known: _Knowledge) -> Frontier | None:
    """Return the frontier of the plans whose segments are all known, None while there is none."""
    try:
        return candidates.solve(known.true)
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
