"""One operator by itself as the vendor's compiler lays it out in memories of several sizes.

The search of `search.py` finds the best tile that a memory allows; the vendor's compiler does not search. Its traces
(int8) show bands of one block of rows. One thread starts everything in order and waits for what it needs: all bands of
a group are brought in and changed to the blocked layout on the vector threads, then band after band goes through the
matrix unit and out again on a vector thread. A group is as many bands as the memory holds, so a small memory costs
overlap; weights that leave no half of it are brought in anew for each group. A large one can cost a little too: there,
small slices are brought in as many at a time as there are vector threads, and the first waits for all of them.

The order of memory sizes is what this tells, and it is held against the simulator (`python -m benchmarks.tiles sweep`);
no figure is fitted to it. For the best latency of a tile use `search_npu`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from partition.tile.npu import NpuTile
from partition.tile.npu_cost import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partition.tile.npu import NpuMachine
    from partition.tile.operators import Layer

# Of the traces: slices of 23 to 59 KB are brought in together at 4 and 8 MB, not at 1 and 2; those of 104 KB never.
_LARGE_BYTES: Final = 4 << 20
_SMALL_SLICE_BYTES: Final = 64 << 10
_WEIGHT_SHARE: Final = 0.5


def band_latency_s(layer: Layer, machine: NpuMachine) -> float:
    """Return the time of the operator alone, its ends in DRAM, with the machine's memory."""
    work = _Work.of(layer, machine)
    line = _Line(work, machine)
    held = work.held(machine.budget_bytes)
    for first in range(0, len(work.parts), held):
        line.run(range(first, min(len(work.parts), first + held)), last=held == len(work.parts))
    return (line.end + machine.fixed_cycles) / machine.clock_hz


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """Cycles and bytes of the whole operator, and the part of each band in them.

    `spread` brings the input into blocks, `leave` writes the output; `together` slices are brought in at a time, and
    `waits` tells that vector threads wait for them.
    """

    parts: tuple[float, ...]
    load: float
    spread: float
    matrix: float
    leave: float
    weights: float
    weight_bytes: float
    on_chip_bytes: float
    out_bytes: float
    together: int
    waits: bool

    @classmethod
    def of(cls, layer: Layer, machine: NpuMachine) -> _Work:
        rows = min(layer.y, machine.block_y)
        heights = [min(rows, layer.y - start) for start in range(0, layer.y, rows)] * layer.batch
        grid = Grid.of_tile(layer, machine, NpuTile(y=rows, x=layer.x, k=layer.k, c=layer.c))
        wider = machine.dram_element_bytes / machine.element_bytes
        flat, out = float(grid.in_bytes[0, 0]) / wider, layer.outputs * machine.element_bytes
        weight_bytes = grid.resident_bytes * layer.groups if layer.weights else 0.0
        compute, leave = float(grid.compute[0, 0]), out * max(machine.out_cycles_per_byte, wider / machine.dma_bytes)
        small = flat / len(heights) <= _SMALL_SLICE_BYTES and machine.budget_bytes >= _LARGE_BYTES
        return cls(
            parts=tuple(height / sum(heights) for height in heights),
            load=flat * wider / machine.dma_bytes,
            spread=flat * machine.layout_cycles_per_byte(layer),
            matrix=0.0 if grid.vector_compute else compute,
            leave=leave + (compute if grid.vector_compute else 0.0),
            weights=weight_bytes / machine.dma_bytes,
            weight_bytes=weight_bytes,
            on_chip_bytes=flat + flat * _filled(layer.in_x, machine.block_x),
            out_bytes=out * _filled(layer.x, machine.block_x),
            together=machine.vector_threads if layer.padded or small else 1,
            waits=layer.padded and machine.padded_wait_ratio > 0,
        )

    def held(self, budget: float) -> int:
        """Return how many bands the memory holds at once, plain and blocked; all if their results fit beside them."""
        count = len(self.parts)
        if self.weight_bytes + self.on_chip_bytes + self.out_bytes <= budget:
            return count
        room = max(budget - self.weight_bytes, _WEIGHT_SHARE * budget)
        fitting = max(1, min(count, int(room * count / self.on_chip_bytes)))
        return min(fitting, max(1, count // 2)) if self.in_pieces(budget) else fitting

    def in_pieces(self, budget: float) -> bool:
        """Tell whether the weights do not stay from one group of bands to the next."""
        return self.weight_bytes > _WEIGHT_SHARE * budget and len(self.parts) > 1


def _filled(extent: int, block: int) -> float:
    return math.ceil(extent / block) * block / extent


class _Line:
    """The thread that starts everything, at cycle `_now`, the DMA and the vector threads by when they are free."""

    def __init__(self, work: _Work, machine: NpuMachine) -> None:
        self._work, self._pieces = work, work.in_pieces(machine.budget_bytes)
        self._start = machine.tile_cycles / machine.vector_threads
        self._free = [0.0] * machine.vector_threads
        self._now, self._dma, self._weights_at = 0.0, machine.transfer_cycles, 0.0
        self._fresh = True

    @property
    def end(self) -> float:
        """Cycle at which everything has ended."""
        return max(self._now, *self._free)

    def run(self, bands: Sequence[int], *, last: bool) -> None:
        """Take a group of bands all the way; `last` tells that it is the only one, so that its input goes first."""
        work = self._work
        ahead = (not last or work.waits) and (self._fresh or self._pieces)
        if ahead:
            self._bring_weights()
        arrived = self._bring(bands)
        if self._fresh and not ahead:
            self._bring_weights()
        self._fresh = False
        spread = {}
        for band in bands:
            self._now = max(self._now, arrived[band])
            spread[band] = self._on_a_thread(work.spread * work.parts[band])
        for band in bands:
            self._now = max(self._now, spread[band], self._weights_at) + work.matrix * work.parts[band]
            self._on_a_thread(work.leave * work.parts[band])

    def _bring_weights(self) -> None:
        self._dma = max(self._dma, self._now) + self._work.weights
        self._weights_at = self._dma

    def _bring(self, bands: Sequence[int]) -> dict[int, float]:
        """Bring in the slices of the bands, and return when each is there."""
        work, arrived = self._work, dict[int, float]()
        for start in range(0, len(bands), work.together):
            slices = bands[start : start + work.together]
            threads = sorted(range(len(self._free)), key=self._free.__getitem__)[: len(slices)]
            if work.waits:
                self._dma = max(self._dma, self._now, self._free[threads[-1]])
            elif not self._fresh:
                self._dma = max(self._dma, self._now)
            self._dma += work.load * sum(work.parts[band] for band in slices)
            for thread in threads if work.waits else ():
                self._free[thread] = self._dma
            arrived |= dict.fromkeys(slices, self._dma)
        return arrived

    def _on_a_thread(self, cycles: float) -> float:
        thread = min(range(len(self._free)), key=self._free.__getitem__)
        begin = max(self._now, self._free[thread])
        self._free[thread] = begin + cycles
        self._now = begin + self._start
        return self._free[thread]
