"""Segment costs that are no sum, over all convex cuts: every pair of nested node sets is a segment.

A state is a node set closed under predecessors and where its live tensors are; an arc adds any number of nodes at
once, on one place, for the price of that segment and of the tensors it fetches. The pairs are what limits the size:
a graph of a few hundred such sets is searched exactly; beyond that `convex_gap` says how far other answers can be off.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.encode import Encoded
from partition.search.frontier import NO_LIMITS, OBJECTIVES, Frontier, search, solve
from partition.search.infeasible import unplaceable
from partition.search.lazy import Candidates, LazyFrontier, cover_gaps, refined
from partition.search.pieces import piece, pinned
from partition.search.problem import Space, TooWide
from partition.search.residency import Residency
from partition.search.scheme import scheme_for
from partition.search.states import StateGraph, Step, distinct, join

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from partition.search.arrays import Bools, Bytes, Floats, Ints
    from partition.search.problem import Constraints, Cost, Objective, Piece, Place, Problem
    from partition.search.scheme import Scheme

    Oracle = Callable[[Place, tuple[str, ...]], Cost | None]

MOST_SEGMENTS: Final = 300_000
MOST_ARCS: Final = 4_000_000


def search_convex(
    problem: Problem,
    cost: Oracle,
    *,
    objectives: tuple[Objective, ...] = OBJECTIVES,
    constraints: Constraints = NO_LIMITS,
) -> Frontier:
    """Return all Pareto-optimal plans over all convex cuts, for any segment costs; None is a refusal.

    Raises:
        Infeasible: no plan meets the constraints.
        TooWide: there are too many segments; says how many and what to ask for instead.
    """
    problem = pinned(problem, constraints.pinned)
    segments = _segments(problem)
    rows = _rows(problem, segments, cost)
    return _solved(problem, segments, rows, objectives, constraints)


def lazy_convex(
    problem: Problem,
    bound: Oracle,
    oracle: Oracle,
    *,
    gap_ratio: float = 0.0,
    max_calls: int | None = None,
    key: Callable[[Place, tuple[str, ...]], Hashable] | None = None,
    objectives: tuple[Objective, ...] = OBJECTIVES,
    constraints: Constraints = NO_LIMITS,
) -> LazyFrontier:
    """Do over all convex cuts what `lazy_frontier` does over those of one order; `bound` is below every cost."""
    problem = pinned(problem, constraints.pinned)
    segments = _segments(problem)

    def solve(rows: Floats) -> Frontier:
        return _solved(problem, segments, rows, objectives, constraints)

    found = Candidates(
        low=_rows(problem, segments, bound), named=lambda number: _name(problem, segments[number]), solve=solve
    )
    return refined(found, oracle, gap_ratio=gap_ratio, max_calls=max_calls, key=key, objectives=objectives)


def convex_gap(bounds: Problem, found: Frontier) -> float:
    """Return how far plans of any space can be from all convex cuts, as a ratio in latency and energy.

    `bounds` has node costs and dispatch that no segment's cost is below, so that its frontier over all convex cuts,
    which needs no pairs of sets, is below every plan. This is the certificate where `search_convex` is too wide.
    """
    return float(max(cover_gaps(found.costs, search(bounds).costs).max(), 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Nodes added to the set `before` to make the set `after`, on the place of that number; sets are bit masks."""

    place: int
    before: int
    after: int


def _segments(problem: Problem) -> list[Segment]:
    encoded = Encoded(dataclasses.replace(problem, costs={}))
    unplaceable(encoded)
    sets = _Sets(encoded, scheme_for(encoded, OBJECTIVES, NO_LIMITS))
    found: list[Segment] = []
    for before in sets.ideals():
        for place in range(len(problem.places)):
            found += [Segment(place, before, after) for after in sets.grown(before, place)]
            if len(found) > MOST_SEGMENTS:
                raise TooWide(
                    f"more than {MOST_SEGMENTS:,} segments over all convex cuts of {len(problem.nodes)} nodes; ask for"
                    " all cuts of one order, or coarsen the nodes"
                )
    return found


class _Sets(Residency):
    def ideals(self) -> Iterator[int]:
        """Yield every set closed under predecessors but the whole, smaller ones first."""
        layer, whole = {0: None}, (1 << len(self.before)) - 1
        while layer and whole not in layer:
            yield from layer
            layer = {done | 1 << node: None for done in layer for node in self.ready(done)}

    def ready(self, done: int) -> list[int]:
        return [n for n, before in enumerate(self.before) if not done >> n & 1 and not before & ~done]

    def grown(self, before: int, place: int) -> list[int]:
        """List every larger set that the place alone gets to."""
        allowed = self.encoded.allowed[:, place]
        found: dict[int, None] = {}
        todo = [before]
        while todo:
            done = todo.pop()
            for node in self.ready(done):
                after = done | 1 << node
                if allowed[node] and after not in found:
                    found[after] = None
                    todo.append(after)
            if len(found) > MOST_SEGMENTS:
                break
        return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def _nodes(problem: Problem, segment: Segment) -> list[int]:
    inside = segment.after & ~segment.before
    return [n for n in range(len(problem.nodes)) if inside >> n & 1]


def _name(problem: Problem, segment: Segment) -> tuple[Place, tuple[str, ...]]:
    return problem.places[segment.place], tuple(problem.nodes[n] for n in _nodes(problem, segment))


def _row(cost: Cost) -> tuple[float, float, float, float]:
    return cost.latency_s, cost.energy_j, cost.memory_bytes, cost.error


