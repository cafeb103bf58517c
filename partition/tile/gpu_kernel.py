"""What a GPU kernel costs by facts read from its code, on the machine that the tile models know.

Where `gpu.py` tells from a tile what a kernel ought to do, here the kernel is there: its launch, its registers and
shared memory, and each memory instruction with the distance between what neighbouring threads touch. The time is, as
there, that of the slowest of instructions, cache and DRAM, plus what barriers and the launch take.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, Self

from partition.tile.cost import Cost
from partition.tile.gpu import FIXED_REGISTERS, LOOP_INSTRUCTIONS, REGISTER_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partition.tile.gpu import GpuMachine

# Loads that one thread has in flight at most.
_LOADS_AHEAD: Final = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """One memory instruction of a thread, executed `per_thread` times, `vector` elements at a time.

    `strides_bytes` is how far apart neighbouring threads along x and along y start; in a texture, as if its rows lay
    one after the other.
    """

    buffer: str
    store: bool
    shared: bool
    element_bytes: int
    vector: int
    per_thread: int
    strides_bytes: tuple[int, int]
    texture: bool = False

    def starts(self, block: tuple[int, int, int], warp: int) -> list[int]:
        """Return the byte at which each thread of a block's first warp starts."""
        (along_x, along_y), (x, y, _) = self.strides_bytes, block
        count = min(warp, math.prod(block))
        return [t % x * along_x + t // x % y * along_y for t in range(count)]

    def lines(self, block: tuple[int, int, int], warp: int, line_bytes: int) -> int:
        """Count the lines that one warp touches at once: 1 is the best that there is for a narrow load."""
        length = self.vector * self.element_bytes
        starts = self.starts(block, warp)
        low = min(starts)
        return len({(s - low + b) // line_bytes for s in starts for b in (0, length - 1)})

    def ways(self, block: tuple[int, int, int], machine: GpuMachine) -> int:
        """Count the turns that a warp's access to shared memory takes: the most different words in one bank."""
        words = {start // machine.bank_bytes for start in self.starts(block, machine.warp)}
        banks: dict[int, int] = {}
        for word in words:
            banks[word % machine.banks] = banks.get(word % machine.banks, 0) + 1
        return max(banks.values())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuKernel:
    """Static facts of one kernel; `flops`, `barriers` and `turns` (of loops) count for one thread.

    `arguments` are the global buffers with their bytes, in the kernel's order; `local_bytes` are a thread's own arrays,
    which live in registers.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    local_bytes: int
    flops: int
    barriers: int
    turns: int
    accesses: tuple[Access, ...]
    arguments: tuple[tuple[str, int], ...]

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return math.prod(self.block)

    @property
    def blocks(self) -> int:
        """Blocks of one launch."""
        return math.prod(self.grid)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        accesses = tuple(Access(**{**a, "strides_bytes": tuple(a["strides_bytes"])}) for a in fields["accesses"])
        arguments = tuple((str(name), int(size)) for name, size in fields["arguments"])
        shape = {key: (int(x), int(y), int(z)) for key in ("grid", "block") for x, y, z in [fields[key]]}
        return cls(**{**fields, **shape, "accesses": accesses, "arguments": arguments})


def kernel_cost(kernel: GpuKernel, machine: GpuMachine) -> Cost:
    """Return the cost of one launch with its causes, launch overhead included."""
    warps = math.ceil(kernel.threads / machine.warp)
    resident = _resident(kernel, machine, warps)
    turns = math.ceil(kernel.blocks / machine.units)
    arithmetic, issue = _instruction_cycles(kernel, machine)
    hidden = _occupancy_ratio(kernel, machine, warps * resident)
    busy = turns * warps * machine.warp * (arithmetic + issue) / hidden
    lines = _line_bytes(kernel, machine, warps)
    cache = sum(lines.values()) / machine.cache_rate
    dram_bytes = _dram_bytes(kernel, machine, lines, resident)
    dram = dram_bytes / (machine.dram_rate * _in_flight_ratio(kernel, machine, warps * resident))
    waits = kernel.barriers / 2 * math.ceil(turns / resident) * machine.memory_latency / resident
    clock = machine.clock_hz
    seconds = (max(busy, cache, dram) + waits) / clock + machine.launch_s
    own = turns * warps * machine.warp / clock
    argument_bytes = sum(size for _, size in kernel.arguments)
    return Cost(
        latency_s=seconds,
        energy_j=_energy_j(kernel, machine, dram_bytes, sum(lines.values()), seconds),
        on_chip_bytes=float(resident * (kernel.shared_bytes + kernel.local_bytes * kernel.threads)),
        dram_bytes=dram_bytes,
        tiles=kernel.blocks,
        lane_ratio=kernel.threads / (warps * machine.warp),
        amplification_ratio=dram_bytes / argument_bytes if argument_bytes else 1.0,
        parts=(
            ("arithmetic", own * arithmetic),
            ("issue", own * issue),
            ("latency not hidden", own * (arithmetic + issue) * (1 / hidden - 1)),
            ("cache", cache / clock),
            ("DRAM", dram / clock),
            ("barriers", waits / clock),
            ("launch", machine.launch_s),
            ("waves", kernel.blocks / (machine.units * resident)),
        ),
    )


def _resident(kernel: GpuKernel, machine: GpuMachine, warps: int) -> int:
    """Blocks that run on one unit at a time, as registers, threads and shared memory allow."""
    registers = (FIXED_REGISTERS + kernel.local_bytes / REGISTER_BYTES) * warps * machine.warp
    fits = (
        machine.registers_per_unit / registers,
        machine.threads_per_unit / kernel.threads,
        machine.shared_per_unit / max(kernel.shared_bytes, 1),
        float(machine.blocks_per_unit),
    )
    return max(1, math.floor(min(fits)))


def _instruction_cycles(kernel: GpuKernel, machine: GpuMachine) -> tuple[float, float]:
    """Cycles of a unit for one thread: its multiply-adds, and its memory and loop instructions."""
    lanes = machine.macs_per_unit * machine.element_bytes / REGISTER_BYTES
    memory = sum(a.per_thread * (a.ways(kernel.block, machine) if a.shared else 1) for a in kernel.accesses)
    return kernel.flops / 2 / machine.macs_per_unit, (memory + LOOP_INSTRUCTIONS * kernel.turns) / lanes


def _occupancy_ratio(kernel: GpuKernel, machine: GpuMachine, warps: int) -> float:
    """Share of the arithmetic latency that the warps of a unit, each with its independent sums, hide."""
    sums = max(1.0, kernel.local_bytes / REGISTER_BYTES)
    per_cycle = machine.macs_per_unit * machine.element_bytes / REGISTER_BYTES / machine.warp
    return min(1.0, warps * sums / (machine.arithmetic_latency * max(per_cycle, 1.0)))


def _line_bytes(kernel: GpuKernel, machine: GpuMachine, warps: int) -> dict[str, float]:
    """Bytes in whole lines between cache and units, by buffer."""
    moved: dict[str, float] = {}
    for access in kernel.accesses:
        if not access.shared:
            lines = access.lines(kernel.block, machine.warp, machine.line_bytes) * access.per_thread
            moved[access.buffer] = moved.get(access.buffer, 0.0) + kernel.blocks * warps * lines * machine.line_bytes
    return moved


def _dram_bytes(kernel: GpuKernel, machine: GpuMachine, lines: Mapping[str, float], resident: int) -> float:
    """Bytes from DRAM: each buffer once; one larger than the cache again for each wave, as far as it is asked for."""
    waves = max(1.0, math.ceil(kernel.blocks / (machine.units * resident)))
    sizes = dict(kernel.arguments)
    return sum(
        min(asked, sizes[name] * (1.0 if sizes[name] <= machine.cache_bytes else waves))
        for name, asked in lines.items()
    )


def _in_flight_ratio(kernel: GpuKernel, machine: GpuMachine, warps: int) -> float:
    """Share of the DRAM rate that the loads in flight can ask for (Little's law)."""
    loads = [a for a in kernel.accesses if not a.shared and not a.store]
    widest = max((a.vector * a.element_bytes for a in loads), default=machine.element_bytes)
    ahead = min(_LOADS_AHEAD, sum(a.per_thread for a in loads) or 1)
    flying = warps * machine.warp * widest * ahead
    running = min(machine.units, kernel.blocks)
    return min(1.0, running * flying / (machine.memory_latency * machine.dram_rate))


def _energy_j(kernel: GpuKernel, machine: GpuMachine, dram_bytes: float, moved_bytes: float, seconds: float) -> float:
    return (
        kernel.flops / 2 * kernel.threads * kernel.blocks * machine.mac_j
        + dram_bytes * machine.dram_j_per_byte
        + moved_bytes * machine.on_chip_j_per_byte
        + seconds * machine.active_w
    )
