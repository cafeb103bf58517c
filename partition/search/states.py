"""The state graph: every plan is one path through it, every arc is one decision with its cost.

A state of the additive model is an ideal (the nodes done), where each live tensor has copies, and the place
of the open segment. The solvers in `labels.py` know only states and arcs, so they are the same for every model.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.problem import TooWide
from partition.search.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partition.search.arrays import Bools, Bytes, Ints
    from partition.search.encode import Encoded
    from partition.search.plans import Hopeless
    from partition.search.scheme import Scheme

MOST_STATES: Final = 1_000_000
MOST_IDEALS: Final = 4_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arcs:
    """Arcs into one level, sorted by target. `what[i]` is the decision: node * places + place, -1 for none."""

    source: Ints
    target: Ints
    cost: Ints
    what: Ints


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Families:
    """States of one level in families that allow the same decisions, each a range beginning at `first`.

    From any state of a family the same decisions cost at most `slack` (latency, energy) more than from any other.
    """

    first: Ints
    slack: Ints


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateGraph:
    """States numbered level by level: 0 is the start, the last one the end.

    The arcs `levels[k]` lead to the states from `bounds[k + 1]` to `bounds[k + 2]`, which fall into `families[k]`.
    """

    levels: tuple[Arcs, ...]
    bounds: tuple[int, ...]
    families: tuple[Families | None, ...]

    @property
    def states(self) -> int:
        """Count the states."""
        return self.bounds[-1]

    @property
    def arcs(self) -> int:
        """Count the arcs."""
        return sum(len(level.source) for level in self.levels)


@dataclasses.dataclass(slots=True)
class _Ideal:
    """One ideal while its layer is being built: live tensors, one row of copy states (+ place) per state.

    `reach` is the least latency and the least energy with which each state can be reached, `rest` the least
    that the other nodes add.
    """

    live: tuple[int, ...]
    rows: Bytes
    reach: Ints
    rest: Ints
    first: int


@dataclasses.dataclass(slots=True)
class _Reached:
    """An ideal of the next layer.

    `same` maps the copy states of each live tensor to representatives, `rest` is the least the other nodes add,
    `slack` what two of its states can differ by from here on, `steps` lead to it.
    """

    live: tuple[int, ...]
    same: tuple[Bytes, ...]
    rest: Ints
    slack: Ints
    steps: list[Step]


@dataclasses.dataclass(slots=True)
class Step:
    """Rows that reach an ideal by one decision, before equal ones are merged."""

    rows: Bytes
    source: Ints
    cost: Ints
    what: Ints | int
    reach: Ints = dataclasses.field(default_factory=lambda: np.zeros((0, 2), np.int64))

    def only(self, chosen: Bools) -> Step:
        """Return the step with some of its rows."""
        return Step(self.rows[chosen], self.source[chosen], self.cost[chosen], self.what, self.reach[chosen])


class AdditiveStates(Residency):
    """Build the state graph of the additive model over all ideals, or over the prefixes of one order."""

    def __init__(self, encoded: Encoded, scheme: Scheme, *, one_order: bool, hopeless: Hopeless | None = None) -> None:
        super().__init__(encoded, scheme)
        self.one_order, self.hopeless = one_order, hopeless
        far = np.where(encoded.allowed[..., None], encoded.node_cost[..., :2], np.iinfo(np.int64).max)
        self._least = far.min(1)
        self.track_place = encoded.pays_dispatch or scheme.counts_segments

    def build(self) -> StateGraph:
        """Build all levels; raise TooWide past MOST_STATES states or MOST_IDEALS ideals of one size."""
        count = len(self.inputs)
        live, row, cost = self.start()
        nowhere = [[len(self.encoded.problem.places) if self.track_place else 0]]
        start = _Ideal(live, np.append(row, nowhere, axis=1).astype(np.uint8), cost[:, :2], self._least.sum(0), 1)
        levels, bounds = [join([Step(start.rows, np.zeros(1, np.int64), cost, -1)], [np.ones(1, np.int64)])], [0, 1, 2]
        layer = {0: start}
        ready = {0: [n for n in range(count) if not self.before[n]]}
        families: list[Families | None] = [None]
        for depth in range(count):
            reached, ready = self._grow(layer, ready, depth)
            layer, arcs = self._merge(reached, bounds[-1])
            levels.append(arcs)
            families.append(self._families(reached, layer))
            bounds.append(bounds[-1] + sum(len(ideal.rows) for ideal in layer.values()))
            if bounds[-1] > MOST_STATES:
                raise TooWide(self._too_wide(depth + 1, len(layer)))
        levels.append(_end(layer, bounds[-1], len(self.scheme.coordinates)))
        families.append(None)
        return StateGraph(levels=tuple(levels), bounds=(*bounds, bounds[-1] + 1), families=tuple(families))

    def _families(self, reached: dict[int, _Reached], layer: dict[int, _Ideal]) -> Families:
        return Families(
            first=np.array([ideal.first for ideal in layer.values()], np.int64),
            slack=np.array([reached[done].slack for done in layer], np.int64).reshape(-1, 2),
        )

    def _grow(
        self, layer: dict[int, _Ideal], ready: dict[int, list[int]], depth: int
    ) -> tuple[dict[int, _Reached], dict[int, list[int]]]:
        """Add one node to every ideal of a layer in every way, on every place."""
        grown: dict[int, _Reached] = {}
        following: dict[int, list[int]] = {}
        for done, ideal in layer.items():
            for node in [depth] if self.one_order else ready[done]:
                after = done | 1 << node
                if after not in grown:
                    if len(grown) >= MOST_IDEALS:
                        raise TooWide(self._too_wide(depth, len(grown)))
                    grown[after] = self._reached(ideal, node, after)
                    following[after] = [] if self.one_order else self._ready(ready[done], node, after)
                grown[after].steps += self._steps(ideal, node, grown[after])
        return grown, following

    def _too_wide(self, depth: int, ideals: int) -> str:
        return (
            f"too many states after {depth} of {len(self.inputs)} nodes ({ideals:,} node sets at once); "
            "ask for all cuts of one order, for a certified cover, or for fewer places"
        )

    def _live(self, live: Iterable[int], node: int, reached: int) -> tuple[int, ...]:
        return tuple(sorted(t for t in (*live, *self.outputs[node]) if self.readers[t] & ~reached))

    def _ready(self, ready: Sequence[int], node: int, reached: int) -> list[int]:
        freed = [n for n in dict.fromkeys(self.after[node]) if not self.before[n] & ~reached]
        return [n for n in ready if n != node] + freed

    def _reached(self, ideal: _Ideal, node: int, after: int) -> _Reached:
        live = self._live(ideal.live, node, after)
        useful = [self.useful(t, after) for t in live]
        slack = self.encoded.dispatch[:, :2].max(0) if self.track_place else np.zeros(2, np.int64)
        slack = slack + sum(
            (self.slack(t, after, homes) for t, homes in zip(live, useful, strict=True)), np.zeros(2, np.int64)
        )
        same = tuple(self.copies.same(t, homes) for t, homes in zip(live, useful, strict=True))
        return _Reached(live, same, ideal.rest - self._least[node], slack, [])

    def _steps(self, ideal: _Ideal, node: int, into: _Reached) -> list[Step]:
        places = np.flatnonzero(self.encoded.allowed[node]).tolist()
        steps = [self._step(ideal, node, place, into) for place in places]
        if self.hopeless is None:
            return steps
        return [step.only(~self.hopeless.of(step.reach + into.rest)) for step in steps]

    def _step(self, ideal: _Ideal, node: int, place: int, into: _Reached) -> Step:
        """Run `node` on `place` from every state of `ideal`: fetch its inputs, note where its outputs are."""
        home, width = self.encoded.place_home[place], self.width
        column = {t: ideal.rows[:, k] for k, t in enumerate(ideal.live)}
        cost = np.repeat(self.encoded.node_cost[node, place, None, :width], len(ideal.rows), axis=0)
        for t in self.inputs[node]:
            cost += self.copies.fetch(t)[column[t], home, :width]
            column[t] = self.copies.after[home, column[t]]
        for t in self.outputs[node]:
            copy, paid = self.made(t, home)
            cost += paid
            column[t] = np.full(len(ideal.rows), copy, np.uint8)
        opened = ideal.rows[:, -1] != place
        if self.track_place:
            cost += opened[:, None] * self.encoded.dispatch[place, :width]
        rows = np.empty((len(ideal.rows), len(into.live) + 1), np.uint8)
        for k, (t, same) in enumerate(zip(into.live, into.same, strict=True)):
            rows[:, k] = same[column[t]]
        rows[:, -1] = place if self.track_place else 0
        source = np.arange(ideal.first, ideal.first + len(rows))
        columns = self.scheme.columns(cost, opened, place)
        what = node * len(self.encoded.problem.places) + place
        return Step(rows, source, columns, what, ideal.reach + cost[:, :2])

    def _merge(self, grown: dict[int, _Reached], first: int) -> tuple[dict[int, _Ideal], Arcs]:
        """Make one state of equal rows of one ideal."""
        layer: dict[int, _Ideal] = {}
        flat, targets = [], []
        for after, into in grown.items():
            if not any(len(step.rows) for step in into.steps):
                continue
            rows = np.concatenate([step.rows for step in into.steps])
            unique, number = distinct(rows, max(len(self.copies.all), len(self.encoded.problem.places) + 1))
            reach = np.full((len(unique), 2), np.iinfo(np.int64).max)
            np.minimum.at(reach, number, np.concatenate([step.reach for step in into.steps]))
            layer[after] = _Ideal(into.live, rows[unique], reach, into.rest, first)
            flat += into.steps
            targets.append(number + first)
            first += len(unique)
        return layer, join(flat, targets, len(self.scheme.coordinates))


def distinct(rows: Bytes, radix: int) -> tuple[Ints, Ints]:
    """Return the index of each distinct row's first appearance, and every row's number among the distinct."""
    if radix ** rows.shape[1] >= 1 << 63:
        _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, number.reshape(-1)
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        code = code * radix + column
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    return first, number


def join(steps: Sequence[Step], targets: Sequence[Ints], width: int = 2) -> Arcs:
    """Make the arcs of one level from steps and the states they reach; `width` is for the level without any."""
    if not steps:
        return Arcs(source=_NONE, target=_NONE, cost=np.zeros((0, width), np.int64), what=_NONE)
    target = np.concatenate(targets)
    order = np.argsort(target, kind="stable")
    what = np.concatenate([np.broadcast_to(step.what, len(step.rows)) for step in steps])
    return Arcs(
        source=np.concatenate([step.source for step in steps])[order],
        target=target[order],
        cost=np.concatenate([step.cost for step in steps])[order],
        what=what[order],
    )


def _end(layer: dict[int, _Ideal], last: int, width: int) -> Arcs:
    """Join the states that are left, one per place of the last segment, in the end state."""
    source = np.concatenate([np.arange(i.first, i.first + len(i.rows)) for i in layer.values()] or [_NONE])
    nothing = np.zeros((len(source), width), np.int64)
    return Arcs(source=source, target=np.full(len(source), last), cost=nothing, what=np.full(len(source), -1))


_NONE: Final = np.zeros(0, np.int64)
