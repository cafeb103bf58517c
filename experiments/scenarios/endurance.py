"""R17, a closed-loop power cap, R18, three days under changing surroundings, and case T11(c)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from experiments.evaluator.dynamics import (
    Conditions,
    Cost,
    Machine,
    Point,
    RcChain,
    Result,
    Sleep,
    Surroundings,
    Trace,
    TripPoint,
    parse_trace,
    simulate,
)
from experiments.evaluator.dynamics.compare import Standing, compare_runs
from experiments.scenarios.study import Study
from experiments.units import joules, seconds, watts

if TYPE_CHECKING:
    from experiments.scenarios.given import Given

_CLOSED: Final = Trace(title="closed", arrivals_s=None)
_LADDER: Final = tuple(
    Point(clock_ratio=clock, supply_ratio=supply)
    for clock, supply in ((1.0, 1.0), (0.9, 0.94), (0.8, 0.88), (0.7, 0.83), (0.6, 0.79), (0.5, 0.76), (0.4, 0.74))
)
_CAP_C, _CAP_W = 80.0, 10.0


def _laptop() -> Machine:
    """Return a 15 W processor behind a laptop's cooler: hot enough to meet the cap of R17."""
    chain = RcChain(names=("die", "cooler"), capacities_j_per_k=(15.0, 150.0), resistances_k_per_w=(1.3, 3.0))
    return Machine(
        cost=Cost(compute_s=18e-3, fixed_s=2e-3, compute_j=0.26, memory_j=0.02, static_w=1.0),
        chain=chain,
        points=_LADDER,
        trips=(TripPoint(node=0, at_c=_CAP_C, hysteresis_k=2.0, cap_w=_CAP_W),),
        sleep=Sleep(idle_w=0.5),
    )


def r17(given: Given) -> Study:
    """Run flat out for an hour under the cap, over air temperatures and altitudes, and without the cap."""
    machine = _laptop()
    lines, figures = [], {}
    free = _hour(dataclasses.replace(machine, trips=()), 25.0, 0.0, given.seed)
    lines.append(f"without the cap at 25 degC: {_summary(free)}")
    for ambient_c in (25.0, 35.0, 45.0):
        for altitude_m in (0.0, 2000.0):
            result = _hour(machine, ambient_c, altitude_m, given.seed)
            lines.append(f"{ambient_c:.0f} degC, {altitude_m:4.0f} m: {_summary(result)}")
            figures[f"{ambient_c:.0f} degC, {altitude_m:.0f} m"] = {
                "peak_c": float(result.temperatures_c[:, 0].max()),
                "capped_w": float(result.power_w[result.throttled].max()) if result.throttled.any() else None,
                "mean_s": result.mean_s(),
            }
    return Study(
        name="R17",
        title=f"above {_CAP_C:.0f} degC (5 K less per 1000 m) the processor gets {_CAP_W:.0f} W",
        lines=tuple(lines),
        figures=figures,
        assumptions=("a 15 W processor behind 4.3 K/W, seven operating points of 40 to 100 % of the clock",),
    )


def _hour(machine: Machine, ambient_c: float, altitude_m: float, seed: int) -> Result:
    around = Surroundings(ambient_c=((0.0, ambient_c),), altitude_m=altitude_m)
    return simulate(machine, _CLOSED, horizon_s=3600.0, step_s=0.5, surroundings=around, seed=seed)


def _summary(result: Result) -> str:
    capped = (
        f"{watts(float(result.power_w[result.throttled].max()))} while held back" if result.throttled.any() else "-"
    )
    return (
        f"peak {result.temperatures_c[:, 0].max():5.1f} degC, held back {result.throttled_ratio:4.0%} of the time"
        f" ({capped}), mean latency {seconds(result.mean_s())}"
    )


def r18(given: Given) -> Study:
    """Simulate 72 h: batches of 1 and 16 in turn, air of 25 to 45 degC over the day, supply 10 % up and down."""
    result = endurance(given.seed)
    drift = result.drift_ratio()
    lines = (
        f"{result.requests} batches in {result.horizon_s / 3600:.0f} h, {result.unfinished} not answered",
        (
            f"latency p50 {seconds(result.quantile_s(0.5))}, p99 {seconds(result.quantile_s(0.99))},"
            f" p99.9 {seconds(result.quantile_s(0.999))}"
        ),
        f"drift of the median from the first to the last tenth: {(drift or 1.0) - 1.0:+.2%}",
        (
            f"energy {result.energy_j / 3.6e6:.3g} kWh, {joules(result.energy_per_inference_j)} per batch;"
            f" balance closes to {result.balance_error_ratio:.0e}"
        ),
        (
            f"die {result.temperatures_c[:, 0].min():.1f} to {result.temperatures_c[:, 0].max():.1f} degC,"
            f" held back {result.throttled_ratio:.1%} of the time"
        ),
    )
    return Study(
        name="R18",
        title="endurance: 72 simulated hours",
        lines=lines,
        figures={
            "requests": result.requests, "p999_s": result.quantile_s(0.999), "drift_ratio": drift,
            "energy_j": result.energy_j, "balance_error_ratio": result.balance_error_ratio,
        },
        assumptions=("a batch of 16 is 16 times the work; supply scales power by its square, one swing an hour",),
    )  # fmt: skip


def endurance(seed: int = 0, hours: float = 72.0) -> Result:
    """Run R18 for that many hours."""
    horizon_s = hours * 3600.0
    trace = parse_trace("batches:1,16@3/s", horizon_s, seed)
    around = Conditions(ambient_c=(25.0, 45.0), supply=(0.9, 1.1)).surroundings(horizon_s)
    machine = dataclasses.replace(_laptop(), jitter_ratio=0.02)
    return simulate(machine, trace, horizon_s=horizon_s, step_s=1.0, surroundings=around, seed=seed)


def t11c(given: Given) -> Study:
    """Replay case T11(c): A slows from 196 to 400 ms in steps, B keeps 217 ms."""
    runs = t11c_runs(given.seed)
    standing: Standing = compare_runs(runs)
    assert standing.crossover_s is not None, "the case has one crossover"
    means = " and ".join(f"{name} {seconds(value)}" for name, value in standing.sustained_s.items())
    return Study(
        name="T11C",
        title="burst against sustained: A slows down in steps, B does not",
        lines=(
            (f"burst winner {standing.burst_winner}, sustained winner {standing.sustained_winner},"
            f" crossover at minute {standing.crossover_s / 60:g}; means over 30 min: {means}"),
        ),
        figures={
            "burst_winner": standing.burst_winner, "sustained_winner": standing.sustained_winner,
            "crossover_s": standing.crossover_s, "mean_s": dict(standing.sustained_s),
        },
    )  # fmt: skip


def t11c_runs(seed: int = 0) -> dict[str, Result]:
    """Return both runs of case T11(c): 30 minutes back to back."""
    slower = ((0.0, 1.0), (180.0, 196 / 260), (360.0, 196 / 330), (600.0, 196 / 400))
    chain = RcChain(names=("die",), capacities_j_per_k=(10.0,), resistances_k_per_w=(5.0,))
    first = Machine(cost=Cost(compute_s=0.196, compute_j=1.0), chain=chain, schedule=slower)
    second = Machine(cost=Cost(compute_s=0.217, compute_j=0.6), chain=chain)
    return {
        name: simulate(machine, _CLOSED, horizon_s=1800.0, seed=seed) for name, machine in (("A", first), ("B", second))
    }
