"""What a simulation gives: every latency, the state over time, and the sums."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One simulated run.

    Per request, in the order served: `latency_s` (answer minus arrival), `finish_s`. Per control step, at its
    end: `time_s`, `temperatures_c` [steps, nodes], and over it `clock_ratio`, `power_w`, `busy_ratio`, `throttled`.
    """

    title: str
    node_names: tuple[str, ...]
    step_s: float
    latency_s: Array
    finish_s: Array
    unfinished: int
    time_s: Array
    temperatures_c: Array
    clock_ratio: Array
    power_w: Array
    busy_ratio: Array
    throttled: NDArray[np.bool_]
    ambient_c: Array
    wakes: int
    waking_s: float
    asleep_s: float
    energy_j: float
    lost_j: float
    stored_j: float

    @property
    def keeps_up(self) -> bool:
        """Whether it answers what comes: the last few requests are always under way when the time is over."""
        return self.requests > 0 and self.unfinished <= max(1, self.requests // 100)

    @property
    def horizon_s(self) -> float:
        """The time simulated."""
        return float(self.step_s * len(self.time_s))

    @property
    def requests(self) -> int:
        """The requests answered."""
        return len(self.latency_s)

    @property
    def energy_per_inference_j(self) -> float | None:
        """All energy of the run over the requests answered, idle included; None when none was."""
        return self.energy_j / self.requests if self.requests else None

    @property
    def balance_error_ratio(self) -> float:
        """Energy in minus (lost to the air + stored in the lumps), relative to energy in."""
        return abs(self.energy_j - self.lost_j - self.stored_j) / max(self.energy_j, abs(self.lost_j), 1e-12)

    @property
    def throttled_ratio(self) -> float:
        """The share of the time in which the clock was held back."""
        return float(self.throttled.mean())

    @property
    def useful_ratio(self) -> float:
        """The share of the busy time that was work and not waking."""
        busy_s = float(self.busy_ratio.sum() * self.step_s)
        return 1.0 - self.waking_s / busy_s if busy_s else 1.0

    def quantile_s(self, q: float) -> float | None:
        """Return a latency quantile; None without any answer."""
        return float(np.quantile(self.latency_s, q)) if self.requests else None

    def mean_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> float | None:
        """Return the mean latency of the requests answered in that time; None when there was none."""
        chosen = self.latency_s[(self.finish_s > since_s) & (self.finish_s <= until_s)]
        return float(chosen.mean()) if len(chosen) else None

    def drift_ratio(self) -> float | None:
        """Return median latency of the last tenth of the answers over that of the first; None below 20 answers."""
        tenth = self.requests // 10
        if tenth < 2:
            return None
        return float(np.median(self.latency_s[-tenth:]) / np.median(self.latency_s[:tenth]))

    def windows(self, window_s: float) -> tuple[Array, Array]:
        """Return (end, mean latency) of each window with an answer in it."""
        slot = np.floor(self.finish_s / window_s).astype(int)
        counts = np.bincount(slot)
        sums = np.bincount(slot, weights=self.latency_s)
        filled = counts > 0
        return (np.flatnonzero(filled) + 1.0) * np.float64(window_s), sums[filled] / counts[filled]
