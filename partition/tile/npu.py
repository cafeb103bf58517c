"""Tiles of an NPU-like hierarchy: what a tile is, the machine's figures as numbers, and spaces of tiles."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from partition.geometry import NpuGeometry
from partition.tile.cost import Machine, operand_conflicts, value_of
from partition.tile.operators import CONV, DEPTHWISE, MATMUL, NORM, Layer, TileError, element_bytes

if TYPE_CHECKING:
    from partition.device import Device, Figure

Array = np.ndarray[Any, np.dtype[Any]]

ORDERS: Final = ("skc", "sck", "ksc", "kcs", "csk", "cks")
BUFFERS: Final = tuple((i, w, o) for i in (False, True) for w in (False, True) for o in (False, True))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NpuTile:
    """One tile: `y` x `x` positions, `k` output and `c` input channels of one group, and how tiles follow.

    `order` names the loops over tiles from the outermost in. `double` tells which of input, weights and output
    have two buffers. `resident` keeps all weights of a group on the chip. `blocked` is the NPU's own layout, in
    which channels are interleaved in blocks; a tile carried over from a GPU lacks it.
    """

    y: int
    x: int
    k: int
    c: int
    order: str = "skc"
    double: tuple[bool, bool, bool] = (True, True, True)
    resident: bool = False
    blocked: bool = True

    def __post_init__(self) -> None:
        if min(self.y, self.x, self.k, self.c) < 1:
            raise TileError(f"a tile of {self.y}x{self.x}x{self.k}x{self.c}: every size must be at least 1")
        if self.order not in ORDERS:
            raise TileError(f"loop order {self.order!r} is none of {', '.join(ORDERS)}")

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The sizes by axis, as `partition.Tile` holds them."""
        return (("x", self.x), ("y", self.y), ("k", self.k), ("c", self.c))

    def __str__(self) -> str:
        double = "".join(letter for letter, twice in zip("iwo", self.double, strict=True) if twice) or "-"
        notes = f"{' resident' if self.resident else ''}{'' if self.blocked else ' unblocked'}"
        return f"y{self.y} x{self.x} k{self.k} c{self.c} {self.order} double:{double}{notes}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NpuMachine(Machine):
    """The figures of one NPU in one precision, as numbers; cycles unless the name says otherwise."""

    budget_bytes: float
    alignment_bytes: int
    lanes: int
    macs_per_lane: float
    dma_bytes: float
    block_y: int
    block_x: int
    columns: int
    depth: int
    step_cycles: float | None
    block_cycles: float
    matrix_start_cycles: float
    depthwise_step_cycles: float | None
    vector_threads: int
    in_cycles_per_byte: float
    padded_wait_ratio: float
    strided_cycles_per_byte: float
    out_cycles_per_byte: float
    transfer_cycles: float
    tile_cycles: float
    fixed_cycles: float
    overlap_ratio: float
    conflict_ratio: float
    weight_conflict_s: float
    fifo_full_s: float
    pass_start_cycles: float
    passes: tuple[tuple[str, float], ...]
    """Cycles for each byte of other passes over a tensor, by kind; only whole graphs have them."""
    dram_element_bytes: int
    """Width of an activation in DRAM; wider than on the chip where a graph's ends are float32 and the work is fp16."""

    def uses_matrix(self, layer: Layer) -> bool:
        """Tell whether the layer runs on the matrix unit."""
        return self.step_cycles is not None and layer.kind in (CONV, MATMUL, DEPTHWISE)

    def layout_cycles_per_byte(self, layer: Layer) -> float:
        """Vector cycles for each byte of an input tile: into the blocked layout, and strided windows apart."""
        return self.in_cycles_per_byte + self.strided_cycles(layer)

    def strided_cycles(self, layer: Layer) -> float:
        """Vector cycles for each byte of an input tile, to lay its windows apart where they have strides."""
        return self.strided_cycles_per_byte if layer.taps > 1 and max(layer.stride) > 1 else 0.0

    def wait_ratio(self, layer: Layer) -> float:
        """Share of the input's transfer that vector threads wait for: they start those that write a border."""
        return self.padded_wait_ratio if layer.padded else 0.0


