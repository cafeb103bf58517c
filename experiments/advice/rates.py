"""The request rate at which another processor becomes the faster one: below it, waking up decides (R14)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from experiments.evaluator.dynamics import poisson, simulate
from experiments.evaluator.dynamics.assemble import assemble
from experiments.evaluator.dynamics.compare import crossing
from experiments.units import significant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiments.evaluator.dynamics import Conditions, Machine
    from experiments.sustained_job import Run
    from partition import Device

_RAREST_PER_S: Final = 1.0 / 60.0
_BUSIEST_SHARE: Final = 0.8  # of what the slower of the two can serve
_REQUESTS: Final = 1000  # with these the rate is within a tenth or so of that of many


def rate_sentences(best: Run, runs: Sequence[Run], device: Device, conditions: Conditions, seed: int) -> Iterator[str]:
    """Say for each other processor from which request rate on it, or the chosen candidate, is the faster one."""
    whole = [run for run in runs if run.row.segments == 1 and run.row.processor != best.row.processor]
    for processor in dict.fromkeys(run.row.processor for run in whole):
        rival = min((run for run in whole if run.row.processor == processor), key=_latency)
        machines = [conditions.applied(assemble(device, run.row).machine) for run in (best, rival)]
        found = break_even_per_s(machines[0], machines[1], conditions, seed)
        if found is None:
            continue
        rate, best_is_ahead = found
        fast, slow = (best, rival) if best_is_ahead else (rival, best)
        yield (
            f"From about {significant(rate, 2)} requests/s on {fast.name} is faster than {slow.name}, below it is"
            " slower (mean latency, Poisson)."
        )


def break_even_per_s(first: Machine, second: Machine, conditions: Conditions, seed: int) -> tuple[float, bool] | None:
    """Return the Poisson rate at which the mean latencies cross, and whether `first` is ahead above it.

    None where one is ahead at both ends.
    Looks from one request a minute to four fifths of what the slower one can serve, by bisection.
    """
    low = _RAREST_PER_S
    high = _BUSIEST_SHARE / max(machine.whole_cost().latency_s() for machine in (first, second))
    if high <= low:
        return None
    return crossing(
        lambda rate: _ahead(first, second, rate, conditions, seed), low, high, middle=lambda a, b: math.sqrt(a * b)
    )


def _ahead(first: Machine, second: Machine, rate_per_s: float, conditions: Conditions, seed: int) -> bool:
    horizon_s = _REQUESTS / rate_per_s
    trace = poisson(rate_per_s, horizon_s, seed)
    around = conditions.surroundings(horizon_s)
    means = [
        simulate(machine, trace, horizon_s=horizon_s, surroundings=around, seed=seed).mean_s()
        for machine in (first, second)
    ]
    return (means[0] or math.inf) < (means[1] or math.inf)


def _latency(run: Run) -> float:
    return run.row.latency_s or math.inf
