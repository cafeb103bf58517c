"""What `experiments.sustained` does: rows of a run to simulated machines, both frontiers, and who overtakes whom."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments import store
from experiments.arguments import INTERRUPTED, UserError
from experiments.console import open_console, plain_table
from experiments.evaluator.dynamics import Conditions, Cost, Machine, Result, Trace, TraceError, parse_trace, simulate
from experiments.evaluator.dynamics.assemble import DynamicsError, assemble
from experiments.evaluator.dynamics.compare import Standing, compare_runs, crossover_s, first_ahead_s
from experiments.frontier import certainly_dominated, frontier
from experiments.units import interval, joules, seconds, significant
from partition import Device, DeviceError, load_device

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

_BURST_S: Final = 60.0
_WINDOW_S: Final = 10.0
_MOST_REQUESTS: Final = 500_000
_MOST_BOUND_REQUESTS: Final = 100_000
_MARKS: Final = {"frontier": "* ", "tie": "~ ", "dominated": "  "}
_CSV_HEADER: Final = (
    "candidate", "processor", "backend", "precision", "latency_source", "energy_source", "burst_s", "burst_low_s",
    "burst_high_s", "sustained_s", "sustained_low_s", "sustained_high_s", "p50_s", "p99_s", "p999_s", "burst_j",
    "burst_low_j", "burst_high_j", "sustained_j", "sustained_low_j", "sustained_high_j", "peak_die_c",
    "peak_outer_c", "throttled_ratio", "drift_ratio", "wakes", "requests", "unfinished",
    "burst_standing", "sustained_standing",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One candidate and its simulated run; `each` inferences were simulated as one request (closed traces only).

    `bounds` are the runs at the low and at the high end of the row's latency and energy.
    """

    name: str
    row: store.Row
    result: Result
    each: int
    bounds: tuple[Run, ...] = ()

    def mean_s(self, until_s: float = math.inf) -> float | None:
        """Return the mean latency of one inference."""
        return self.result.mean_s(until_s=until_s)

    def energy_j(self, until_s: float = math.inf) -> float | None:
        """Return all energy up to a time over the inferences finished by then."""
        result = self.result
        done = int((result.finish_s <= until_s).sum()) * self.each
        spent_j = float(result.power_w[result.time_s <= until_s + 1e-9].sum() * result.step_s)
        return spent_j / done if done else None

    def spread(self, of: Callable[[Run], float | None]) -> tuple[float | None, float | None]:
        """Return the smallest and the largest value over this run and its bounds; a faster one may get hotter."""
        values = [value for run in (self, *self.bounds) if (value := of(run)) is not None]
        return (min(values), max(values)) if values else (None, None)


def run(options: argparse.Namespace) -> int:
    """Do the whole job and return the exit code.

    Raises:
        UserError: arguments, model or trace cannot be used.
    """
    console = open_console()
    horizon_s = 60.0 * options.minutes
    try:
        device = load_device(options.device)
        trace = parse_trace(options.trace, horizon_s, options.seed)
    except (DeviceError, TraceError) as error:
        raise UserError(str(error)) from error
    folder, rows = evaluated_rows(options, device)
    conditions = Conditions(
        ambient_c=options.ambient, supply=options.supply, altitude_m=options.altitude, policy=options.policy,
        cap=options.thermal_cap, awake=options.keep_awake,
    )  # fmt: skip
    runs, notes = simulate_all(rows, device, trace, conditions, options, console, bounds=True)
    if trace.works is not None:
        console.print("latency and energy are those of a request, however many inferences it brings", style="dim")
    if not runs:
        console.print("no candidate can be simulated; the reasons are above", style="bold")
        return 1
    if all(run.mean_s(_BURST_S) is None for run in runs):
        console.print(f"no candidate answers anything within the first minute{_first(trace)}", style="bold")
        return 1
    about = [f"{device.name}-{trace.title}-{options.minutes:g}min"]
    if conditions != Conditions():
        about.append(conditions.text())
    out = folder / "sustained" / re.sub(r"[^\w.-]+", "_", " ".join(about))
    store.open_run(out)
    _report(runs, notes, device, conditions, out, console)
    maps = ""
    if options.heat_map:
        from experiments.heat_map import draw_heat_maps, fastest_of_each

        best = fastest_of_each(runs)
        ends = [_bounds(run.row) for run in best]
        maps = draw_heat_maps(best, ends, options.heat_map, device, conditions, options.seed, out, console)
    console.print(f"\nwrote {maps}sustained.png, sustained.svg, sustained.csv and assumptions.json to {out}")
    return 0