def npu_machine(
    device: Device, precision: str, *, processor: str = "npu", budget_bytes: float | None = None
) -> NpuMachine:
    """Read the NPU of a device in that precision; `budget_bytes` overrides the size of its memory.

    Raises:
        TileError: the device file has no tile geometry, or lacks a figure of that precision.
    """
    chip = device.processor(processor)
    form = chip.tile
    if not isinstance(form, NpuGeometry):
        raise TileError(
            f"{device.name} has no tile geometry of an NPU; add [processors.{processor}.tile] to its device file"
        )
    width = element_bytes(precision)
    if precision not in form.macs_per_lane:
        have = ", ".join(form.macs_per_lane)
        raise TileError(f"{device.name} {processor} has no tile geometry for {precision}; it has {have}")
    matrix = precision in form.matrix_step_cycles
    return NpuMachine(
        name=f"{device.name} {processor}",
        element_bytes=width,
        clock_hz=form.clock_hz.value,
        mac_j=value_of(chip.energy_j_per_mac.get(precision), 0.0),
        dram_j_per_byte=value_of(device.dram_j_per_byte, 0.0),
        on_chip_j_per_byte=value_of(form.on_chip_j_per_byte, 0.0),
        active_w=value_of(chip.active_w, 0.0),
        budget_bytes=form.on_chip_bytes.value if budget_bytes is None else budget_bytes,
        alignment_bytes=int(form.weight_alignment_bytes.value),
        lanes=int(form.lanes.value) // width if matrix else int(form.lanes.value),
        macs_per_lane=form.macs_per_lane[precision].value,
        dma_bytes=form.dma_bytes_per_cycle.value,
        block_y=int(value_of(form.block_y.get(precision), 1)),
        block_x=int(value_of(form.block_x.get(precision), 1)),
        columns=int(value_of(form.matrix_columns, 1)),
        depth=int(value_of(form.matrix_depth, 1)),
        step_cycles=form.matrix_step_cycles[precision].value if matrix else None,
        block_cycles=value_of(form.matrix_block_cycles.get(precision), 0.0),
        matrix_start_cycles=value_of(form.matrix_start_cycles.get(precision), 0.0),
        depthwise_step_cycles=form.depthwise_step_cycles[precision].value
        if precision in form.depthwise_step_cycles
        else None,
        pass_start_cycles=value_of(form.pass_start_cycles.get(precision), 0.0),
        passes=_passes(form, precision),
        vector_threads=int(value_of(form.vector_threads, 1)),
        in_cycles_per_byte=_inverse(form.in_bytes_per_cycle.get(precision)),
        padded_wait_ratio=value_of(form.padded_wait_ratio.get(precision), 0.0),
        strided_cycles_per_byte=_inverse(form.strided_bytes_per_cycle.get(precision)),
        out_cycles_per_byte=_inverse(form.out_bytes_per_cycle.get(precision)),
        transfer_cycles=value_of(form.transfer_cycles, 0.0),
        tile_cycles=value_of(form.tile_cycles.get(precision), 0.0),
        fixed_cycles=value_of(form.operator_cycles.get(precision), 0.0),
        overlap_ratio=value_of(form.overlap_ratio.get(precision), 1.0),
        conflict_ratio=operand_conflicts(int(form.register_banks.value)) if form.register_banks else 0.0,
        weight_conflict_s=value_of(form.weight_conflict_s, 0.0),
        fifo_full_s=value_of(form.fifo_full_s, 0.0),
        dram_element_bytes=width,
    )


def _passes(form: NpuGeometry, precision: str) -> tuple[tuple[str, float], ...]:
    keys = ((key.partition("."), figure) for key, figure in form.pass_bytes_per_cycle.items())
    return tuple(sorted((kind, 1.0 / figure.value) for (key, _, kind), figure in keys if key == precision))


def _inverse(figure: Figure | None) -> float:
    return 0.0 if figure is None else 1.0 / figure.value


# --- the space -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NpuSpace:
    """The product of sizes, loop orders, buffers and residency that a search looks through."""

    name: str
    y: tuple[int, ...]
    x: tuple[int, ...]
    k: tuple[int, ...]
    c: tuple[int, ...]
    orders: tuple[str, ...] = ORDERS
    double: tuple[tuple[bool, bool, bool], ...] = BUFFERS
    resident: tuple[bool, ...] = (False, True)

    @property
    def tiles(self) -> int:
        """Number of tile shapes."""
        return len(self.y) * len(self.x) * len(self.k) * len(self.c)

    @property
    def size(self) -> int:
        """Number of configurations."""
        return self.tiles * len(self.orders) * len(self.double) * len(self.resident)


def balanced_space(layer: Layer, machine: NpuMachine) -> NpuSpace:
    """Return sizes that split an axis evenly (the smallest for each number of tiles) or fill whole blocks."""
    block_y, block_x = blocks_of(layer, machine)
    return NpuSpace(
        name="balanced sizes",
        y=_balanced(layer.y, block_y),
        x=_balanced(layer.x, block_x),
        k=_channels(layer.k, machine.columns if machine.uses_matrix(layer) else 1, whole=layer.kind == NORM),
        c=_channels(layer.c, machine.depth if machine.uses_matrix(layer) else 1),
    )


def every_space(layer: Layer, machine: NpuMachine) -> NpuSpace:
    """Return all sizes of all axes that the machine's lanes allow."""
    columns, depth = (machine.columns, machine.depth) if machine.uses_matrix(layer) else (1, 1)
    return NpuSpace(
        name="every size",
        y=tuple(range(1, layer.y + 1)),
        x=tuple(range(1, layer.x + 1)),
        k=(layer.k,) if layer.kind == NORM else _multiples(layer.k, columns),
        c=_multiples(layer.c, depth),
    )


def row_space(layer: Layer) -> NpuSpace:
    """Return bands of whole rows with all channels, resident weights and one buffer."""
    return NpuSpace(
        name="full-width rows, weights resident",
        y=tuple(range(1, layer.y + 1)),
        x=(layer.x,),
        k=(layer.k,),
        c=(layer.c,),
        orders=("skc",),
        double=((False, False, False),),
        resident=(True,),
    )


def _balanced(extent: int, block: int) -> tuple[int, ...]:
    """Return the smallest size for each number of tiles, and that rounded up to whole blocks."""
    even = {math.ceil(extent / parts) for parts in range(1, extent + 1)}
    return tuple(sorted(even | {min(extent, math.ceil(size / block) * block) for size in even}))


def _channels(extent: int, multiple: int, *, whole: bool = False) -> tuple[int, ...]:
    """Return the smallest multiple for each number of tiles, and the whole axis."""
    if whole:
        return (extent,)
    even = {math.ceil(extent / parts) for parts in range(1, extent + 1)}
    return tuple(sorted({min(extent, math.ceil(size / multiple) * multiple) for size in even}))


def _multiples(extent: int, multiple: int) -> tuple[int, ...]:
    return (*range(multiple, extent, multiple), extent)


def blocks_of(layer: Layer, machine: NpuMachine) -> tuple[int, int]:
    """Return the positions of one step; a matrix product has no rows, so its columns take the whole block."""
    if layer.kind == MATMUL or layer.y == 1:
        return 1, machine.block_y * machine.block_x
    return machine.block_y, machine.block_x