def _rows(problem: Problem, segments: list[Segment], cost: Oracle) -> Floats:
    """Ask for the cost of every set of nodes on every place once."""
    known: dict[tuple[int, int], tuple[float, float, float, float]] = {}
    rows = np.empty((len(segments), 4))
    for number, segment in enumerate(segments):
        which = (segment.place, segment.after & ~segment.before)
        if which not in known:
            answer = cost(*_name(problem, segment))
            known[which] = (np.inf,) * 4 if answer is None else _row(answer)
        rows[number] = known[which]
    return rows


def _solved(
    problem: Problem,
    segments: list[Segment],
    rows: Floats,
    objectives: tuple[Objective, ...],
    constraints: Constraints,
) -> Frontier:
    encoded = Encoded(problem, _dearest_chain(len(problem.nodes), rows))
    scheme = scheme_for(encoded, objectives, constraints)
    graph = _ConvexStates(encoded, scheme, segments, rows).build()

    def pieces(path: list[int]) -> tuple[Piece, ...]:
        return tuple(piece(problem, segments[s].place, _nodes(problem, segments[s])) for s in path)

    return solve(graph, scheme, objectives, problem.space_name(Space.CONVEX_CUTS), pieces)


def _dearest_chain(count: int, rows: Floats) -> Floats:
    """Write the bound on any plan's cost, as many of the dearest segment as there are nodes, in a table's form."""
    table = np.full((count + 1, count + 1, 1, 4), -np.inf)
    finite = rows[np.isfinite(rows).all(1)]
    if len(finite):
        table[np.arange(count), np.arange(count) + 1, 0] = finite.max(0)
    return table


class _ConvexStates(Residency):
    """Builds the state graph from segments, one level per node set; a decision is the number of a segment."""

    def __init__(self, encoded: Encoded, scheme: Scheme, segments: list[Segment], rows: Floats) -> None:
        super().__init__(encoded, scheme)
        self._segments = segments
        self._open: Bools = np.asarray(np.isfinite(rows).all(1))
        self._cost = np.zeros((len(rows), self.width), np.int64)
        self._cost[self._open] = encoded.integers(rows[self._open])[:, : self.width]
        self._lives: dict[int, tuple[int, ...]] = {}
        self._by_start: dict[int, list[int]] = {}
        for number, segment in enumerate(segments):
            if self._open[number]:
                self._by_start.setdefault(segment.before, []).append(number)

    def build(self) -> StateGraph:
        """Build the levels, smaller sets first."""
        live, row, cost = self.start()
        count = len(self.before)
        levels = [join([Step(row, np.zeros(1, np.int64), cost, -1)], [np.ones(1, np.int64)])]
        bounds, arcs, ended = [0, 1, 2], 0, False
        waiting: dict[int, dict[int, list[Step]]] = {size: {} for size in range(1, count + 1)}
        arcs += self._leave(0, live, row, 1, waiting)
        for size in range(1, count + 1):
            for done, reached in waiting.pop(size).items():
                ended = ended or size == count
                rows = np.concatenate([step.rows for step in reached])
                unique, number = distinct(rows, len(self.copies.all))
                levels.append(join(reached, [number + bounds[-1]], len(self.scheme.coordinates)))
                arcs += self._leave(done, self._live(done), rows[unique], bounds[-1], waiting)
                bounds.append(bounds[-1] + len(unique))
                if arcs > MOST_ARCS:
                    raise TooWide(
                        f"more than {MOST_ARCS:,} ways to go on after {size} of {count} nodes; ask for all cuts of one"
                        " order, or coarsen the nodes"
                    )
        if not ended:  # without a plan the end is there, and never reached
            levels.append(join([], [], len(self.scheme.coordinates)))
            bounds.append(bounds[-1] + 1)
        return StateGraph(levels=tuple(levels), bounds=tuple(bounds), families=(None,) * len(levels))

    def _live(self, done: int) -> tuple[int, ...]:
        """Return the tensors that wait for readers; many segments begin and end at the same set of nodes."""
        if done not in self._lives:
            self._lives[done] = tuple(
                t
                for t, tensor in enumerate(self.encoded.problem.tensors)
                if self.readers[t] & ~done
                and (tensor.producer is None or done >> self.encoded.node_index[tensor.producer] & 1)
            )
        return self._lives[done]

    def _leave(
        self, done: int, live: tuple[int, ...], rows: Bytes, first: int, waiting: Mapping[int, dict[int, list[Step]]]
    ) -> int:
        """Begin every segment in every state of one set; return how many arcs that makes."""
        numbers = self._by_start.get(done, [])
        for number in numbers:
            after = self._segments[number].after
            step = self._step(number, live, rows, first)
            waiting[after.bit_count()].setdefault(after, []).append(step)
        return len(numbers) * len(rows)

    def _step(self, number: int, live: tuple[int, ...], rows: Bytes, first: int) -> Step:
        segment = self._segments[number]
        home, inside = self.encoded.place_home[segment.place], segment.after & ~segment.before
        column: dict[int, Bytes] = {t: rows[:, k] for k, t in enumerate(live)}
        cost: Ints = np.repeat(self._cost[number][None, :], len(rows), axis=0)
        for t in live:
            if self.readers[t] & inside:
                cost += self.copies.fetch(t)[column[t], home, : self.width]
                column[t] = self.copies.after[home, column[t]]
        for node in range(len(self.before)):
            for t in self.outputs[node] if inside >> node & 1 else ():
                copy, paid = self.made(t, home)
                cost += paid
                column[t] = np.full(len(rows), copy, np.uint8)
        left = self._live(segment.after)
        made = np.empty((len(rows), len(left)), np.uint8)
        for k, t in enumerate(left):
            made[:, k] = self.copies.same(t, self.useful(t, segment.after))[column[t]]
        columns = self.scheme.columns(cost, np.ones(len(rows), bool), segment.place)
        return Step(made, first + np.arange(len(rows)), columns, number)