def _first(trace: Trace) -> str:
    """Say when the first request comes, where that is why nothing is answered."""
    if trace.arrivals_s is None or trace.arrivals_s[0] < _BURST_S:
        return ""
    return f": the first request comes after {seconds(float(trace.arrivals_s[0]))}; let the trace begin at 0"


class NothingUsableError(RuntimeError):
    """The model was evaluated, and no candidate came to a cost; the message names the run."""


def evaluated_rows(options: argparse.Namespace, device: Device) -> tuple[Path, tuple[store.Row, ...]]:
    """Return the folder of the run and its rows on the device with a cost, evaluating first when it is not a folder.

    Raises:
        UserError: the model cannot be evaluated, or the folder given has no usable candidate.
        NothingUsableError: no candidate came to a cost.
    """
    folder = Path(options.model)
    given = (folder / store.OUTCOMES_FILE).is_file()
    if not given:
        folder = _evaluate(options)
    known = {row.plan_digest: row for row in store.read_rows(folder).values()}
    rows = tuple(row for row in known.values() if row.device == device.name and row.status != "failed")
    if not any(row.status == "ok" for row in rows):
        devices = ", ".join(sorted({row.device for row in known.values()})) or "none"
        kind = UserError if given else NothingUsableError
        raise kind(f"{folder} has no usable candidate on {device.name} (it has devices: {devices})")
    return folder, rows


def _evaluate(options: argparse.Namespace) -> Path:
    from experiments.job import Options
    from experiments.job import run as evaluate

    asked = Options(
        model=options.model, devices=(options.device,), backends=tuple(filter(None, options.backends.split(","))),
        precisions=tuple(options.precisions.split(",")), splits=1, objectives=("latency", "energy"), out=options.out,
        seed=options.seed, jobs=1, bindings=tuple(options.bindings), calibration=None, time_limit=600,
    )  # fmt: skip
    code, folder = evaluate(asked, ["(experiments.sustained)", options.model, "--device", options.device])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return folder


