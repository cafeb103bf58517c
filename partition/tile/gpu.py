"""Tiles of a GPU-like hierarchy: blocks of threads on compute units, shared memory, registers and a cache.

A layer is a matrix product of positions (rows) by output channels (columns) over a reduction of input channels and
kernel taps. A block of `block_x` x `block_y` threads, each with `thread_x` positions by `thread_k` channels of
sums in registers, computes one tile of it; the reduction goes in steps of `k_tile`, through shared memory when
`staged`. The time is that of the slowest of arithmetic, cache and DRAM, each slowed by what hides it badly.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from partition.geometry import GpuGeometry
from partition.tile.cost import Cost, Machine, value_of
from partition.tile.operators import NORM, Layer, TileError, element_bytes

if TYPE_CHECKING:
    from partition.device import Device

Array = np.ndarray[Any, np.dtype[Any]]

# Registers that addresses and counters take in any kernel, and bytes of the widest load.
FIXED_REGISTERS: Final = 16
WIDEST_LOAD_BYTES: Final = 16
REGISTER_BYTES: Final = 4
# Instructions of one turn of the loop that are neither arithmetic nor loads: compare, branch, two addresses.
LOOP_INSTRUCTIONS: Final = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuTile:
    """One kernel's shape; `vector` elements are loaded at once, and the reduction loop is unrolled `unroll` times."""

    block_x: int
    block_y: int
    thread_x: int
    thread_k: int
    k_tile: int
    staged: bool = True
    vector: int = 1
    unroll: int = 1

    def __post_init__(self) -> None:
        for name, size in self.sizes:
            if name != "staged" and size < 1:
                raise TileError(f"{name} is {size}, and every size must be at least 1")

    @property
    def positions(self) -> int:
        """Output positions of one block."""
        return self.block_x * self.thread_x

    @property
    def channels(self) -> int:
        """Output channels of one block."""
        return self.block_y * self.thread_k

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block_x * self.block_y

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """All numbers by name, as `partition.Tile` holds them."""
        return tuple((field.name, int(getattr(self, field.name))) for field in dataclasses.fields(self))

    def __str__(self) -> str:
        shape = f"block {self.block_x}x{self.block_y} thread {self.thread_x}x{self.thread_k} k{self.k_tile}"
        return f"{shape}{' shared' if self.staged else ''} v{self.vector} u{self.unroll}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuMachine(Machine):
    """The figures of one GPU in one precision, as numbers."""

    units: int
    warp: int
    threads_per_block: int
    threads_per_unit: int
    blocks_per_unit: int
    registers_per_unit: int
    registers_per_thread: int
    shared_per_block: int
    shared_per_unit: int
    banks: int
    bank_bytes: int
    macs_per_unit: float
    line_bytes: int
    cache_bytes: float
    cache_rate: float
    dram_rate: float
    arithmetic_latency: float
    memory_latency: float
    launch_s: float


