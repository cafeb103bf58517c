"""What `experiments.pareto` does, step by step: load, propose, compile, evaluate, store, draw."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

from compilers import Artefact, CompilerError, Limits, UnknownBackendError, cancel_children
from experiments import store
from experiments.arguments import INTERRUPTED, UserError
from experiments.candidates import (
    Candidate,
    feed_file,
    inapplicable,
    known_backends,
    see_options,
    splits,
    whole_graph,
)
from experiments.console import Progress, open_console
from experiments.environment import environment
from experiments.evaluator import (
    Context,
    Evaluation,
    Failure,
    Meter,
    compile_plan,
    depends_on,
    evaluate,
    find_meter,
    is_measured,
    reference_outputs,
)
from experiments.model import about, calibration_for, load_model, variants
from experiments.pareto import DEFAULT_DEVICES
from experiments.plans import read_plan, write_plan
from experiments.plot import draw_frontiers
from experiments.ranking import OBJECTIVES, Ranked, rank
from experiments.table import print_result
from experiments.units import counted
from graphs import Calibration, Graph, GraphError, random_inputs, unused_inputs
from partition import (
    CALIBRATION_FILE,
    PRECISIONS,
    CalibrationFileError,
    CalibrationSet,
    Device,
    DeviceError,
    Plan,
    PlanError,
    load_calibration,
    load_device,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

_PROTOCOL: Final = 8  # part of every row's key: raise it when the way of measuring changes
_STILL_S: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The command line as values."""

    model: str
    devices: Sequence[str] | None
    backends: Sequence[str]
    precisions: Sequence[str]
    splits: int
    objectives: Sequence[str]
    out: Path
    seed: int
    jobs: int
    bindings: Sequence[tuple[str, int]]
    calibration: Path | None
    time_limit: int
    sweep: bool = False
    processes: int = 2
    plans: Sequence[Path] = ()
    options: Sequence[tuple[str, tuple[str, str]]] = ()
    latencies: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
    """The options once they are known to make sense."""

    graph: Graph
    devices: tuple[Device, ...]
    backends: tuple[str, ...]
    precisions: tuple[str, ...]
    objectives: tuple[str, ...]
    calibration: Calibration
    latencies: CalibrationSet
    meters: Mapping[str, Meter | str]
    folder: Path
    plans: tuple[Plan, ...] = ()


def run(options: Options, argv: list[str]) -> tuple[int, Path]:
    """Do the whole job and return the exit code and the folder of the results.

    Raises:
        UserError: the arguments, the model or the output folder cannot be used.
    """
    console = open_console()
    request = _check(options)

    with store.alone_in(request.folder, lambda text: console.print(text, style="bold")):
        return _run_alone(request, options, argv, console), request.folder


def _run_alone(request: _Request, options: Options, argv: list[str], console: Console) -> int:
    meters = {kind: meter if isinstance(meter, str) else meter.title for kind, meter in request.meters.items()}
    store.write_json(request.folder / "environment.json", {**environment(argv, request.backends), "meters": meters})
    _announce(request, options, console)
    rows = store.read_rows(request.folder)
    fresh: dict[str, store.Row] = {}
    try:
        for row in _outcomes(request, options, rows, console):
            fresh[row.key] = row
    except KeyboardInterrupt:
        cancel_children()
        _finish(request, tuple(fresh.values()), console)
        console.print(f"\ninterrupted; {counted(len(fresh), 'candidate')} kept, the same command resumes", style="bold")
        return INTERRUPTED
    code = _finish(request, store.with_deployed(fresh.values(), rows.values()), console)
    vain = tuple(_in_vain(request, options, tuple(fresh.values())))
    for sentence in vain:
        console.print(sentence, style="bold")
    return 1 if vain else code


def _in_vain(request: _Request, options: Options, rows: Sequence[store.Row]) -> Iterator[str]:
    """Name what was asked for by name and came to nothing, whatever else did."""
    done = [row for row in rows if row.status != "failed"]
    for backend in dict.fromkeys(name for name, _ in options.options):
        asked = dict(option for name, option in options.options if name == backend)  # the last one counts
        given = [f"{key}={value}" for key, value in asked.items()]
        # The splits that the search proposes have no options, so a row of the backend alone says nothing.
        if not any(backend in row.backend.split("+") and all(one in row.options for one in given) for row in done):
            yield f"nothing came of {backend} with {', '.join(given)}; the reasons are above"
    for plan in request.plans:
        if not any(row.plan_digest == plan.digest for row in done):
            yield f"nothing came of the plan {plan.digest[:12]} that was given; the reason is above"