def simulate_all(
    rows: Sequence[store.Row],
    device: Device,
    trace: Trace,
    conditions: Conditions,
    options: argparse.Namespace,
    console: Console,
    *,
    bounds: bool = False,
) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Simulate every row that can be ranked on its machine; return the runs, fastest row first, and what was assumed.

    With `bounds` each is simulated at the ends of its intervals, too.
    """
    runs: list[Run] = []
    notes: dict[str, None] = {}
    for row in sorted(rows, key=lambda r: r.latency_s or 0.0):
        if row.status != "ok":
            console.print(f"left out: {_name(row)}: {row.reason}", style="yellow")
            continue
        try:
            found, assumptions = _simulated(row, device, trace, conditions, options, bounds=bounds)
        except DynamicsError as error:
            console.print(f"left out: {error}", style="yellow")
            continue
        runs.append(found)
        notes.update(dict.fromkeys(assumptions))
        console.print(f"simulated {found.name}: {found.result.requests * found.each} inferences", style="dim")
    return tuple(runs), tuple(notes)


def _name(row: store.Row) -> str:
    return " ".join(filter(None, [row.backend, row.processor, row.precision, row.options]))


def _simulated(
    row: store.Row, device: Device, trace: Trace, conditions: Conditions, options: argparse.Namespace, *, bounds: bool
) -> tuple[Run, tuple[str, ...]]:
    name = _name(row)
    horizon_s = 60.0 * options.minutes
    around = conditions.surroundings(horizon_s)

    def one(variant: store.Row, most: int) -> tuple[Run, tuple[str, ...]]:
        made = assemble(device, variant)
        each = _each(made.machine, trace, horizon_s, most)
        machine = conditions.applied(_grouped(made.machine, each))
        result = simulate(machine, trace, horizon_s=horizon_s, surroundings=around, seed=options.seed)
        return Run(name=name, row=variant, result=_per_inference(result, each), each=each), made.assumptions

    typical, assumptions = one(row, _MOST_REQUESTS)
    ends = _bounds(row) if bounds else ()
    return dataclasses.replace(typical, bounds=tuple(one(end, _MOST_BOUND_REQUESTS)[0] for end in ends)), assumptions


def _bounds(row: store.Row) -> tuple[store.Row, ...]:
    """Return the row at the low and at the high end of its latency and energy; all its parts move alike."""
    assert row.latency_s, "a row without a latency was left out before"
    assert row.energy_j, "a row without an energy was left out before"
    ends = ((row.latency_low_s, row.energy_low_j), (row.latency_high_s, row.energy_high_j))
    return tuple(
        _scaled(row, (row.latency_s if latency_s is None else latency_s) / row.latency_s,
                (row.energy_j if energy_j is None else energy_j) / row.energy_j)
        for latency_s, energy_j in ends
    )  # fmt: skip


def _scaled(row: store.Row, latency_ratio: float, energy_ratio: float) -> store.Row:
    def energies(parts: Mapping[str, float] | None) -> Mapping[str, float] | None:
        return parts and {cause: joules * energy_ratio for cause, joules in parts.items()}

    segments_s, segments_j = row.segment_latency_s, row.segment_energy_parts_j
    return dataclasses.replace(
        row,
        latency_s=(row.latency_s or 0.0) * latency_ratio,
        energy_j=(row.energy_j or 0.0) * energy_ratio,
        energy_parts_j=energies(row.energy_parts_j),
        segment_latency_s=segments_s and tuple(seconds * latency_ratio for seconds in segments_s),
        segment_energy_parts_j=segments_j and tuple(map(energies, segments_j)),
    )


def _each(machine: Machine, trace: Trace, horizon_s: float, most: int) -> int:
    """Return how many inferences of a closed trace to simulate as one, so that a run keeps to so many requests."""
    if trace.arrivals_s is not None:
        return 1
    return max(1, math.ceil(horizon_s / machine.whole_cost().latency_s() / most))


def _grouped(machine: Machine, each: int) -> Machine:
    others = tuple(dataclasses.replace(part, cost=_times(part.cost, each)) for part in machine.others)
    return dataclasses.replace(machine, cost=_times(machine.cost, each), others=others)


def _times(cost: Cost, each: int) -> Cost:
    return Cost(
        compute_s=cost.compute_s * each, fixed_s=cost.fixed_s * each, compute_j=cost.compute_j * each,
        memory_j=cost.memory_j * each, static_w=cost.static_w,
    )  # fmt: skip


def _per_inference(result: Result, each: int) -> Result:
    return dataclasses.replace(result, latency_s=result.latency_s / each) if each > 1 else result


def _report(
    runs: Sequence[Run], notes: Sequence[str], device: Device, conditions: Conditions, out: Path, console: Console
) -> None:
    from experiments.sustained_plot import draw_sustained

    answered = [run for run in runs if run.mean_s(_BURST_S) is not None]
    lines = _lines(answered)
    standing = compare_runs({run.name: run.result for run in answered}) if len(answered) > 1 else None
    console.print(f"\n{runs[0].row.model} on {device.title}, {runs[0].result.title}, {conditions.text()}", style="bold")
    _print_table(lines, console)
    for run in runs:
        if run not in answered:
            console.print(f"{run.name} answered nothing within the first minute", style="yellow")
        if not run.result.keeps_up:
            share = run.result.unfinished / (run.result.unfinished + run.result.requests)
            console.print(
                f"{run.name} cannot keep up: {share:.0%} of the requests are not answered",
                style="yellow",
            )
    if standing is not None:
        _print_standing(standing, answered, console)
    if notes:
        console.print("assumed, because the device file does not say:", style="bold")
        for note in notes:
            console.print(f"  {note}")
    store.write_csv(out / "sustained.csv", _CSV_HEADER, lines)
    store.write_json(out / "assumptions.json", list(notes))
    draw_sustained(answered, lines, standing, device, conditions, out / "sustained")


def _lines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    lines = [_line(run) for run in runs]
    for when in ("burst", "sustained"):
        cube = np.array(
            [[[line[f"{when}{end}_{unit}"] for unit in "sj"] for end in ("", "_low", "_high")] for line in lines]
        ).reshape(-1, 3, 2)
        on, beaten = frontier(cube[:, 0]), certainly_dominated(cube[:, 1], cube[:, 2])
        for line, is_on, is_beaten in zip(lines, on, beaten, strict=True):
            line[f"{when}_standing"] = "frontier" if is_on else "dominated" if is_beaten else "tie"
    return lines


def _line(run: Run) -> dict[str, Any]:
    result = run.result
    line: dict[str, Any] = {
        "candidate": run.name,
        "processor": run.row.processor,
        "backend": run.row.backend,
        "precision": run.row.precision,
        "latency_source": run.row.latency_source,
        "energy_source": run.row.energy_source,
        "p50_s": result.quantile_s(0.5),
        "p99_s": result.quantile_s(0.99),
        "p999_s": result.quantile_s(0.999),
        "peak_die_c": float(result.temperatures_c[:, 0].max()),
        "peak_outer_c": float(result.temperatures_c[:, -1].max()),
        "throttled_ratio": result.throttled_ratio,
        "drift_ratio": result.drift_ratio(),
        "wakes": result.wakes,
        "requests": result.requests * run.each,
        "unfinished": result.unfinished,
    }
    for when, until_s in (("burst", _BURST_S), ("sustained", math.inf)):
        line[f"{when}_s"], line[f"{when}_j"] = run.mean_s(until_s), run.energy_j(until_s)
        line[f"{when}_low_s"], line[f"{when}_high_s"] = run.spread(lambda r, t=until_s: r.mean_s(t))  # type: ignore[misc]
        line[f"{when}_low_j"], line[f"{when}_high_j"] = run.spread(lambda r, t=until_s: r.energy_j(t))  # type: ignore[misc]
    return line


def _print_table(lines: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = plain_table(
        "candidate", "first minute", "all of it", "p99", "p99.9", "energy, 1st min", "energy", "die", "outer",
        "held back", "drift", no_wrap=True,
    )  # fmt: skip
    for line in lines:
        marks = [_MARKS[line[f"{when}_standing"]] for when in ("burst", "sustained")]
        table.add_row(
            line["candidate"],
            marks[0] + _bounded(line, "burst", "s"),
            marks[1] + _bounded(line, "sustained", "s"),
            seconds(line["p99_s"]),
            seconds(line["p999_s"]),
            _bounded(line, "burst", "j"),
            _bounded(line, "sustained", "j"),
            f"{significant(line['peak_die_c'])} degC",
            f"{significant(line['peak_outer_c'])} degC",
            f"{line['throttled_ratio']:.0%}",
            _drift(line["drift_ratio"]),
        )
    console.print(table)
    console.print(
        "* on the frontier of mean latency and energy   ~ cannot be told from it   energy counts idling too; all of it"
        " is simulated, with the intervals of the rows' latency and energy",
        style="dim",
    )


def _drift(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio - 1.0:+.1%}" if ratio < 2.0 else f"{significant(ratio)} times"


def _bounded(line: Mapping[str, Any], when: str, unit: str) -> str:
    write = seconds if unit == "s" else joules
    return interval(*(write(line[f"{when}{end}_{unit}"]) for end in ("", "_low", "_high")))


def _print_standing(standing: Standing, runs: Sequence[Run], console: Console) -> None:
    first, last = standing.burst_winner, standing.sustained_winner
    if first == last:
        console.print(f"{first} is fastest in the first minute and over the whole run")
    else:
        when = _when(standing, {run.name: run.result for run in runs})
        console.print(f"fastest in the first minute: {first}; over all of it: {last}, {when}")
    for name, until_s, what in ((first, _BURST_S, "in the first minute"), (last, math.inf, "over all of it")):
        tied = _tied(runs, name, until_s)
        if tied:
            console.print(f"by the intervals a tie with {name} {what}: {', '.join(tied)}")
    for text in _overtakings(runs):
        console.print(f"  {text}")


def _tied(runs: Sequence[Run], winner: str, until_s: float) -> list[str]:
    """List who may be as fast as the winner: the intervals overlap."""
    spreads = {run.name: run.spread(lambda r: r.mean_s(until_s)) for run in runs}
    highest = spreads[winner][1]
    return [
        name
        for name, (low, _) in spreads.items()
        if name != winner and low is not None and highest is not None and low <= highest
    ]


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
                found.append((when, f"{behind.name} overtakes {ahead.name} at minute {when / 60:.3g}", ahead, behind))
    return [f"{text}{_certainty(ahead, behind)}" for _, text, ahead, behind in sorted(found, key=lambda f: f[0])[:5]]


def _certainty(ahead: Run, behind: Run) -> str:
    """Say between which minutes they cross wherever in their intervals both are, or that they may not cross at all."""
    if not ahead.bounds:
        return ""
    pairs = itertools.product((ahead, *ahead.bounds), (behind, *behind.bounds))
    times = [crossover_s(a.result, b.result, _WINDOW_S) for a, b in pairs]
    if any(when is None or when < _BURST_S for when in times):
        return "; elsewhere in their intervals they do not cross: a tie"
    known = [when / 60 for when in times if when is not None]
    return f" ({min(known):.3g} to {max(known):.3g}, anywhere in their intervals)"
