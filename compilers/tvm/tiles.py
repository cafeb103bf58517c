"""Tile configurations of a reduction nest on a CPU: which ones are worth trying, in which order. No TVM here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, Self

# Cycles to load one vector of weights, by the bytes that one tile walks through: L1, L2, beyond. Round figures
# that put the tiles measured on a Zen 4 and a Zen 5 in the right order, not a claim about any one cache.
_WEIGHT_LOADS: Final = ((32 << 10, 1.0), (512 << 10, 2.0), (float("inf"), 4.0))
_BROADCAST_CYCLES: Final = 0.5
# Multiply-adds in flight that hide the latency of one.
_LATENCY_CHAINS: Final = 8
_MAX_VECTORS: Final = 16
# Work of the busiest thread over an equal share.
EVEN: Final = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TileConfig:
    """One register tile: `columns` x `channels` accumulators, in vectors of `lanes` elements.

    `channels` divides the last axis of the output, `columns` the one before it. `inline_pad` computes the
    padding inside the nest, else it is a pass of its own. `channels_outer` walks all positions for one block
    of channels (the weights stay in the cache), else all channels for one position. `block` are rows, columns and
    channels of an outer tile, all of whose register tiles come before those of the next; None: there is none.
    """

    channels: int
    columns: int
    lanes: int
    inline_pad: bool = False
    channels_outer: bool = False
    block: tuple[int, int, int] | None = None

    @property
    def vectors(self) -> int:
        """Vectors of accumulators in one column."""
        return self.channels // self.lanes

    @property
    def accumulators(self) -> int:
        """Vector registers that the tile's sums occupy."""
        return self.vectors * self.columns

    def to_json(self) -> dict[str, Any]:
        """Return the fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises TypeError for anything else."""
        block = fields.get("block")
        return cls(**fields | {"block": None if block is None else tuple(block)})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Nest:
    """What of a reduction nest decides its tiles; extents in elements.

    `columns` is the output axis before the channels (1 when there is none), `rows` everything before that and `lines`
    the one of those before the columns.
    `shared` tells that a load of the data serves all channels (a convolution or a matrix product), unlike a
    depthwise convolution or a pool. `weight_bytes` is the size of one weight, and
    `dot_lanes` are the widths of the instruction when it is not the vector unit's, the widest first.
    """

    channels: int
    columns: int
    rows: int
    reduction: int
    input_channels: int
    padded: bool
    shared: bool
    weight_bytes: int = 4
    lines: int = 1
    dot_lanes: tuple[int, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-adds (or adds) of one run."""
        return self.channels * self.columns * self.rows * self.reduction


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Registers:
    """The vector unit: elements of float32 in a register, and how many registers."""

    lanes: int
    count: int

    @classmethod
    def of_width(cls, bits: int) -> Self:
        """Derive from the register width: AVX-512 and NEON have 32 registers, AVX and SSE 16."""
        return cls(lanes=max(4, bits // 32), count=16 if bits == 256 else 32)


def candidates(nest: Nest, registers: Registers, limit: int, threads: int = 1) -> tuple[TileConfig, ...]:
    """List at most `limit` tiles, the one that is expected to be fastest on `threads` threads first.

    The order is a static model: cycles per useful element of the innermost loop (multiply-adds, loads,
    latency). The second and third place go to a variant of the best tile (padding inside, other outer order)
    when there is one, because the model does not see the caches.
    """
    tiles = sorted(_tiles(nest, registers), key=lambda tile: _rank(tile, nest, registers))
    variants = [_fitted(tile, nest, threads) for tile in tiles]
    ordered = [variants[0], *_alternatives(variants[0], nest), *variants[1:]]
    return tuple(dict.fromkeys(ordered))[:limit]


def uneven(iterations: int, threads: int) -> float:
    """Return the share of the busiest thread over an equal share: 7 rows on two threads are 8 / 7."""
    return -(-iterations // threads) * threads / iterations


def blocked(nest: Nest, registers: Registers, sizes: tuple[int, int, int]) -> TileConfig:
    """Return the best register tile within an outer tile of rows, columns and channels.

    Each size is rounded down to one that comes out even: a rest would be a condition around the vectors. Channels are
    whole dot products.
    """
    unit = nest.dot_lanes[-1] if nest.dot_lanes else 1
    rows, columns = _even(sizes[0], nest.lines), _even(sizes[1], nest.columns)
    channels = unit * _even(sizes[2] // unit, nest.channels // unit)
    inside = dataclasses.replace(nest, rows=nest.rows // nest.lines * rows, columns=columns, channels=channels)
    tile = candidates(inside, registers, 1)[0]
    outer = _fitted(dataclasses.replace(tile, channels=channels), nest, 1).channels_outer
    return dataclasses.replace(tile, channels_outer=outer, block=(rows, columns, channels))


def _even(size: int, extent: int) -> int:
    return max(d for d in _divisors(extent) if d <= max(1, size))


def refusal(tile: TileConfig, nest: Nest) -> str | None:
    """Return why the schedule cannot build the tile for the nest, or None."""
    if min(tile.channels, tile.columns, tile.lanes) < 1:
        return "every size must be at least 1"
    if nest.channels % tile.channels or tile.channels % tile.lanes:
        return f"lanes must divide channels, and channels the {nest.channels} of the output"
    if nest.columns % tile.columns:
        return f"columns must divide the {nest.columns} of the output"
    if tile.inline_pad and not nest.padded:
        return "there is no padding to compute inside"
    if nest.dot_lanes and tile.lanes not in nest.dot_lanes:
        return f"the dot-product instruction has {' or '.join(map(str, nest.dot_lanes))} lanes"
    return _block_refusal(tile.block, tile, nest) if tile.block else None


def _block_refusal(block: tuple[int, int, int], tile: TileConfig, nest: Nest) -> str | None:
    extents, steps = (nest.lines, nest.columns, nest.channels), (1, tile.columns, tile.channels)
    uneven = any(size < 1 or extent % size or size % step
                 for size, extent, step in zip(block, extents, steps, strict=True))  # fmt: skip
    if uneven:
        return f"the block {block} is not of whole register tiles that divide the output's {extents}"
    return None


def _fitted(tile: TileConfig, nest: Nest, threads: int) -> TileConfig:
    """Choose where padding happens and which loop is outer.

    Padding goes inside where a pass of its own costs more: few channels to vectorise, or little to do for each
    element. Channels go outside when the weights are the larger operand: the other order reads all of them for
    every position, and in a whole model they come from memory, unlike in a kernel timed alone. So do channels of which
    each needs its own data, where the threads cannot share the rows evenly.
    """
    larger = nest.reduction * nest.channels > nest.rows * nest.columns * nest.input_channels
    return dataclasses.replace(
        tile,
        inline_pad=nest.padded and (not nest.shared or nest.input_channels < tile.lanes),
        channels_outer=nest.channels > tile.channels and (larger if nest.shared else uneven(nest.rows, threads) > EVEN),
    )


def _alternatives(best: TileConfig, nest: Nest) -> list[TileConfig]:
    other = []
    if nest.padded:
        other.append(dataclasses.replace(best, inline_pad=not best.inline_pad))
    if nest.channels > best.channels and nest.rows * nest.columns > best.columns:
        other.append(dataclasses.replace(best, channels_outer=not best.channels_outer))
    return other


def _tiles(nest: Nest, registers: Registers) -> list[TileConfig]:
    lanes = _lanes(nest.channels, min((registers.lanes, *nest.dot_lanes[:1])))
    channels = [c for c in _divisors(nest.channels) if c % lanes == 0 and c <= lanes * _MAX_VECTORS]
    tiles = [
        TileConfig(channels=c, columns=w, lanes=lanes)
        for c in channels
        for w in _divisors(nest.columns)
        if c // lanes * w <= registers.count
    ]
    return tiles or [TileConfig(channels=lanes, columns=1, lanes=lanes)]


def _rank(tile: TileConfig, nest: Nest, registers: Registers) -> tuple[float, ...]:
    """Order by modelled cycles per element, coarsely; then by how near the tile is to a comfortable size."""
    cycles = max(tile.accumulators, _load_cycles(tile, nest), _LATENCY_CHAINS)
    spill = 2.0 if tile.accumulators > registers.count * 3 // 4 else 1.0
    per_element = spill * cycles / (tile.accumulators * tile.lanes)
    comfortable = registers.count // 2
    return (round(math.log2(per_element) * 4), abs(tile.accumulators - comfortable), -tile.columns)


def _load_cycles(tile: TileConfig, nest: Nest) -> float:
    """Cycles that one step of the reduction waits for loads."""
    if not nest.shared:
        return tile.accumulators + tile.vectors
    weights_bytes = nest.reduction * tile.channels * nest.weight_bytes
    weight_cycles = next(cycles for limit, cycles in _WEIGHT_LOADS if weights_bytes <= limit)
    return tile.vectors * weight_cycles + tile.columns * _BROADCAST_CYCLES


def _lanes(channels: int, widest: int) -> int:
    lanes = widest
    while channels % lanes:
        lanes //= 2
    return lanes


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
