"""Predicted over measured latency as a picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from experiments.calibration.validation import is_simulated, score
from experiments.picture import COLOURS, pyplot, save
from experiments.units import tick

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from experiments.calibration.validation import Prediction

_STYLES: Final = {
    True: ("chip with a simulator", COLOURS[0], "o"),
    False: ("from sibling chips", COLOURS[1], "^"),
}
_NAMED: Final = 4


def draw_scatter(predictions: Sequence[Prediction], stem: Path) -> None:
    """Draw one panel per precision to `stem`.png and `stem`.svg: measured across, predicted up."""
    plt = pyplot()

    precisions = sorted({p.row.precision for p in predictions})
    figure, axes = plt.subplots(
        1, len(precisions), figsize=(4.6 * len(precisions) + 0.4, 5.2), squeeze=False, layout="constrained"
    )
    for axis, precision in zip(axes[0], precisions, strict=True):
        _panel(axis, [p for p in predictions if p.row.precision == precision], precision)
    axes[0][0].set_ylabel("predicted latency")
    note = "measured latency; dashed lines: 10 % off; every prediction is held out by model"
    figure.supxlabel("\n".join(textwrap.wrap(note, 52 * len(precisions))), fontsize=9)
    handles = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="outside upper center",
        ncols=2,
        frameon=False,
        fontsize=9,
    )
    save(figure, stem)


def _panel(axis: Axes, predictions: Sequence[Prediction], precision: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for simulated, (label, colour, marker) in _STYLES.items():
        shown = [p for p in predictions if is_simulated(p.row.device) is simulated]
        if shown:
            measured = [p.row.latency_s for p in shown]
            predicted = [p.predicted_s for p in shown]
            axis.scatter(measured, predicted, s=16, color=colour, marker=marker, alpha=0.55, lw=0, label=label)
    values = [value for p in predictions for value in (p.row.latency_s, p.predicted_s)]
    limits = (min(values) / 1.4, max(values) * 1.4)
    for factor, style in ((1.0, "-"), (1.1, "--"), (1 / 1.1, "--")):
        axis.plot(limits, [limit * factor for limit in limits], style, color="#888888", lw=0.8, zorder=0)
    _name_worst(axis, predictions)
    found = score(predictions)
    axis.set_title(f"{precision}: median {found.median:.1f} %, p90 {found.p90:.0f} % of {found.count}", fontsize=10)
    axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        side.set_minor_locator(NullLocator())
        side.set_major_formatter(FuncFormatter(lambda value, _: tick(value, "s")))
        side.set_tick_params(labelsize=8)
    axis.tick_params(axis="x", rotation=40)


def _name_worst(axis: Axes, predictions: Sequence[Prediction]) -> None:
    """Write the names of the models that miss most, each once."""
    named: dict[str, Prediction] = {}
    for p in sorted(predictions, key=lambda p: -abs(p.error_ratio)):
        named.setdefault(p.row.model, p)
    for p in list(named.values())[:_NAMED]:
        place = (p.row.latency_s, p.predicted_s)
        axis.annotate(p.row.model, place, xytext=(0, 0), textcoords="offset points", fontsize=7, color="#333333")
