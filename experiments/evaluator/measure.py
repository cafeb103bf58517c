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
_MOST_SPREAD: Final = 0.05
_LEAST_WORTH: Final = 20  # independent samples, below which the 5 % and 95 % quantiles say little


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Raw seconds of one measurement: the cold first call, and the steady ones in the order taken.

    `calls_per_sample` is above 1 when one call is too short for the clock; a sample is then their mean.
    `others_s` are the trimmed medians that further fresh processes came to.
    """

    cold_s: float
    steady_s: tuple[float, ...]
    calls_per_sample: int
    others_s: tuple[float, ...] = ()

    @property
    def medians_s(self) -> tuple[float, ...]:
        """The trimmed median of each process, this one's first."""
        return float(np.median(trimmed(self.steady_s))), *self.others_s

    @property
    def spread_ratio(self) -> float | None:
        """How far the processes' medians lie apart, over their median; None when there was one process only."""
        if not self.others_s:
            return None
        return (max(self.medians_s) - min(self.medians_s)) / float(np.median(self.medians_s))

    def latency(self) -> Latency:
        """Return the median of the processes' trimmed medians; the 5 % and 95 % quantiles and all medians bound it."""
        low, high = np.quantile(self.steady_s, [TRIM_RATIO, 1 - TRIM_RATIO])
        return Latency(
            typical_s=float(np.median(self.medians_s)),
            low_s=min(float(low), *self.medians_s),
            high_s=max(float(high), *self.medians_s),
            source=Source.MEASURED,
        )

    def warnings(self) -> tuple[str, ...]:
        """Say what makes these samples less than they look."""
        notes = []
        if len(self.steady_s) < SAMPLES:
            notes.append(f"only {len(self.steady_s)} of {SAMPLES} samples fitted the time allowed")
        if self.spread_ratio is not None and self.spread_ratio > _MOST_SPREAD:
            spread = f"{len(self.medians_s)} fresh processes spread by {self.spread_ratio:.0%}"
            notes.append(f"the median does not repeat: {spread} (more than {_MOST_SPREAD:.0%})")
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
    calls = calls_per_sample(warm_s)
    deadline = clock() + budget_s
    steady: list[float] = []
    while len(steady) < samples and (len(steady) < MIN_SAMPLES or clock() < deadline):
        steady.append(_timed(call, calls, clock))
    return Samples(cold_s=cold_s, steady_s=tuple(steady), calls_per_sample=calls)


def calls_per_sample(warm_s: float) -> int:
    """Return how many calls of that length one sample needs."""
    return max(1, round(_MIN_SAMPLE_S / max(warm_s, 1e-9)))


def _timed(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls
