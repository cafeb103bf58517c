"""What a tile costs, and the numbers that NPU and GPU machines share."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from partition.device import Figure

Tile = TypeVar("Tile")

_OPERANDS: Final = 3  # the sum, the activation and the weight of one multiply-add


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Figures of one processor in one precision; an energy that its device file lacks counts as 0."""

    name: str
    element_bytes: int
    clock_hz: float
    mac_j: float
    dram_j_per_byte: float
    on_chip_j_per_byte: float
    active_w: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One tile on one machine, by our model: time, energy, memory, and the causes of the time.

    `lane_ratio` is the share of lanes at work while the unit computes, edges included. `amplification_ratio`
    is DRAM traffic over the least that each tensor once would need. `parts` overlap: they do not add up.
    """

    latency_s: float
    energy_j: float
    on_chip_bytes: float
    dram_bytes: float
    tiles: int
    lane_ratio: float
    amplification_ratio: float
    parts: tuple[tuple[str, float], ...]

    def part(self, name: str) -> float:
        """Return the seconds of one cause."""
        return dict(self.parts)[name]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point(Generic[Tile]):
    """One tile of a frontier."""

    tile: Tile
    latency_s: float
    energy_j: float
    on_chip_bytes: float


def value_of(figure: Figure | None, absent: float) -> float:
    """Return a figure's value; `absent` is the value at which the effect is left out of the cost."""
    return absent if figure is None else figure.value


def operand_conflicts(banks: int) -> float:
    """Return the extra cycles of a multiply-add whose three operands lie in any of `banks` register banks.

    Reads of one bank follow one another, so a multiply-add takes as many cycles as its fullest bank has
    operands: 1 in the best case. With 8 banks the expectation is 1.36.
    """
    draws = list(itertools.product(range(banks), repeat=_OPERANDS))
    return sum(max(Counter(draw).values()) for draw in draws) / len(draws) - 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BandwidthBound:
    """Time of moving `moved_bytes` `passes` times, beside the time of computing."""

    moved_bytes: float
    passes: float
    bytes_per_s: float
    compute_s: float

    @property
    def memory_s(self) -> float:
        """Bytes times passes over bandwidth."""
        return self.moved_bytes * self.passes / self.bytes_per_s

    @property
    def latency_s(self) -> float:
        """The longer of the two; they overlap."""
        return max(self.memory_s, self.compute_s)

    @property
    def bound(self) -> str:
        """Which of the two decides."""
        return "memory" if self.memory_s > self.compute_s else "compute"
