"""Latency over clock and load (R9) for a model of one's own: the fastest candidate of each processor, cell by cell.

A load is so many requests at a time, each of which waits for those before it, or a Poisson rate, with its queue and
waking up. The clock is held at each operating point, whatever the temperature; a cell says where that gets too hot.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import TYPE_CHECKING, Final

from experiments import store
from experiments.arguments import names, number
from experiments.evaluator.dynamics import RcChain, poisson, simulate
from experiments.evaluator.dynamics.assemble import DynamicsError, assemble
from experiments.picture import Grid, draw_grids
from experiments.units import interval, quantity, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from experiments.evaluator.dynamics import Conditions, Machine, Point
    from experiments.store import Row
    from experiments.sustained_job import Run
    from partition import Device

_RAREST_PER_S: Final = 1.0 / 3600.0
_REQUESTS: Final = 1000  # with these the mean is within a few per cent of that of many
_STEPS: Final = 1000
# Where the clock is held, temperature changes nothing; one lump that hardly warms lets the simulation take long steps.
_STILL: Final = RcChain(names=("die",), capacities_j_per_k=(1e12,), resistances_k_per_w=(1.0,))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """So many requests at a time, or a mean rate at which they come."""

    title: str
    at_once: int = 1
    rate_per_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one clock and load come to; `mean_s` None: it cannot keep up. `settled_c` is the die after a long time."""

    clock_ratio: float
    load: Load
    mean_s: float | None
    p99_s: float | None
    power_w: float
    settled_c: float
    too_hot: bool
    low_s: float | None = None
    high_s: float | None = None


def parse_loads(text: str) -> tuple[Load, ...]:
    """Read `1,4,16` (requests at a time) or `0.5/s,2/s` (a rate)."""
    return tuple(_load(part) for part in names(text))


_rate = number(lambda n: n >= _RAREST_PER_S, "a rate of at least one request an hour")


def _load(text: str) -> Load:
    if text.endswith("/s"):
        return Load(title=text, rate_per_s=_rate(text.removesuffix("/s")))
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"expected requests at a time, such as 4, or a rate, such as 2/s, got {text!r}"
        )
    return Load(title=text, at_once=int(text))


def map_cells(
    device: Device, rows: Sequence[Row], loads: Sequence[Load], conditions: Conditions, seed: int
) -> list[list[Cell]]:
    """Return the cells by clock, the slowest first, and load, of a row and of the ends of its interval.

    Raises:
        DynamicsError: the row is a split plan, whose processors have a clock each, or cannot be simulated.
    """
    machines = [conditions.applied(assemble(device, row).machine) for row in rows]
    if machines[0].others:
        raise DynamicsError("a split plan's processors have a clock each: no one clock to draw it over")
    return [
        [_bounded([_cell(machine, point, load, conditions, seed) for machine in machines]) for load in loads]
        for point in reversed(machines[0].points)
    ]


def _bounded(cells: Sequence[Cell]) -> Cell:
    """Return the first cell with the least and the largest mean of all; None: one of them cannot keep up."""
    means = [cell.mean_s for cell in cells]
    known = [mean for mean in means if mean is not None]
    return dataclasses.replace(
        cells[0], low_s=min(known, default=None), high_s=max(known) if known and len(known) == len(means) else None
    )


def _cell(machine: Machine, point: Point, load: Load, conditions: Conditions, seed: int) -> Cell:
    held = dataclasses.replace(machine, points=(point,), policy="performance", trips=(), chain=_STILL)
    service_s = held.cost.latency_s(point.clock_ratio)
    mean_s: float | None = load.at_once * service_s
    p99_s, power_w = mean_s, held.cost.power_w(point.clock_ratio, point.supply_ratio)
    if load.rate_per_s is not None and load.rate_per_s * service_s >= 1.0:
        mean_s = p99_s = None  # ever more requests wait, while it works all the time
    elif load.rate_per_s is not None:
        horizon_s = _REQUESTS / load.rate_per_s
        trace = poisson(load.rate_per_s, horizon_s, seed)
        result = simulate(held, trace, horizon_s=horizon_s, step_s=horizon_s / _STEPS, seed=seed)
        mean_s, p99_s, power_w = result.mean_s(), result.quantile_s(0.99), float(result.power_w.mean())
    settled = _settled_c(machine, power_w, conditions)
    return Cell(
        clock_ratio=point.clock_ratio, load=load, mean_s=mean_s, p99_s=p99_s, power_w=power_w, settled_c=settled[0],
        too_hot=_too_hot(machine, settled, power_w, conditions),
    )  # fmt: skip


