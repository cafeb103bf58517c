"""Samples of a sensor to joules per inference: gross, net of idle, with an uncertainty, or a refusal.

Only what lies inside the window of the inferences counts: loading the model is not part of it (case T11(b)).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[np.float64]
LEAST_SAMPLES: Final = 10
_MOST_UNKNOWN: Final = 0.2  # of a window without a sample: at the least number of samples, every other one lost


class WindowError(ValueError):
    """The samples do not support the answer; the message says why and what would."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Readings of one rail in the order taken: watts, or joules since some moment, at `times_s`."""

    times_s: tuple[float, ...]
    watts: tuple[float, ...] | None = None
    joules: tuple[float, ...] | None = None
    wraps_at_j: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredEnergy:
    """Joules per inference: all of the rail's (gross), and above idle (net); `samples` inside the window."""

    gross_j: float
    net_j: float
    uncertainty_j: float
    idle_w: float
    mean_w: float
    samples: int
    inferences: int
    window_s: float


def energy_per_inference(
    samples: Samples, *, window: tuple[float, float], idle: tuple[float, float], inferences: int
) -> MeasuredEnergy:
    """Integrate over the window, take the idle power from the idle window, and divide by the inferences.

    Raises:
        WindowError: an empty or backward window, too few samples in one or none in a fifth of it, NaN, a mean power
            below zero, or times out of order.
    """
    if inferences < 1:
        raise WindowError("no inference ran in the window")
    times, watts, resolution_j = _power(samples)
    counts = samples.watts is None
    busy = _inside(times, watts, window, "the measuring window", counts=counts)
    quiet = _inside(times, watts, idle, "the idle window", counts=counts)
    length_s = window[1] - window[0]
    # Each edge may fall anywhere between two samples, so a sample more or less belongs to the window.
    unknown_s = max(length_s / len(busy.watts), busy.unknown_s)
    edges_j = unknown_s * float(watts.max() - watts.min())
    noise_w = math.hypot(busy.error_w, quiet.error_w)
    return MeasuredEnergy(
        gross_j=busy.mean_w * length_s / inferences,
        net_j=(busy.mean_w - quiet.mean_w) * length_s / inferences,
        uncertainty_j=(math.hypot(edges_j, resolution_j) + noise_w * length_s) / inferences,
        idle_w=quiet.mean_w,
        mean_w=busy.mean_w,
        samples=len(busy.watts),
        inferences=inferences,
        window_s=length_s,
    )


def add_rails(rails: Sequence[MeasuredEnergy]) -> MeasuredEnergy:
    """Add what several rails measured over the same windows; the samples are those of the rail with the fewest.

    Raises:
        WindowError: there is no rail.
    """
    if not rails:
        raise WindowError("no rail was measured")
    summed = ("gross_j", "net_j", "uncertainty_j", "idle_w", "mean_w")
    return dataclasses.replace(
        rails[0],
        samples=min(rail.samples for rail in rails),
        **{name: sum(getattr(rail, name) for rail in rails) for name in summed},
    )


def _power(samples: Samples) -> tuple[Array, Array, float]:
    """Return (time, watts since the sample before, smallest step of the counter in J)."""
    times = np.asarray(samples.times_s, dtype=float)
    values = np.asarray(samples.watts if samples.watts is not None else samples.joules or (), dtype=float)
    if len(times) != len(values) or len(times) < 2:
        raise WindowError(f"the sensor gave {len(values)} readings at {len(times)} times; two are the least")
    if not (np.isfinite(times).all() and np.isfinite(values).all()):
        raise WindowError(f"reading {int(np.argmin(np.isfinite(times) & np.isfinite(values))) + 1} is not a number")
    if (np.diff(times) <= 0).any():
        raise WindowError(f"reading {int(np.argmax(np.diff(times) <= 0)) + 2} is not later than the one before")
    if samples.watts is not None:
        return times, values, 0.0
    steps = _unwrapped(values, samples.wraps_at_j)
    # A counter that is read faster than it is renewed stands still and then jumps: merge the standstills.
    moved = np.flatnonzero(steps > 0)
    if len(moved) < 2:
        raise WindowError("the energy counter did not move; the load is too short or the sensor is dead")
    ends = moved + 1
    spans = np.diff(times[ends])
    return times[ends][1:], steps[moved][1:] / spans, float(steps[moved].min())


def _unwrapped(joules: Array, wraps_at_j: float | None) -> Array:
    """Return the joules between readings; a counter that runs backwards has wrapped, or is broken.

    No processor uses half of a counter's range between two readings, so a step that would need that is no wrap.
    """
    steps = np.diff(joules)
    back = steps < 0
    if back.any():
        reading = int(np.argmax(back)) + 2
        if wraps_at_j is None:
            raise WindowError(f"the energy counter ran backwards at reading {reading}")
        steps = np.where(back, steps + wraps_at_j, steps)
        if (steps < 0).any():
            raise WindowError(f"the energy counter fell by more than its range of {wraps_at_j:g} J")
        if (steps[back] > wraps_at_j / 2).any():
            raise WindowError(
                f"the energy counter ran backwards at reading {reading}, from {joules[reading - 2]:g} to"
                f" {joules[reading - 1]:g} J, far from the end of its range of {wraps_at_j:g} J"
            )
    return steps


class _Inside(NamedTuple):
    """The samples in a window: their mean by time, and the longest stretch whose power they do not tell."""

    watts: Array
    mean_w: float
    error_w: float
    unknown_s: float


def _inside(times: Array, watts: Array, window: tuple[float, float], what: str, *, counts: bool) -> _Inside:
    """Average by the time that each sample stands for; a counter that missed readings still knows the joules."""
    begin, end = window
    if not end > begin:
        raise WindowError(f"{what} is empty ({begin:g} s to {end:g} s)")
    within = (times > begin) & (times <= end)
    chosen, at = watts[within], times[within]
    if len(chosen) < LEAST_SAMPLES:
        count = {0: "no sample", 1: "one sample"}.get(len(chosen), f"only {len(chosen)} samples")
        gap_s = float(np.median(np.diff(times))) if len(times) > 1 else end - begin
        raise WindowError(
            f"{count} in {what} of {end - begin:.3g} s: the sensor answers every {gap_s:.3g} s, so run for at least"
            f" {LEAST_SAMPLES * gap_s:.3g} s"
        )
    gaps = np.diff([begin, *at, end])
    unknown_s = float(max(gaps[0], gaps[-1]) if counts else gaps.max())
    if unknown_s > _MOST_UNKNOWN * (end - begin):
        raise WindowError(
            f"no sample in {unknown_s:.3g} s of {what} of {end - begin:.3g} s: readings are missing, or the sensor's"
            " clock is not that of the window"
        )
    mean_w, error_w = float(np.average(chosen, weights=gaps[:-1])), _standard_error(chosen)
    if mean_w + 3 * error_w < 0:
        raise WindowError(f"{mean_w:.3g} W in {what}: the sensor counts the other direction, or the device is charged")
    return _Inside(chosen, mean_w, error_w, unknown_s)


def _standard_error(values: Sequence[float] | Array) -> float:
    array = np.asarray(values)
    return float(array.std(ddof=1) / math.sqrt(len(array)))
