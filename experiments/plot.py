"""The frontier as a picture: one panel per device, one frontier per series, the marker saying the source."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from experiments.picture import COLOURS, pyplot, save
from experiments.ranking import Ranked, objective_name, objective_unit, value
from experiments.units import tick

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from partition import Device

_MARKERS: Final = {"measured": "o", "simulated": "s", "modelled": "^", "published": "D"}
_WIDE_RATIO: Final = 4.0  # a range wider than this reads better on a logarithmic axis
_MANY_DECADES: Final = 1e3
_NARROW_RATIO: Final = 1.05


def draw_frontiers(
    ranked: Sequence[Ranked], devices: Sequence[Device], objectives: Sequence[str], title: str, caption: str, stem: Path
) -> bool:
    """Draw the first two objectives to `stem`.png and `stem`.svg; False when there is no point to draw."""
    drawn = [r for r in ranked if r.standing != "unranked"]
    if not drawn:
        return False
    plt = pyplot()

    shown = [device for device in devices if any(r.row.device == device.name for r in drawn)]
    colours = _colours(drawn)
    figure, axes = plt.subplots(
        1, len(shown), figsize=(4.8 * len(shown) + 1.4, 5.6), squeeze=False, layout="constrained"
    )
    for axis, device in zip(axes[0], shown, strict=True):
        _panel(axis, [r for r in drawn if r.row.device == device.name], (objectives[0], objectives[1]), colours)
        axis.set_title(device.title, fontsize=10)
    _legend(figure, drawn, colours)
    figure.suptitle(title, fontsize=12)
    figure.supxlabel("\n".join(textwrap.wrap(caption, 66 * len(shown) + 16)), fontsize=8, color="#444444")
    save(figure, stem)
    return True


def _colours(drawn: Sequence[Ranked]) -> dict[str, str]:
    backends = sorted({r.row.backend for r in drawn})
    return {backend: COLOURS[i % len(COLOURS)] for i, backend in enumerate(backends)}


def _panel(axis: Axes, points: Sequence[Ranked], objectives: tuple[str, str], colours: dict[str, str]) -> None:
    # Colour alone would tell nothing to readers who do not see it, nor on paper.
    named = len({p.row.backend for p in points}) > 1
    for series in dict.fromkeys(p.row.series for p in points):
        members = [p for p in points if p.row.series == series]
        colour = colours[series[0]]
        for point in members:
            _point(axis, point, objectives, colour)
        for place, label in _labels(members, objectives, named=named).items():
            axis.annotate(label, place, xytext=(0, 0), textcoords="offset points", fontsize=7, color=colour)
        _frontier_line(axis, [p for p in members if p.standing == "frontier"], objectives, colour)
    _device_line(axis, points, objectives)
    for objective, direction in zip(objectives, ("x", "y"), strict=True):
        _scale(axis, direction, [v for p in points if (v := value(p.row, objective))], objective)
    axis.grid(visible=True, which="both", color="#dddddd", linewidth=0.5)
    axis.set_axisbelow(True)


def _labels(points: Sequence[Ranked], objectives: tuple[str, str], *, named: bool) -> dict[tuple[float, float], str]:
    """Return one label per place, with the backend if `named`: points on each other (compressed weights, say) share it.

    All points are of one series, hence of one backend.
    """
    at: dict[tuple[float, float], list[str]] = {}
    for point in points:
        row = point.row
        where = f" ({row.processor})" if row.segments > 1 else ""
        how = "".join(f" {option.partition('=')[2]}" for option in row.options.split()) if row.segments == 1 else ""
        metered = ", metered" if "energy" in objectives and row.energy_source == "measured" else ""
        x, y = (_known(point, objective)[0] for objective in objectives)
        at.setdefault((x, y), []).append(f"{row.precision}{how}{where}{metered}")
    about = f"{points[0].row.backend} " if named else ""
    return {
        place: about + (f"{names[0]}, {len(names) - 1} more" if len(names) > 2 else ", ".join(names))
        for place, names in at.items()
    }


def _point(axis: Axes, point: Ranked, objectives: tuple[str, str], colour: str) -> None:
    x, y = (_known(point, objective) for objective in objectives)
    on = point.standing == "frontier"
    axis.errorbar(
        x[0],
        y[0],
        xerr=[[x[0] - x[1]], [x[2] - x[0]]],
        yerr=[[y[0] - y[1]], [y[2] - y[0]]],
        fmt=_MARKERS[point.row.latency_source or "modelled"],
        color=colour,
        markerfacecolor=colour if on else "white",
        markersize=7,
        elinewidth=0.7,
        capsize=2,
        alpha=1.0 if on else 0.75,
        zorder=3,
    )


def _known(point: Ranked, objective: str) -> tuple[float, float, float]:
    known = value(point.row, objective)
    assert known is not None, "only ranked rows are drawn, and they know every objective"
    return known


def _frontier_line(axis: Axes, on: Sequence[Ranked], objectives: tuple[str, str], colour: str) -> None:
    corner = sorted((_known(p, objectives[0])[0], _known(p, objectives[1])[0]) for p in on)
    axis.step([x for x, _ in corner], [y for _, y in corner], where="post", color=colour, linewidth=1.4, zorder=2)


def _device_line(axis: Axes, points: Sequence[Ranked], objectives: tuple[str, str]) -> None:
    """Draw the frontier over all series of the device, when there is more than one series to choose from."""
    if len({p.row.series for p in points}) < 2:
        return
    best = [p for p in points if p.device_standing == "frontier"]
    corner = sorted((_known(p, objectives[0])[0], _known(p, objectives[1])[0]) for p in best)
    axis.step([x for x, _ in corner], [y for _, y in corner], where="post", color="#888888", ls=":", lw=2.5, zorder=1)


def _scale(axis: Axes, direction: str, values: Sequence[tuple[float, float, float]], objective: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    unit = objective_unit(objective)
    low, high = min(v[1] for v in values), max(v[2] for v in values)
    target = axis.xaxis if direction == "x" else axis.yaxis
    if low > 0 and high / low > _WIDE_RATIO:
        axis.set(**{f"{direction}scale": "log"})
        target.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < _MANY_DECADES else (1.0,)))
        target.set_minor_locator(NullLocator())
    elif low > 0 and high / low < _NARROW_RATIO:  # three digits would write the same at every tick
        axis.set(**{f"{direction}lim": (low / _NARROW_RATIO, high * _NARROW_RATIO)})
    target.set_major_formatter(FuncFormatter(lambda v, _: tick(v, unit)))
    target.set_tick_params(labelsize=8, rotation=30 if direction == "x" else 0)
    target.set_label_text(objective_name(objective))


def _legend(figure: Figure, drawn: Sequence[Ranked], colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **style: Any) -> Line2D:  # noqa: ANN401 - matplotlib's own
        return Line2D([], [], label=label, **style)

    series = [entry(backend, color=colour, lw=1.6) for backend, colour in colours.items()]
    sources = dict.fromkeys(r.row.latency_source or "" for r in drawn)
    markers = [entry(f"latency {s}", marker=_MARKERS[s], color="#444444", ls="") for s in sources if s]
    hollow = entry("off the frontier", marker="o", color="#444444", markerfacecolor="white", ls="")
    best = entry("best of the device", color="#888888", ls=":", lw=2.5)
    figure.legend(handles=[*series, *markers, hollow, best], loc="outside right center", fontsize=8, frameon=False)
