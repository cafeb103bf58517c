"""Energy of one inference on a Mac, from the counters that `zeus-apple-silicon` reads (no root needed).

The counters are of the whole chip, so a window is 5 s at least, and the idle window before it is subtracted. Not
run on a Mac in our CI: the tests hold it against recorded metrics.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_WINDOW_S: Final = 5.0
_COUNTERS: Final = {"cpu_j": "cpu_total_mj", "gpu_j": "gpu_mj", "npu_j": "ane_mj", "dram_j": "dram_mj"}


class Monitor(Protocol):
    """The two calls of `zeus_apple_silicon.AppleEnergyMonitor` that are used."""

    def begin_window(self, key: str) -> None:
        """Start to add up."""

    def end_window(self, key: str) -> Any:  # noqa: ANN401 - AppleEnergyMetrics
        """Return the millijoules since the start, an attribute a subsystem, None where the chip has no counter."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AppleEnergy:
    """Joules of one run above idle by subsystem (None = the chip has no counter), over `runs` runs."""

    cpu_j: float | None
    gpu_j: float | None
    npu_j: float | None
    dram_j: float | None
    runs: int
    window_s: float


def open_monitor() -> Monitor:
    """Return the counters of this Mac.

    Raises:
        CompilerError: zeus-apple-silicon is not installed, or this is no Apple silicon.
    """
    try:
        from zeus_apple_silicon import AppleEnergyMonitor
    except ImportError as error:
        reason = "energy on a Mac needs `pip install edgefrontier[mac]` (macOS on Apple silicon only)"
        raise CompilerError(reason) from error
    monitor: Monitor = AppleEnergyMonitor()
    return monitor


def measure_energy(
    run: Callable[[], object],
    monitor: Monitor,
    *,
    window_s: float = LEAST_WINDOW_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> AppleEnergy:
    """Run for `window_s` after as long an idle window; return the energy of one run above idle.

    Raises:
        CompilerError: the window is too short for the counters.
    """
    if window_s < LEAST_WINDOW_S:
        raise CompilerError(f"an energy window of {window_s} s is too short; the counters need {LEAST_WINDOW_S} s")
    run()  # loads and warms what the first call would
    idle_s, idle = _window(monitor, "idle", lambda: sleep(window_s), clock)
    runs = 0

    def work() -> None:
        nonlocal runs
        end = clock() + window_s
        while clock() < end:
            run()
            runs += 1

    busy_s, busy = _window(monitor, "busy", work, clock)
    parts = {name: _above_idle(busy[name], idle[name], busy_s / idle_s, runs) for name in _COUNTERS}
    return AppleEnergy(**parts, runs=runs, window_s=busy_s)


def _window(
    monitor: Monitor, key: str, body: Callable[[], None], clock: Callable[[], float]
) -> tuple[float, dict[str, float | None]]:
    started = clock()
    monitor.begin_window(key)
    body()
    metrics = monitor.end_window(key)
    elapsed = clock() - started
    return elapsed, {name: _joules(getattr(metrics, counter, None)) for name, counter in _COUNTERS.items()}


def _joules(millijoules: float | None) -> float | None:
    return None if millijoules is None else millijoules * 1e-3


def _above_idle(busy: float | None, idle: float | None, ratio: float, runs: int) -> float | None:
    """Return joules a run; a difference below zero is noise of the counters and is kept as it is."""
    return None if busy is None or idle is None else (busy - idle * ratio) / runs
