"""State graph for segment costs that are no sum of node costs, over all cuts of one order.

At a cut the state is where the live tensors are. A segment (start, stop, place) is *walked* from its start: it
pays a fetch when it first reads an older tensor, and once all older tensors are dead every walk that began at
one cut is the same walk, so a segment's cost is one arc and not one per state of its start.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.problem import ProblemError, TooWide
from partition.search.residency import Residency
from partition.search.states import MOST_STATES, Families, StateGraph, Step, distinct, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from partition.search.arrays import Bools, Bytes, Floats, Ints
    from partition.search.encode import Encoded
    from partition.search.problem import Cost, Place, Problem
    from partition.search.scheme import Scheme
    from partition.search.states import Arcs


class SegmentTable:
    """Segment costs by (first node, one past the last node, place) in the problem's node order.

    `rows[start, stop, place]` is (latency s, energy J, peak memory bytes, error); infinite where the place
    refuses the segment. Raise ProblemError for NaN and negative costs.
    """

    def __init__(self, rows: Floats) -> None:
        if np.isnan(rows).any() or (rows < 0).any():
            start, stop, place, field = (int(i[0]) for i in np.nonzero(np.isnan(rows) | (rows < 0)))
            raise ProblemError(
                f"segment [{start}, {stop}) on place {place} has cost {rows[start, stop, place, field]}; "
                "costs are not negative"
            )
        self.rows = rows

    @classmethod
    def empty(cls, problem: Problem) -> SegmentTable:
        """Return a table in which every segment is refused."""
        count = len(problem.nodes)
        return cls(np.full((count + 1, count + 1, len(problem.places), 4), np.inf))

    @classmethod
    def of(cls, problem: Problem, cost: Callable[[Place, tuple[str, ...]], Cost | None]) -> SegmentTable:
        """Ask `cost(place, nodes)` for every segment that no refusal excludes; None is a refusal."""
        table = cls.empty(problem)
        for start, stop, place in segments(problem):
            answer = cost(problem.places[place], problem.nodes[start:stop])
            if answer is not None:
                table.set((start, stop, place), answer)
        return table

    def set(self, segment: tuple[int, int, int], cost: Cost) -> None:
        """Note the cost of one segment."""
        self.rows[segment] = cost.latency_s, cost.energy_j, cost.memory_bytes, cost.error


def segments(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, place) of every segment of the node order without a refused node."""
    for place_number, place in enumerate(problem.places):
        refused = [place in problem.refusals.get(name, {}) for name in problem.nodes]
        for start in range(len(refused)):
            for stop in range(start + 1, len(refused) + 1):
                if refused[stop - 1]:
                    break
                yield start, stop, place_number


def segment_of(problem: Problem, what: int) -> tuple[int, int, int]:
    """Return (start, stop, place) of a decision on a path of `IntervalStates`."""
    rest, place = divmod(what, len(problem.places))
    start, stop = divmod(rest, len(problem.nodes) + 1)
    return start, stop, place


def additive_table(problem: Problem) -> SegmentTable:
    """Build the table in which a segment costs its dispatch and the sum (memory: the maximum) of its nodes."""
    table = SegmentTable.empty(problem)
    for start, stop, number in segments(problem):
        place = problem.places[number]
        node = problem.costs[problem.nodes[stop - 1], place]
        row = np.array([node.latency_s, node.energy_j, node.memory_bytes, node.error])
        if stop == start + 1:
            first = problem.dispatch.get(place)
            before = np.zeros(4) if first is None else np.array([first.latency_s, first.energy_j, 0, first.error])
        else:
            before = table.rows[start, stop - 1, number]
        table.rows[start, stop, number] = before + row
        table.rows[start, stop, number, 2] = max(before[2], row[2])
    return table


@dataclasses.dataclass(slots=True)
class _Walk:
    """A segment under way: the older tensors still alive, one row of copy states and one state per case."""

    start: int
    live: tuple[int, ...]
    rows: Bytes
    states: Ints


