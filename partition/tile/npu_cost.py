"""What an NPU tile costs, and which tiles are legal: DMA into a scratchpad, a matrix or a vector unit behind it.

The loops over tiles are S (positions), K (output channels) and C (input channels), in any order. What a loop
order costs follows from reuse: an operand is fetched again in every turn of a loop that does not select it,
unless that loop is inside all loops that do. A stream (input, weights, output) that is double-buffered overlaps
with the work; one that is not stands still with it.

    time = fixed + the first tile's way through all units
         + overlap max(DMA, vector threads, matrix unit) + (1 - overlap) (their sum), each of the other tiles
         + all of what has one buffer
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from partition.tile.cost import Cost
from partition.tile.npu import BUFFERS, NpuMachine, NpuSpace, NpuTile, blocks_of
from partition.tile.operators import DEPTHWISE, NORM, SUM_BYTES, Layer, TileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Array = np.ndarray[Any, np.dtype[Any]]

# Channels that the vector unit takes together; the lanes beyond go to neighbouring positions.
_VECTOR_CHANNELS: Final = 32
# Tile sizes whose halos are computed in one array.
_BATCH: Final = 64


# --- legality ------------------------------------------------------------------------------------------------


def refusal(layer: Layer, machine: NpuMachine, tile: NpuTile) -> str | None:
    """Return why the tile cannot be built for this machine, or None."""
    too_large = next((axis for axis, size in tile.sizes if size > getattr(layer, axis)), None)
    if too_large is not None:
        return f"axis {too_large}: the tile is larger than the layer's {getattr(layer, too_large)}"
    if layer.kind == NORM and tile.k < layer.k:
        return f"span: {layer.op_type} needs all {layer.k} elements of a row, or a second pass"
    need = bytes_needed(layer, machine, tile)
    if need > machine.budget_bytes:
        return f"capacity: {need:.0f} bytes of {machine.budget_bytes:.0f} on the chip"
    if machine.uses_matrix(layer):
        for axis, size, extent, multiple in (
            ("k", tile.k, layer.k, machine.columns),
            ("c", tile.c, layer.c, machine.depth),
        ):
            if size % multiple and size != extent:
                return f"lanes: {axis} is no multiple of {multiple}, the matrix unit's width"
    block = tile.k * tile.c * layer.taps * machine.element_bytes
    whole = tile.k == layer.k and tile.c == layer.c
    if layer.weights and not whole and block % machine.alignment_bytes:
        return f"alignment: a weight block of {block} bytes is no multiple of {machine.alignment_bytes}"
    return None


def bytes_needed(layer: Layer, machine: NpuMachine, tile: NpuTile) -> float:
    """Return the on-chip bytes of all buffers of a tile."""
    grid = Grid.of_tile(layer, machine, tile)
    return float(grid.memory(tile.double, resident=tile.resident)[0, 0])


def largest_tile(layer: Layer, machine: NpuMachine, space: NpuSpace) -> NpuTile | None:
    """Return the legal tile of the space with most output elements, the first of equals; None if none is legal."""
    legal = (tile for tile in _each(space) if refusal(layer, machine, tile) is None)
    return max(legal, key=lambda tile: tile.y * tile.x * tile.k, default=None)


def _each(space: NpuSpace) -> Iterator[NpuTile]:
    axes = (space.y, space.x, space.k, space.c, space.orders, space.double, space.resident)
    for y, x, k, c, order, double, resident in itertools.product(*axes):
        yield NpuTile(y=y, x=x, k=k, c=c, order=order, double=double, resident=resident)


def rows_fetched(layer: Layer, tile_rows: int) -> int:
    """Return the input rows that bands of `tile_rows` output rows fetch in total, halos included."""
    return int(_fetched(layer, 0, (tile_rows,))[0])


def _fetched(layer: Layer, axis: int, sizes: Sequence[int]) -> Array:
    """Return, for each tile size along rows (0) or columns (1), the input extent that all tiles fetch together."""
    # Ascending sizes in batches: the first tiles are many, the last few.
    batches = [_fetched_by(layer, axis, np.array(sizes[i : i + _BATCH])) for i in range(0, len(sizes), _BATCH)]
    return np.concatenate(batches)


def _fetched_by(layer: Layer, axis: int, sizes: Array) -> Array:
    out, inside = (layer.y, layer.in_y) if axis == 0 else (layer.x, layer.in_x)
    stride, pad = layer.stride[axis], layer.pads[axis]
    span = layer.dilation[axis] * (layer.kernel[axis] - 1) + 1
    first = np.arange(math.ceil(out / sizes.min())) * sizes[:, None]
    last = np.minimum(first + sizes[:, None], out) - 1
    low = np.clip(first * stride - pad, 0, inside)
    high = np.clip(last * stride - pad + span, 0, inside)
    return np.asarray(np.where(first < out, high - low, 0).sum(axis=1), dtype=np.float64)


# --- the cost ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(kw_only=True, slots=True)
class Grid:
    """All tile shapes of a space: positions down, channels across; arrays broadcast to (positions, channels)."""

    layer: Layer
    machine: NpuMachine
    y: Array
    x: Array
    k: Array
    c: Array
    tiles_s: Array
    tiles_k: Array
    tiles_c: Array
    in_tile: Array
    weight_tile: Array
    out_tile: Array
    in_vector: Array
    out_vector: Array
    resident_bytes: float
    in_bytes: Array
    weight_bytes: Array
    out_bytes: float
    spilled_bytes: Array
    compute: Array
    vector_compute: bool

    @classmethod
    def of_tile(cls, layer: Layer, machine: NpuMachine, tile: NpuTile) -> Grid:
        """Build the grid of one tile."""
        pairs = np.array([[tile.y], [tile.x]]), np.array([[tile.k], [tile.c]])
        return cls.of(layer, machine, *pairs, blocked=tile.blocked)

    @classmethod
    def of(cls, layer: Layer, machine: NpuMachine, positions: Array, channels: Array, *, blocked: bool = True) -> Grid:
        """Build from `positions` (2, n): rows and columns, and `channels` (2, m): output and input channels."""
        width = machine.element_bytes
        y, x = positions[:, :, None].astype(np.float64)
        k, c = channels[:, None, :].astype(np.float64)
        tiles_s = layer.batch * np.ceil(layer.y / y) * np.ceil(layer.x / x)
        tiles_k, tiles_c = np.ceil(layer.k / k), np.ceil(layer.c / c)
        in_channels = k if layer.per_channel else c
        all_channels = layer.k if layer.per_channel else layer.c
        aligned = np.ceil(k * c * layer.taps * width / machine.alignment_bytes) * machine.alignment_bytes
        weight_tile = aligned if layer.weights else aligned * 0
        # A reduction leaves one element for each position.
        out = y * x * (k if layer.outputs >= layer.positions * layer.k else 1 + 0 * k)
        out_tile = out * np.where(tiles_c > 1, SUM_BYTES, width)
        out_bytes = layer.outputs * machine.dram_element_bytes
        return cls(
            layer=layer, machine=machine, y=y, x=x, k=k, c=c,
            tiles_s=tiles_s, tiles_k=tiles_k, tiles_c=tiles_c,
            in_tile=_tile_input(layer, y, x) * in_channels * width,
            weight_tile=weight_tile,
            out_tile=out_tile,
            in_vector=_tile_input(layer, y, x) * in_channels * width * machine.layout_cycles_per_byte(layer),
            out_vector=out * width * machine.out_cycles_per_byte,
            resident_bytes=_align(layer.weights // layer.groups * width, machine.alignment_bytes),
            in_bytes=_all_input(layer, positions)[:, None] * layer.groups * all_channels * machine.dram_element_bytes,
            weight_bytes=weight_tile * tiles_k * tiles_c * layer.groups,
            out_bytes=out_bytes,
            spilled_bytes=2 * (tiles_c - 1) * layer.outputs * SUM_BYTES,
            compute=_compute(layer, machine, (y, x, k, c), blocked=blocked),
            vector_compute=not machine.uses_matrix(layer),
        )  # fmt: skip

    def memory(self, double: tuple[bool, bool, bool], *, resident: bool) -> Array:
        """On-chip bytes of the buffers."""
        weights = self.resident_bytes if resident and self.layer.weights else self.weight_tile * (1 + double[1])
        return np.asarray(self.in_tile * (1 + double[0]) + weights + self.out_tile * (1 + double[2]))

    def refetches(self, order: str) -> tuple[Array | int, Array | int, Array | int]:
        """How often input and weights are fetched, and whether sums are spilled (1) or not (0), in this order."""
        many_s, many_k, many_c = self.tiles_s > 1, self.tiles_k > 1, self.tiles_c > 1
        of = {"s": many_s, "k": many_k, "c": many_c}

        def again(loop: str, others: str) -> Array:
            inside = [of[name] for name in order[order.index(loop) + 1 :] if name in others]
            return np.logical_or.reduce(np.broadcast_arrays(*inside)) if inside else np.zeros((1, 1), bool)

        inputs: Array | int = 1
        if not self.layer.per_channel:
            inputs = np.where(again("k", "sc"), self.tiles_k, 1.0)
        weights = np.where(again("s", "kc"), self.tiles_s, 1.0)
        return inputs, weights, again("c", "sk").astype(np.float64)

    def streams(self, order: str, *, resident: bool) -> tuple[Array, Array, Array]:
        """Bytes of input, weights and output that the DMA moves in this order."""
        inputs, weights, spilled = self.refetches(order)
        in_bytes = self.in_bytes * inputs
        if resident:
            weight_bytes = np.full((1, 1), self.resident_bytes * self.layer.groups if self.layer.weights else 0.0)
        else:
            weight_bytes = self.weight_bytes * weights
        return in_bytes, weight_bytes, self.out_bytes + self.spilled_bytes * spilled

    def transfers(self, streams: tuple[Array, Array, Array]) -> Array:
        """Number of DMA transfers: one for each tile that is brought in or out."""
        in_tiles = self.tiles_s * (self.tiles_k if self.layer.per_channel else self.tiles_c) * self.layer.groups
        loads = in_tiles * (streams[0] / self.in_bytes)
        weights = streams[1] / np.maximum(self.weight_tile, 1.0)
        return np.asarray(loads + weights + self.tiles_s * self.tiles_k * self.layer.groups)

    @property
    def turns(self) -> Array:
        """Number of tiles."""
        return np.asarray(self.tiles_s * self.tiles_k * self.tiles_c * self.layer.groups)


def _align(size: float, multiple: int) -> float:
    return math.ceil(size / multiple) * multiple


def _tile_input(layer: Layer, y: Array, x: Array) -> Array:
    """Input positions of one tile, halo included, without those outside the image."""
    spans = [layer.dilation[i] * (layer.kernel[i] - 1) + 1 for i in (0, 1)]
    rows = np.minimum((y - 1) * layer.stride[0] + spans[0], layer.in_y)
    columns = np.minimum((x - 1) * layer.stride[1] + spans[1], layer.in_x)
    return np.asarray(rows * columns)


def _all_input(layer: Layer, positions: Array) -> Array:
    """Input positions that all tiles of all batches fetch, halos included, for each (rows, columns)."""
    totals = []
    for axis in (0, 1):
        sizes, where = np.unique(positions[axis], return_inverse=True)
        totals.append(_fetched(layer, axis, sizes.tolist())[where])
    return np.asarray(totals[0] * totals[1] * layer.batch)


def _compute(layer: Layer, machine: NpuMachine, tile: tuple[Array, Array, Array, Array], *, blocked: bool) -> Array:
    """Cycles of the matrix or vector unit for all tiles, idle lanes and edges included."""
    y, x, k, c = tile
    if machine.uses_matrix(layer):
        assert machine.step_cycles is not None
        block_y, block_x = blocks_of(layer, machine)
        blocks = layer.batch * layer.groups * _in_blocks(layer.y, y, block_y) * _in_blocks(layer.x, x, block_x)
        columns = _in_blocks(layer.k, k, machine.columns)
        step = machine.step_cycles if layer.kind != DEPTHWISE else machine.depthwise_step_cycles or machine.step_cycles
        steps = columns * _in_blocks(layer.c, c, machine.depth) * layer.taps * step
        cycles = blocks * (steps + columns * np.ceil(layer.c / c) * machine.block_cycles)
    elif layer.per_channel:
        wide = min(machine.lanes, _VECTOR_CHANNELS)
        positions = _in_blocks(layer.y, y, 1) * _in_blocks(layer.x, x, max(1, machine.lanes // wide))
        vectors = layer.batch * positions * _in_blocks(layer.k, k, wide)
        cycles = vectors * layer.taps * layer.passes / machine.macs_per_lane + 0 * c
    else:
        vectors = layer.batch * _vectors(layer, y, x, machine.lanes)
        cycles = vectors * layer.groups * layer.k * layer.c * layer.taps / machine.macs_per_lane + 0 * k * c
    return np.asarray(cycles if blocked else cycles * (1 + machine.conflict_ratio))


def _in_blocks(extent: int, size: Array, block: int) -> Array:
    """Blocks of all tiles of `size` along an axis, the last tile cut at its end."""
    full = np.floor(extent / size)
    rest = extent - full * size
    return np.asarray(full * np.ceil(size / block) + np.ceil(rest / block))


def _vectors(layer: Layer, y: Array, x: Array, lanes: int) -> Array:
    """Vectors over the positions of a tile, summed over all tiles of one image."""
    full_y, full_x = np.floor(layer.y / y), np.floor(layer.x / x)
    rest_y, rest_x = layer.y - full_y * y, layer.x - full_x * x
    return np.asarray(
        full_y * full_x * np.ceil(y * x / lanes)
        + full_x * np.ceil(rest_y * x / lanes)
        + full_y * np.ceil(y * rest_x / lanes)
        + np.ceil(rest_y * rest_x / lanes)
    )


@dataclasses.dataclass(kw_only=True, slots=True)
class Streams:
    """The streams of one loop order and residency, in cycles; a triple is input, weights, output.

    `dma` and `alone` are whole streams: on the DMA, and with one buffer, when nothing hides them. `later` and
    `later_vector` (input, output) are what is left of them once the first tile went through. `fill` is that tile's
    way, and what of the rest no overlap hides; weights take `fill[1]` behind a double-buffered input, which hides
    part of them, and `weight_fill` by themselves.
    """

    grid: Grid
    dma: tuple[Array, Array, Array]
    alone: tuple[Array, Array, Array]
    dram_bytes: Array
    base: Array
    fill: tuple[Array, Array, Array]
    weight_fill: Array
    later: tuple[Array, Array, Array]
    later_vector: tuple[Array, Array]
    later_compute: Array
    compute: Array

    @classmethod
    def of(cls, grid: Grid, order: str, *, resident: bool) -> Streams:
        """Build the streams of that loop order and residency."""
        moved = grid.streams(order, resident=resident)
        setups = grid.transfers(moved) * grid.machine.transfer_cycles + grid.turns * grid.machine.tile_cycles
        return cls.moving(grid, moved, setups=setups)

    @classmethod
    def moving(cls, grid: Grid, moved: tuple[Array, Array, Array], *, setups: Array | float) -> Streams:
        """Build from the bytes that each stream moves, and cycles that starting transfers and tiles takes."""
        machine, turns = grid.machine, grid.turns
        # Activations may be wider in DRAM than on the chip.
        wider = machine.dram_element_bytes / machine.element_bytes
        dma = (moved[0] / machine.dma_bytes, moved[1] / machine.dma_bytes, moved[2] / machine.dma_bytes)
        first = tuple(
            tile / machine.dma_bytes for tile in (grid.in_tile * wider, grid.weight_tile, grid.out_tile * wider)
        )
        # Layout changes go by bands of positions: tiles of channels of one band share a thread.
        bands = np.minimum(machine.vector_threads, grid.tiles_s)
        in_beside = moved[0] / (grid.in_tile * wider) * grid.in_vector
        out_beside = grid.tiles_s * grid.tiles_k * grid.layer.groups * grid.out_vector
        in_later, weight_later, out_later = (np.maximum(dma[i] - first[i], 0.0) for i in range(3))
        in_vector = np.maximum(in_beside / bands - grid.in_vector, 0.0)
        out_vector = np.maximum(out_beside / bands - grid.out_vector, 0.0)
        compute = grid.compute / np.minimum(machine.vector_threads, turns) if grid.vector_compute else grid.compute
        later_compute = compute * (1.0 - 1.0 / turns)
        # What does not overlap adds up instead of hiding behind the slowest; it is the same for all buffers.
        apart = 1.0 - machine.overlap_ratio
        return cls(
            grid=grid,
            dma=dma,
            # With one buffer there is one tile at a time, so one thread.
            alone=(dma[0] + in_beside, dma[1], dma[2] + out_beside),
            dram_bytes=moved[0] + moved[1] + moved[2],
            base=machine.fixed_cycles + setups + compute / turns + apart * later_compute,
            fill=(
                first[0] + grid.in_vector + apart * (in_later + in_vector),
                # Weights follow the input on the DMA, while the vector unit changes the input's layout.
                np.maximum(first[1] - grid.in_vector, 0.0) + apart * weight_later,
                # The vector unit writes the result itself.
                np.maximum(first[2], grid.out_vector) + apart * (out_later + out_vector),
            ),
            weight_fill=first[1] + apart * weight_later,
            later=(in_later, weight_later, out_later),
            later_vector=(in_vector + grid.machine.wait_ratio(grid.layer) * in_later, out_vector),
            later_compute=later_compute,
            compute=compute,
        )

    def cycles(self, double: tuple[bool, bool, bool]) -> Array:
        """Cycles of the layer with these streams double-buffered."""
        return self.all_cycles((double,))[double]

    def all_cycles(self, which: Iterable[tuple[bool, bool, bool]] = BUFFERS) -> dict[tuple[bool, bool, bool], Array]:
        """Cycles of the layer for each choice of double-buffered streams; the choices share their sums."""
        overlap = self.grid.machine.overlap_ratio
        shared: dict[tuple[bool, bool], tuple[Any, Any, Any]] = {}
        found = {}
        for double in which:
            ends = (double[0], double[2])
            if ends not in shared:
                shared[ends] = self._ends(*ends)
            dma, others, alone = shared[ends]
            if double[1]:
                dma, alone = dma + self.later[1], alone + (self.fill[1] if double[0] else self.weight_fill)
            else:
                alone = alone + self.alone[1]
            found[double] = np.maximum(others, dma) * overlap + alone
        return found

    def _ends(self, twice_in: bool, twice_out: bool) -> tuple[Any, Any, Any]:  # noqa: FBT001
        """Return DMA, the slower of the two other units, and what nothing hides, without the weights."""
        in_matrix = 0.0 if self.grid.vector_compute else self.later_compute
        dma: Any = 0.0
        vector: Any = self.later_compute if self.grid.vector_compute else 0.0
        alone: Any = self.base + self._fifo_stall(self.dma[2])
        for i, of_vector, twice in ((0, self.later_vector[0], twice_in), (2, self.later_vector[1], twice_out)):
            if twice:
                dma, vector, alone = dma + self.later[i], vector + of_vector, alone + self.fill[i]
            else:
                alone = alone + self.alone[i]
        return dma, np.maximum(in_matrix, vector), alone

    def _fifo_stall(self, out_dma: Array) -> Array | float:
        """Cycles lost once when results leave more slowly than they are made, where the chip's figure is known."""
        machine = self.grid.machine
        if not machine.fifo_full_s:
            return 0.0
        return (out_dma > self.compute) * (machine.fifo_full_s * machine.clock_hz)

    def energy_j(self, cycles: Array) -> Array:
        """Energy: multiply-adds, memory traffic, on-chip traffic, and what the chip draws meanwhile."""
        machine, layer = self.grid.machine, self.grid.layer
        operands = 2 * layer.macs * machine.element_bytes / _reuse(layer, machine)
        return np.asarray(
            layer.macs * machine.mac_j
            + self.dram_bytes * machine.dram_j_per_byte
            + (self.dram_bytes + operands) * machine.on_chip_j_per_byte
            + cycles / machine.clock_hz * machine.active_w
        )


