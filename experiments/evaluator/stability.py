"""Load, run and close again and again, and see whether memory grows or latency drifts (R19)."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

Array = NDArray[np.float64]
_SETTLING_SHARE: Final = 0.25  # allocators and caches fill up over the first cycles; that is no leak
_LEAST_CYCLES: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """What the cycles showed: memory after each, median latency of each, and the trends behind the first quarter.

    `leak_bytes_per_cycle` and `drift_per_cycle` (parts of the median latency) are Theil-Sen slopes, which single
    outliers do not move.
    """

    resident_bytes: tuple[int, ...]
    latency_s: tuple[float, ...]
    leak_bytes_per_cycle: float
    drift_per_cycle: float

    def problems(self, *, leak_bytes_per_cycle: float = 64 * 1024, drift_ratio: float = 0.1) -> tuple[str, ...]:
        """Say what is not stable: growth above so many bytes a cycle, or drift above that share over all cycles."""
        cycles = len(self.latency_s)
        found = []
        if self.leak_bytes_per_cycle > leak_bytes_per_cycle:
            found.append(f"memory grows by {self.leak_bytes_per_cycle / 1024:.0f} KiB per cycle over {cycles} cycles")
        if self.drift_per_cycle * cycles > drift_ratio:
            found.append(f"latency drifts by {self.drift_per_cycle * cycles:+.0%} over {cycles} cycles")
        return tuple(found)


def run_cycles(
    opened: Callable[[], AbstractContextManager[Callable[[], Any]]],
    *,
    cycles: int = 20,
    calls: int = 20,
    clock: Callable[[], float] = time.perf_counter,
    resident_bytes: Callable[[], int] = lambda: int(psutil.Process().memory_info().rss),
) -> Stability:
    """Open, call `calls` times and close, `cycles` times over.

    Raises:
        ValueError: too few cycles to see a trend.
    """
    if cycles < _LEAST_CYCLES or calls < 1:
        raise ValueError(f"a trend needs at least {_LEAST_CYCLES} cycles of one call, got {cycles} of {calls}")
    memory, latency = [], []
    for _ in range(cycles):
        with opened() as call:
            times = []
            for _ in range(calls):
                begin = clock()
                call()
                times.append(clock() - begin)
        latency.append(float(np.median(times)))
        memory.append(resident_bytes())
    settled = int(cycles * _SETTLING_SHARE)
    return Stability(
        resident_bytes=tuple(memory),
        latency_s=tuple(latency),
        leak_bytes_per_cycle=_slope(np.asarray(memory[settled:], dtype=float)),
        drift_per_cycle=_slope(np.asarray(latency[settled:])) / float(np.median(latency)),
    )


def _slope(values: Array) -> float:
    """Return the median of the slopes between all pairs."""
    i, j = np.triu_indices(len(values), 1)
    return float(np.median((values[j] - values[i]) / (j - i)))
