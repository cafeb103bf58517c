"""E = P0 x t + e_mac x MACs + e_byte x bytes, fitted to measured pairs, with an interval that holds.

Least squares of the relative error with coefficients that cannot be negative; the interval comes from the errors
that each pair shows when it is left out of the fit.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[np.float64]
COVERAGE: Final = 0.8
_LEAST_PAIRS: Final = 5


class FitError(ValueError):
    """There is too little to fit; the message says how much there is."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One measured inference: seconds, joules and its work."""

    model: str
    latency_s: float
    energy_j: float
    macs: int
    weight_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PowerModel:
    """The three coefficients and by which ratios 80 % of unseen models may be off."""

    active_w: float
    j_per_mac: float
    j_per_byte: float
    low_ratio: float
    high_ratio: float

    def predict(self, pair: Pair) -> tuple[float, float, float]:
        """Return (typical, low, high) joules of an inference, from its latency and work."""
        typical = self.active_w * pair.latency_s + self.j_per_mac * pair.macs + self.j_per_byte * pair.weight_bytes
        return typical, typical * self.low_ratio, typical * self.high_ratio


def fit(pairs: Sequence[Pair]) -> PowerModel:
    """Fit the model to the pairs of one platform.

    Raises:
        FitError: fewer than five pairs, or a time or energy that is not above 0.
    """
    if len(pairs) < _LEAST_PAIRS:
        raise FitError(f"a power model needs at least {_LEAST_PAIRS} pairs, there are {len(pairs)}")
    bad = [p.model for p in pairs if not (0 < p.latency_s < np.inf and 0 < p.energy_j < np.inf)]
    if bad:
        raise FitError(f"{bad[0]} has a latency or an energy that is not above 0")
    features = np.array([[p.latency_s, float(p.macs), float(p.weight_bytes)] for p in pairs])
    energy = np.array([p.energy_j for p in pairs])
    weights = _non_negative(features / energy[:, None])
    left_out = np.array([_left_out_ratio(features, energy, i) for i in range(len(pairs))])
    low, high = _interval(left_out)
    return PowerModel(
        active_w=float(weights[0]),
        j_per_mac=float(weights[1]),
        j_per_byte=float(weights[2]),
        low_ratio=low,
        high_ratio=high,
    )


def _left_out_ratio(features: Array, energy: Array, index: int) -> float:
    """Return measured over predicted for one pair, by the fit to all others."""
    keep = np.arange(len(energy)) != index
    weights = _non_negative(features[keep] / energy[keep, None])
    return float(energy[index] / max(float(features[index] @ weights), 1e-30))


def _interval(ratios: Array) -> tuple[float, float]:
    """Take the band that holds 80 % of the left-out errors, counting one more error at each end for the unseen."""
    tail = (1.0 - COVERAGE) / 2.0
    spread = np.sort(np.log(ratios))
    place = max(tail * (len(spread) + 1) - 1.0, 0.0) / max(len(spread) - 1, 1)
    low, high = np.quantile(spread, [place, 1.0 - place])
    return min(1.0, float(np.exp(low))), max(1.0, float(np.exp(high)))


def _non_negative(design: Array) -> Array:
    """Solve design @ w = 1 in the least-squares sense with w >= 0, trying every set of terms: there are three."""
    scale = np.abs(design).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = design / scale
    best, best_error = np.zeros(design.shape[1]), float(len(design))
    for count in range(1, design.shape[1] + 1):
        for terms in itertools.combinations(range(design.shape[1]), count):
            columns = list(terms)
            part = np.linalg.lstsq(scaled[:, columns], np.ones(len(design)), rcond=None)[0]
            if (part < 0).any():
                continue
            error = float(((scaled[:, columns] @ part - 1.0) ** 2).sum())
            if error < best_error - 1e-12:
                best, best_error = np.zeros(design.shape[1]), error
                best[columns] = part
    return np.asarray(best / scale)
