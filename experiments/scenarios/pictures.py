"""The studies that are better seen: the heat map of R9 and the two runs of case T11(c)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.evaluator.dynamics.compare import compare_runs
from experiments.picture import pyplot, save
from experiments.published import load_table
from experiments.scenarios.clock import r9
from experiments.scenarios.endurance import t11c_runs
from experiments.sustained_plot import draw_latencies
from experiments.units import seconds

if TYPE_CHECKING:
    from pathlib import Path


def draw(name: str, folder: Path, seed: int) -> Path | None:
    """Draw the study of that name to `folder`, and return the path without suffix; None when it has no picture."""
    if name == "R9":
        return _heat_map(folder / "r9_heat_map", seed)
    if name == "T11C":
        runs = t11c_runs(seed)
        stem = folder / "t11c_burst_sustained"
        draw_latencies(runs, compare_runs(runs), "Case T11(c): the burst winner is not the sustained winner", stem)
        return stem
    return None


def _heat_map(stem: Path, seed: int) -> Path:
    """Draw latency over clock and load, the published value in brackets."""
    figures: dict[str, Any] = dict(r9(seed).figures)
    table = load_table("R9")
    simulated, published = figures["latency_s"], figures["published_s"]
    figure, axis = pyplot().subplots(figsize=(6.4, 4.6), layout="constrained")
    image = axis.imshow(simulated, cmap="cividis_r", aspect="auto")
    for i, (mine, theirs) in enumerate(zip(simulated, published, strict=True)):
        for j, (value, stated) in enumerate(zip(mine, theirs, strict=True)):
            dark = image.norm(value) > 0.5
            text = f"{seconds(value)}\n({seconds(stated)})"
            axis.text(j, i, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    axis.set_xticks(range(len(table.columns) - 1), [name.split("_")[1] for name in table.columns[1:]])
    axis.set_yticks(range(len(table.rows)), [f"{clock / 1e6:.0f} MHz" for clock in table.column("clock_hz")])
    axis.set_xlabel("load (requests at a time)")
    axis.set_title("R9: simulated latency (published, unverified)", fontsize=11)
    save(figure, stem)
    return stem