def _reuse(layer: Layer, machine: NpuMachine) -> float:
    """Multiply-adds for each operand that the unit reads from the on-chip memory."""
    return float(machine.columns) if machine.uses_matrix(layer) else 1.0


def evaluate(layer: Layer, machine: NpuMachine, tile: NpuTile) -> Cost:
    """Return the cost of one tile with its causes; a tile that the space refuses for its form is padded.

    Raises:
        TileError: the tile does not fit the memory, is larger than the layer, or cuts a row that must be whole.
    """
    reason = refusal(layer, machine, tile)
    if reason is not None and not reason.startswith(("lanes", "alignment")):
        raise TileError(f"{tile} cannot run on {machine.name}: {reason}")
    grid = Grid.of_tile(layer, machine, tile)
    streams = Streams.of(grid, tile.order, resident=tile.resident)
    cycles = float(streams.cycles(tile.double)[0, 0])
    misaligned = reason is not None and reason.startswith("alignment")
    stall_s = machine.weight_conflict_s if misaligned else 0.0
    latency_s = cycles / machine.clock_hz + stall_s
    compute = float(streams.compute[0, 0])
    ideal = _ideal(layer, machine) / (min(machine.vector_threads, grid.turns.item()) if grid.vector_compute else 1)
    dram_bytes = float(np.broadcast_to(streams.dram_bytes, (1, 1))[0, 0])
    dma = [float(np.broadcast_to(part, (1, 1))[0, 0]) for part in streams.dma]
    conflicts = 0.0 if tile.blocked else compute * (1 - 1 / (1 + machine.conflict_ratio))
    exposed = cycles - max(compute, 1e-30)
    single = [cost for cost, twice in zip(dma, tile.double, strict=True) if not twice]
    # One thread changes the layout of a stream with one buffer, and one for each band of positions that of others.
    bands = min(machine.vector_threads, float(grid.tiles_s[0, 0]))
    layout = sum(float(np.ravel(streams.alone[i])[0] - dma[i]) / (bands if tile.double[i] else 1) for i in (0, 2))
    per_second = 1 / machine.clock_hz
    return Cost(
        latency_s=latency_s,
        energy_j=float(streams.energy_j(np.array(latency_s * machine.clock_hz)).item()),
        on_chip_bytes=float(grid.memory(tile.double, resident=tile.resident)[0, 0]),
        dram_bytes=dram_bytes,
        tiles=int((grid.tiles_s * grid.tiles_k * grid.tiles_c)[0, 0]) * layer.groups,
        lane_ratio=min(1.0, ideal * (1 + machine.conflict_ratio * (not tile.blocked)) / compute),
        amplification_ratio=dram_bytes / layer.minimal_bytes(machine.element_bytes),
        parts=(
            ("compute", (compute - conflicts) * per_second),
            ("operand conflicts", conflicts * per_second),
            ("input DMA", dma[0] * per_second),
            ("weight DMA", dma[1] * per_second),
            ("output DMA", dma[2] * per_second),
            ("not overlapped", sum(single) * per_second),
            ("layout changes", layout * per_second),
            ("exposed", exposed * per_second),
            ("weight-buffer conflict", stall_s),
        ),
    )


def _ideal(layer: Layer, machine: NpuMachine) -> float:
    """Cycles with every lane busy."""
    if machine.uses_matrix(layer):
        assert machine.step_cycles is not None
        per_step = machine.block_y * machine.block_x * machine.columns * machine.depth
        return layer.macs / per_step * machine.step_cycles
    return layer.macs / (machine.lanes * machine.macs_per_lane)
