"""Branches that run at the same time on different processors: makespan and energy, exact for a stated model.

The model: every node is dispatched by itself; a processor runs one node at a time without interruption; a tensor
starts to move to a memory when it is made, at the earliest by order of the first reader there, and moves do not
disturb one another. Contention for bandwidth is a factor on every duration, as if all processors were always
busy: an upper bound of any contention up to that factor. Exact contention would make a duration depend on what
runs beside it, so that a partial schedule that is better everywhere could still end worse.

A label is (when each processor is free, energy, when each copy of each live tensor is there). Being no later
anywhere is never worse, so dominance in every component is exact; the number of labels is what limits the size.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.bounds import Weigher
from partition.search.encode import Encoded
from partition.search.frontier import NO_LIMITS, Effort, Frontier, search
from partition.search.general import nondominated
from partition.search.infeasible import unplaceable
from partition.search.lazy import cover_gaps
from partition.search.makespan import Lines, Relaxation
from partition.search.pieces import pieces_of_nodes
from partition.search.plans import Hopeless
from partition.search.problem import ProblemError, Space, TooWide
from partition.search.residency import Residency
from partition.search.scheme import scheme_for
from partition.search.states import AdditiveStates
from partition.search.timetable import Timetable, Timetables, placing_of, tails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partition.search.arrays import Ints
    from partition.search.problem import Problem

BEAM: Final = 8_000
MOST_MOVE_STATES: Final = 60_000
NARROW: Final = 300  # once the beam was passed: then local search finds more than wide layers do
STARTS: Final = 12  # plans of the sequential frontier that local search starts from
RANGES: Final = 200  # of energy, from each of which a thinned layer keeps the soonest


@dataclasses.dataclass(frozen=True, slots=True)
class _Key:
    """What two labels must share to be compared: nodes done and, per live tensor, origin and copies."""

    done: int
    copies: tuple[tuple[int, int, int], ...]  # (tensor, origin memory or -1 for everywhere, set of memories)

    def columns(self, first: int) -> dict[tuple[int, int], int]:
        """Number the components that say when a copy is there, by (tensor, memory)."""
        pairs = [
            (t, h) for t, origin, mask in self.copies if origin >= 0 for h in range(mask.bit_length()) if mask >> h & 1
        ]
        return {pair: first + i for i, pair in enumerate(pairs)}


@dataclasses.dataclass(slots=True)
class _Labels:
    """Labels of one key and, for each, the label before it (a number over all) and the decision."""

    rows: Ints
    before: Ints
    what: Ints
    first: int = 0


def search_parallel(problem: Problem, *, contention: float = 1.0, beam: int = BEAM) -> Frontier:
    """Return the Pareto-optimal (makespan, energy) schedules of the model above.

    `contention` >= 1 multiplies every node's duration. Exact as long as no more than `beam` partial schedules of
    one size are non-dominated. Beyond that local search finds complete schedules, a narrow beam goes on, and the
    result's `gap_ratio` says how much better any other schedule could be at most.
    """
    if contention < 1:
        raise ProblemError(f"contention {contention} is below 1; it can only slow a node down")
    encoded = Encoded(problem)
    unplaceable(encoded)
    return _Schedules(encoded, contention, beam).solve()


class _Schedules(Residency):
    def __init__(self, encoded: Encoded, contention: float, beam: int) -> None:
        scheme = scheme_for(encoded, ("latency", "energy"), NO_LIMITS)
        super().__init__(encoded, scheme)
        names = [place.processor for place in encoded.problem.places]
        self.processors = list(dict.fromkeys(names))
        self.processor_of = [self.processors.index(name) for name in names]
        alone = encoded.node_cost[..., :2] + encoded.dispatch[:, :2]
        self.duration = np.rint(alone[..., 0] * contention).astype(np.int64)
        self.energy = alone[..., 1]
        self.contention, self.beam = contention, beam
        never = np.iinfo(np.int64).max
        self.shortest = np.where(encoded.allowed, self.duration, never).min(1)
        self.frugal = np.where(encoded.allowed, self.energy, never).min(1)
        self.tail = tails(self.shortest.tolist(), self.after)
        self.tables = Timetables(self, self.duration, self.energy, self.processor_of)
        self.decided: list[tuple[Ints, Ints]] = []
        self.dropped: list[Ints] = []

    def solve(self) -> Frontier:
        """Go through the layers of node sets and keep what is not dominated.

        When a layer first passes the beam, better complete schedules are sought: they cut off more, and what they
        leave open is proved by the lines that no schedule passes.
        """
        key, labels = self._begin()
        layer = {key: labels}
        known, lines = self.tables.run_all(self._sequential()), None
        hopeless = Hopeless(_costs(known))
        stored = 1
        for _ in self.after:
            layer = self._next(layer, hopeless)
            if lines is None and _size(layer) > self.beam:
                known, lines = self._improved(known)
                self.beam = min(self.beam, NARROW)
                hopeless = Hopeless(_costs(known))
                filtered = {key: self._filter(key, [labels], hopeless) for key, labels in layer.items()}
                layer = {key: labels for key, labels in filtered.items() if len(labels.rows)}
            layer = self._thin(layer)
            for labels in layer.values():
                labels.first = stored
                self.decided.append((labels.before, labels.what))
                stored += len(labels.rows)
        return self._answer(layer, stored, known, lines)

    def _thin(self, layer: dict[_Key, _Labels]) -> dict[_Key, _Labels]:
        """Keep at most `beam` labels, the soonest of each range of energy, and note what the others could be."""
        if _size(layer) <= self.beam:
            return layer
        corners = np.concatenate([self._corner(key, labels.rows) for key, labels in layer.items()])
        rank = np.lexsort((corners[:, 0], corners[:, 1])).argsort() * RANGES // len(corners)
        order = np.lexsort((corners[:, 0], rank))
        within = np.arange(len(order)) - np.searchsorted(rank[order], rank[order])
        keep = np.zeros(len(corners), bool)
        keep[order[within < max(self.beam // RANGES, 1)]] = True
        if not keep.all():
            lost = corners[~keep]
            self.dropped.append(lost[nondominated(lost)])
        parts = np.split(keep, np.cumsum([len(labels.rows) for labels in layer.values()])[:-1])
        return {
            key: _Labels(labels.rows[chosen], labels.before[chosen], labels.what[chosen])
            for (key, labels), chosen in zip(layer.items(), parts, strict=True)
            if chosen.any()
        }

    def _begin(self) -> tuple[_Key, _Labels]:
        """Put the inputs where they are at time 0; those that are outputs too start to move at once."""
        copies, delivered = [], []
        for t, tensor in enumerate(self.encoded.problem.tensors):
            if tensor.producer is not None or not (self.readers[t] or tensor.target is not None):
                continue
            origin = -1 if tensor.source is None else self.encoded.homes.index(tensor.source)
            mask = 0 if origin < 0 else 1 << origin
            if mask and tensor.target not in (None, tensor.source):
                delivered.append((t, self.encoded.homes.index(tensor.target or "")))
                mask |= 1 << delivered[-1][1]
            copies.append((t, origin, mask))
        key = _Key(0, tuple(copies))
        width = len(self.processors) + 1
        column = key.columns(width)
        row = np.zeros((1, width + len(column)), np.int64)
        for t, home in delivered:
            move = self.encoded.move(t, self.encoded.homes.index(self.encoded.problem.tensors[t].source or ""), home)
            row[0, column[t, home]] = move[0]
            row[0, width - 1] += move[1]
        return key, _Labels(row, np.zeros(1, np.int64), np.full(1, -1))

    def _next(self, layer: dict[_Key, _Labels], hopeless: Hopeless) -> dict[_Key, _Labels]:
        grown: dict[_Key, list[_Labels]] = {}
        for key, labels in layer.items():
            for node in range(len(self.after)):
                if key.done >> node & 1 or self.before[node] & ~key.done:
                    continue
                for place in np.flatnonzero(self.encoded.allowed[node]).tolist():
                    after, made = self._schedule(key, labels, node, place)
                    grown.setdefault(after, []).append(made)
        return {key: kept for key, parts in grown.items() if len((kept := self._filter(key, parts, hopeless)).rows)}

    def _schedule(self, key: _Key, labels: _Labels, node: int, place: int) -> tuple[_Key, _Labels]:
        """Run `node` on `place` as early as possible in every partial schedule."""
        home, unit, energy_at = self.encoded.place_home[place], self.processor_of[place], len(self.processors)
        column = key.columns(energy_at + 1)
        free = labels.rows[:, :energy_at].copy()
        energy = labels.rows[:, energy_at] + self.energy[node, place]
        ready = {pair: labels.rows[:, k] for pair, k in column.items()}
        origins = {t: (origin, mask) for t, origin, mask in key.copies}
        begin = free[:, unit]
        for t in self.inputs[node]:
            origin, mask = origins[t]
            if origin < 0:
                continue
            if not mask >> home & 1:
                move = self.encoded.move(t, origin, home)
                ready[t, home] = ready[t, origin] + move[0]
                energy = energy + move[1]
                origins[t] = (origin, mask | 1 << home)
            begin = np.maximum(begin, ready[t, home])
        end = begin + self.duration[node, place]
        free[:, unit] = end
        for t in self.outputs[node]:
            target = self.encoded.problem.tensors[t].target
            origins[t], ready[t, home] = (home, 1 << home), end
            if target is not None and (wanted := self.encoded.homes.index(target)) != home:
                move = self.encoded.move(t, home, wanted)
                ready[t, wanted] = end + move[0]
                energy = energy + move[1]
                origins[t] = (home, 1 << home | 1 << wanted)
        done = key.done | 1 << node
        return self._pack(done, origins, ready, free, energy, labels, node * len(self.processor_of) + place)

    def _pack(
        self,
        done: int,
        origins: dict[int, tuple[int, int]],
        ready: dict[tuple[int, int], Ints],
        free: Ints,
        energy: Ints,
        labels: _Labels,
        what: int,
    ) -> tuple[_Key, _Labels]:
        """Keep what later nodes, or the delivery of outputs, can still depend on."""
        live = sorted(
            t for t in origins if self.readers[t] & ~done or self.encoded.problem.tensors[t].target is not None
        )
        key = _Key(done, tuple((t, *origins[t]) for t in live))
        # Nobody reads a copy before the first processor is free, so being there earlier is worth nothing.
        soonest = free.min(1)
        times = [np.maximum(ready[pair], soonest) for pair in key.columns(0)]
        rows = np.column_stack([free, energy, *times])
        return key, _Labels(rows, labels.first + np.arange(len(rows)), np.full(len(rows), what))

    def _filter(self, key: _Key, parts: list[_Labels], hopeless: Hopeless) -> _Labels:
        rows = np.concatenate([part.rows for part in parts])
        before = np.concatenate([part.before for part in parts])
        what = np.concatenate([part.what for part in parts])
        open_ = np.flatnonzero(~hopeless.of(self._corner(key, rows)))
        kept = open_[nondominated(rows[open_])]
        return _Labels(rows[kept], before[kept], what[kept])

    def _corner(self, key: _Key, rows: Ints) -> Ints:
        """Bound makespan and energy of every completion: what is placed, the critical path, the work left."""
        count = len(self.processors)
        left = [n for n in range(len(self.after)) if not key.done >> n & 1]
        free = rows[:, :count]
        path = free.min(1) + max((self.tail[n] for n in left), default=0)
        work = -(-(free.sum(1) + sum(int(self.shortest[n]) for n in left)) // count)
        makespan = np.maximum(np.maximum(self._delivered(key, rows), path), work)
        return np.stack([makespan, rows[:, count] + sum(int(self.frugal[n]) for n in left)], axis=1)

    def _delivered(self, key: _Key, rows: Ints) -> Ints:
        """Return when all processors are free and all outputs made so far are where they must be."""
        count = len(self.processors)
        latest = rows[:, :count].max(1)
        for (t, home), k in key.columns(count + 1).items():
            target = self.encoded.problem.tensors[t].target
            if target is not None and self.encoded.homes[home] == target:
                latest = np.maximum(latest, rows[:, k])
        return np.asarray(latest)

    def _improved(self, known: list[Timetable]) -> tuple[list[Timetable], Lines]:
        """Improve complete schedules by local search, from the placings of the lines too; and those lines."""
        makespan, energy = (abs(a - b) for a, b in zip(_costs(known)[0], _costs(known)[-1], strict=True))
        scale = makespan / energy if makespan and energy else known[0].makespan / max(known[0].energy, 1)
        relaxed = Relaxation(
            self.duration, self.energy, self.encoded.allowed, self.processor_of, self.after, self._moves()
        )
        lines = relaxed.lines(scale, self._soonest())
        placings = [*map(placing_of, known), *lines.placings]
        return self.tables.front(placings, scale, lines.between), lines

    def _moves(self) -> Weigher | None:
        """Return the states of where tensors are, whose arcs cost their moves alone; None when they are too many."""
        bare = copy.copy(self.encoded)
        bare.node_cost, bare.dispatch = np.zeros_like(bare.node_cost), np.zeros_like(bare.dispatch)
        bare.__dict__.pop("pays_dispatch", None)
        try:
            graph = AdditiveStates(bare, self.scheme, one_order=True).build()
        except TooWide:
            return None
        return Weigher(graph) if graph.states <= MOST_MOVE_STATES else None

    def _sequential(self) -> list[list[int]]:
        """Return the placings of the sequential frontier, some of many; where there is none, each node's fastest."""
        problem = self.encoded.problem
        placings = [np.where(self.encoded.allowed, self.duration, _NEVER).argmin(1).tolist()]
        # A piece lists the operators inside coarser nodes; the first of each stands for its node.
        first = {problem.members.get(name, (name,))[0]: n for n, name in enumerate(problem.nodes)}
        found = search(problem, space=Space.ORDER_CUTS)
        for index in sorted({round(i * (len(found) - 1) / (STARTS - 1)) for i in range(STARTS)}):
            placing = [0] * len(problem.nodes)
            for piece in found[index].segments:
                for name in piece.nodes:
                    if name in first:
                        placing[first[name]] = problem.places.index(piece.place)
            placings.append(placing)
        return placings

    def _soonest(self) -> int:
        """Bound the makespan by the longest way to any node when every node and every move on it is at its best."""
        encoded, homes = self.encoded, self.encoded.place_home
        made: dict[int, Ints] = {}
        ends = []
        for node in range(len(self.after)):
            begin = np.zeros(len(homes), np.int64)
            for t in self.inputs[node]:
                begin = np.maximum(begin, self._arrival(t, made))
            end = np.where(encoded.allowed[node], begin + self.duration[node], _NEVER)
            ends.append(int(end.min()))
            made.update(dict.fromkeys(self.outputs[node], end))
        return max(ends)

    def _arrival(self, t: int, made: dict[int, Ints]) -> Ints:
        """Return per place the soonest that a tensor can be there, wherever it was made."""
        homes, source = self.encoded.place_home, self.encoded.problem.tensors[t].source
        if t in made:
            ways = [[made[t][p] + self.encoded.move(t, a, b)[0] for b in homes] for p, a in enumerate(homes)
                    if made[t][p] < _NEVER]  # fmt: skip
            return np.asarray(np.array(ways).min(0))
        if source is None:
            return np.zeros(len(homes), np.int64)
        return np.array([self.encoded.move(t, self.encoded.homes.index(source), home)[0] for home in homes])

    def _answer(
        self, layer: dict[_Key, _Labels], stored: int, known: Sequence[Timetable], lines: Lines | None
    ) -> Frontier:
        """Join the known schedules and those found; a known one may have cut off all that begin like it."""
        points, numbers = [_costs(known)], [-1 - np.arange(len(known))]
        for key, labels in layer.items():
            points.append(np.stack([self._delivered(key, labels.rows), labels.rows[:, len(self.processors)]], axis=1))
            numbers.append(labels.first + np.arange(len(labels.rows)))
        rows, label = np.concatenate(points), np.concatenate(numbers)
        kept = nondominated(rows)
        before = np.concatenate([_ZERO, *(b for b, _ in self.decided)])
        what = np.concatenate([_ZERO - 1, *(w for _, w in self.decided)])

        def path(number: int) -> list[int]:
            if number >= 0:
                return _back(number, before, what)
            return [node * len(self.encoded.problem.places) + place for node, place in known[-1 - number].steps]

        frontier = Frontier(
            objectives=("latency", "energy"),
            rows=rows[kept],
            scheme=self.scheme,
            paths=lambda chosen: [path(int(label[kept[c]])) for c in chosen],
            pieces=lambda decisions: pieces_of_nodes(self.encoded, decisions, regroup=False),
            space=self.encoded.problem.space_name(
                f"all schedules of single dispatches, contention x{self.contention:g} as the worst case"
            ),
            effort=Effort(states=len(self.decided), arcs=0, labels=stored),
            gap_ratio=self._gap(rows[kept], lines),
        )
        return frontier.proved_by(lambda others: self._gap(others, lines))

    def _gap(self, points: Ints, lines: Lines | None) -> float:
        """Return how far the found schedules are at most from any other: one that begins like a dropped one.

        Both what the dropped ones could have become and the lines that no schedule passes prove a ratio.
        """
        if not self.dropped or lines is None:
            return 0.0
        corners = np.concatenate(self.dropped).astype(float)
        ordered = points[np.argsort(points[:, 0])]
        return min(max(float(cover_gaps(points.astype(float), corners).max()), 0.0), lines.gap(ordered))


def _back(label: int, before: Ints, what: Ints) -> list[int]:
    path = []
    while label:
        path.append(int(what[label]))
        label = int(before[label])
    return path[::-1]


def _costs(known: Sequence[Timetable]) -> Ints:
    return np.array([(t.makespan, t.energy) for t in known])


def _size(layer: dict[_Key, _Labels]) -> int:
    return sum(len(labels.rows) for labels in layer.values())


_ZERO: Final = np.zeros(1, np.int64)
_NEVER: Final = np.iinfo(np.int64).max // 4
