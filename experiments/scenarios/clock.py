"""R9, latency over clock and load, and R10, the throttling threshold and the drift over temperature."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.arguments import UserError
from experiments.evaluator.dynamics import (
    Cost,
    Drift,
    Machine,
    Point,
    RcChain,
    Surroundings,
    Trace,
    TripPoint,
    periodic,
    simulate,
)
from experiments.evaluator.dynamics.threshold import (
    Criterion,
    Threshold,
    ThresholdError,
    find_threshold,
    median_threshold,
    threshold_of_log,
)
from experiments.published.checks import grid_checks
from experiments.scenarios.given import origin, read_log
from experiments.scenarios.study import Study
from experiments.units import counted, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from experiments.published import Table
    from experiments.scenarios.given import Given

Array = NDArray[np.float64]
_CLOSED: Final = Trace(title="closed", arrivals_s=None)
_COLD_PLATE: Final = RcChain(names=("die",), capacities_j_per_k=(100.0,), resistances_k_per_w=(0.1,))


def r9(given: Given) -> Study:
    """Fit latency = fixed + work / f x (1 + (load / knee)^order) to the table and simulate each cell of it."""
    table = given.table("R9")
    clocks = np.array(table.column("clock_hz"))
    loads = np.array([float(name.split("_")[1]) for name in table.columns[1:]])
    stated = np.array([row[1:] for row in table.rows], dtype=float)
    fixed_s, cycles, knee, order = _fit_contention(clocks, loads, stated)
    simulated = np.array(
        [
            [_cell(fixed_s, cycles * (1 + (load / knee) ** order) / clock, given.seed) for load in loads]
            for clock in clocks
        ]
    )
    error = simulated / stated - 1.0
    head = "clock     " + "  ".join(f"load {load:>3g}          " for load in loads)
    rows = (
        f"{clock / 1e6:4.0f} MHz  "
        + "  ".join(f"{seconds(s):>8} ({seconds(p)})" for s, p in zip(mine, theirs, strict=True))
        for clock, mine, theirs in zip(clocks, simulated, stated, strict=True)
    )
    worst, rms = float(np.abs(error).max()), float(np.sqrt((error**2).mean()))
    return Study(
        name="R9",
        title=f"latency over clock and load: simulated ({origin(table)})",
        lines=(
            head,
            *rows,
            (f"law: {seconds(fixed_s)} + {cycles / 1e6:.3g} Mcycles / f x (1 + (load / {knee:.3g})^{order:.2g});"
            f" error {rms:.1%} rms, {worst:.1%} at worst"),
            *(f"{'agrees' if check.holds else 'DIFFERS'}: {check.text}" for check in grid_checks(table)),
        ),
        figures={"latency_s": simulated.tolist(), "stated_s": stated.tolist(), "worst_error_ratio": worst,
                 "rms_error_ratio": rms, "clock_hz": clocks.tolist(), "load": loads.tolist()},
        assumptions=(f"four parameters are fitted to the {stated.size} cells: a description, not a prediction",),
    )  # fmt: skip


def _cell(fixed_s: float, compute_s: float, seed: int) -> float:
    machine = Machine(cost=Cost(compute_s=compute_s, fixed_s=fixed_s), chain=_COLD_PLATE)
    result = simulate(machine, _CLOSED, horizon_s=max(2.0, 4 * machine.cost.latency_s()), seed=seed)
    return float(np.median(result.latency_s))


def _fit_contention(clocks: Array, loads: Array, published: Array) -> tuple[float, float, float, float]:
    """Search knee and order on a grid; fixed time and cycles follow by least squares of the relative error."""
    best: tuple[float, tuple[float, float, float, float]] | None = None
    for knee in np.linspace(4.0, 40.0, 73):
        for order in np.linspace(1.0, 4.0, 31):
            slow = np.outer(1.0 / clocks, 1.0 + (loads / knee) ** order)
            design = np.stack([1.0 / published.ravel(), (slow / published).ravel()], axis=1)
            fixed_s, cycles = _nonnegative(design)
            squares = float(((design @ [fixed_s, cycles] - 1.0) ** 2).sum())
            if best is None or squares < best[0]:
                best = squares, (float(fixed_s), float(cycles), float(knee), float(order))
    assert best is not None, "the grid is not empty"
    return best[1]


def _nonnegative(design: Array) -> tuple[float, float]:
    """Return the least squares weights of both columns for a sum of 1; none of a latency's parts is negative."""
    both = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)[0]
    if both.min() >= 0.0:
        return float(both[0]), float(both[1])
    alone = [float(column.sum() / (column @ column)) for column in design.T]
    errors = [float(((weight * column - 1.0) ** 2).sum()) for weight, column in zip(alone, design.T, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


def r10(given: Given) -> Study:
    """Recover threshold and slopes from simulated ramps, three per device, and show the chain to the latency step.

    With logs, the procedure on what was recorded.
    """
    table, seed = given.table("R10"), given.seed
    if given.logs:
        return _recorded(table, given.logs)
    lines, figures = [], {}
    for row in (dict(zip(table.columns, values, strict=True)) for values in table.rows):
        found = median_threshold(tuple(_ramp(row, table, seed + run) for run in range(int(table.fact("runs")))))
        lines.append(_threshold_line(row, found))
        figures[row["device"]] = dataclasses.asdict(found)
    step, figures["chain"] = _chain(table, seed)
    return Study(
        name="R10",
        title="throttling threshold and drift, recovered from the simulator's own ramp of 0.5 K/min",
        lines=(
            *lines,
            "the published criterion (clock 2 % down, deviation 3 times its baseline) comes late by 2 % over the slope",
            *step,
        ),
        figures=figures,
        assumptions=("a cold plate of 0.1 K/W under 150 W mean, operating points of 15 MHz, 0.1 % jitter",),
    )


def _recorded(table: Table, paths: Sequence[Path]) -> Study:
    """Find the threshold in each log, and the median over them."""
    criterion = Criterion(
        fall_ratio=table.fact("frequency_fall_ratio"), deviation_factor=table.fact("deviation_factor")
    )
    lines, found = [], []
    for path in paths:
        log = read_log(path)
        try:
            one = threshold_of_log(log, criterion)
        except ThresholdError as error:
            raise UserError(f"{path} shows no threshold: {error}") from error
        minutes = float(log.time_s[-1] - log.time_s[0]) / 60.0
        ramp = float(log.temperature_c[-1] - log.temperature_c[0]) / minutes
        fast = "; faster than the procedure's" if ramp > 1.1 * 60.0 * table.fact("ramp_k_per_s") else ""
        lines.append(f"{path}: {len(log.time_s)} samples over {minutes:.0f} min, {ramp:.2g} K/min{fast}: {_found(one)}")
        found.append(one)
    whole, runs = median_threshold(tuple(found)), int(table.fact("runs"))
    lines.append(f"median of {counted(len(found), 'run')}: {_found(whole)}")
    if len(found) < runs:
        lines.append(f"the procedure takes {runs} runs: repeat the ramp, and give a --table for each")
    return Study(
        name="R10",
        title=f"throttling threshold of what was recorded: the clock {criterion.fall_ratio:.0%} down and the latency's"
        f" deviation {criterion.deviation_factor:g} times that of the first fifth",
        lines=tuple(lines),
        figures={"runs": len(found), **dataclasses.asdict(whole)},
        assumptions=("the load was constant, and the temperature is that of what throttles",),
    )


def _found(one: Threshold) -> str:
    return (
        f"the criterion fires at {one.onset_c:.1f} degC, the drift breaks at {one.break_c:.1f} degC, slopes"
        f" {one.below_per_k:.2%}/K below and {one.above_per_k:.2%}/K above"
    )


def _threshold_line(row: dict[str, Any], found: Threshold) -> str:
    return (
        f"{row['device']}: break at {found.break_c:.1f} degC ({row['threshold_c']}), slopes"
        f" {found.below_per_k:.2%}/K ({row['below_per_k']:.2%}) and {found.above_per_k:.2%}/K"
        f" ({row['above_per_k']:.2%}); the published criterion fires at {found.onset_c:.1f} degC"
    )


def _ramp(row: dict[str, Any], table: Table, seed: int) -> Threshold:
    """Heat a loaded device by 0.5 K/min from 60 to 98 degC and read the threshold off the trace."""
    start_c, end_c = 60.0, 98.0
    horizon_s = (end_c - start_c) / table.fact("ramp_k_per_s")
    cost = Cost(compute_s=0.5, compute_j=150.0)  # half busy: the slowed request still ends before the next
    drift = Drift(threshold_c=row["threshold_c"], below_per_k=row["below_per_k"], above_per_k=row["above_per_k"])
    machine = Machine(cost=cost, chain=_COLD_PLATE, points=_fine_points(), drift=drift, jitter_ratio=1e-3)
    rise_k = cost.power_w() * 0.5 * _COLD_PLATE.resistances_k_per_w[0]
    surroundings = Surroundings(ambient_c=((0.0, start_c - rise_k), (horizon_s, end_c - rise_k)), start_c=(start_c,))
    result = simulate(
        machine, periodic(1.0, horizon_s), horizon_s=horizon_s, step_s=1.0, surroundings=surroundings, seed=seed
    )
    return find_threshold(result, window_s=30.0)


def _fine_points() -> tuple[Point, ...]:
    clocks = np.arange(1410.0, 764.0, -15.0)
    return tuple(Point(clock_ratio=float(c / 1410.0), supply_ratio=1.0) for c in clocks)


def _chain(table: Table, seed: int) -> tuple[Iterable[str], dict[str, float]]:
    """Load -> heat -> 85 degC -> 60 % of the clock -> latency step."""
    trip_c, ratio = table.fact("chain_trip_c"), table.fact("chain_clock_ratio")
    points = (Point(clock_ratio=1.0, supply_ratio=1.0), Point(clock_ratio=ratio, supply_ratio=0.85))
    chain = RcChain(names=("die",), capacities_j_per_k=(2.0,), resistances_k_per_w=(16.0,))
    machine = Machine(
        cost=Cost(compute_s=9e-3, fixed_s=1e-3, compute_j=0.045),
        chain=chain,
        points=points,
        trips=(TripPoint(node=0, at_c=trip_c, hysteresis_k=10.0, clock_ratio=ratio),),
    )
    result = simulate(machine, _CLOSED, horizon_s=300.0, seed=seed)
    first_s = float(result.time_s[np.argmax(result.throttled)])
    before, after = result.mean_s(until_s=first_s - 1.0), result.mean_s(since_s=first_s, until_s=first_s + 1.0)
    assert before is not None, "a closed trace always has answers"
    assert after is not None, "a closed trace always has answers"
    line = (
        f"chain: {result.power_w[0]:.1f} W reach {trip_c:g} degC after {seconds(first_s)}, the clock falls to"
        f" {ratio:.0%}, latency steps from {seconds(before)} to {seconds(after)} ({after / before:.2f} times)"
    )
    return (line,), {"trip_s": first_s, "before_s": before, "after_s": after}
