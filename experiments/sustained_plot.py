"""Runs over time as a picture: latency, temperature, clock and power, and both frontiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.picture import COLOURS, pyplot, save
from experiments.units import seconds, tick

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from experiments.evaluator.dynamics import Conditions, Result
    from experiments.evaluator.dynamics.compare import Standing
    from experiments.sustained_job import Run
    from partition import Device

_MARKERS: Final = "osD^vP"  # a marker each, for readers without colour
_MOST_CURVES: Final = 5
_MARKED: Final = 8  # markers along a curve
_POINTS: Final = 240
_WIDE_RATIO: Final = 4.0
_VISIBLE_RATIO: Final = 0.03  # a shorter way than this is hidden under its own marker


def draw_sustained(
    runs: Sequence[Run],
    lines: Sequence[Mapping[str, Any]],
    standing: Standing | None,
    device: Device,
    conditions: Conditions,
    stem: Path,
) -> None:
    """Draw the best runs over time and every run's way from the burst to the sustained frontier."""
    plt = pyplot()
    shown = _shown(runs, lines)
    figure, axes = plt.subplots(2, 2, figsize=(12.5, 8.2), layout="constrained")
    results = {run.name: run.result for run in shown}
    _latency(axes[0][0], results, standing)
    _bands(axes[0][0], shown)
    _temperatures(axes[0][1], results)
    _clock_and_power(axes[1][0], results)
    _frontiers(axes[1][1], runs, lines)
    left_out = f", {len(runs) - len(shown)} more candidates only bottom right" if len(runs) > len(shown) else ""
    run = f"{shown[0].row.model}, {shown[0].result.title}, {conditions.text()}"
    title = f"{device.title}: {run} (simulated; shade, bars: intervals{left_out})"
    figure.suptitle(title, fontsize=12)
    save(figure, stem)


def draw_latencies(results: Mapping[str, Result], standing: Standing, title: str, stem: Path) -> None:
    """Draw only latency over time, with both means and the crossover."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    _latency(axis, results, standing)
    axis.set_title(title, fontsize=11)
    save(figure, stem)


def _shown(runs: Sequence[Run], lines: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Choose the fastest of either frontier; a plot of every candidate could not be read."""
    on = [
        run
        for run, line in zip(runs, lines, strict=True)
        if "frontier" in {line["burst_standing"], line["sustained_standing"]}
    ]
    rest = [run for run in runs if run not in on]
    return [*on, *rest][:_MOST_CURVES]


def _latency(axis: Axes, results: Mapping[str, Result], standing: Standing | None) -> None:
    for number, (name, result) in enumerate(results.items()):
        colour = COLOURS[number]
        end, mean = result.windows(max(1.0, result.horizon_s / _POINTS))
        whole = result.mean_s()
        label = f"{name}: mean {seconds(whole)}{_won(name, standing)}"
        axis.plot(end / 60, mean, lw=1.5, label=label, **_style(number, len(end)))
        if whole is not None:
            axis.axhline(whole, color=colour, lw=0.8, ls=":")
    if standing is not None and standing.crossover_s is not None:
        axis.axvline(standing.crossover_s / 60, color="#444444", lw=0.8, ls="--")
        axis.annotate(
            f"crossover, minute {standing.crossover_s / 60:.3g}",
            (standing.crossover_s / 60, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
        )
    values = [v for r in results.values() for v in r.windows(max(1.0, r.horizon_s / _POINTS))[1]]
    if max(values) / min(values) > _WIDE_RATIO:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.25 * max(values))
    _dress(axis, "latency")
    _ticks(axis, "y", "s", axis.get_ylim())
    axis.legend(fontsize=8, loc="best", edgecolor="none", framealpha=0.85)


