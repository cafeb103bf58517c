"""The memory hierarchy and the compute unit that tiles are cut for, each figure with its source.

`[processors.X.tile]` of a device file; which of the two forms it has follows from the processor's kind. A
figure that a file lacks is None, and the cost model then leaves out the effect and says so; the required ones
are refused when missing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partition.device import Figure


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NpuGeometry:
    """A scratchpad that software fills by DMA, in front of a matrix unit and a vector unit.

    One step of the matrix unit multiplies `block_y x block_x` positions and `matrix_depth` input channels
    into `matrix_columns` output channels in `matrix_step_cycles` (and each block takes `matrix_block_cycles` once);
    blocks and cycles are keyed by precision. Else each of `vector_threads` has `lanes` that work on positions (or
    channels, where each stands alone) with `macs_per_lane` each. `in_` and `out_bytes_per_cycle` are at what rate one
    vector thread brings rows into the blocked layout and back; a `strided_` pass comes on top for windows with strides.
    Vector threads wait for `padded_wait_ratio` of the transfers that write a border. `overlap_ratio` is 1 where the
    units work at once as far as buffers allow, and lower where the compiler's order keeps them waiting for each other.
    `pass_bytes_per_cycle` are one vector thread's rates for passes over a tensor in blocks, keyed by precision and kind
    (`int8.table`; the kinds are those of `partition/tile/stages.py`); a tile of a pass starts in `pass_start_cycles`,
    one of the matrix unit in `matrix_start_cycles`. `depthwise_step_cycles` is its step when most of it is empty.
    `register_banks` is the number of banks the operands of one multiply-add are read from when no channel block keeps
    them apart.
    """

    clock_hz: Figure
    on_chip_bytes: Figure
    lanes: Figure
    vector_threads: Figure | None
    macs_per_lane: Mapping[str, Figure]
    dma_bytes_per_cycle: Figure
    weight_alignment_bytes: Figure
    block_y: Mapping[str, Figure]
    block_x: Mapping[str, Figure]
    matrix_columns: Figure | None
    matrix_depth: Figure | None
    matrix_step_cycles: Mapping[str, Figure]
    matrix_block_cycles: Mapping[str, Figure]
    matrix_start_cycles: Mapping[str, Figure]
    depthwise_step_cycles: Mapping[str, Figure]
    pass_start_cycles: Mapping[str, Figure]
    pass_bytes_per_cycle: Mapping[str, Figure]
    in_bytes_per_cycle: Mapping[str, Figure]
    padded_wait_ratio: Mapping[str, Figure]
    strided_bytes_per_cycle: Mapping[str, Figure]
    out_bytes_per_cycle: Mapping[str, Figure]
    transfer_cycles: Figure | None
    tile_cycles: Mapping[str, Figure]
    operator_cycles: Mapping[str, Figure]
    overlap_ratio: Mapping[str, Figure]
    register_banks: Figure | None
    channel_block: Figure | None
    on_chip_j_per_byte: Figure | None
    weight_conflict_s: Figure | None
    fifo_full_s: Figure | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuGeometry:
    """Compute units that run blocks of threads, with shared memory, registers and a cache in front of DRAM."""

    clock_hz: Figure
    compute_units: Figure
    warp_threads: Figure
    threads_per_block: Figure
    threads_per_unit: Figure
    blocks_per_unit: Figure
    registers_per_unit: Figure
    registers_per_thread: Figure
    shared_bytes_per_block: Figure
    shared_bytes_per_unit: Figure
    shared_banks: Figure
    shared_bank_bytes: Figure
    macs_per_unit_cycle: Mapping[str, Figure]
    line_bytes: Figure
    cache_bytes: Figure
    cache_bytes_per_cycle: Figure
    arithmetic_latency_cycles: Figure
    memory_latency_cycles: Figure
    on_chip_j_per_byte: Figure | None


class FigureReader(Protocol):
    """Reads a figure and refuses one that cannot be traced."""

    def figure(self, key: str, entry: Mapping[str, Any]) -> Figure:
        """Read the figure of that key."""
        ...

    def optional(self, table: Mapping[str, Any], key: str) -> Figure | None:
        """Read the figure of that key if the table has it."""
        ...

    def each(self, table: Mapping[str, Any], key: str) -> Mapping[str, Figure]:
        """Read the figures of that key by precision, none if the table has none."""
        ...


def read_geometry(
    kind: str, table: Mapping[str, Any], on_chip_bytes: Figure | None, read: FigureReader
) -> NpuGeometry | GpuGeometry:
    """Read `[processors.X.tile]` of a processor of that kind; an NPU's memory size is the processor's own.

    Raises:
        KeyError: the table lacks a figure without which no tile can be costed, or the kind has no tiles.
    """
    forms: dict[str, type[NpuGeometry | GpuGeometry]] = {"npu": NpuGeometry, "gpu": GpuGeometry}
    if kind not in forms:
        raise KeyError(f"tile geometry of a processor of kind {kind!r}; only npu and gpu have one")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(forms[kind]):
        if field.name == "on_chip_bytes":
            if on_chip_bytes is None:
                raise KeyError("on_chip_bytes")
            values[field.name] = on_chip_bytes
        elif str(field.type).startswith("Mapping"):
            values[field.name] = read.each(table, field.name)
        elif "None" in str(field.type):
            values[field.name] = read.optional(table, field.name)
        else:
            values[field.name] = read.figure(field.name, table[field.name])
    unknown = sorted(set(table) - values.keys())
    if unknown:
        raise KeyError(f"no tile geometry has {unknown[0]!r}")
    return forms[kind](**values)
