"""Time and spill over the first axis of a sweep as a picture: a column per model, a line per rest of the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.picture import COLOURS, pyplot, save
from experiments.units import tick

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from experiments.knob_sweep import Axis, Point

# One for each colour, for readers without colour.
_MARKERS: Final = "osD^v<>"
# The provider's option names are long; a legend wants few words.
_SHORT: Final = {
    "htp_graph_finalization_optimization_mode": "optimisation mode",
    "htp_performance_mode": "performance mode",
    "vtcm_mb": "VTCM in MB",
}


def draw_knobs(points: Sequence[Point], axes: Sequence[Axis], title: str, stem: Path) -> bool:
    """Draw to `stem`.png and `stem`.svg; False when no point has an estimate."""
    drawn = [point for point in points if point.estimate is not None]
    if not drawn:
        return False
    plt = pyplot()

    models = list(dict.fromkeys(point.model for point in drawn))
    figure, grid = plt.subplots(
        2, len(models), figsize=(4.2 * len(models) + 1.4, 6.8), squeeze=False, sharex=True, layout="constrained"
    )
    for column, model in enumerate(models):
        mine = [point for point in drawn if point.model == model]
        _panel(grid[0][column], mine, axes, "s")
        _panel(grid[1][column], mine, axes, "B")
        grid[0][column].set_title(model, fontsize=10)
        grid[1][column].set_xlabel(_SHORT.get(axes[0][0], axes[0][0]))
    grid[0][0].set_ylabel("simulated time")
    grid[1][0].set_ylabel("activations spilled to DRAM")
    handles, labels = grid[0][0].get_legend_handles_labels()
    if any(labels):
        figure.legend(handles=handles, labels=labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(f"{title}; bars: the simulator's bounds", fontsize=11)
    save(figure, stem)
    return True


def _panel(axis: Axes, points: Sequence[Point], axes: Sequence[Axis], unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    places = {value: place for place, value in enumerate(axes[0][1])}
    for number, rest in enumerate(dict.fromkeys(point.setting[1:] for point in points)):
        line = [point for point in points if point.setting[1:] == rest]
        colour = COLOURS[number % len(COLOURS)]
        style = {"color": colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5, "linewidth": 1.3}
        label = ", ".join(f"{_SHORT.get(key, key)} {value}" for key, value in rest)
        xs = [places[point.setting[0][1]] for point in line]
        if unit == "s":
            _times(axis, xs, line, style, label)
        else:
            axis.plot(xs, [_spill(point) for point in line], label=label, **style)  # type: ignore[arg-type]
    axis.set_xticks(list(places.values()), list(places))
    axis.set_ylim(0, max(axis.get_ylim()[1], 1.0) if unit == "B" else None)  # one byte is the least that spills
    axis.yaxis.set_major_locator(MaxNLocator(6, integer=unit == "B"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, unit)))
    axis.grid(visible=True, color="#dddddd", linewidth=0.5)
    axis.set_axisbelow(True)


def _times(axis: Axes, xs: Sequence[int], line: Sequence[Point], style: dict[str, object], label: str) -> None:
    latencies = [point.estimate.latency for point in line if point.estimate is not None]
    ys = [latency.typical_s for latency in latencies]
    below = [latency.typical_s - latency.low_s for latency in latencies]
    above = [latency.high_s - latency.typical_s for latency in latencies]
    axis.errorbar(xs, ys, yerr=[below, above], label=label, elinewidth=0.7, capsize=2, **style)  # type: ignore[arg-type]


def _spill(point: Point) -> float:
    """Give an unknown spill no place in the picture."""
    spill = point.estimate.spill_bytes if point.estimate is not None else None
    return float("nan") if spill is None else float(spill)
