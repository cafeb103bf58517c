"""Is it slower, or is it noise? The interval of a ratio of two measurements, and what autocorrelation takes away."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[np.float64]
CONFIDENCE: Final = 0.99
TRIM_RATIO: Final = 0.05
_RESAMPLES: Final = 2000
_LEAST_SAMPLES: Final = 5


class NoiseError(ValueError):
    """Samples that support no comparison; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Second over first, with the bounds that hold in 99 % of repetitions."""

    typical: float
    low: float
    high: float

    @property
    def is_tie(self) -> bool:
        """True when the order of the two cannot be told."""
        return self.low <= 1.0 <= self.high


def ratio_of_medians(
    first: Sequence[float], second: Sequence[float], *, run_noise: float = 0.0, seed: int = 0
) -> Ratio:
    """Compare two measurements by their trimmed medians, resampling blocks of neighbours.

    Neighbouring samples are alike, so single ones would promise too narrow an interval. `run_noise` is the spread
    of the median from run to run, which the samples of one run cannot show; it widens the interval.

    Raises:
        NoiseError: fewer than five samples, or one that is not a finite number above 0.
    """
    a, b = _checked(first, "first"), _checked(second, "second")
    rng = np.random.default_rng(seed)
    spread = np.log(_medians(b, rng)) - np.log(_medians(a, rng))
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(spread, [tail, 1.0 - tail])
    typical = math.log(float(np.median(trimmed(second))) / float(np.median(trimmed(first))))
    between = _between(run_noise)
    return Ratio(
        typical=math.exp(typical),
        low=math.exp(typical - math.hypot(max(typical - float(low), 0.0), between)),
        high=math.exp(typical + math.hypot(max(float(high) - typical, 0.0), between)),
    )


def between_runs(ratio: float, run_noise: float) -> Ratio:
    """Bound a ratio of two medians of which only the spread from run to run is known."""
    off = _between(run_noise)
    return Ratio(typical=ratio, low=ratio * math.exp(-off), high=ratio * math.exp(off))


def paired_ratio(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> Ratio:
    """Compare two measurements taken in turns by the median of the ratio of each pair: what slows both cancels.

    Raises:
        NoiseError: the two are not of one length, or hold too few samples, or one that is no number above 0.
    """
    a, b = _checked(first, "first"), _checked(second, "second")
    if len(a) != len(b):
        raise NoiseError(f"pairs need two measurements of one length, got {len(a)} and {len(b)}")
    ratios = b / a
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(_medians(ratios, np.random.default_rng(seed)), [tail, 1.0 - tail])
    typical = float(np.median(ratios))
    return Ratio(typical=typical, low=min(float(low), typical), high=max(float(high), typical))


def trimmed(values: Sequence[float]) -> tuple[float, ...]:
    """Drop the lowest and the highest 5 % of the values."""
    drop = int(len(values) * TRIM_RATIO)
    ordered = sorted(values)
    return tuple(ordered[drop : len(ordered) - drop])


def drift_ratio(samples: Sequence[float]) -> float:
    """Return the median of the second half over that of the first."""
    first, second = np.array_split(np.asarray(samples, dtype=float), 2)
    return float(np.median(second) / np.median(first))


def autocorrelation(samples: Sequence[float]) -> float:
    """Return the correlation of samples with the next ones; 0 for a constant."""
    values = np.asarray(samples, dtype=float)
    if len(values) <= 2 or float(values.std()) == 0.0:
        return 0.0
    centred = values - values.mean()
    return float((centred[:-1] * centred[1:]).sum() / (centred * centred).sum())


def effective_samples(samples: Sequence[float]) -> float:
    """Return how many independent samples these are worth, by their correlation with the next one."""
    rho = min(max(autocorrelation(samples), 0.0), 0.999)
    return len(samples) * (1.0 - rho) / (1.0 + rho)


def _between(run_noise: float) -> float:
    """Return the bound of a difference of two logarithms, each of that standard deviation, at 99 %."""
    return 2.576 * math.sqrt(2.0) * run_noise


def _medians(values: Array, rng: np.random.Generator) -> Array:
    """Return the medians of resamples made of blocks; the block is the cube root of the number of samples."""
    n = len(values)
    block = max(1, round(n ** (1 / 3)))
    starts = rng.integers(0, n - block + 1, size=(_RESAMPLES, -(-n // block)))
    places = (starts[:, :, None] + np.arange(block)).reshape(_RESAMPLES, -1)[:, :n]
    return np.asarray(np.median(values[places], axis=1))


def _checked(samples: Sequence[float], which: str) -> Array:
    values = np.asarray(samples, dtype=float)
    if len(values) < _LEAST_SAMPLES:
        raise NoiseError(f"the {which} measurement has {len(values)} samples; {_LEAST_SAMPLES} are the least")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise NoiseError(f"the {which} measurement holds a sample that is not a number above 0")
    return values