def _settled_c(machine: Machine, power_w: float, conditions: Conditions) -> tuple[float, ...]:
    """Return each lump's temperature in the warmest air, once nothing changes any more."""
    outward = machine.chain.resistances_k_per_w
    return tuple(conditions.ambient_c[1] + power_w * sum(outward[i:]) for i in range(len(outward)))


def _too_hot(machine: Machine, settled_c: Sequence[float], power_w: float, conditions: Conditions) -> bool:
    """Tell whether a trip would hold the clock back."""
    derating_k = conditions.surroundings(1.0).derating_k()
    return any(
        settled_c[trip.node] > trip.at_c - derating_k and (trip.cap_w is None or power_w > trip.cap_w)
        for trip in machine.trips
    )


def draw_heat_maps(
    runs: Sequence[Run], ends: Sequence[Sequence[Row]], loads: Sequence[Load], device: Device, conditions: Conditions,
    seed: int, folder: Path, console: Console,
) -> str:  # fmt: skip
    """Write and draw the map of the fastest run of each processor (`ends`: its row at both ends); name the files."""
    lines: list[dict[str, object]] = []
    grids: list[Grid] = []
    for run, bounds in zip(runs, ends, strict=True):
        try:
            table = map_cells(device, (run.row, *bounds), loads, conditions, seed)
        except DynamicsError as error:
            console.print(f"no heat map of {run.name}: {error}", style="yellow")
            continue
        clocks = _clocks(device, run.row.processor, len(table))
        grids.append(_grid(f"{run.name}, {run.row.latency_source}", table, clocks))
        lines.extend(_lines(run, table, clocks))
    if not grids:
        return ""
    store.write_csv(folder / "heat_map.csv", tuple(lines[0]), lines)
    rates = any(load.rate_per_s is not None for load in loads)
    across = "requests at a time" if not rates else "requests per second" if _all_rates(loads) else "load"
    title = f"{device.title}: {runs[0].row.model}, mean latency over clock and load (simulated)"
    draw_grids(grids, across, folder / "heat_map", title)
    console.print(
        "heat map: requests at a time wait for each other, a batch is another model (--bind batch=4); a row's latency"
        " is taken for that of the fastest clock, which dispatch and DRAM time do not follow; split plans have none"
    )
    return "heat_map.png, heat_map.svg, heat_map.csv, "


def fastest_of_each(runs: Sequence[Run]) -> list[Run]:
    """Return the fastest whole run of each processor."""
    whole = sorted((run for run in runs if run.row.segments == 1), key=lambda run: run.row.latency_s or math.inf)
    return list({run.row.processor: run for run in reversed(whole)}.values())[::-1]


def _all_rates(loads: Sequence[Load]) -> bool:
    return all(load.rate_per_s is not None for load in loads)


def _clocks(device: Device, processor: str, points: int) -> list[float | None]:
    """Return the clock of each row from the slowest, None where the device file gives none."""
    own = device.processor(processor).operating_points
    return [point.clock_hz.value for point in reversed(own)] if own else [None] * points


def _grid(title: str, table: Sequence[Sequence[Cell]], clocks: Sequence[float | None]) -> Grid:
    return Grid(
        title=title,
        values=[[math.nan if cell.mean_s is None else cell.mean_s for cell in row] for row in table],
        texts=[[_text(cell) for cell in row] for row in table],
        rows=[
            f"{row[0].clock_ratio:.0%}" if clock is None else quantity(clock, "Hz")
            for row, clock in zip(table, clocks, strict=True)
        ],
        columns=[cell.load.title for cell in table[0]],
    )


def _text(cell: Cell) -> str:
    if cell.mean_s is None:
        return "cannot\nkeep up"
    text = f"{seconds(cell.mean_s)}\n(or falls behind)"
    if cell.high_s is not None:
        text = interval(*map(seconds, (cell.mean_s, cell.low_s, cell.high_s))).replace(" (", "\n(")
    return f"{text}\ntoo hot to hold" if cell.too_hot else text


def _lines(run: Run, table: Sequence[Sequence[Cell]], clocks: Sequence[float | None]) -> Iterator[dict[str, object]]:
    for row, clock_hz in zip(table, clocks, strict=True):
        for cell in row:
            yield {
                "candidate": run.name, "processor": run.row.processor, "latency_source": run.row.latency_source,
                "clock_hz": clock_hz, "clock_ratio": cell.clock_ratio, "load": cell.load.title, "mean_s": cell.mean_s,
                "mean_low_s": cell.low_s, "mean_high_s": cell.high_s, "p99_s": cell.p99_s, "power_w": cell.power_w,
                "settled_die_c": cell.settled_c, "too_hot": cell.too_hot,
            }  # fmt: skip
