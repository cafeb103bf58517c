"""What `experiments.calibrate` does: read, simulate, fit, write, and say how good it came out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments import store
from experiments.calibration.borrowing import Borrowing
from experiments.calibration.collect import SIMULATIONS_NAME, merged, shipped, simulations, subjects_unless_stored
from experiments.calibration.doubts import doubts, too_few, unused
from experiments.calibration.features import OPTIONS, write_simulations
from experiments.calibration.table import RUNTIME_NAMES, Table, read_table, rows_hash, with_own
from experiments.calibration.training import DRAM_REFERENCE, by_device, fit_all, samples, training_rows, versions
from experiments.console import open_console, plain_table
from experiments.units import counted
from partition import CalibrationSet, LatencyModel, save_calibration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from experiments.calibration.training import Sample


def calibrate(
    table: Path,
    *,
    own: Sequence[Path],
    models: Sequence[str],
    result: Path,
    build: Path,
    time_limit_s: float,
    source: str,
) -> int:
    """Calibrate and return the exit code of the command.

    Raises:
        CalibrationError: the table, a model or an argument cannot be used.
    """
    console = open_console()
    measured, stored = read_all(table, own), shipped(result)
    chosen = subjects_unless_stored(models, stored)
    store.open_run(result.parent)
    fresh = simulations(
        chosen, measured.rows, build, time_limit_s, lambda text: console.print(text, style="dim"), stored
    )
    known = merged(stored, fresh)
    found, refused = samples(measured.rows, known)
    devices = by_device(found)
    groups = devices.values()
    borrowed = Borrowing(devices).fit_all()
    fitted = (*(model for group in groups for model in fit_all(group)), *borrowed)
    print_refusals(refused, console)
    print_doubts(own, found, refused, fitted, console)
    if not fitted:
        console.print("no device has enough measured models that are simulated; nothing is written")
        return 1
    lent_to = {model.key for model in borrowed}
    used = [row for group in groups for row in training_rows(group)]
    used += [s.row for s in found if s.key in lent_to]
    calibration = CalibrationSet(
        models=fitted,
        options=dict(OPTIONS),
        dram_reference=DRAM_REFERENCE,
        trained_on=tuple(sorted({row.model for row in used})),
        rows_hash=rows_hash(used),
        rows=len(used),
        versions=versions(),
        source=source,
    )
    save_calibration(calibration, result)
    write_simulations(known, result.with_name(SIMULATIONS_NAME))
    print_fits(fitted, console)
    console.print(f"\nwrote {result}: {len(fitted)} latency models from {len(used)} rows")
    return 0


def read_all(table: Path, own: Sequence[Path]) -> Table:
    """Read the table and the user's own measurements, which go before."""
    measured = read_table(table)
    for path in own:
        measured = with_own(measured, read_table(path))
    return measured


def print_refusals(refused: Mapping[tuple[str, str, str], str], console: Console) -> None:
    """Say which simulated models take no part, and why."""
    for (model, precision, compiler), reason in sorted(refused.items()):
        console.print(
            f"left out: {model} {precision} {RUNTIME_NAMES[compiler]}: {reason}",
            style="yellow",
        )


def print_doubts(
    own: Sequence[Path],
    found: Sequence[Sample],
    refused: Mapping[tuple[str, str, str], str],
    fitted: Sequence[LatencyModel],
    console: Console,
) -> None:
    """Say what became of own rows that teach nothing, and what has too few to predict."""
    tables = {path.name: read_table(path) for path in own}
    for name, read in tables.items():
        for why, count in read.left_out.items():
            console.print(f"{name}: left out {counted(count, 'row')}: {why}", style="yellow")
    own_rows = tuple(row for read in tables.values() for row in read.rows)
    for sentence in (*unused(own_rows, found, refused), *doubts(own_rows, found), *too_few(found, fitted)):
        console.print(sentence, style="yellow")


def print_fits(fitted: Sequence[LatencyModel], console: Console) -> None:
    """Print one line per latency model with its held-out errors."""
    headings = ("device", "runtime", "precision", "from", "models", "median", "90th percentile", "80 % interval")
    grid = plain_table(*headings, "where costs lack", "borrowed from")
    for model in fitted:
        grid.add_row(
            model.device,
            RUNTIME_NAMES[model.compiler],
            model.precision,
            ", ".join(model.references),
            str(model.models),
            f"{model.error_median:.1%}",
            f"{model.error_p90:.1%}",
            f"{model.low_ratio:.2f} to {model.high_ratio:.2f} times",
            "{:.2f} to {:.2f}".format(*model.uncosted_ratios) if model.uncosted_ratios else "",
            ", ".join(model.lenders),
        )
    console.print(grid)
    console.print(
        "errors on models kept out of the fit, one at a time; of a borrowed fit on other chips, cut to as few models",
        style="dim",
    )
