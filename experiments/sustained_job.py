"""What `experiments.sustained` does: rows of a run to simulated machines, both frontiers, and who overtakes whom."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments import store
from experiments.evaluator.dynamics import Cost, Machine, Result, Surroundings, Trace, TraceError, parse_trace, simulate
from experiments.evaluator.dynamics.assemble import DynamicsError, assemble
from experiments.evaluator.dynamics.compare import Standing, compare_runs, crossover_s, first_ahead_s
from experiments.frontier import frontier
from experiments.units import joules, seconds, significant
from partition import Device, DeviceError, load_device

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from rich.console import Console

_BURST_S: Final = 60.0
_WINDOW_S: Final = 10.0
_MOST_REQUESTS: Final = 500_000
_CSV_HEADER: Final = (
    "candidate", "processor", "backend", "precision", "latency_source", "burst_s", "sustained_s", "p50_s", "p99_s",
    "p999_s", "burst_j", "sustained_j", "peak_die_c", "peak_outer_c", "throttled_ratio", "wakes", "requests",
    "unfinished",
    "burst_standing", "sustained_standing",
)  # fmt: skip


class SustainedError(ValueError):
    """Something the user can mend; the message says what and how."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One candidate and its simulated run; `each` inferences were simulated as one request (closed traces only)."""

    name: str
    row: store.Row
    result: Result
    each: int

    def mean_s(self, until_s: float = math.inf) -> float | None:
        """Return the mean latency of one inference."""
        return self.result.mean_s(until_s=until_s)

    def energy_j(self, until_s: float = math.inf) -> float | None:
        """Return all energy up to a time over the inferences finished by then."""
        result = self.result
        done = int((result.finish_s <= until_s).sum()) * self.each
        spent_j = float(result.power_w[result.time_s <= until_s + 1e-9].sum() * result.step_s)
        return spent_j / done if done else None


def run(options: argparse.Namespace) -> int:
    """Do the whole job and return the exit code.

    Raises:
        SustainedError: arguments, model or trace cannot be used.
    """
    from rich.console import Console

    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 240)
    horizon_s = 60.0 * options.minutes
    try:
        device = load_device(options.device)
        trace = parse_trace(options.trace, horizon_s, options.seed)
    except (DeviceError, TraceError) as error:
        raise SustainedError(str(error)) from error
    folder, rows = evaluated_rows(options, device)
    runs, notes = simulate_all(rows, device, trace, options, console)
    if not runs:
        console.print("no candidate can be simulated; the reasons are above", style="bold")
        return 1
    out = folder / "sustained" / re.sub(r"[^\w.-]+", "_", f"{device.name}-{trace.title}-{options.minutes:g}min")
    store.open_run(out)
    _report(runs, notes, device, out, console)
    return 0


def evaluated_rows(options: argparse.Namespace, device: Device) -> tuple[Path, tuple[store.Row, ...]]:
    """Return the folder of the run and its usable rows on the device, evaluating first when it is not a folder.

    Raises:
        SustainedError: the model cannot be evaluated, or there is no usable candidate.
    """
    folder = Path(options.model)
    if not (folder / store.OUTCOMES_FILE).is_file():
        folder = _evaluate(options)
    known = {row.plan_digest: row for row in store.read_rows(folder).values()}
    rows = tuple(row for row in known.values() if row.device == device.name and row.status == "ok")
    if not rows:
        devices = ", ".join(sorted({row.device for row in known.values()})) or "none"
        raise SustainedError(f"{folder} has no usable candidate on {device.name} (it has devices: {devices})")
    return folder, rows


def _evaluate(options: argparse.Namespace) -> Path:
    from experiments.job import Options, UserError, results_folder
    from experiments.job import run as evaluate

    asked = Options(
        model=options.model, devices=(options.device,), backends=tuple(filter(None, options.backends.split(","))),
        precisions=tuple(options.precisions.split(",")), splits=1, objectives=("latency", "energy"), out=options.out,
        seed=options.seed, jobs=1, bindings=(), calibration=None, time_limit=600,
    )  # fmt: skip
    try:
        evaluate(asked, ["(experiments.sustained)", options.model, "--device", options.device])
        return results_folder(asked)
    except UserError as error:
        raise SustainedError(str(error)) from error


