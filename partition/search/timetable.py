"""Single schedules in plain Python: list scheduling of a placing, and local search over placings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from partition.search.arrays import Floats, Ints
    from partition.search.residency import Residency

TRIES: Final = 500  # schedules per start and price
ROUNDS: Final = 16


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """A complete schedule: its cost in steps, and (node, place) in order of starting."""

    makespan: int
    energy: int
    steps: tuple[tuple[int, int], ...]


def tails(spent: Sequence[int], after: Sequence[Iterable[int]]) -> list[int]:
    """Return per node the time from its start to the end of everything that waits for it; `after` lists what does."""
    found = [0] * len(spent)
    for node in reversed(range(len(spent))):
        found[node] = spent[node] + max((found[later] for later in after[node]), default=0)
    return found


class Timetables:
    """Schedules placings of one problem: the node ready with the longest way to the end goes first."""

    def __init__(self, known: Residency, duration: Ints, energy: Ints, processor_of: Sequence[int]) -> None:
        encoded = known.encoded
        self._duration, self._energy = duration.tolist(), energy.tolist()
        self._unit, self._home = list(processor_of), encoded.place_home
        self._inputs, self._outputs, self._after = known.inputs, known.outputs, known.after
        self._allowed = [set(np.flatnonzero(row).tolist()) for row in encoded.allowed]
        self._homes = len(encoded.homes)
        self._move = encoded.move_cost[..., :2].tolist()
        tensors = encoded.problem.tensors
        self._source = [None if t.source is None else encoded.homes.index(t.source) for t in tensors]
        self._target = [None if t.target is None else encoded.homes.index(t.target) for t in tensors]
        self._fed = [t.producer is None for t in tensors]
        self._waiting = [mask.bit_count() for mask in known.before]
        self._branches = [self._branch(node) for node in range(len(known.inputs))]

    def _branch(self, node: int) -> list[int]:
        """List the nodes that follow one by one until a branch parts or joins."""
        found = [node]
        while len(readers := set(self._after[found[-1]])) == 1 and self._waiting[(reader := readers.pop())] == 1:
            found.append(reader)
        return found

    def run(self, placing: Sequence[int]) -> Timetable:
        """Schedule one placing."""
        urgency = tails([self._duration[node][place] for node, place in enumerate(placing)], self._after)
        waiting, count = list(self._waiting), len(placing)
        ready = [node for node in range(count) if not waiting[node]]
        free = [0] * (max(self._unit) + 1)
        there: dict[tuple[int, int], int] = {}
        origin: dict[int, int | None] = {}
        energy, steps = self._begin(there, origin), []
        last = max(there.values(), default=0)
        while ready:
            node = max(ready, key=urgency.__getitem__)
            ready.remove(node)
            place = placing[node]
            home, unit, start = self._home[place], self._unit[place], free[self._unit[place]]
            for t in self._inputs[node]:
                at, paid = self._fetch(t, home, there, origin)
                energy += paid
                start = max(start, at)
            end = start + self._duration[node][place]
            free[unit] = end
            energy += self._energy[node][place]
            steps.append((node, place))
            for t in self._outputs[node]:
                origin[t], there[t, home] = home, end
                wanted = self._target[t]
                if wanted is not None and wanted != home:
                    at, paid = self._fetch(t, wanted, there, origin)
                    energy, last = energy + paid, max(last, at)
            for reader in dict.fromkeys(self._after[node]):
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.append(reader)
        return Timetable(makespan=max(last, *free), energy=energy, steps=tuple(steps))

    def run_all(self, placings: Iterable[Sequence[int]]) -> list[Timetable]:
        """Schedule several and keep what no other beats, makespan rising."""
        return best_of(map(self.run, placings))

    def _begin(self, there: dict[tuple[int, int], int], origin: dict[int, int | None]) -> int:
        energy = 0
        for t, fed in enumerate(self._fed):
            if not fed:
                continue
            source, wanted = self._source[t], self._target[t]
            origin[t] = source
            if source is not None:
                there[t, source] = 0
                if wanted is not None and wanted != source:
                    energy += self._fetch(t, wanted, there, origin)[1]
        return energy

    def _fetch(
        self, t: int, home: int, there: dict[tuple[int, int], int], origin: dict[int, int | None]
    ) -> tuple[int, int]:
        """Return when the tensor is in a memory, and what bringing it there costs now."""
        source = origin[t]
        if source is None:
            return 0, 0
        if (t, home) in there:
            return there[t, home], 0
        latency, energy = self._move[t][source * self._homes + home]
        there[t, home] = there[t, source] + latency
        return there[t, home], energy

    def improved(self, placing: Sequence[int], price: float, tries: int) -> list[Timetable]:
        """Move nodes, or a branch from a node on, while that lowers makespan + price * energy; return every step."""
        found = [self.run(placing)]
        best, current = found[0].makespan + price * found[0].energy, list(placing)
        changed = True
        while changed:
            changed = False
            for nodes, place in self._moves(current):
                if tries <= 0:
                    return found
                tries -= 1
                before = [current[node] for node in nodes]
                for node in nodes:
                    current[node] = place
                made = self.run(current)
                value = made.makespan + price * made.energy
                if value < best:
                    best, changed = value, True
                    found.append(made)
                else:
                    for node, old in zip(nodes, before, strict=True):
                        current[node] = old
        return found

    def _moves(self, current: list[int]) -> Iterator[tuple[list[int], int]]:
        """Yield (nodes, another place for all of them), for each node alone and for the branch from it on."""
        for branch in self._branches:
            for nodes in [branch[:1], branch] if len(branch) > 1 else [branch]:
                allowed = set.intersection(*(self._allowed[node] for node in nodes))
                for place in sorted(allowed):
                    if any(current[node] != place for node in nodes):
                        yield nodes, place

    def front(self, placings: Iterable[Sequence[int]], price: float, gap: Callable[[Ints], Floats]) -> list[Timetable]:
        """Improve schedules where `gap(points)`, one ratio per point and the next, says that most may be missing.

        `price` is for the start, what energy is worth in makespan.
        """
        best = self.run_all(placings)
        for end in (0.0, price):
            start = min(best, key=lambda t: t.makespan + end * t.energy)
            best = best_of([*best, *self.improved(placing_of(start), end, TRIES)])
        asked: set[tuple[int, int]] = set()
        for _ in range(ROUNDS):
            points = np.array([(t.makespan, t.energy) for t in best])
            ratios = gap(points)
            pairs = [i for i in np.argsort(-ratios).tolist() if (best[i].makespan, best[i + 1].makespan) not in asked]
            if not pairs:
                break
            left, right = best[pairs[0]], best[pairs[0] + 1]
            asked.add((left.makespan, right.makespan))
            slope = (right.makespan - left.makespan) / (left.energy - right.energy)
            for start in (left, right):
                best = best_of([*best, *self.improved(placing_of(start), slope, TRIES)])
        return best


def placing_of(timetable: Timetable) -> tuple[int, ...]:
    """Return the place of every node."""
    return tuple(place for _, place in sorted(timetable.steps))


def best_of(found: Iterable[Timetable]) -> list[Timetable]:
    """Keep the schedules that no other equals or beats, makespan rising."""
    kept: list[Timetable] = []
    for one in sorted(found, key=lambda t: (t.makespan, t.energy)):
        if not kept or one.energy < kept[-1].energy:
            kept.append(one)
    return kept
