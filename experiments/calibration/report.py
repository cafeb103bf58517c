"""The scores of a validation as text."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.table import RUNTIME_NAMES
from experiments.calibration.validation import Score, is_simulated, score
from experiments.console import plain_table
from experiments.units import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from experiments.calibration.validation import Prediction

_HEADINGS: Final = (
    "models", "median", "p90", "Spearman", "within 10 %", "in interval", "MACs: median", "p90", "sibling: median",
    "p90",
)  # fmt: skip
_LEAST_ROWS: Final = 5  # below this a median of a device says nothing


def print_scores(predictions: Sequence[Prediction], console: Console) -> None:
    """Print scores by device, runtime and precision, then for chips with and without a simulator."""
    grid = plain_table()
    for heading in ("device", "runtime", "precision", *_HEADINGS):
        grid.add_column(heading, justify="left" if heading in {"device", "runtime", "precision"} else "right")
    for key, group in _grouped(predictions):
        grid.add_row(key[1], RUNTIME_NAMES[key[2]], key[0], *_cells(score(group)))
    console.print(grid)
    console.print(
        "held out by model; errors in percent. MACs: over the device's achieved throughput. sibling: the same model's"
        " measured latency on another device times a constant, which needs that other device.",
        style="dim",
    )
    for line in summary(predictions):
        console.print(line)


def summary(predictions: Sequence[Prediction]) -> list[str]:
    """Sum up by precision: all rows of the simulated chips together, and the mean over the other devices.

    Devices with few models of their own, which borrow, come by themselves and then with the others.
    """
    lines = []
    for precision in dict.fromkeys(p.row.precision for p in predictions):
        of_precision = [p for p in predictions if p.row.precision == precision]
        own = [p for p in of_precision if is_simulated(p.row.device)]
        if own:
            lines.append(f"{precision}, chips with a simulator: {_sentence(score(own))}")
        others = [p for p in of_precision if not is_simulated(p.row.device)]
        borrowed = [p for p in others if p.borrowed]
        lines += _over_devices(f"{precision}, other chips", [p for p in others if not p.borrowed])
        if borrowed:
            lines += _over_devices(f"{precision}, chips that borrow", borrowed)
            lines += _over_devices(f"{precision}, other chips and those that borrow", others)
    return lines


def _over_devices(name: str, predictions: Sequence[Prediction]) -> list[str]:
    scores = [(key, score(group)) for key, group in _grouped(predictions)]
    scores = [(key, found) for key, found in scores if found.count >= _LEAST_ROWS]
    if not scores:
        return [f"{name}: {_sentence(score(predictions))}"] if predictions else []
    devices = len({key[1] for key, _ in scores})
    means = [float(np.mean(errors)) for errors in zip(*((s.median, s.p90) for _, s in scores), strict=True)]
    over = f"mean over {devices} devices of the median {means[0]:.1f} % and of the 90th percentile {means[1]:.1f} %"
    return [f"{name}: {over}; {_sentence(score(predictions))}"]


def print_worst(misses: Iterable[tuple[Prediction, str]], console: Console) -> None:
    """Print the worst predictions with their reasons."""
    console.print("\nworst misses, the worst device of each model, precision and runtime:", style="bold")
    for p, why in misses:
        row = p.row
        console.print(
            f"  {p.error_ratio:+.0%} {row.model} {row.precision} {RUNTIME_NAMES[row.compiler]} on {row.device}: "
            f"predicted {seconds(p.predicted_s)}, measured {seconds(row.latency_s)}: {why}",
        )


def _grouped(predictions: Sequence[Prediction]) -> list[tuple[tuple[str, str, str], list[Prediction]]]:
    def key(p: Prediction) -> tuple[str, str, str]:
        return p.row.precision, p.row.device, p.row.compiler

    return [(k, list(group)) for k, group in groupby(sorted(predictions, key=key), key=key)]


def _sentence(found: Score) -> str:
    return (
        f"{found.count} rows, median {found.median:.1f} %, 90th percentile {found.p90:.1f} %, Spearman "
        f"{found.spearman:.3f}, within 10 %: {found.within_10:.0%}, in the 80 % interval: {found.covered:.0%}"
    )


def _cells(found: Score) -> list[str]:
    naive = (found.macs_median, found.macs_p90, found.sibling_median, found.sibling_p90)
    return [
        str(found.count),
        f"{found.median:.1f}",
        f"{found.p90:.1f}",
        f"{found.spearman:.3f}",
        f"{found.within_10:.0%}",
        f"{found.covered:.0%}",
        *("-" if value is None else f"{value:.1f}" for value in naive),
    ]
