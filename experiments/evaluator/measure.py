"""A clock around an inference, after the protocol of R3: warm-up apart, 100 samples, extremes dropped, median."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from compilers import Latency, Source
from experiments.evaluator.noise import TRIM_RATIO, drift_ratio, effective_samples, trimmed

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES: Final = 100
MIN_SAMPLES: Final = 10
_MIN_SAMPLE_S: Final = 2e-4  # below this the clock and the scheduler are most of what one sees

_MOST_DRIFT: Final = 0.1
_LEAST_WORTH: Final = 20  # independent samples, below which the 5 % and 95 % quantiles say little


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Raw seconds of one measurement: the cold first call, and the steady ones in the order taken.

    `calls_per_sample` is above 1 when one call is too short for the clock; a sample is then their mean.
    """

    cold_s: float
    steady_s: tuple[float, ...]
    calls_per_sample: int

    def latency(self) -> Latency:
        """Return the trimmed median, with the 5 % and 95 % quantiles as bounds."""
        kept = trimmed(self.steady_s)
        low, high = np.quantile(self.steady_s, [TRIM_RATIO, 1 - TRIM_RATIO])
        typical = float(np.median(kept))
        return Latency(
            typical_s=typical, low_s=min(float(low), typical), high_s=max(float(high), typical), source=Source.MEASURED
        )

    def warnings(self) -> tuple[str, ...]:
        """Say what makes these samples less than they look."""
        notes = []
        if len(self.steady_s) < SAMPLES:
            notes.append(f"only {len(self.steady_s)} of {SAMPLES} samples fitted the time allowed")
        drift = drift_ratio(self.steady_s)
        if abs(drift - 1) > _MOST_DRIFT:
            notes.append(f"latency drifted by {drift - 1:+.0%} between the halves of the measurement")
        worth = effective_samples(self.steady_s)
        if worth < _LEAST_WORTH <= len(self.steady_s):
            notes.append(f"neighbouring samples are alike: {len(self.steady_s)} of them are worth {worth:.0f}")
        return tuple(notes)


def measure(
    call: Callable[[], object],
    *,
    samples: int = SAMPLES,
    budget_s: float = 10.0,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time `call`: once cold, `warmups` times as warm-up, then `samples` times or until `budget_s` is spent.

    At least `MIN_SAMPLES` are taken, so that a slow call still gives a median.
    """
    cold_s = _timed(call, 1, clock)
    warm_s = [_timed(call, 1, clock) for _ in range(max(1, warmups))][-1]
    calls = max(1, round(_MIN_SAMPLE_S / max(warm_s, 1e-9)))
    deadline = clock() + budget_s
    steady: list[float] = []
    while len(steady) < samples and (len(steady) < MIN_SAMPLES or clock() < deadline):
        steady.append(_timed(call, calls, clock))
    return Samples(cold_s=cold_s, steady_s=tuple(steady), calls_per_sample=calls)


def _timed(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls
