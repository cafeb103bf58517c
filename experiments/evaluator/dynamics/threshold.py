"""Find the temperature at which a device throttles, and how it drifts, from a trace alone (R10's procedure)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from experiments.evaluator.dynamics.result import Result

Array = NDArray[np.float64]
_BASELINE_SHARE: Final = 0.2
_BREAK_STEP_K: Final = 0.05
_WINDOWS: Final = 150  # 30 s of a ramp from 60 to 98 degC at 0.5 K/min
_LEAST_SAMPLES: Final = 3
_LEAST_DEVIATION: Final = 1e-9  # of the mean; below it is rounding


class ThresholdError(ValueError):
    """The trace does not show a threshold; the message says what is missing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """The published one: the clock down by that share, and the latency's deviation that many times its baseline."""

    fall_ratio: float = 0.02
    deviation_factor: float = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A recorded run, a sample per request, in the order of time."""

    time_s: Array
    temperature_c: Array
    clock_hz: Array
    latency_s: Array


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """What a ramp shows.

    `onset_c` is the published criterion: the clock 2 % down and the latency's deviation 3 times its baseline. That
    is late by 2 % over the slope, so `break_c` is the break of the best continuous two-part line, with its slopes
    in parts of the baseline latency per K.
    """

    onset_c: float
    break_c: float
    below_per_k: float
    above_per_k: float


def find_threshold(result: Result, window_s: float) -> Threshold:
    """Read threshold and slopes off a slow temperature ramp under constant load.

    Raises:
        ThresholdError: too few windows, or no window meets the criterion.
    """
    return _threshold(_per_window(result, window_s), window_s, Criterion())


def threshold_of_log(log: Log, criterion: Criterion) -> Threshold:
    """Read threshold and slopes off a recorded ramp, in as many windows as the published procedure has.

    Raises:
        ThresholdError: it is no rising ramp, has too few samples, or never meets the criterion.
    """
    begin_s, end_s = float(log.time_s[0]), float(log.time_s[-1])
    if (np.diff(log.time_s) < 0).any() or end_s <= begin_s:
        raise ThresholdError("its times do not rise")
    window_s = (end_s - begin_s) / _WINDOWS
    slot = np.minimum(np.floor((log.time_s - begin_s) / window_s), _WINDOWS - 1).astype(int)
    rows = []
    for window in range(_WINDOWS):
        inside = slot == window
        if inside.sum() >= _LEAST_SAMPLES:
            latency_s = log.latency_s[inside]
            rows.append(
                (log.temperature_c[inside].mean(), log.clock_hz[inside].mean(), latency_s.mean(), latency_s.std())
            )
    columns = np.array(rows).reshape(-1, 4).T
    return _threshold((columns[0], columns[1], columns[2], columns[3]), window_s, criterion)


def _threshold(columns: tuple[Array, Array, Array, Array], window_s: float, criterion: Criterion) -> Threshold:
    temperature_c, clock, mean_s, deviation_s = columns
    baseline = max(3, int(len(temperature_c) * _BASELINE_SHARE))
    if len(temperature_c) < 4 * baseline:
        raise ThresholdError(
            f"only {len(temperature_c)} windows of {window_s:g} s have {_LEAST_SAMPLES} requests: ramp slower"
        )
    even_s = np.median(deviation_s[:baseline])
    if even_s <= _LEAST_DEVIATION * np.median(mean_s[:baseline]):
        raise ThresholdError("its first latencies are all the same, so that any deviation is many times theirs")
    slow = clock <= (1.0 - criterion.fall_ratio) * np.median(clock[:baseline])
    rough = deviation_s >= criterion.deviation_factor * even_s
    meets = np.flatnonzero(slow & rough)
    if len(meets) == 0:
        what = (
            f"the latency's deviation never came to {criterion.deviation_factor:g} times its baseline meanwhile"
            if slow.any()
            else f"the clock never fell by {criterion.fall_ratio:.0%}"
        )
        raise ThresholdError(f"no throttling up to {temperature_c.max():.1f} degC: {what}")
    break_c, below, above = _two_lines(temperature_c, mean_s)
    return Threshold(onset_c=float(temperature_c[meets[0]]), break_c=break_c, below_per_k=below, above_per_k=above)


def median_threshold(runs: tuple[Threshold, ...]) -> Threshold:
    """Return the median of each figure over the runs; the published procedure takes three."""
    names = [field.name for field in dataclasses.fields(Threshold)]
    return Threshold(**{name: float(np.median([getattr(run, name) for run in runs])) for name in names})


def _per_window(result: Result, window_s: float) -> tuple[Array, Array, Array, Array]:
    """Return die temperature, clock, mean latency and its deviation of each window that has requests."""
    windows = np.floor(result.finish_s / window_s).astype(int)
    steps = np.floor((result.time_s - result.step_s / 2) / window_s).astype(int)
    rows = []
    for window in np.unique(windows):
        latency_s, inside = result.latency_s[windows == window], steps == window
        if len(latency_s) >= _LEAST_SAMPLES and inside.any():
            rows.append(
                (result.temperatures_c[inside, 0].mean(), result.clock_ratio[inside].mean(), latency_s.mean(),
                 latency_s.std())
            )  # fmt: skip
    columns = np.array(rows).reshape(-1, 4).T
    return columns[0], columns[1], columns[2], columns[3]


def _two_lines(temperature_c: Array, latency_s: Array) -> tuple[float, float, float]:
    """Fit latency = a + b (T - T0) + c max(T - break, 0) and return break, b / a and (b + c) / a."""
    first = float(temperature_c[0])
    best: tuple[float, float, Array] | None = None
    for candidate in np.arange(first + 1.0, float(temperature_c[-1]) - 1.0, _BREAK_STEP_K):
        design = np.stack(
            [np.ones_like(temperature_c), temperature_c - first, np.maximum(temperature_c - candidate, 0.0)], axis=1
        )
        weights = np.linalg.lstsq(design, latency_s, rcond=None)[0]
        squares = float(((design @ weights - latency_s) ** 2).sum())
        if best is None or squares < best[0]:
            best = squares, float(candidate), weights
    if best is None:
        raise ThresholdError("the ramp spans less than 2 K")
    _, where, (start, slope, bend) = best
    return where, float(slope / start), float((slope + bend) / start)