def gpu_machine(device: Device, precision: str, *, processor: str = "gpu") -> GpuMachine:
    """Read the GPU of a device in that precision; rates are bytes for each cycle of its clock.

    Raises:
        TileError: the device file has no tile geometry, or lacks a figure of that precision.
    """
    chip = device.processor(processor)
    form = chip.tile
    if not isinstance(form, GpuGeometry):
        raise TileError(
            f"{device.name} has no tile geometry of a GPU; add [processors.{processor}.tile] to its device file"
        )
    if precision not in form.macs_per_unit_cycle:
        have = ", ".join(form.macs_per_unit_cycle)
        raise TileError(f"{device.name} {processor} has no tile geometry for {precision}; it has {have}")
    if device.dram_bytes_per_s is None:
        raise TileError(f"{device.name} has no dram.bytes_per_s, without which no traffic can be costed")
    clock = form.clock_hz.value
    return GpuMachine(
        name=f"{device.name} {processor}",
        element_bytes=element_bytes(precision),
        clock_hz=clock,
        mac_j=value_of(chip.energy_j_per_mac.get(precision), 0.0),
        dram_j_per_byte=value_of(device.dram_j_per_byte, 0.0),
        on_chip_j_per_byte=value_of(form.on_chip_j_per_byte, 0.0),
        active_w=value_of(chip.active_w, 0.0),
        units=int(form.compute_units.value),
        warp=int(form.warp_threads.value),
        threads_per_block=int(form.threads_per_block.value),
        threads_per_unit=int(form.threads_per_unit.value),
        blocks_per_unit=int(form.blocks_per_unit.value),
        registers_per_unit=int(form.registers_per_unit.value),
        registers_per_thread=int(form.registers_per_thread.value),
        shared_per_block=int(form.shared_bytes_per_block.value),
        shared_per_unit=int(form.shared_bytes_per_unit.value),
        banks=int(form.shared_banks.value),
        bank_bytes=int(form.shared_bank_bytes.value),
        macs_per_unit=form.macs_per_unit_cycle[precision].value,
        line_bytes=int(form.line_bytes.value),
        cache_bytes=form.cache_bytes.value,
        cache_rate=form.cache_bytes_per_cycle.value,
        dram_rate=device.dram_bytes_per_s.value / clock,
        arithmetic_latency=form.arithmetic_latency_cycles.value,
        memory_latency=form.memory_latency_cycles.value,
        launch_s=value_of(chip.dispatch_s, 0.0),
    )


# --- the space -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuSpace:
    """The product of sizes that a search looks through."""

    name: str
    block_x: tuple[int, ...]
    block_y: tuple[int, ...]
    thread_x: tuple[int, ...]
    thread_k: tuple[int, ...]
    k_tile: tuple[int, ...]
    staged: tuple[bool, ...] = (False, True)
    vector: tuple[int, ...] = (1, 2, 4, 8)
    unroll: tuple[int, ...] = (1, 2, 4, 8)

    def threads(self) -> Array:
        """Return all (block_x, block_y, thread_x, thread_k), as (4, n)."""
        return np.array(list(itertools.product(self.block_x, self.block_y, self.thread_x, self.thread_k))).T

    def loops(self) -> Array:
        """Return all (k_tile, staged, vector, unroll), as (4, m)."""
        return np.array(list(itertools.product(self.k_tile, self.staged, self.vector, self.unroll))).T

    @property
    def size(self) -> int:
        """Number of configurations."""
        sizes = (getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "name")
        return math.prod(len(values) for values in sizes)


def power_space(layer: Layer, machine: GpuMachine) -> GpuSpace:
    """Return all powers of two that the block and the layer can use."""
    reduction = layer.c * layer.taps

    def along(extent: int) -> tuple[int, ...]:
        # A block is at least a warp, however small the layer.
        return _powers(min(machine.threads_per_block, max(_above(extent), machine.warp)))

    return GpuSpace(
        name="powers of two",
        block_x=along(layer.positions),
        block_y=along(layer.k),
        thread_x=_powers(16),
        thread_k=_powers(16),
        k_tile=_powers(min(128, _above(reduction))),
    )


