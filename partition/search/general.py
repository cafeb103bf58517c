"""Label setting with any number of coordinates, sums and peaks: slower, but any objective and limit fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from partition.search.arrays import Bools, Ints
    from partition.search.plans import Hopeless
    from partition.search.scheme import Coordinate
    from partition.search.states import Arcs, StateGraph

BLOCK: Final = 256
NO_LIMIT: Final = np.iinfo(np.int64).max
MANY: Final = 1 << 61  # twice this is still an int64


class RowLabels:
    """The non-dominated labels of a state graph as integer rows, with the label and arc before each."""

    def __init__(
        self, graph: StateGraph, coordinates: tuple[Coordinate, ...], hopeless: Hopeless | None = None
    ) -> None:
        """Set all labels but those that `hopeless` tells by the least (latency, energy) that can become of them."""
        self._hopeless = hopeless
        self._to_go = least_to_go(graph) if hopeless is not None else None
        self._peaks = np.array([c.takes_maximum for c in coordinates])
        # Only coordinates that never fall may cut a partial plan off; the others are checked at the end.
        self._limits = np.array([NO_LIMIT if c.limit is None or not c.grows else c.limit for c in coordinates])
        self._what = np.concatenate([level.what for level in graph.levels])
        self._rows: list[Ints] = [np.zeros((1, len(coordinates)), np.int64)] + [self._rows_none(coordinates)] * (
            graph.states - 1
        )
        self._before: list[tuple[Ints, Ints, Ints]] = [(_NONE, _NONE, _NONE)] * graph.states
        self.stored = 1
        self._end = graph.states - 1
        first_arc = 0
        for level in graph.levels:
            self._settle(level, first_arc)
            first_arc += len(level.source)

    @staticmethod
    def _rows_none(coordinates: tuple[Coordinate, ...]) -> Ints:
        return np.zeros((0, len(coordinates)), np.int64)

    @property
    def points(self) -> Ints:
        """Return the rows of the end state."""
        return self._rows[self._end]

    def _settle(self, level: Arcs, first_arc: int) -> None:
        borders = np.flatnonzero(np.diff(level.target)) + 1
        for start, stop in zip([0, *borders], [*borders, len(level.target)], strict=True):
            if start < stop:
                self._settle_state(int(level.target[start]), level, range(start, stop), first_arc)

    def _settle_state(self, state: int, level: Arcs, arcs: range, first_arc: int) -> None:
        sources = level.source[arcs.start : arcs.stop].tolist()
        lengths = [len(self._rows[source]) for source in sources]
        old = np.concatenate([self._rows[source] for source in sources])
        arc = np.repeat(np.arange(arcs.start, arcs.stop), lengths)
        step = level.cost[arc]
        made = np.where(self._peaks, np.maximum(old, step), old + step)
        inside = np.flatnonzero((made <= self._limits).all(1))
        if self._hopeless is not None and self._to_go is not None and state != self._end:
            inside = inside[~self._hopeless.of(made[inside, :2] + self._to_go[state])]
        kept = inside[nondominated(made[inside])]
        number = np.concatenate([np.arange(length) for length in lengths])
        self._rows[state] = made[kept]
        self._before[state] = (level.source[arc[kept]], number[kept], arc[kept] + first_arc)
        self.stored += len(kept)

    def paths(self, ends: Ints) -> list[list[int]]:
        """Return the decisions that led to rows `ends` of the end state."""
        return [self._path(int(end)) for end in ends]

    def _path(self, end: int) -> list[int]:
        state, label, decided = self._end, end, []
        while state:
            source, number, arc = (int(column[label]) for column in self._before[state])
            decided.append(int(self._what[arc]))
            state, label = source, number
        return [what for what in reversed(decided) if what >= 0]


def least_to_go(graph: StateGraph) -> Ints:
    """Return per state the least latency and the least energy from there to the end; MANY where there is no way."""
    to_go = np.full((graph.states, 2), MANY)
    to_go[-1] = 0
    for level in reversed(graph.levels):
        np.minimum.at(to_go, level.source, level.cost[:, :2] + to_go[level.target])
    return np.asarray(np.minimum(to_go, MANY))


def nondominated(points: Ints) -> Ints:
    """Return the indices of the rows that no other row equals or beats everywhere, one per equal set."""
    order = np.lexsort(points.T[::-1])
    ordered = points[order]
    kept = np.zeros(0, np.int64)
    for start in range(0, len(ordered), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(ordered)))
        block = block[~_beaten(ordered[block], ordered[kept])]
        # Rows are in lexicographic order, so only an earlier one can dominate a later one.
        worse = (ordered[block][None, :] <= ordered[block][:, None]).all(2)
        kept = np.concatenate([kept, block[~np.tril(worse, -1).any(1)]])
    return np.asarray(order[kept])


def _beaten(points: Ints, front: Ints) -> Bools:
    not_worse = np.all(front[None, :] <= points[:, None], axis=2)
    return np.asarray(np.any(not_worse, axis=1))


_NONE: Final = np.zeros(0, np.int64)
