"""Two runs against each other: who wins a burst, who wins in the long run, and from when."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from experiments.evaluator.dynamics.result import Result

_BURST_S = 60.0
_WIDTHS_S = (10.0, 60.0, 180.0, 300.0)
_STEPS = 10


def _mean(low: float, high: float) -> float:
    return (low + high) / 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The mean latency of each run in its first minute and over all of it, and where the order changes for good."""

    burst_s: Mapping[str, float]
    sustained_s: Mapping[str, float]
    crossover_s: float | None

    @property
    def burst_winner(self) -> str:
        """The fastest in the first minute."""
        return min(self.burst_s, key=self.burst_s.__getitem__)

    @property
    def sustained_winner(self) -> str:
        """The fastest over the whole run."""
        return min(self.sustained_s, key=self.sustained_s.__getitem__)


def compare_runs(results: Mapping[str, Result]) -> Standing:
    """Compare runs by mean latency per inference.

    `crossover_s` is the time from which the sustained winner is ahead of the burst winner in every later window,
    None when they are the same.

    Raises:
        ValueError: a run answered nothing.
    """
    silent = [name for name, result in results.items() if result.mean_s(until_s=_BURST_S) is None]
    if silent:
        raise ValueError(f"{silent[0]} answered no request in the first {_BURST_S:g} s")
    burst = {name: result.mean_s(until_s=_BURST_S) or 0.0 for name, result in results.items()}
    sustained = {name: result.mean_s() or 0.0 for name, result in results.items()}
    standing = Standing(burst_s=burst, sustained_s=sustained, crossover_s=None)
    if standing.burst_winner == standing.sustained_winner:
        return standing
    first, last = results[standing.burst_winner], results[standing.sustained_winner]
    # A clock that a trip lets go and holds back in turns makes short windows cross to and fro: widen them then.
    found = (crossover_s(first, last, width) for width in _WIDTHS_S if width <= last.horizon_s / 4)
    return dataclasses.replace(standing, crossover_s=next((when for when in found if when is not None), None))


def crossover_s(first: Result, last: Result, window_s: float) -> float | None:
    """Return the start of the windows in all of which `last` is faster than `first`; None if it is not at the end."""
    starts, ahead = _ahead(first, last, window_s)
    if len(ahead) == 0 or not ahead[-1]:
        return None
    behind = np.flatnonzero(~ahead)
    return starts[behind[-1] + 1] if len(behind) else 0.0


def first_ahead_s(first: Result, last: Result, window_s: float) -> float | None:
    """Return the start of the first window in which `last` is faster than `first`, for good or not."""
    starts, ahead = _ahead(first, last, window_s)
    return starts[int(np.argmax(ahead))] if ahead.any() else None


def _ahead(first: Result, last: Result, window_s: float) -> tuple[list[float], NDArray[np.bool_]]:
    """Return the starts of the windows that both have answers in, and whether `last` is faster in each."""
    by_window = [
        dict(zip(*(column.tolist() for column in run.windows(window_s)), strict=True)) for run in (first, last)
    ]
    ends = sorted(by_window[0].keys() & by_window[1].keys())
    ahead = np.array([by_window[1][end] < by_window[0][end] for end in ends], dtype=bool)
    return [float(end - window_s) for end in ends], ahead


def crossing(
    is_ahead: Callable[[float], bool], low: float, high: float, *, middle: Callable[[float, float], float] = _mean
) -> tuple[float, bool] | None:
    """Return where `is_ahead` changes between the two ends, and whether it holds above; None where both ends agree."""
    at_low = is_ahead(low)
    if at_low == is_ahead(high):
        return None
    for _ in range(_STEPS):
        between = middle(low, high)
        if is_ahead(between) == at_low:
            low = between
        else:
            high = between
    return middle(low, high), not at_low