def _style(number: int, points: int) -> dict[str, Any]:
    """Return colour and marker of a curve; the markers of one curve lie between those of the others."""
    every = max(points // _MARKED, 1)
    start = number * every // _MOST_CURVES
    return {"color": COLOURS[number], "marker": _MARKERS[number], "ms": 4.5, "markevery": (start, every)}


def _won(name: str, standing: Standing | None) -> str:
    """Say of a curve that it wins the burst or the long run, where those are two."""
    if standing is None or standing.burst_winner == standing.sustained_winner:
        return ""
    return {standing.burst_winner: ", burst winner", standing.sustained_winner: ", sustained winner"}.get(name, "")


def _bands(axis: Axes, runs: Sequence[Run]) -> None:
    """Shade between the ends of each run's interval, and let the axis reach over it."""
    top, bottom = axis.get_ylim()[1], axis.get_ylim()[0]
    for colour, run in zip(COLOURS, runs, strict=False):
        curves = [
            dict(zip(*r.result.windows(max(1.0, r.result.horizon_s / _POINTS)), strict=True))
            for r in (run, *run.bounds)
        ]
        ends = sorted(set.intersection(*(set(curve) for curve in curves)))
        low, high = ([bound(curve[end] for curve in curves) for end in ends] for bound in (min, max))
        axis.fill_between([end / 60 for end in ends], low, high, color=colour, alpha=0.13, lw=0)
        top, bottom = max(top, *high), min(bottom, *low)
    axis.set_ylim(bottom, 1.05 * top)
    _ticks(axis, "y", "s", axis.get_ylim())


def _temperatures(axis: Axes, results: Mapping[str, Result]) -> None:
    for number, result in enumerate(results.values()):
        time, temperatures = _thinned(result, result.temperatures_c)
        axis.plot(time, temperatures[:, 0], lw=1.5, **_style(number, len(time)))
        if len(result.node_names) > 1:
            axis.plot(time, temperatures[:, -1], lw=1.2, ls="--", **_style(number, len(time)))
    names = next(iter(results.values())).node_names
    axis.set_title(f"solid: {names[0]}" + (f", dashed: {names[-1]}" if len(names) > 1 else ""), fontsize=9)
    _dress(axis, "temperature (degC)")


def _clock_and_power(axis: Axes, results: Mapping[str, Result]) -> None:
    power_axis = axis.twinx()
    for number, result in enumerate(results.values()):
        time, clock = _thinned(result, result.clock_ratio[:, None])
        _, power = _thinned(result, result.power_w[:, None])
        axis.plot(time, clock[:, 0], lw=1.5, **_style(number, len(time)))
        power_axis.plot(time, power[:, 0], lw=1.0, ls=":", **_style(number, len(time)))
    axis.set_ylim(0, 1.08)
    axis.set_title("solid: clock, dotted: power", fontsize=9)
    _dress(axis, "clock (share of the fastest)")
    power_axis.set_ylabel("power (W)", fontsize=9)
    power_axis.set_ylim(bottom=0)
    power_axis.tick_params(labelsize=8)


def _frontiers(axis: Axes, runs: Sequence[Run], lines: Sequence[Mapping[str, Any]]) -> None:
    """Draw each candidate's first minute (hollow) and whole run (filled), and the frontier of each."""
    for line in lines:
        if (
            max(_moved(line["burst_s"], line["sustained_s"]), _moved(line["burst_j"], line["sustained_j"]))
            < _VISIBLE_RATIO
        ):
            continue
        axis.annotate(
            "",
            (line["sustained_s"], line["sustained_j"]),
            xytext=(line["burst_s"], line["burst_j"]),
            arrowprops={"arrowstyle": "->", "color": "#999999", "lw": 0.8},
        )
    for when, style, colour in (("burst", "--", "#56B4E9"), ("sustained", "-", "#D55E00")):
        face = "white" if when == "burst" else colour
        for line in lines:
            _point(axis, line, when, colour=colour, face=face)
        on = sorted((x[f"{when}_s"], x[f"{when}_j"]) for x in lines if x[f"{when}_standing"] == "frontier")
        label = "first minute" if when == "burst" else "all of it"
        axis.step(*zip(*on, strict=True), where="post", color=colour, ls=style, lw=1.4, label=f"frontier, {label}")
    for run, line in zip(runs, lines, strict=True):
        place = (line["sustained_s"], line["sustained_j"])
        axis.annotate(run.name, place, xytext=(6, 5), textcoords="offset points", fontsize=7)
    _dress(axis, "energy per inference, idling included")
    ends = [f"{when}_{end}" for when in ("burst", "sustained") for end in ("low", "high")]
    _ticks(axis, "x", "s", [line[f"{end}_s"] for line in lines for end in ends])
    _ticks(axis, "y", "J", [line[f"{end}_j"] for line in lines for end in ends])
    axis.set_xlabel("mean latency", fontsize=9)
    axis.legend(fontsize=8, frameon=False)


def _point(axis: Axes, line: Mapping[str, Any], when: str, *, colour: str, face: str) -> None:
    x, y = line[f"{when}_s"], line[f"{when}_j"]
    axis.errorbar(
        x,
        y,
        xerr=[[x - line[f"{when}_low_s"]], [line[f"{when}_high_s"] - x]],
        yerr=[[y - line[f"{when}_low_j"]], [line[f"{when}_high_j"] - y]],
        fmt="o",
        color=colour,
        markerfacecolor=face,
        ms=6,
        elinewidth=0.6,
        alpha=0.8,
    )


def _moved(before: float, after: float) -> float:
    return abs(after / before - 1.0)


def _ticks(axis: Axes, direction: str, unit: str, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    target = axis.xaxis if direction == "x" else axis.yaxis
    if min(values) > 0 and max(values) / min(values) > _WIDE_RATIO:
        axis.set(**{f"{direction}scale": "log"})
        target.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(values) / min(values) < 1e3 else (1.0,)))
        target.set_minor_locator(NullLocator())
    target.set_major_formatter(FuncFormatter(lambda value, _: tick(value, unit)))


def _dress(axis: Axes, label: str) -> None:
    axis.set_xlabel("minutes", fontsize=9)
    axis.set_ylabel(label, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, color="#dddddd", linewidth=0.5)
    axis.set_axisbelow(True)


def _thinned(result: Result, values: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays [steps, columns]
    """Average over blocks of steps: a curve of eighteen thousand points says no more than one of a few hundred."""
    block = max(1, len(result.time_s) // _POINTS)
    count = len(result.time_s) // block
    kept = np.asarray(values, dtype=float)[: count * block]
    return (np.arange(count) + 1) * block * result.step_s / 60, kept.reshape(count, block, -1).mean(axis=1)