def _check(options: Options) -> _Request:
    unknown = [p for p in options.precisions if p not in PRECISIONS]
    if unknown:
        raise UserError(f"unknown precision {unknown[0]!r} (known: {', '.join(PRECISIONS)})")
    unknown = [o for o in options.objectives if o not in OBJECTIVES]
    if unknown:
        raise UserError(f"unknown objective {unknown[0]!r} (known: {', '.join(OBJECTIVES)})")
    if len(options.objectives) < 2:
        raise UserError("a frontier needs at least two objectives, for example --objectives latency,energy")
    try:
        devices = tuple(load_device(name) for name in dict.fromkeys(options.devices or DEFAULT_DEVICES))
        backends = known_backends(options.backends)
        idle = [name for name, _ in options.options if name not in backends]
        if idle:
            raise UserError(f"an option is for backend {idle[0]!r}, and the run has {', '.join(backends)}")
        graph = load_model(options.model, options.bindings, options.seed)
        calibration = calibration_for(graph, options.calibration, options.seed)
        latencies = load_calibration(options.latencies or CALIBRATION_FILE)
        plans = tuple(_fitting(read_plan(path), path, graph, devices) for path in options.plans)
        folder = options.out / _run_name(graph, options, calibration)
        store.open_run(folder)
    except (DeviceError, GraphError, PlanError, CalibrationFileError, UnknownBackendError) as error:
        raise UserError(str(error)) from error
    return _Request(
        graph=graph,
        devices=devices,
        backends=backends,
        precisions=tuple(options.precisions),
        objectives=tuple(options.objectives),
        calibration=calibration,
        latencies=latencies,
        meters=_meters(devices),
        folder=folder,
        plans=plans,
    )


def _meters(devices: Sequence[Device]) -> dict[str, Meter | str]:
    """Find the meter, or why there is none, of each kind of processor of this machine."""
    kinds = dict.fromkeys(p.kind for device in devices if device.os == "host" for p in device.processors)
    return {kind: find_meter(kind) for kind in kinds}


def _fitting(plan: Plan, path: Path, graph: Graph, devices: Sequence[Device]) -> Plan:
    """Return the plan if it is one for this model on one of the devices.

    Raises:
        UserError: it is for another.
    """
    if plan.graph_digest != graph.digest:
        raise UserError(f"the plan {path} is for another model than {graph.name}; give the one it was made for")
    if plan.device.name not in {device.name for device in devices}:
        raise UserError(f"the plan {path} is for {plan.device.name}; add --device {plan.device.name}")
    return plan


def _run_name(graph: Graph, options: Options, calibration: Calibration) -> str:
    """Name the run by what it depends on, so that the same command finds, and resumes, its own results."""
    key = [
        graph.digest,
        list(options.devices or DEFAULT_DEVICES),
        list(options.backends),
        list(options.precisions),
        options.splits,
        options.seed,
        calibration.digest,
        *(["sweep"] if options.sweep else []),
        *(path.stem for path in options.plans),
        *sorted(options.options),
    ]
    return f"{graph.name}-{_hash(key)[:8]}"


def _announce(request: _Request, options: Options, console: Console) -> None:
    graph = request.graph
    console.print(about(graph))
    uncosted = graph.uncosted_nodes()
    if uncosted:
        node, why = next(iter(uncosted.items()))
        console.print(f"{len(uncosted)} nodes have no work count, for example {node}: {why}", style="yellow")
    unused = unused_inputs(graph)
    if unused:
        console.print(f"no node reads {', '.join(unused)}", style="yellow")
    calibrated = graph.is_quantised or not request.calibration.is_random
    if not calibrated and ("int8" in options.precisions or options.sweep):
        console.print("int8 ranges come from random data: they tell cost, not accuracy (--calibration)", style="dim")
    for kind, meter in request.meters.items():
        told = f"modelled: {meter}; see python -m experiments.doctor" if isinstance(meter, str) else meter.title
        console.print(f"energy on this machine's {kind}: {told}", style="dim")
    skipped = inapplicable(request.devices, request.backends, compile_only=bool(options.backends))
    if skipped:
        store.write_json(request.folder / "not_applicable.json", skipped)
        console.print(
            f"{len(skipped)} backend and device pairs do not apply (not_applicable.json, python -m compilers)",
            style="dim",
        )
    if options.backends:
        for pair, reason in skipped.items():
            console.print(f"  {pair}: {reason}", style="yellow")