def _above(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _powers(most: int) -> tuple[int, ...]:
    return tuple(1 << i for i in range(most.bit_length()))


# --- legality ------------------------------------------------------------------------------------------------

REASONS: Final = (
    "threads: more than a block may have",
    "lanes: the threads of a block are no multiple of the warp",
    "registers: a thread needs more than it may have",
    "capacity: the staged tiles need more shared memory than a block may have",
    "vector: the load is wider than 16 bytes, or does not divide what a thread loads",
    "unroll: the loop has fewer turns than it is unrolled",
    "span: a thread must see its whole row, so channels are not split into tiles",
)


def refusal(layer: Layer, machine: GpuMachine, tile: GpuTile) -> str | None:
    """Return why the kernel cannot be built for this machine, or None."""
    grid = Grid.of_tile(layer, machine, tile)
    return next((reason for reason, rule in zip(REASONS, grid.rules(), strict=True) if np.any(rule)), None)


@dataclasses.dataclass(kw_only=True, slots=True)
class Grid:
    """Threads down, loops across; all arrays broadcast to (threads, loops)."""

    layer: Layer
    machine: GpuMachine
    positions: Array
    channels: Array
    threads: Array
    sums: Array
    operands: Array
    block_x: Array
    block_y: Array
    thread_x: Array
    thread_k: Array
    k_tile: Array
    staged: Array
    vector: Array
    unroll: Array
    registers: Array
    shared: Array
    resident: Array
    """Blocks that run on one unit at a time, as threads, registers and shared memory allow."""

    @classmethod
    def of_tile(cls, layer: Layer, machine: GpuMachine, tile: GpuTile) -> Grid:
        """Build the grid of one kernel."""
        threads = np.array([[tile.block_x], [tile.block_y], [tile.thread_x], [tile.thread_k]])
        return cls.of(layer, machine, threads, np.array([[tile.k_tile], [tile.staged], [tile.vector], [tile.unroll]]))

    @classmethod
    def of(cls, layer: Layer, machine: GpuMachine, threads: Array, loops: Array) -> Grid:
        """Build from (4, n) threads and (4, m) loops, in the order of `GpuSpace`."""
        block_x, block_y, thread_x, thread_k = threads[:, :, None].astype(np.float64)
        k_tile, staged, vector, unroll = loops[:, None, :].astype(np.float64)
        positions, channels = block_x * thread_x, block_y * thread_k
        operands = thread_x + thread_k
        width = machine.element_bytes
        # Sums take a register each; operands as many as their width, twice over when loads run ahead.
        held = operands * (width / REGISTER_BYTES)
        registers = thread_x * thread_k + held * np.minimum(unroll, 2.0) + FIXED_REGISTERS
        shared = staged * k_tile * (positions + channels) * width
        count = block_x * block_y
        fits = np.minimum(machine.registers_per_unit / (registers * count), machine.threads_per_unit / count)
        fits = np.minimum(np.minimum(fits, machine.shared_per_unit / np.maximum(shared, 1.0)), machine.blocks_per_unit)
        return cls(
            layer=layer, machine=machine, positions=positions, channels=channels, threads=block_x * block_y,
            sums=thread_x * thread_k, operands=operands, block_x=block_x, block_y=block_y, thread_x=thread_x,
            thread_k=thread_k, k_tile=k_tile, staged=staged, vector=vector, unroll=unroll,
            registers=registers, shared=shared, resident=np.maximum(np.floor(fits), 1.0),
        )  # fmt: skip

    def rules(self) -> tuple[Array, ...]:
        """Which configurations break each rule, in the order of `REASONS`; arrays that broadcast."""
        machine, layer = self.machine, self.layer
        return (
            self.threads > machine.threads_per_block,
            self.threads % machine.warp != 0,
            self.registers > machine.registers_per_thread,
            self.shared > machine.shared_per_block,
            (self.vector * machine.element_bytes > WIDEST_LOAD_BYTES) | (self.thread_k % self.vector != 0),
            self.unroll > self.k_tile,
            np.asarray(layer.kind == NORM) & (self.channels < layer.k) & (self.block_y > 1),
        )

    def legal(self) -> Array:
        """Tell which configurations break no rule."""
        broken: Any = False
        for rule in self.rules():
            broken = broken | rule
        return ~np.asarray(broken)

    def blocks(self) -> Array:
        """Blocks of the whole layer, those at the edges included."""
        layer = self.layer
        return layer.groups * np.ceil(layer.positions / self.positions) * np.ceil(layer.k / self.channels)

    def bank_ways(self) -> Array:
        """Turns that a warp's reads of the staged positions take: their rows lie `k_tile` elements apart."""
        machine = self.machine
        stride = np.maximum(self.k_tile * machine.element_bytes / machine.bank_bytes, 1.0).astype(np.int64)
        ways = np.where(self.staged > 0, np.gcd(stride, machine.banks), 1)
        return np.minimum(np.minimum(self.block_x, machine.warp), ways)

    def issue_ratio(self) -> Array:
        """Share of issued instructions that are arithmetic; loads and the loop's own take the rest."""
        packed = self.machine.element_bytes / REGISTER_BYTES
        arithmetic = self.sums * packed
        loads = (self.thread_x * self.bank_ways() + self.thread_k) / self.vector
        return arithmetic / (arithmetic + loads + LOOP_INSTRUCTIONS / self.unroll)

    def occupancy_ratio(self) -> Array:
        """Share of the arithmetic latency that the warps of a unit, with a thread's independent sums, hide."""
        machine = self.machine
        warps = self.resident * self.threads / machine.warp
        per_cycle = machine.macs_per_unit * machine.element_bytes / REGISTER_BYTES / machine.warp
        return np.minimum(1.0, warps * self.sums / (machine.arithmetic_latency * max(per_cycle, 1.0)))

    def cache_bytes(self) -> Array:
        """Bytes between cache and units: what blocks load, once for each block if staged, in whole lines."""
        layer, machine = self.layer, self.machine
        width, reduction = machine.element_bytes, layer.c * layer.taps * layer.passes
        warp_x = np.minimum(self.block_x, machine.warp)
        same_x = np.maximum(machine.warp / warp_x, 1.0)
        again_left = np.where(self.staged > 0, 1.0, self.block_y / np.minimum(self.block_y, same_x))
        again_right = np.where(self.staged > 0, 1.0, self.block_x / warp_x)
        left = self.positions * reduction * again_left * (self.channels if layer.per_channel else 1.0)
        right = self.channels * reduction * again_right * (1.0 if layer.weights else 0.0)
        run_left = np.where(self.staged > 0, self.k_tile, self.vector) * width
        run_right = np.where(self.staged > 0, self.channels, warp_x * 0 + self.block_y * self.vector) * width
        if layer.per_channel:
            run_left = self.block_y * self.vector * width
        moved = left * width / self._coalesced(run_left) + right * width / self._coalesced(run_right)
        return np.asarray(self.blocks() * moved + layer.outputs * width)

    def _coalesced(self, run_bytes: Array) -> Array:
        """Used share of the lines that a run of consecutive bytes touches."""
        line = self.machine.line_bytes
        return np.asarray(run_bytes / (np.ceil(run_bytes / line) * line))

    def dram_bytes(self) -> Array:
        """Bytes from DRAM: each tensor once, and again for each pass of blocks whose data leave the cache."""
        layer, machine = self.layer, self.machine
        width = machine.element_bytes
        inputs, weights = layer.inputs * width, layer.weights * width
        columns, rows = np.ceil(layer.k / self.channels), np.ceil(layer.positions / self.positions)
        running = machine.units * self.resident
        passes = np.maximum(np.ceil(rows * columns / running), 1.0)
        again_in = 1.0 if inputs <= machine.cache_bytes or layer.per_channel else np.minimum(columns, passes)
        again_weights = 1.0 if weights <= machine.cache_bytes else np.minimum(rows, passes)
        return inputs * again_in + weights * again_weights + layer.outputs * width + 0.0 * self.k_tile

    def hidden_ratio(self) -> Array:
        """Share of the DRAM rate that the loads in flight can ask for (Little's law)."""
        machine = self.machine
        warps = self.resident * self.threads / machine.warp
        flying = warps * machine.warp * self.vector * machine.element_bytes * np.minimum(self.unroll, 4.0)
        return np.minimum(1.0, machine.units * flying / (machine.memory_latency * machine.dram_rate))

    def times(self) -> tuple[Array, Array, Array, Array]:
        """Cycles of arithmetic, cache, DRAM and barriers."""
        layer, machine = self.layer, self.machine
        reduction = layer.c * layer.taps * layer.passes
        turns = np.ceil(self.blocks() / machine.units)
        block = self.positions * self.channels * reduction / machine.macs_per_unit
        arithmetic = turns * block / (self.issue_ratio() * self.occupancy_ratio())
        cache_bytes, dram_bytes = self.cache_bytes(), self.dram_bytes()
        cache = cache_bytes / machine.cache_rate
        dram = dram_bytes / (machine.dram_rate * self.hidden_ratio())
        # Each step of a staged reduction waits for its loads, unless another block of the unit works meanwhile.
        steps = self.staged * np.ceil(reduction / self.k_tile) * np.ceil(turns / self.resident)
        barriers = steps * (machine.memory_latency / self.resident)
        return arithmetic, cache, dram, barriers

    def costs(self) -> tuple[Array, Array, Array]:
        """Seconds, joules and on-chip bytes of a unit."""
        machine, layer = self.machine, self.layer
        arithmetic, cache, dram, barriers = self.times()
        traffic = self.dram_bytes()
        cycles = np.maximum(np.maximum(arithmetic, cache), dram) + barriers
        seconds = cycles / machine.clock_hz + machine.launch_s
        energy = (
            layer.macs * machine.mac_j
            + traffic * machine.dram_j_per_byte
            + cache * machine.cache_rate * machine.on_chip_j_per_byte
            + seconds * machine.active_w
        )
        on_chip = self.resident * (self.shared + self.registers * self.threads * REGISTER_BYTES)
        return seconds, energy, on_chip


def evaluate(layer: Layer, machine: GpuMachine, tile: GpuTile, *, strict: bool = True) -> Cost:
    """Return the cost of one kernel with its causes; not `strict`, a block that is no multiple of the warp is padded.

    Raises:
        TileError: the kernel cannot be built for the machine.
    """
    reason = refusal(layer, machine, tile)
    if reason is not None and (strict or not reason.startswith("lanes")):
        raise TileError(f"{tile} cannot run on {machine.name}: {reason}")
    grid = Grid.of_tile(layer, machine, tile)
    arithmetic, cache, dram, barriers = (float(part[0, 0]) / machine.clock_hz for part in map(_square, grid.times()))
    seconds, energy, on_chip = (float(_square(part)[0, 0]) for part in grid.costs())
    blocks = float(grid.blocks()[0, 0])
    used = layer.positions * layer.k * layer.groups / (blocks * tile.positions * tile.channels)
    issue, occupancy = float(grid.issue_ratio()[0, 0]), float(grid.occupancy_ratio()[0, 0])
    waves = blocks / (machine.units * float(grid.resident[0, 0]))
    dram_bytes = float(_square(grid.dram_bytes())[0, 0])
    return Cost(
        latency_s=seconds,
        energy_j=energy,
        on_chip_bytes=on_chip,
        dram_bytes=dram_bytes,
        tiles=int(blocks),
        lane_ratio=used * (tile.threads / (math.ceil(tile.threads / machine.warp) * machine.warp)),
        amplification_ratio=dram_bytes / layer.minimal_bytes(machine.element_bytes),
        parts=(
            ("arithmetic", arithmetic * issue * occupancy),
            ("issue", arithmetic * occupancy * (1 - issue)),
            ("latency not hidden", arithmetic * (1 - occupancy)),
            ("cache", cache),
            ("DRAM", dram),
            ("barriers", barriers),
            ("launch", machine.launch_s),
            ("waves", waves),
            ("bank conflict ways", float(_square(grid.bank_ways())[0, 0])),
        ),
    )


def _square(array: Array) -> Array:
    return np.broadcast_to(array, (1, 1))
