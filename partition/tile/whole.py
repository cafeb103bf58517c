"""A whole graph on an NPU: what stays in its memory from one operator to the next, and what overlaps there.

Operators run in the graph's order, tile by tile (`partition/tile/stages.py`): a tile starts when the tiles it reads are
there and its unit is free. The matrix unit and all waiting for weights share one thread that starts everything in
order. A tensor stays on the chip, in the blocked layout, until its last reader, unless others need the room: then the
one whose next reader is farthest goes to DRAM, in part if that is enough, and who needs the room waits for it.

So a smaller memory costs transfers and overlap: weights are brought in ahead as far as the memory holds what the
operators before still need, and an operator whose tensors do not fit beside each other goes through in groups of bands.
No rate is fitted to whole models; which part of the memory such an operator has was chosen with them (`_CHAIN_PARTS`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from partition.tile.stages import MATRIX, blocked_name, works_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphs import Graph
    from partition.tile.npu import NpuMachine
    from partition.tile.stages import Stage, Work

# Weights that do not leave half of the memory to activations are brought in pieces.
_WEIGHT_SHARE: Final = 0.5
# Chains of operators go through a small memory band by band together, so that one has only a part of it.
_CHAIN_PARTS: Final = 3
# Points in time at which the arrival of a tensor that no stage makes is kept.
_SHARES: Final = 8
_NEVER: Final = 1 << 60


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WholeCost:
    """One run of a graph, by our model; `spilled_bytes` are activations written to DRAM that are no graph output."""

    latency_s: float
    dram_bytes: float
    spilled_bytes: float


def whole_cost(graph: Graph, machine: NpuMachine) -> WholeCost:
    """Return the cost of the graph with the machine's memory.

    Raises:
        TileError: a shape is not known.
    """
    works, forms = works_of(graph, machine)
    ends = tuple(frozenset(spec.name for spec in specs) for specs in (graph.inputs(), graph.outputs()))
    sizes = {name: form.nbytes for name, form in forms.items()}
    for spec in graph.inputs():
        sizes[spec.name] = float(spec.size_bytes or 0)
        # An image comes in band by band, so its blocks, most of whose channels are empty, are never all there.
        sizes |= {blocked_name(spec): float(math.prod(spec.shape or ()) * machine.element_bytes)}
    for spec in graph.outputs():
        sizes[spec.name] = float(math.prod(spec.shape or ()) * machine.element_bytes)
    memory = _Memory(sizes, works, (ends[0], ends[1]), machine.budget_bytes)
    line = _Line(machine, {name: form.nbytes for name, form in forms.items()})
    for place, work in enumerate(works):
        moved = memory.run(place, work)
        others = memory.held(memory.resident) - memory.held(work.outputs)
        line.run(work, moved, fresh=work.weight_bytes + memory.held(work.outputs), others=others)
    return WholeCost(
        latency_s=line.end / machine.clock_hz,
        dram_bytes=memory.read + memory.written + sum(work.weight_bytes for work in works),
        spilled_bytes=memory.spilled,
    )


class _Line:
    """The DMA, the matrix unit and the vector threads by when they are free, and when the tiles of each tensor are."""

    def __init__(self, machine: NpuMachine, sizes: Mapping[str, float]) -> None:
        self._machine, self._sizes = machine, sizes
        self._dma = self._matrix = 0.0
        self._threads = [0.0] * machine.vector_threads
        self._ready: dict[str, list[float]] = {}
        # What operators hold that the memory has room for beside each other, until when, and when the last one left.
        self._held: deque[tuple[float, float]] = deque()
        self._left = self._ended = 0.0

    @property
    def end(self) -> float:
        """Cycle at which everything has ended."""
        return max(self._dma, self._matrix, *self._threads)

    def run(self, work: Work, moved: Moved, *, fresh: float, others: float) -> None:
        """Take an operator all the way; its transfers begin when its `fresh` bytes fit beside those of `others`."""
        while self._held and sum(held for held, _ in self._held) + fresh + others > self._machine.budget_bytes:
            self._left = max(self._left, self._held.popleft()[1])
        self._matrix += 2 * self._machine.transfer_cycles * work.transfers
        begin = max(self._dma, self._left, self._ended if moved.spilled else 0.0)
        # One band takes its channels tile by tile, each as its own weights arrive.
        pieces = work.transfers if any(stage.tiles == work.transfers for stage in work.stages) else 1
        later = work.weight_bytes * (1 - 1 / max(1, pieces))
        first = begin + (work.weight_bytes - later + moved.spilled) / self._machine.dma_bytes
        self._dma = first + (later + moved.streamed + self._again(work)) / self._machine.dma_bytes
        tiles = [self._ready[name] for name in work.inputs if name in self._ready]
        arrival = _Arrival(first, self._dma, tiles)
        done = self._in_groups(work, arrival) if self._is_cut(work) else self._stages(work, arrival)
        self._ready |= dict.fromkeys(work.outputs, done)
        self._ended = max(done[-1], first)
        self._held.append((fresh, self._ended))

    def _again(self, work: Work) -> float:
        """Return the bytes that passes which need all of a tensor move once more each, where it does not fit."""
        passes = sum(stage.whole for stage in work.stages)
        return (
            passes * sum(self._sizes[name] for name in (*work.inputs, *work.outputs)) if self._need(work) > 1.0 else 0.0
        )

    def _is_cut(self, work: Work) -> bool:
        """Tell whether it goes through in groups of bands: its tensors do not fit, and no stage needs them whole."""
        in_bands = all(stage.tiles > 1 and not stage.whole for stage in work.stages)
        units = {stage.unit for stage in work.stages}
        return in_bands and MATRIX in units and self._need(work) > 1.0

    def _need(self, work: Work) -> float:
        """Return all that the operator reads and writes, over the memory."""
        budget = self._machine.budget_bytes
        tensors = sum(self._sizes[name] for name in (*work.inputs, *work.outputs))
        return (tensors + min(work.weight_bytes, _WEIGHT_SHARE * budget)) / budget

    def _stages(self, work: Work, arrival: _Arrival) -> list[float]:
        shares = _SHARES if work.stages or arrival.tiles else 1
        done = [arrival.at((i + 1) / shares) for i in range(shares)]
        for stage in work.stages:
            ends = list(itertools.accumulate((self._tile(stage, arrival, i) for i in range(stage.tiles)), max))
            arrival, done = dataclasses.replace(arrival, tiles=[ends]), ends
        return done

    def _tile(self, stage: Stage, arrival: _Arrival, number: int) -> float:
        share = 1.0 if stage.whole else min(1.0, (number + 1 + stage.halo) / stage.tiles)
        return self._on_unit(stage.unit, arrival.at(share), stage.cycles)

    def _in_groups(self, work: Work, arrival: _Arrival) -> list[float]:
        """Take groups of bands through all stages, one group after the other."""
        bands = min(stage.tiles for stage in work.stages)
        together = max(1, int(bands / (self._need(work) * _CHAIN_PARTS)))
        done: list[float] = []
        for start in range(0, bands, together):
            group = [arrival.at((band + 1) / bands) for band in range(start, min(bands, start + together))]
            begin = self.units if start else 0.0
            for stage in work.stages:
                # The tiles of a band are there together, and as many threads work on them.
                pieces = math.ceil(stage.tiles / bands)
                cycles = stage.cycles * stage.tiles / bands / pieces
                group = [
                    max(self._on_unit(stage.unit, max(ready, begin), cycles) for _ in range(pieces)) for ready in group
                ]
            done += group
        return list(itertools.accumulate(done, max))

    @property
    def units(self) -> float:
        """Cycle at which the matrix unit and all vector threads are free."""
        return max(self._matrix, *self._threads)

    def _on_unit(self, unit: str, ready: float, cycles: float) -> float:
        if unit == MATRIX:
            self._matrix = max(self._matrix, ready) + cycles
            return self._matrix
        thread = min(range(len(self._threads)), key=self._threads.__getitem__)
        self._threads[thread] = max(self._threads[thread], ready) + cycles
        return self._threads[thread]


@dataclasses.dataclass(frozen=True, kw_only=False, slots=True)
class _Arrival:
    """When a share of all that an operator reads is there: by DMA from `first` to `last`, and by tiles made before."""

    first: float
    last: float
    tiles: list[list[float]]

    def at(self, share: float) -> float:
        """Return the cycle at which that share is there."""
        made = [ends[max(0, math.ceil(share * len(ends) - 1e-9) - 1)] for ends in self.tiles]
        return (
            max(self.first + share * (self.last - self.first), *made)
            if made
            else self.first + share * (self.last - self.first)
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """Bytes of activations: written to make room before the operator starts, and to and fro while it runs."""

    spilled: float
    streamed: float


class _Memory:
    """What is on the chip, tensor by tensor, and the bytes that were read and written for want of room."""

    def __init__(
        self,
        sizes: Mapping[str, float],
        works: Sequence[Work],
        ends: tuple[frozenset[str], frozenset[str]],
        budget: float,
    ) -> None:
        self._sizes, self._budget, self._results = sizes, budget, ends[1]
        self._readers: dict[str, list[int]] = {name: [] for name in sizes}
        for place, work in enumerate(works):
            for name in work.inputs:
                self._readers[name].append(place)
        self.resident: dict[str, float] = {}
        self._in_dram = {name: sizes[name] for name in ends[0]}
        self.read = self.written = self.spilled = 0.0

    def held(self, names: Iterable[str]) -> float:
        """Bytes of these tensors that are on the chip."""
        return sum(self.resident.get(name, 0.0) for name in names)

    def run(self, place: int, work: Work) -> Moved:
        """Bring in what the operator reads, make room for what it writes, and return the bytes moved for both."""
        before, spilled = self.read + self.written, self.spilled
        self.read += sum(self._sizes[name] for name in work.inputs) - self.held(work.inputs)
        ended = [name for name in work.inputs if self._next(name, place) == _NEVER]
        self.resident.update({name: self._sizes[name] for name in work.outputs})
        self._make_room(place, work, ended)
        for name in work.outputs:
            if name in self._results:
                self._write(name, self._sizes[name])
        for name in ended:
            self.resident.pop(name, None)
        spilled = self.spilled - spilled
        return Moved(spilled=spilled, streamed=self.read + self.written - before - spilled)

    def _make_room(self, place: int, work: Work, ended: Sequence[str]) -> None:
        room = self._budget - min(work.weight_bytes, _WEIGHT_SHARE * self._budget)
        excess = self.held(self.resident) - room
        if work.in_place:
            excess -= min(self.held(ended), self.held(work.outputs))
        for name in sorted(self.resident.keys() - set(ended), key=lambda name: (-self._next(name, place), name)):
            if excess <= 0:
                return
            gone = min(self.resident[name], excess)
            self.resident[name] -= gone
            excess -= gone
            self.spilled += self._write(name, self._sizes[name] - self.resident[name])

    def _write(self, name: str, least: float) -> float:
        """Have at least that many of the tensor's bytes in DRAM, and return how many that moved."""
        missing = max(0.0, least - self._in_dram.get(name, 0.0))
        self._in_dram[name] = self._in_dram.get(name, 0.0) + missing
        self.written += missing
        return missing

    def _next(self, name: str, place: int) -> int:
        return next((reader for reader in self._readers[name] if reader > place), _NEVER)
