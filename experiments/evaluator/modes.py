"""The other ways to measure: after idle, in a burst, sustained, two against each other, and dispatch alone.

Each takes its clock and its sleep from outside, so that a test can replay a known truth.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.evaluator.measure import Samples, measure
from experiments.evaluator.noise import Ratio, paired_ratio, trimmed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Call = Callable[[], object]
    Clock = Callable[[], float]
    Sleep = Callable[[float], object]

PAGE_BYTES: Final = 4096
_SETTLING: Final = 10  # calls after the cold one that are not timed
_BACK_TO_SPEED: Final = 3  # calls between pauses that are not timed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One call in all its states: cold, steady, and the first after each pause of `idle_s`.

    They are never mixed: a mean over all of them is the latency of nothing.
    """

    samples: Samples
    idle_s: float
    after_idle_s: tuple[float, ...]

    @property
    def cold_ratio(self) -> float:
        """The cold call over the steady median."""
        return self.samples.cold_s / self.samples.latency().typical_s

    @property
    def after_idle_ratio(self) -> float:
        """The median first call after a pause over the steady median."""
        return float(np.median(self.after_idle_s)) / self.samples.latency().typical_s


def profile(
    call: Call,
    *,
    idle_s: float = 0.5,
    pauses: int = 5,
    budget_s: float = 10.0,
    clock: Clock = time.perf_counter,
    sleep: Sleep = time.sleep,
) -> Profile:
    """Measure cold and steady, then the first call after each of `pauses` pauses."""
    samples = measure(call, budget_s=budget_s, warmups=_SETTLING, clock=clock)
    first = []
    for _ in range(pauses):
        sleep(idle_s)
        first.append(_timed(call, clock))
        for _ in range(_BACK_TO_SPEED):
            call()
    return Profile(samples=samples, idle_s=idle_s, after_idle_s=tuple(first))


def burst(call: Call, *, calls: int = 20, clock: Clock = time.perf_counter) -> tuple[float, ...]:
    """Time that many calls, one straight after the other."""
    return tuple(_timed(call, clock) for _ in range(calls))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sustained:
    """Median latency of each window of a long run; `slowdown` is the last fifth of the windows over the first."""

    window_s: float
    medians_s: tuple[float, ...]

    @property
    def slowdown(self) -> float:
        """Above 1 when the device got slower."""
        fifth = max(1, len(self.medians_s) // 5)
        return float(np.median(self.medians_s[-fifth:]) / np.median(self.medians_s[:fifth]))


def sustained(
    call: Call, *, duration_s: float = 60.0, window_s: float = 1.0, clock: Clock = time.perf_counter
) -> Sustained:
    """Call without a pause for that long.

    Raises:
        ValueError: the run has fewer than two windows.
    """
    if not 0 < 2 * window_s <= duration_s:
        raise ValueError(f"a sustained run needs two windows of {window_s:g} s, got {duration_s:g} s in all")
    end = clock() + duration_s
    medians: list[float] = []
    while not medians or clock() < end:
        edge = clock() + window_s
        times: list[float] = []
        while not times or clock() < edge:
            times.append(_timed(call, clock))
        medians.append(float(np.median(times)))
    return Sustained(window_s=window_s, medians_s=tuple(medians))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Duel:
    """Two calls measured in turns: samples of both, and second over first with its 99 % interval."""

    first_s: tuple[float, ...]
    second_s: tuple[float, ...]
    ratio: Ratio

    @property
    def verdict(self) -> str:
        """Say "first", "second" or "tie": which is faster, as far as can be told."""
        if self.ratio.is_tie:
            return "tie"
        return "first" if self.ratio.typical > 1.0 else "second"


def duel(
    first: Call, second: Call, *, rounds: int = 60, warmups: int = 3, seed: int = 0, clock: Clock = time.perf_counter
) -> Duel:
    """Measure two calls in turns, so that what slows the machine slows both; the order of each pair is random."""
    for _ in range(warmups):
        first()
        second()
    rng = np.random.default_rng(seed)
    a, b = [], []
    for swapped in rng.integers(0, 2, size=rounds):
        if swapped:
            b.append(_timed(second, clock))
            a.append(_timed(first, clock))
        else:
            a.append(_timed(first, clock))
            b.append(_timed(second, clock))
    return Duel(first_s=tuple(a), second_s=tuple(b), ratio=paired_ratio(a, b, seed=seed))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """What one call costs that computes next to nothing (R8), in seconds without the clock's own.

    Mean and deviation are of the calls without the 5 % fastest and slowest; `worst_jitter_s` is the slowest of all
    calls over that mean; median and 99 % quantile are of all calls, which are `samples_s` in their order.
    """

    mean_s: float
    deviation_s: float
    median_s: float
    p99_s: float
    worst_jitter_s: float
    calls: int
    samples_s: tuple[float, ...]


def dispatch(call: Call, *, calls: int = 1000, clock: Clock = time.perf_counter) -> Dispatch:
    """Measure a call of a model with next to no work; the clock's own cost is taken off.

    Raises:
        ValueError: fewer than 20 calls.
    """
    if calls < 20:
        raise ValueError(f"jitter needs at least 20 calls, got {calls}")
    for _ in range(_SETTLING):
        call()
    own_s = float(np.median([_timed(_nothing, clock) for _ in range(calls)]))
    times = np.maximum(np.array(burst(call, calls=calls, clock=clock)) - own_s, 0.0)
    kept = np.array(trimmed(tuple(times)))
    return Dispatch(
        mean_s=float(kept.mean()),
        deviation_s=float(kept.std(ddof=1)),
        median_s=float(np.median(times)),
        p99_s=float(np.quantile(times, 0.99)),
        worst_jitter_s=float(times.max() - kept.mean()),
        calls=calls,
        samples_s=tuple(times.tolist()),
    )


def aligned(array: NDArray[Any], *, offset_bytes: int = 0) -> NDArray[Any]:
    """Copy to a buffer that starts on a page (4 KiB), or that many bytes behind one: R3's slow first frame.

    Raises:
        ValueError: the offset is not a multiple of the element's size, or no less than a page.
    """
    if not 0 <= offset_bytes < PAGE_BYTES or offset_bytes % array.itemsize:
        raise ValueError(f"the offset must be a multiple of {array.itemsize} below {PAGE_BYTES}, got {offset_bytes}")
    raw = np.empty(array.nbytes + 2 * PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % PAGE_BYTES + offset_bytes
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _timed(call: Call, clock: Clock) -> float:
    begin = clock()
    call()
    return clock() - begin


def _nothing() -> None:
    return None
