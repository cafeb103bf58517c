"""What `experiments.validate` does: predict every row that can be, score, draw and explain the worst."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

from experiments import store
from experiments.calibration.collect import merged, shipped, simulations, subjects_unless_stored
from experiments.calibration.command import print_refusals, read_all
from experiments.calibration.reasons import Evidence, reason, worst
from experiments.calibration.report import print_scores, print_worst
from experiments.calibration.scatter import draw_scatter
from experiments.calibration.table import RUNTIME_NAMES, Table
from experiments.calibration.training import samples
from experiments.calibration.validation import Prediction, predict
from experiments.console import open_console
from experiments.files import writing
from partition import load_calibration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import Console

    from experiments.calibration.features import Simulation

_WORST: Final = 10
_HEADER: Final = (
    "model", "precision", "device", "runtime", "measured_s", "predicted_s", "low_s", "high_s", "error_ratio",
    "by_macs_s", "by_sibling_s", "sibling", "in_fit", "borrowed", "reason",
)  # fmt: skip


def validate(
    table: Path,
    *,
    models: Sequence[str],
    calibration: Path,
    build: Path,
    out: Path,
    time_limit_s: float,
    own: Sequence[Path] = (),
) -> int:
    """Validate and return the exit code of the command.

    Raises:
        CalibrationError: the table, a model or an argument cannot be used.
        CalibrationFileError: there is no calibration.
    """
    console = open_console()
    fitted = load_calibration(calibration)
    measured = read_all(table, own)
    store.open_run(out)
    wanted, known = _covered(models, measured, calibration, build, time_limit_s, console)
    found, refused = samples(measured.rows, known)
    predictions = predict(found, known, fitted, wanted)
    _announce(measured, predictions, console)
    print_refusals({case: why for case, why in refused.items() if wanted is None or case[0] in wanted}, console)
    if not predictions:
        console.print(
            "no row of the table could be predicted: none of its models is covered, or its devices have too few and"
            " borrow, for which the table that lends goes first and own rows to --add"
        )
        return 1
    evidence = Evidence.of(measured.rows, known, predictions)
    print_scores(predictions, console)
    print_worst([(p, reason(p, evidence)) for p in worst(predictions, _WORST)], console)
    draw_scatter(predictions, out / "validation")
    _write_csv(predictions, evidence, out / "validation.csv")
    console.print(f"\nwrote validation.png, validation.svg and validation.csv to {out}")
    return 0


def _covered(
    models: Sequence[str], measured: Table, calibration: Path, build: Path, time_limit_s: float, console: Console
) -> tuple[set[str] | None, tuple[Simulation, ...]]:
    """Return the models asked for (None: all) and every simulation there is, making those that are missing."""
    stored = shipped(calibration)
    chosen = subjects_unless_stored(models, stored)
    fresh = simulations(
        chosen, measured.rows, build, time_limit_s, lambda text: console.print(text, style="dim"), stored
    )
    known = merged(stored, fresh)
    return ({subject.model for subject in chosen} if models else None), known


def _announce(measured: Table, predictions: Sequence[Prediction], console: Console) -> None:
    models = len({p.row.model for p in predictions})
    devices = len({p.row.device for p in predictions})
    console.print(
        f"{len(predictions)} of {len(measured.rows)} rows predicted: {models} models on {devices} distinct devices",
    )
    for device, names in sorted(measured.copies.items()):
        if len(names) > 1:
            console.print(f"one chip, counted once: {device} = {' = '.join(names)}", style="dim")


def _write_csv(predictions: Iterable[Prediction], evidence: Evidence, path: Path) -> None:
    with writing(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_HEADER)
        for p in predictions:
            row = p.row
            naive = [None if p.by_macs_s is None else f"{p.by_macs_s:.6g}"]
            naive += [None if p.by_sibling_s is None else f"{p.by_sibling_s:.6g}", p.sibling]
            writer.writerow(
                [row.model, row.precision, row.device, RUNTIME_NAMES[row.compiler], f"{row.latency_s:.6g}"]
                + [f"{value:.6g}" for value in (p.predicted_s, p.low_s, p.high_s, p.error_ratio)]
                + [*naive, p.in_fit, p.borrowed, reason(p, evidence)]
            )