def _outcomes(
    request: _Request, options: Options, known: Mapping[str, store.Row], console: Console
) -> Iterator[store.Row]:
    """Yield a row per candidate, from the store where it is there already, storing each new one at once."""
    limits = Limits(time_s=float(options.time_limit))
    by_precision = _variants(request, options.out / "build", console)
    whole = tuple(
        whole_graph(
            request.graph,
            by_precision,
            request.devices,
            request.backends,
            feed_file(request.calibration),
            options=options.options,
            compile_only=bool(options.backends),
            sweep=options.sweep,
        )
    )
    see_options(candidate.plan.segments[0] for candidate in whole)
    candidates = [
        *whole,
        *splits(request.graph, by_precision, request.devices, request.backends, options.splits),
        *(Candidate(plan=plan) for plan in request.plans),
    ]
    keys = [_key(c, request, options) for c in candidates]
    todo = []
    for candidate, key in zip(candidates, keys, strict=True):
        row = known.get(key)
        if row is not None and not store.may_differ_next_time(row):
            yield row
        else:
            todo.append((candidate, key))
    if len(todo) < len(candidates):
        console.print(
            f"{len(candidates) - len(todo)} of {len(candidates)} candidates are known from {request.folder}"
            " (delete it to measure anew)",
            style="dim",
        )
    if todo:
        context = _context(request, options, limits)
        for row in _evaluate_all(todo, context, request, options.jobs, console):
            kept = store.better(row, known.get(row.key))
            if kept is row:
                store.append_row(request.folder, row)
            yield kept


def _variants(request: _Request, build: Path, console: Console) -> dict[str, Graph]:
    made = variants(request.graph, request.precisions, request.calibration, build)
    for precision, graph in made.items():
        if isinstance(graph, GraphError):
            console.print(f"{precision} is left out: {graph}", style="yellow")
    return {precision: graph for precision, graph in made.items() if isinstance(graph, Graph)}


def _context(request: _Request, options: Options, limits: Limits) -> Context:
    try:
        feed = random_inputs(request.graph, options.seed)
        reference = reference_outputs(request.graph, feed, Limits())  # every candidate needs it: no short limit
    except (CompilerError, GraphError) as error:
        raise UserError(f"ONNX Runtime cannot run {request.graph.name}, so there is no reference: {error}") from error
    return Context(
        build=options.out / "build",
        limits=limits,
        feed=feed,
        reference=reference,
        calibration=request.latencies,
        processes=options.processes,
        meters={kind: meter for kind, meter in request.meters.items() if isinstance(meter, Meter)},
    )


def _evaluate_all(
    todo: Sequence[tuple[Candidate, str]], context: Context, request: _Request, jobs: int, console: Console
) -> Iterator[store.Row]:
    """Compile in parallel and evaluate what needs no clock at once; then measure, one at a time."""
    keys = {candidate.plan.digest: key for candidate, key in todo}
    measured: list[tuple[Candidate, tuple[Artefact, ...]]] = []

    def first_step(candidate: Candidate) -> tuple[Artefact, ...] | Evaluation | Failure:
        with progress.busy(f"compiling {candidate.title}"):
            artefacts = compile_plan(candidate.plan, context)
        if isinstance(artefacts, Failure) or is_measured(candidate.plan):
            return artefacts
        with progress.busy(f"running {candidate.title}"):
            return evaluate(candidate.plan, artefacts, context)

    def as_row(candidate: Candidate, outcome: Evaluation | Failure) -> store.Row:
        row = store.row(candidate.plan, keys[candidate.plan.digest], request.graph.name, candidate.cuts, outcome)
        if row.status in {"ok", "uncalibrated"}:
            write_plan(candidate.plan, request.folder, request.graph)  # what `experiments.deploy` takes
        return row

    with Progress(len(todo), context.limits.time_s, console) as progress, ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(first_step, candidate): candidate for candidate, _ in todo}
        for future in _as_completed(futures, progress):
            candidate, outcome = futures[future], future.result()
            if isinstance(outcome, tuple):
                measured.append((candidate, outcome))
                continue
            progress.done(candidate.title, _state(outcome))
            yield as_row(candidate, outcome)
        for candidate, artefacts in measured:
            with progress.busy(f"measuring {candidate.title}"):
                result = evaluate(candidate.plan, artefacts, context)
            progress.done(candidate.title, _state(result))
            yield as_row(candidate, result)


def _state(outcome: Evaluation | Failure) -> str:
    return f"failed: {outcome.reason}" if isinstance(outcome, Failure) else "ok"