class IntervalStates(Residency):
    """Builds the state graph; `segment_of` reads the decisions on its arcs."""

    def __init__(self, encoded: Encoded, scheme: Scheme, table: SegmentTable) -> None:
        super().__init__(encoded, scheme)
        self.count = len(encoded.problem.nodes)
        finite = np.isfinite(table.rows[..., :2]).all(-1)
        self.open: Bools = np.asarray(finite)
        self.cost = np.zeros((*table.rows.shape[:3], self.width), np.int64)
        self.cost[finite] = encoded.integers(table.rows[finite])[:, : self.width]
        self.position = [encoded.node_index.get(t.producer or "", -1) for t in encoded.problem.tensors]
        self._last = [max((encoded.node_index[c] for c in t.consumers), default=-1) for t in encoded.problem.tensors]
        self._delivery = self._deliveries()
        self._made = [[self.made(t, home)[0] for t in range(len(self.position))] for home in encoded.place_home]

    def _deliveries(self) -> Ints:
        """Sum, up to each position and per place, the cost of delivering outputs made there."""
        places = range(len(self.encoded.problem.places))
        paid = np.zeros((self.count + 1, len(places), self.width), np.int64)
        for node in range(self.count):
            for place in places:
                for t in self.outputs[node]:
                    paid[node + 1, place] += self.made(t, self.encoded.place_home[place])[1]
        return np.asarray(paid.cumsum(0))

    def build(self) -> StateGraph:
        """Build all levels, two per position: first the walks that read an older tensor there, then the cut."""
        live, row, cost = self.start()
        levels = [join([Step(row, np.zeros(1, np.int64), cost, -1)], [np.ones(1, np.int64)])]
        bounds, families = [0, 1, 2], list[Families | None]([None])
        cut = _Walk(0, live, row, np.ones(1, np.int64))
        under_way = [_UnderWay() for _ in self.encoded.problem.places]
        for stop in range(1, self.count + 1):
            arcs, states = self._walk(under_way, cut, stop, bounds[-1])
            levels.append(arcs)
            bounds.append(bounds[-1] + states)
            families.append(None)
            cut, arcs = self._close(under_way, stop, bounds[-1])
            families.append(self._family(cut, stop))
            levels.append(arcs)
            bounds.append(bounds[-1] + len(cut.states))
            if bounds[-1] > MOST_STATES:
                raise TooWide(
                    f"too many states after {stop} of {self.count} nodes; coarsen the nodes or use fewer places"
                )
        # No tensor is alive at the last cut, so it is one state, the end; without a plan it is never reached.
        bounds[-1] = bounds[-2] + 1
        return StateGraph(levels=tuple(levels), bounds=tuple(bounds), families=tuple(families))

    def _family(self, cut: _Walk, stop: int) -> Families | None:
        """Return the states of one cut as a family: whatever follows, they differ by moves of live tensors only."""
        if not len(cut.states):
            return None
        done = (1 << stop) - 1
        slack = sum((self.slack(t, done, self.useful(t, done)) for t in cut.live), np.zeros(2, np.int64))
        return Families(first=cut.states[:1], slack=slack[None, :])

    def _walk(self, under_way: Sequence[_UnderWay], cut: _Walk, stop: int, first: int) -> tuple[Arcs, int]:
        """Begin a segment at `cut` on every place and take node `stop - 1` into all segments under way."""
        node, steps, targets, states = stop - 1, [], [], 0
        for place, going in enumerate(under_way):
            if not self.encoded.allowed[node, place]:
                going.clear()
                continue
            if len(cut.states):
                going.begin(dataclasses.replace(cut, start=node))
            for walk in going.take(self.inputs[node]):
                step, after, number = self._read(walk, node, place, first + states)
                steps.append(step)
                targets.append(number + first + states)
                states += len(after.states)
                going.begin(after)
        return join(steps, targets, len(self.scheme.coordinates)), states

    def _read(self, walk: _Walk, node: int, place: int, first: int) -> tuple[Step, _Walk, Ints]:
        """Fetch the older tensors that `node` reads; cases that differ no longer become one state."""
        home = self.encoded.place_home[place]
        column = {t: walk.rows[:, k] for k, t in enumerate(walk.live)}
        cost = np.zeros((len(walk.rows), self.width), np.int64)
        for t in self.inputs[node]:
            if t in column:
                cost += self.copies.fetch(t)[column[t], home, : self.width]
                column[t] = self.copies.after[home, column[t]]
        live = tuple(t for t in walk.live if self._last[t] > node)
        rows = self._rows({t: column[t] for t in live}, node + 1, len(walk.rows))
        unique, number = distinct(rows, len(self.copies.all))
        columns = self.scheme.columns(cost, np.zeros(len(rows), bool), place)
        after = _Walk(walk.start, live, rows[unique], first + np.arange(len(unique)))
        return Step(rows, walk.states, columns, -1), after, number

    def _rows(self, column: Mapping[int, Bytes], stop: int, size: int) -> Bytes:
        rows = np.empty((size, len(column)), np.uint8)
        for k, (t, values) in enumerate(column.items()):
            rows[:, k] = self.copies.same(t, self.useful(t, (1 << stop) - 1))[values]
        return rows

    def _close(self, under_way: Sequence[_UnderWay], stop: int, first: int) -> tuple[_Walk, Arcs]:
        """End every segment under way at position `stop`."""
        live = tuple(t for t, made in enumerate(self.position) if made < stop <= self._last[t])
        steps = []
        for place, going in enumerate(under_way):
            new = {t: np.full(1, self._made[place][t], np.uint8) for t in live}
            for walk in going.reading:
                column = {t: walk.rows[:, walk.live.index(t)] if t in walk.live else new[t] for t in live}
                starts = np.full(len(walk.states), walk.start)
                steps.append(self._end(column, starts, walk.states, stop, place))
            if going.starts:
                steps.append(self._end(new, np.array(going.starts), np.array(going.states), stop, place))
        steps = [step for step in steps if len(step.rows)]
        if not steps:
            return _Walk(stop, live, np.zeros((0, len(live)), np.uint8), _NONE), join(
                [], [], len(self.scheme.coordinates)
            )
        rows = np.concatenate([step.rows for step in steps])
        unique, number = distinct(rows, len(self.copies.all))
        cut = _Walk(stop, live, rows[unique], first + np.arange(len(unique)))
        return cut, join(steps, [number + first])

    def _end(self, column: Mapping[int, Bytes], starts: Ints, states: Ints, stop: int, place: int) -> Step:
        """Charge the segments [starts, stop) on `place` and say where the tensors alive after them are."""
        rows = self._rows(column, stop, len(states))
        open_ = np.flatnonzero(self.open[starts, stop, place])
        delivered = self._delivery[stop, place] - self._delivery[starts, place]
        cost = self.cost[starts, stop, place] + delivered
        what = (starts * (self.count + 1) + stop) * len(self.encoded.problem.places) + place
        columns = self.scheme.columns(cost, np.ones(len(starts), bool), place)
        return Step(rows[open_], states[open_], columns[open_], what[open_])


class _UnderWay:
    """The segments under way on one place: those that may still read an older tensor, and all others."""

    def __init__(self) -> None:
        self.reading: list[_Walk] = []
        self.starts: list[int] = []
        self.states: list[int] = []

    def clear(self) -> None:
        self.reading, self.starts, self.states = [], [], []

    def begin(self, walk: _Walk) -> None:
        if walk.live:
            self.reading.append(walk)
        else:
            self.starts.append(walk.start)
            self.states.append(int(walk.states[0]))

    def take(self, read: Sequence[int]) -> list[_Walk]:
        """Remove and return the walks for which one of the tensors `read` is an older one."""
        taken = [walk for walk in self.reading if any(t in walk.live for t in read)]
        self.reading = [walk for walk in self.reading if not any(t in walk.live for t in read)]
        return taken


_NONE: Final = np.zeros(0, np.int64)