def simulate_all(
    rows: Sequence[store.Row], device: Device, trace: Trace, options: argparse.Namespace, console: Console
) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Simulate every row on its machine; return the runs, fastest row first, and what was assumed."""
    runs: list[Run] = []
    notes: dict[str, None] = {}
    around = Surroundings(
        ambient_c=((0.0, options.ambient),), supply=((0.0, options.supply),), altitude_m=options.altitude
    )
    for row in sorted(rows, key=lambda r: r.latency_s or 0.0):
        name = " ".join(filter(None, [row.backend, row.processor, row.precision, row.options]))
        try:
            made = assemble(device, row, policy=options.policy)
        except DynamicsError as error:
            console.print(f"left out: {error}", style="yellow", highlight=False, markup=False)
            continue
        each = _each(made.machine, trace, 60.0 * options.minutes)
        result = simulate(
            _grouped(made.machine, each), trace, horizon_s=60.0 * options.minutes, surroundings=around,
            seed=options.seed,
        )  # fmt: skip
        runs.append(Run(name=name, row=row, result=_per_inference(result, each), each=each))
        notes.update(dict.fromkeys(made.assumptions))
        console.print(f"simulated {name}: {result.requests * each} inferences", style="dim", highlight=False)
    return tuple(runs), tuple(notes)


def _each(machine: Machine, trace: Trace, horizon_s: float) -> int:
    """Return how many inferences of a closed trace to simulate as one, so that a run keeps to half a million."""
    if trace.arrivals_s is not None:
        return 1
    return max(1, math.ceil(horizon_s / machine.cost.latency_s() / _MOST_REQUESTS))


def _grouped(machine: Machine, each: int) -> Machine:
    cost = machine.cost
    grouped = Cost(
        compute_s=cost.compute_s * each, fixed_s=cost.fixed_s * each, compute_j=cost.compute_j * each,
        memory_j=cost.memory_j * each, static_w=cost.static_w,
    )  # fmt: skip
    return dataclasses.replace(machine, cost=grouped)


def _per_inference(result: Result, each: int) -> Result:
    return dataclasses.replace(result, latency_s=result.latency_s / each) if each > 1 else result


def _report(runs: Sequence[Run], notes: Sequence[str], device: Device, out: Path, console: Console) -> None:
    from experiments.sustained_plot import draw_sustained

    answered = [run for run in runs if run.mean_s(_BURST_S) is not None]
    lines = _lines(answered)
    standing = compare_runs({run.name: run.result for run in answered}) if len(answered) > 1 else None
    _print_table(lines, console)
    for run in runs:
        if run not in answered:
            console.print(f"{run.name} answered nothing within the first minute", style="yellow", highlight=False)
        if run.result.unfinished > 1:
            share = run.result.unfinished / (run.result.unfinished + run.result.requests)
            console.print(
                f"{run.name} cannot keep up: {share:.0%} of the requests are not answered",
                style="yellow",
                highlight=False,
            )
    if standing is not None:
        _print_standing(standing, answered, console)
    if notes:
        console.print("assumed, because the device file does not say:", style="bold")
        for note in notes:
            console.print(f"  {note}", highlight=False, markup=False)
    store.write_csv(out / "sustained.csv", _CSV_HEADER, lines)
    store.write_json(out / "assumptions.json", list(notes))
    draw_sustained(answered, lines, standing, device, out / "sustained")
    console.print(f"\nwrote sustained.png, sustained.svg, sustained.csv and assumptions.json to {out}")


def _lines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    lines = [_line(run) for run in runs]
    for when in ("burst", "sustained"):
        points = np.array([[line[f"{when}_s"], line[f"{when}_j"]] for line in lines]).reshape(-1, 2)
        for line, on in zip(lines, frontier(points), strict=True):
            line[f"{when}_standing"] = "frontier" if on else "dominated"
    return lines


def _line(run: Run) -> dict[str, Any]:
    result = run.result
    return {
        "candidate": run.name,
        "processor": run.row.processor,
        "backend": run.row.backend,
        "precision": run.row.precision,
        "latency_source": run.row.latency_source,
        "burst_s": run.mean_s(_BURST_S),
        "sustained_s": run.mean_s(),
        "p50_s": result.quantile_s(0.5),
        "p99_s": result.quantile_s(0.99),
        "p999_s": result.quantile_s(0.999),
        "burst_j": run.energy_j(_BURST_S),
        "sustained_j": run.energy_j(),
        "peak_die_c": float(result.temperatures_c[:, 0].max()),
        "peak_outer_c": float(result.temperatures_c[:, -1].max()),
        "throttled_ratio": result.throttled_ratio,
        "wakes": result.wakes,
        "requests": result.requests * run.each,
        "unfinished": result.unfinished,
    }


def _print_table(lines: Sequence[Mapping[str, Any]], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    headings = ("candidate", "first minute", "all of it", "p99", "p99.9", "energy, 1st min", "energy", "die", "outer",
                "held back")  # fmt: skip
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for line in lines:
        marks = ["* " if line[f"{when}_standing"] == "frontier" else "  " for when in ("burst", "sustained")]
        table.add_row(
            line["candidate"],
            marks[0] + seconds(line["burst_s"]),
            marks[1] + seconds(line["sustained_s"]),
            seconds(line["p99_s"]),
            seconds(line["p999_s"]),
            joules(line["burst_j"]),
            joules(line["sustained_j"]),
            f"{significant(line['peak_die_c'])} degC",
            f"{significant(line['peak_outer_c'])} degC",
            f"{line['throttled_ratio']:.0%}",
        )
    console.print(table)
    console.print(
        "* on the frontier of mean latency and energy; energy counts idling too; all of it is simulated", style="dim"
    )


def _print_standing(standing: Standing, runs: Sequence[Run], console: Console) -> None:
    first, last = standing.burst_winner, standing.sustained_winner
    if first == last:
        console.print(f"{first} is fastest in the first minute and over the whole run", highlight=False)
    else:
        when = _when(standing, {run.name: run.result for run in runs})
        console.print(f"fastest in the first minute: {first}; over all of it: {last}, {when}", highlight=False)
    for text in _overtakings(runs)[:5]:
        console.print(f"  {text}", highlight=False, markup=False)


def _when(standing: Standing, results: Mapping[str, Result]) -> str:
    if standing.crossover_s is not None:
        return f"ahead from minute {standing.crossover_s / 60:.3g} on"
    since_s = first_ahead_s(results[standing.burst_winner], results[standing.sustained_winner], _WINDOW_S)
    return "ahead in no window" if since_s is None else f"first ahead at minute {since_s / 60:.3g}, not for good"


def _overtakings(runs: Sequence[Run]) -> list[str]:
    """List the pairs whose order in the first minute is not their order at the end, the earliest first."""
    found = []
    ordered = sorted(runs, key=lambda run: run.mean_s(_BURST_S) or math.inf)
    for i, ahead in enumerate(ordered):
        for behind in ordered[i + 1 :]:
            when = crossover_s(ahead.result, behind.result, _WINDOW_S)
            if when is not None and when >= _BURST_S:
                found.append((when, f"{behind.name} overtakes {ahead.name} at minute {when / 60:.3g}"))
    return [text for _, text in sorted(found)]
