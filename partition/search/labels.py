"""Two-objective label setting: every non-dominated (latency, energy) of every state, in topological order.

Both objectives are packed into one int64, latency in the high and energy in the low 32 bits, so a transition is
one addition and a dominance filter one sort and one running minimum. No parent is stored: adding a packed cost
can be undone, so a plan is recovered by looking its value up in the states before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.problem import TooWide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partition.search.arrays import Bools, Ints
    from partition.search.states import StateGraph

LOW: Final = (1 << 32) - 1
NEVER: Final = np.iinfo(np.int64).max
WIDE: Final = 1024  # groups above this many labels are filtered one by one, shorter ones as rows of a matrix
MOST_LABELS: Final = 150_000_000  # 1.2 GB
CHUNK: Final = 2_000_000
FEW: Final = 16  # labels in a family, below which comparing them does not pay
FIRST_ROOM: Final = 1 << 25  # untouched pages cost nothing, copying a pool that grew does


def pack(cost: Ints) -> Ints:
    """Pack rows (latency, energy) of integers below 2^31."""
    return np.asarray((cost[:, 0] << 32) + cost[:, 1])


def unpack(keys: Ints) -> Ints:
    """Undo `pack`."""
    return np.stack([keys >> 32, keys & LOW], axis=1)


class PairLabels:
    """The non-dominated labels of a state graph with coordinates (latency, energy), each with its limit."""

    def __init__(
        self,
        graph: StateGraph,
        limits: tuple[int | None, int | None] = (None, None),
        keep: Callable[[Ints, Ints], Bools] | None = None,
    ) -> None:
        """Set all labels; `keep(states, keys)` may tell which of them to follow further."""
        self.graph = graph
        self._limits, self._keep = limits, keep
        self._keys = np.empty(FIRST_ROOM, np.int64)
        self._keys[0] = 0
        self.stored = 1
        self._first = np.zeros(graph.states, np.int64)
        self._count = np.zeros(graph.states, np.int64)
        self._count[0] = 1
        self._cost = [pack(level.cost) for level in graph.levels]
        for level in range(len(graph.levels)):
            self._settle(level)

    @property
    def points(self) -> Ints:
        """Return the frontier: the (latency, energy) rows of the end state, latency rising."""
        return unpack(self._front(-1))

    def _front(self, state: int) -> Ints:
        return self._keys[self._first[state] : self._first[state] + self._count[state]]

    def _settle(self, number: int) -> None:
        """Make and filter the labels of all states of one level."""
        level, cost, begin = self.graph.levels[number], self._cost[number], self.stored
        if not len(level.source):
            return
        lengths = self._count[level.source]
        starts = np.concatenate([[0], np.flatnonzero(np.diff(level.target)) + 1])
        stops = np.append(starts[1:], len(lengths))
        sizes = np.add.reduceat(lengths, starts)
        for group in np.flatnonzero(sizes > WIDE):
            arcs = slice(starts[group], stops[group])
            self._settle_wide(level.target[arcs.start], level.source[arcs], cost[arcs], int(sizes[group]))
        for groups in _batches(sizes):
            chosen = _ranges(starts[groups], (stops - starts)[groups])
            before = _ranges(self._first[level.source[chosen]], lengths[chosen])
            made = self._keys[before] + np.repeat(cost[chosen], lengths[chosen])
            self._settle_narrow(level.target[starts[groups]], self._within(made), sizes[groups])
        if self.graph.families[number] is not None:
            self._compare(number, begin)

    def _settle_wide(self, state: int, source: Ints, cost: Ints, size: int) -> None:
        made = np.empty(size, np.int64)
        stop = 0
        for state_before, step in zip(source.tolist(), cost.tolist(), strict=True):
            front = self._front(state_before)
            np.add(front, step, out=made[stop : stop + len(front)])
            stop += len(front)
        kept = staircase(self._within(made))
        if self._keep is not None:
            kept = kept[self._keep(np.full(len(kept), state), kept)]
        self._first[state], self._count[state] = self._store(kept), len(kept)

    def _settle_narrow(self, states: Ints, made: Ints, sizes: Ints) -> None:
        width = int(sizes.max())
        matrix = np.full((len(states), width), NEVER)
        matrix[np.arange(width) < sizes[:, None]] = made
        matrix.sort(axis=1)
        lowest = np.minimum.accumulate(matrix & LOW, axis=1)
        keep = np.empty(matrix.shape, bool)
        np.not_equal(matrix[:, 0], NEVER, out=keep[:, 0])
        np.less(lowest[:, 1:], lowest[:, :-1], out=keep[:, 1:])
        if self._keep is not None:
            row, column = np.nonzero(keep)
            keep[row, column] = self._keep(states[row], matrix[row, column])
        counts = keep.sum(1)
        self._first[states] = self._store(matrix[keep]) + np.cumsum(counts) - counts
        self._count[states] = counts

    def _compare(self, number: int, begin: int) -> None:
        """Drop labels that one of another state of their family beats by more than the two can still differ."""
        family = self.graph.families[number]
        assert family is not None
        states = np.arange(self.graph.bounds[number + 1], self.graph.bounds[number + 2])
        counts = self._count[states]
        keys = self._keys[_ranges(self._first[states], counts)]
        edges = np.append(0, np.cumsum(counts))
        starts = edges[family.first - states[0]]
        keep = np.ones(len(keys), bool)
        for start, stop, slack in zip(starts, [*starts[1:], len(keys)], pack(family.slack), strict=True):
            if stop - start > FEW:
                keep[start:stop] = _unbeaten(keys[start:stop], int(slack))
        kept = np.append(0, np.cumsum(keep))[edges]
        self._first[states], self._count[states] = begin + kept[:-1], np.diff(kept)
        self.stored = begin + int(kept[-1])
        self._keys[begin : self.stored] = keys[keep]

    def _within(self, made: Ints) -> Ints:
        deadline, cap = self._limits
        if deadline is not None:
            made[made >> 32 > deadline] = NEVER
        if cap is not None:
            made[made & LOW > cap] = NEVER
        return made

    def _store(self, keys: Ints) -> int:
        """Append labels to the pool and return where they start."""
        first, self.stored = self.stored, self.stored + len(keys)
        if self.stored > MOST_LABELS:
            raise TooWide(
                f"more than {MOST_LABELS:,} partial plans are non-dominated; ask for a certified cover instead"
            )
        if self.stored > len(self._keys):
            grown = np.empty(max(2 * len(self._keys), self.stored), np.int64)
            grown[:first] = self._keys[:first]
            self._keys = grown
        self._keys[first : self.stored] = keys
        return first

    def paths(self, ends: Ints) -> list[list[int]]:
        """Return the decisions of frontier points `ends`, from the start."""
        state = np.full(len(ends), self.graph.states - 1)
        value = self._front(-1)[ends]
        decided = []
        for number in range(len(self.graph.levels) - 1, -1, -1):
            here = np.flatnonzero(state >= self.graph.bounds[number + 1])
            what = np.full(len(ends), -1)
            if len(here):
                what[here], state[here], value[here] = self._back(number, state[here], value[here])
            decided.append(what)
        table = np.array(decided[::-1]).T
        return [row[row >= 0].tolist() for row in table]

    def _back(self, number: int, state: Ints, value: Ints) -> tuple[Ints, Ints, Ints]:
        """Find, for labels of one level, an arc and a label before it that made each."""
        level = self.graph.levels[number]
        low = np.searchsorted(level.target, state)
        fan = np.searchsorted(level.target, state, side="right") - low
        arc = _ranges(low, fan)
        label = np.repeat(np.arange(len(state)), fan)
        before = value[label] - self._cost[number][arc]
        hits = np.flatnonzero(self._holds(level.source[arc], before))
        found, pick = np.unique(label[hits], return_index=True)
        assert len(found) == len(state), "a label has no label before it"
        chosen = hits[pick]
        return level.what[arc[chosen]], level.source[arc[chosen]], before[chosen]

    def _holds(self, state: Ints, value: Ints) -> Bools:
        """Tell whether each state's front holds each value: many binary searches in step."""
        low, stop = self._first[state], self._first[state] + self._count[state]
        high = stop.copy()
        for _ in range(int(self._count[state].max(initial=1)).bit_length()):
            middle = (low + high) >> 1
            right = (middle < high) & (self._keys[np.minimum(middle, self.stored - 1)] < value)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        return np.asarray((low < stop) & (self._keys[np.minimum(low, self.stored - 1)] == value))