def _as_completed(futures: Mapping[Future[Any], Candidate], progress: Progress) -> Iterator[Future[Any]]:
    """Yield futures as they end; on Ctrl-C end the children too, or leaving the pool would wait for them."""
    waiting = set(futures)
    try:
        while waiting:
            ended, waiting = wait(waiting, timeout=_STILL_S, return_when=FIRST_COMPLETED)
            yield from ended
            if not ended:
                progress.still()
    except BaseException:
        cancel_children()
        for future in futures:
            future.cancel()
        raise


def _key(candidate: Candidate, request: _Request, options: Options) -> str:
    """Name what a row depends on: plan, devices, compilers, machine, inputs, meters and the way of measuring."""
    plan, latencies = candidate.plan, request.latencies.rows_hash
    meters = [meter.title for meter in request.meters.values() if isinstance(meter, Meter)]
    measuring = [meters, options.processes] if is_measured(plan) else []
    parts = [*depends_on(plan), request.calibration.digest, latencies, options.seed, measuring, _PROTOCOL]
    return _hash(parts)[:24]


def _finish(request: _Request, rows: tuple[store.Row, ...], console: Console) -> int:
    ranked = rank(rows, request.objectives)
    print_result(ranked, request.objectives, console)
    store.write_csv(request.folder / "frontier.csv", _CSV_HEADER, _csv_lines(ranked))
    title = f"{request.graph.name}: {' against '.join(request.objectives[:2])}"
    stem = request.folder / "frontier"
    drawn = draw_frontiers(ranked, request.devices, request.objectives, title, _caption(ranked), stem)
    if not drawn:
        console.print("nothing usable came out: no candidate is ranked; the reasons are above", style="bold")
        return 1
    console.print(f"\nwrote frontier.png, frontier.svg, frontier.csv and outcomes.jsonl to {request.folder}")
    return 0


_CSV_HEADER: Final = (
    "model", "device", "processor", "backend", "precision", "options", "segments", "standing", "device_standing",
    "status", "latency_s", "latency_low_s", "latency_high_s", "latency_source", "spread_ratio", "energy_j",
    "energy_low_j", "energy_high_j", "energy_source", "energy_net_j", "power_w", "power_low_w", "power_high_w",
    "peak_memory_bytes", "artefact_bytes",
    "dram_bytes", "cosine", "sqnr_db", "relative_max", "runs_on", "plan_digest", "reason", "cuts", "notes",
)  # fmt: skip


def _csv_lines(ranked: Sequence[Ranked]) -> Iterator[dict[str, object]]:
    for entry in ranked:
        if entry.row.status != "failed":
            fields = dataclasses.asdict(entry.row)
            low_w, high_w = entry.row.power_bounds_w or (None, None)
            fields |= {name: "; ".join(fields[name]) for name in ("cuts", "notes")}
            fields |= {"power_w": entry.row.power_w, "power_low_w": low_w, "power_high_w": high_w}
            yield {
                **fields,
                "standing": entry.standing,
                "device_standing": entry.device_standing,
            }


def _caption(ranked: Sequence[Ranked]) -> str:
    rows = [r.row for r in ranked]
    sources = dict.fromkeys(r.latency_source for r in rows if r.latency_source)
    failed = sum(r.status == "failed" for r in rows)
    misplaced = sum(r.status == "misplaced" for r in rows)
    uncalibrated = sum(r.status == "uncalibrated" for r in rows)
    parts = [
        (
            f"Latency is {', '.join(s for s in sources if s)} as the marker says; energy is modelled from the device"
            f" file's coefficients{_metered(rows)}. Bars are intervals: samples' 5 to 95 % (measured), the compiler's"
            " bounds (simulated), the figures' bounds (modelled), or 8 of 10 models kept out of a fit to measured ones"
            " (the notes say where); overlapping bars are a tie. Each panel is one device:"
            " points of different panels do not compete."
        )
    ]
    if misplaced:
        parts.append(f"Not drawn: {counted(misplaced, 'candidate')} that ran partly elsewhere than asked.")
    if uncalibrated:
        about = counted(uncalibrated, "candidate")
        parts.append(f"Not drawn: {about} without a calibrated latency, where others have one.")
    if failed:
        parts.append(f"{counted(failed, 'candidate')} failed, as outcomes.jsonl tells.")
    return " ".join(parts)


def _metered(rows: Sequence[store.Row]) -> str:
    """Say which energies a meter measured: they and modelled ones are of two kinds."""
    meters = dict.fromkeys(str(row.energy_meter["meter"]) for row in rows if row.energy_meter)
    return f' (marked "metered": measured by {", ".join(meters)}, idle included)' if meters else ""


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
