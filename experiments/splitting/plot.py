"""Three pictures: the frontier, the cuts along the graph, and the sensitivity to where one cuts."""

from __future__ import annotations

import math
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.mixing import decibels
from experiments.picture import COLOURS, pyplot, save
from experiments.split_costs import members
from experiments.splitting.report import proof
from experiments.units import tick
from partition.search import crossing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.splitting.request import Request
    from experiments.splitting.search import Found, Rival
    from experiments.splitting.sensitivity import Sensitivity
    from experiments.splitting.verify import Verified
    from partition.search import Solution

_DASHES: Final = ("-", "--", ":", "-.")
_UNITS: Final = {"latency": "s", "energy": "J", "memory": "B", "period": "s"}
_NAMES: Final = {
    "latency": "latency",
    "energy": "energy per inference",
    "memory": "peak memory of a segment",
    "period": "time between results",
}
_FIELDS: Final = {"latency": "latency_s", "energy": "energy_j", "memory": "memory_bytes", "period": "period_s"}
_WIDE_RATIO: Final = 6.0
_FAR: Final = 4.0  # times the largest value of the plans
_STRIPS: Final = 8
_MANY_POINTS: Final = 60


def draw_frontier(request: Request, found: Found, others: Sequence[Rival], verified: Sequence[Verified]) -> None:
    """Draw two objectives: plans found, usual strategies, and arrows from prediction to compiled plan.

    A third one leaves plans behind the line, which joins the best of the two drawn; error is a colour.
    """
    plt = pyplot()
    x, y = [*(o for o in request.objectives if o != "error"), "energy"][:2]
    figure, axis = plt.subplots(figsize=(8.2, 5.6), layout="constrained")
    points = sorted((_value(s, x), _value(s, y)) for s in found.solutions)
    small = len(points) > _MANY_POINTS
    axis.step(*zip(*_staircase(points), strict=True), where="post", color=COLOURS[0], lw=1.3, zorder=2)
    axis.plot(
        *zip(*points, strict=True), ls="", marker="o", ms=3 if small else 6, color=COLOURS[0], zorder=3,
        label=f"{request.options.mode} plans found ({_proved(found)})",
    )  # fmt: skip
    _draw_errors(figure, axis, found, x, y, 12 if small else 40)
    ends = [*points, *_draw_verified(axis, verified, x, y)]
    ends += _draw_rivals(axis, others, (x, y), [_FAR * max(end[i] for end in ends) for i in (0, 1)])
    for direction, objective, values in (("x", x, [p[0] for p in ends]), ("y", y, [p[1] for p in ends])):
        _scale(axis, direction, values, objective)
    axis.set_title(f"{request.graph.name} on {request.device.title}", fontsize=10, loc="left")
    axis.margins(x=0.12)
    axis.legend(fontsize=7.5, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    unranked = sum(v.row is not None and v.row.status in {"misplaced", "uncalibrated"} for v in verified)
    left_out = f" {unranked} verified plans are not drawn, for the reasons in verified.csv." if unranked else ""
    costs = "compiled segments" if found.lazy else ("costs given" if request.options.costs else "modelled costs")
    caption = (
        f"{proof(found)} Plans on {costs}; strategies on modelled costs, run one segment after the other, in brackets"
        f" their gap to that exact frontier.{left_out}"
    )
    _caption(figure, caption, 110)
    save(figure, request.folder / "frontier")


def _staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep of sorted points those that none before is below."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def _draw_errors(figure: Figure, axis: Axes, found: Found, x: str, y: str, size: float) -> None:
    """Colour each plan by the signal-to-noise ratio predicted for its outputs; one without int8 has no noise."""
    known = [(s, decibels(s.error) or 0.0) for s in found.solutions if s.error is not None]
    if not known:
        return
    finite = [db for _, db in known if math.isfinite(db)]
    most = max(finite, default=0.0)
    marks = axis.scatter(
        [_value(s, x) for s, _ in known], [_value(s, y) for s, _ in known], c=[min(db, most) for _, db in known],
        s=size, cmap="viridis", zorder=3.5,
    )  # fmt: skip
    bar = figure.colorbar(marks, ax=axis, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    bar.set_label("predicted SQNR of the outputs, dB (plans without int8 as the highest)", fontsize=7.5)
    bar.ax.tick_params(labelsize=7)


def _proved(found: Found) -> str:
    return "exact" if found.gap_ratio == 0 else f"within {found.gap_ratio:.2%}"


def _value(solution: Solution, objective: str) -> float:
    value = getattr(solution, _FIELDS[objective])
    assert value is not None, "an objective is tracked by the search"
    return float(value)


def _draw_rivals(
    axis: Axes, others: Sequence[Rival], objectives: tuple[str, str], far: Sequence[float]
) -> list[tuple[float, float]]:
    """Mark each strategy that has both objectives; one beyond `far` would flatten the rest and is named only."""
    drawn: list[tuple[float, float]] = []
    shapes = "sD^v<>pPX*hd"
    for number, rival in enumerate(others):
        point = _both(rival, *objectives)
        if point is None:
            continue
        outside = point[0] > far[0] or point[1] > far[1]
        drawn += [] if outside else [point]
        axis.plot(
            *((), ()) if outside else point, ls="", marker=shapes[number % len(shapes)], ms=7, markerfacecolor="none",
            color=COLOURS[1 + number % (len(COLOURS) - 1)], zorder=4,
            label=f"{rival.name} ({rival.front_gap_ratio:+.1%}{', outside' if outside else ''})",
        )  # fmt: skip
    return drawn


def _draw_verified(axis: Axes, verified: Sequence[Verified], x: str, y: str) -> list[tuple[float, float]]:
    drawn: list[tuple[float, float]] = []
    for one in verified:
        start, end = _both(one.chosen, x, y), _both(one, x, y)
        if start is None or end is None or one.row is None or one.row.status != "ok":
            continue
        label = "cut, compiled and stitched (arrow from the prediction)" if not drawn else None
        axis.annotate(
            "", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": "#444444", "lw": 0.8}, zorder=4
        )
        axis.plot(*end, ls="", marker="o", ms=9, color="#444444", markerfacecolor="none", zorder=5, label=label)
        axis.annotate(one.chosen.name, end, xytext=(0, 0), textcoords="offset points", fontsize=7, color="#444444")
        drawn.append(end)
    return drawn


def _both(thing: object, x: str, y: str) -> tuple[float, float] | None:
    """Return the two objectives of a plan, None when one is not known of it."""
    first, second = (getattr(thing, _FIELDS[objective], None) for objective in (x, y))
    return None if first is None or second is None else (float(first), float(second))


def draw_cuts(request: Request, found: Found) -> None:
    """Draw the bytes that a cut at each position would hand over, and under it the plans as coloured strips."""
    plt = pyplot()
    problem = request.operators
    position = {m: i for i, name in enumerate(problem.nodes) for m in members(problem, [name])}
    shown = _chosen_strips(found)
    figure, (top, strips) = plt.subplots(
        2, 1, sharex=True, figsize=(9.5, 3.4 + 0.38 * len(shown)), layout="constrained",
        gridspec_kw={"height_ratios": [2.2, 0.6 + 0.38 * len(shown)]},
    )  # fmt: skip
    handed, _ = crossing(problem)
    top.fill_between(np.arange(len(handed)), handed, step="mid", color="#bbbbbb", lw=0)
    _scale(top, "y", [float(size) for size in handed if size], "memory", log=False)
    top.set_ylabel("bytes crossing a cut", fontsize=8)
    colours = {place: COLOURS[i % len(COLOURS)] for i, place in enumerate(request.places)}
    for row, (number, solution) in enumerate(shown):
        for piece in solution.segments:
            inside = sorted({position[m] for m in piece.nodes})
            strips.broken_barh(_runs(inside), (row - 0.36, 0.72), color=colours[piece.place], lw=0)
        _mark_cuts(top, strips, solution, position, row)
        strips.text(
            -0.01, row, f"plan {number}", transform=strips.get_yaxis_transform(), ha="right", va="center", fontsize=7.5
        )
    strips.set(ylim=(len(shown) - 0.4, -0.6), yticks=[], xlim=(0, len(problem.nodes)))
    strips.tick_params(labelsize=8)
    strips.set_xlabel("operators in topological order", fontsize=8)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour, label=str(place)) for place, colour in colours.items()]
    top.legend(handles=handles, fontsize=8, frameon=False, ncols=len(handles), loc="lower right", bbox_to_anchor=(1, 1))
    top.set_title(f"{request.graph.name}: where plans are cut", fontsize=10, loc="left")
    _caption(figure, f"Plans of {request.options.mode} execution, fastest first. {proof(found)}", 130)
    save(figure, request.folder / "cuts")