def staircase(keys: Ints) -> Ints:
    """Sort packed keys in place and return those that no other equals or beats in both objectives."""
    keys.sort(kind="stable")  # the input is a few sorted runs, which this sort merges
    lowest = keys & LOW
    np.minimum.accumulate(lowest, out=lowest)
    keep = np.empty(len(keys), bool)
    keep[0] = keys[0] != NEVER
    np.less(lowest[1:], lowest[:-1], out=keep[1:])
    return np.asarray(keys.compress(keep))  # 2.5 times faster here than keys[keep]


def _unbeaten(keys: Ints, slack: int) -> Bools:
    """Tell which labels no other beats strictly once `slack` is added to it."""
    front = staircase(keys.copy()) + slack
    last = np.searchsorted(front >> 32, keys >> 32, side="right") - 1
    energy = (front & LOW)[np.maximum(last, 0)]
    beaten = (last >= 0) & (energy <= keys & LOW) & (front[np.maximum(last, 0)] != keys)
    return np.asarray(~beaten)


def _ranges(first: Ints, lengths: Ints) -> Ints:
    """Concatenate the ranges first[i] .. first[i] + lengths[i]."""
    shift = first - (np.cumsum(lengths) - lengths)
    return np.asarray(np.arange(lengths.sum()) + np.repeat(shift, lengths))


def _batches(sizes: Ints) -> Iterator[Ints]:
    """Collect narrow groups of similar size, so that padding at most doubles them, in chunks."""
    bits = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    for width in np.unique(bits[(sizes > 0) & (sizes <= WIDE)]):
        groups = np.flatnonzero((bits == width) & (sizes > 0))
        step = max(CHUNK >> int(width), 1)
        yield from (groups[start : start + step] for start in range(0, len(groups), step))
