"""The studies that are better seen: the heat map of R9 and the two runs of case T11(c)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from experiments import store
from experiments.evaluator.dynamics.compare import compare_runs
from experiments.picture import Grid, draw_grids
from experiments.scenarios.clock import r9
from experiments.scenarios.endurance import t11c_runs
from experiments.scenarios.given import origin
from experiments.sustained_plot import draw_latencies
from experiments.units import seconds

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.scenarios.given import Given

_ORIGINS: Final = {"published": "published, unverified", "given": "as given"}


def draw(name: str, folder: Path, given: Given) -> Path | None:
    """Draw the study of that name to `folder`, and return the path without suffix; None when it has no picture."""
    if name == "R9":
        return _heat_map(folder / "r9_heat_map", given)
    if name == "T11C":
        runs = t11c_runs(given.seed)
        stem = folder / "t11c_burst_sustained"
        draw_latencies(runs, compare_runs(runs), "Case T11(c): the burst winner is not the sustained winner", stem)
        return stem
    return None


def _heat_map(stem: Path, given: Given) -> Path:
    """Draw latency over clock and load, the stated value in brackets, and write the same as a CSV file."""
    figures: dict[str, Any] = dict(r9(given).figures)
    clocks, loads, simulated, stated = (figures[name] for name in ("clock_hz", "load", "latency_s", "stated_s"))
    grid = Grid(
        title=f"R9: simulated latency ({_ORIGINS[origin(given.table('R9'))]})",
        values=simulated,
        texts=[[f"{seconds(s)}\n({seconds(p)})" for s, p in zip(*rows, strict=True)]
               for rows in zip(simulated, stated, strict=True)],
        rows=[f"{clock / 1e6:g} MHz" for clock in clocks],
        columns=[f"{load:g}" for load in loads],
    )  # fmt: skip
    draw_grids([grid], "load (requests at a time)", stem)
    cells = (
        {"clock_hz": clock, "load": load, "simulated_s": mine, "stated_s": theirs}
        for clock, *rows in zip(clocks, simulated, stated, strict=True)
        for load, mine, theirs in zip(loads, *rows, strict=True)
    )
    store.write_csv(stem.with_name("r9_heat_map.csv"), ("clock_hz", "load", "simulated_s", "stated_s"), cells)
    return stem