def _chosen_strips(found: Found) -> list[tuple[int, Solution]]:
    """Choose the plans to show: all when few, else evenly along the frontier."""
    last = len(found.solutions) - 1
    count = min(_STRIPS, last + 1)
    numbers = sorted({round(i * last / max(count - 1, 1)) for i in range(count)})
    return [(number + 1, found.solutions[number]) for number in numbers]


def _runs(positions: Sequence[int]) -> list[tuple[float, float]]:
    """Join consecutive positions to (start, width)."""
    runs: list[list[int]] = []
    for p in positions:
        if runs and runs[-1][1] == p:
            runs[-1][1] += 1
        else:
            runs.append([p, p + 1])
    return [(start, stop - start) for start, stop in runs]


def _mark_cuts(top: Axes, strips: Axes, solution: Solution, position: dict[str, int], row: int) -> None:
    """Draw a line at every border between places in the operator order."""
    place = {position[m]: piece.place for piece in solution.segments for m in piece.nodes}
    order = sorted(place)
    for before, after in pairwise(order):
        if place[before] != place[after]:
            strips.plot([after, after], [row - 0.36, row + 0.36], color="black", lw=0.8)
            top.axvline(after, color="#444444", lw=0.4, alpha=0.5)


def draw_sensitivity(request: Request, found: Sensitivity) -> None:
    """Draw latency and bytes moved against the position of a single cut, and both by granularity (R7)."""
    plt = pyplot()
    figure, axes = plt.subplots(
        2, 2, figsize=(12, 6.4), layout="constrained", gridspec_kw={"width_ratios": [1.7, 1]}, sharex="col"
    )
    _draw_positions(axes[0][0], found, lambda cut: cut.latency_s, "latency")
    _draw_positions(axes[1][0], found, lambda cut: cut.moved_bytes, "memory")
    axes[0][0].set_ylabel("latency with one cut", fontsize=8)
    axes[1][0].set_ylabel("bytes moved", fontsize=8)
    axes[1][0].tick_params(labelsize=8)
    axes[1][0].set_xlabel("operators before the cut, in topological order", fontsize=8)
    if found.cuts:
        axes[0][0].legend(fontsize=7.5, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    names = [g.name for g in found.granularities]
    for axis, values, unit in (
        (axes[0][1], [g.latency_s for g in found.granularities], "s"),
        (axes[1][1], [float(g.moved_bytes) for g in found.granularities], "B"),
    ):
        _bars(axis, values, unit)
    axes[1][1].set_xticks(range(len(names)), ["\n".join(textwrap.wrap(n, 14)) for n in names], fontsize=6.5)
    axes[0][1].set_title("fastest plan of each way to cut", fontsize=9)
    costs = "costs given" if request.options.costs else "modelled costs"
    figure.suptitle(f"{request.graph.name} on {request.device.title}: what the place of the cut does", fontsize=11)
    _caption(
        figure, f"Sequential execution on {costs}; a gap in a line is a cut that a refusal or a pin excludes.", 160
    )
    save(figure, request.folder / "sensitivity")


def _draw_positions(axis: Axes, found: Sensitivity, what: Callable[[Any], float], objective: str) -> None:
    pairs = list(dict.fromkeys((cut.first, cut.second) for cut in found.cuts))
    values = [float(what(cut)) for cut in found.cuts]
    for number, pair in enumerate(pairs):
        cuts = [cut for cut in found.cuts if (cut.first, cut.second) == pair]
        colour, dash = COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]
        known = {cut.position: float(what(cut)) for cut in cuts}
        span = range(min(known), max(known) + 1)
        axis.plot(span, [known.get(p, np.nan) for p in span], color=colour, ls=dash, lw=0.8,
                  label=f"{pair[0]}, then {pair[1]}")  # fmt: skip
        borders = [p for p in known if p in found.border_positions]
        single = [p for p in known if p in found.single_positions]
        axis.plot(borders, [known[p] for p in borders], ls="", marker="o", ms=3.5, color=colour,
                  label="at the border of a fused group" if number == 0 else None)  # fmt: skip
        axis.plot(single, [known[p] for p in single], ls="", marker="|", ms=9, color="black", mew=0.7, zorder=1,
                  label="where one tensor crosses" if number == 0 else None)  # fmt: skip
    if values:
        _scale(axis, "y", [v for v in values if v > 0], objective)
    else:
        axis.text(0.5, 0.5, "no plan with one cut: pins or refusals exclude it", transform=axis.transAxes, ha="center")


def _bars(axis: Axes, values: Sequence[float], unit: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.bar(range(len(values)), values, color=COLOURS[0], width=0.6)
    for place, v in enumerate(values):  # texts stay above their bars, where annotations of points would be moved
        axis.text(place, v, tick(v, unit), fontsize=7, ha="center", va="bottom")
    axis.tick_params(labelsize=7)
    axis.margins(y=0.15)
    if min(values, default=0) > 0 and max(values) / min(values) > _WIDE_RATIO:
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter("")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: tick(v, unit)))


def _scale(axis: Axes, direction: str, values: Sequence[float], objective: str, *, log: bool | None = None) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    target = axis.xaxis if direction == "x" else axis.yaxis
    positive = [v for v in values if v > 0]
    wide = bool(positive) and len(positive) == len(values) and max(positive) / min(positive) > _WIDE_RATIO
    if wide if log is None else log:
        axis.set(**{f"{direction}scale": "log"})
        target.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        target.set_minor_locator(NullLocator())
    target.set_major_formatter(FuncFormatter(lambda v, _: tick(v, _UNITS[objective])))
    target.set_tick_params(labelsize=8)
    axis.grid(visible=True, color="#dddddd", lw=0.5)
    axis.set_axisbelow(True)
    if direction == "x" or not axis.get_ylabel():
        target.set_label_text(_NAMES[objective], fontsize=8)


def _caption(figure: Figure, text: str, width: int) -> None:
    figure.supxlabel("\n".join(textwrap.wrap(text, width)), fontsize=7.5, color="#444444")
