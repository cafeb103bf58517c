"""`python -m experiments.deploy`, step by step: read the plan, bundle, write the folder, execute, record."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Final

from compilers import CompilerError, Latency, Limits, PassingError, get_compiler
from experiments import store
from experiments.console import open_console
from experiments.deployment.bundle import TOOLS, Bundled, bundle, copy_files, manifest
from experiments.deployment.execute import DeployError, Executed, RunError, execute
from experiments.deployment.measured import total
from experiments.deployment.outputs import Compared, compared, write_inputs
from experiments.deployment.script import device_script, run_script
from experiments.evaluator import Energy, Evaluation, Failure, add_energies, model_energy
from experiments.evaluator.fidelity import Feed, reference_outputs
from experiments.plans import PLANS_DIR, read_plan, read_whole
from experiments.table import error_text
from experiments.units import interval, seconds, size
from graphs import random_inputs
from partition import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from partition import Plan

_TRANSPORTS: Final = {"android": "adb", "linux": "ssh"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command line as values."""

    plan: Path
    out: Path | None
    build: Path
    execute: bool
    host: str
    serial: str
    tools: Path | None
    runs: int
    performance_mode: str
    seed: int
    time_limit_s: float


def deploy(options: Options) -> int:
    """Write the deployment, run it when asked, and return the exit code.

    Raises:
        DeployError: the plan cannot be deployed.
        RunError: the device did not run it, or what stands in the way of a compile is no matter of the plan.
    """
    console = open_console()
    try:
        plan = read_plan(options.plan)
        whole = read_whole(options.plan, plan)
    except PlanError as error:
        raise DeployError(str(error)) from error
    transport = _transport(plan)
    folder = options.out or options.plan.parent.parent / "deploy" / plan.digest[:12]
    feed = random_inputs(whole or plan.segments[0].graph, options.seed)
    limits = Limits(time_s=options.time_limit_s)
    try:
        bundled = bundle(plan, feed, options.seed, options.build, limits)
        reference = reference_outputs(whole, feed, limits) if whole and options.execute else None
    except PassingError as error:  # no fault of the plan's
        raise RunError(error.reason) from error
    except CompilerError as error:
        raise DeployError(f"the plan cannot be deployed: {error.reason}") from error
    _write(plan, bundled, transport, folder, options)
    _announce(plan, bundled, folder, console)
    if options.execute:
        _execute(plan, reference, bundled, folder, options, transport, console)
    return 0


def _transport(plan: Plan) -> str:
    device = plan.device
    if device.os not in _TRANSPORTS:
        raise DeployError(f"{device.name} runs {device.os}; a deployment is for {' and '.join(_TRANSPORTS)} devices")
    for segment in plan.segments:
        if segment.compiler not in TOOLS:
            known = ", ".join(TOOLS)
            raise DeployError(f"no tool runs an artefact of {segment.compiler} on {device.name} (known: {known})")
    if len(plan.segments) > 1 and any(segment.compiler == "snpe" for segment in plan.segments):
        raise DeployError("a DLC runs a plan alone: its images are channels-last, those of the other segments are not")
    return _TRANSPORTS[device.os]


def _write(plan: Plan, bundled: tuple[Bundled, ...], transport: str, folder: Path, options: Options) -> None:
    """Fill the folder anew, so that no file of an earlier deployment is pushed with it."""
    shutil.rmtree(folder / "payload", ignore_errors=True)
    (folder / "payload").mkdir(parents=True)
    copy_files(bundled, folder / "payload")
    write_inputs(bundled, folder / "payload")
    scripts = {
        "run.sh": run_script(plan, transport),
        "device.sh": device_script(bundled, runs=options.runs, performance_mode=options.performance_mode),
    }
    for name, text in scripts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    content = {**manifest(plan, bundled, folder / "payload"), "transport": transport, "runs": options.runs}
    store.write_json(folder / "manifest.json", {**content, "performance_mode": options.performance_mode})


def _announce(plan: Plan, bundled: tuple[Bundled, ...], folder: Path, console: Console) -> None:
    for index, entry in enumerate(bundled):
        for mode in entry.modes:
            state = f"not published: {mode.why_not}" if mode.why_not else "reloads in a fresh process"
            cosine = "" if mode.cosine is None else f", cosine {mode.cosine:.6f}"
            console.print(f"segment {index} {entry.segment.compiler} {mode.name}: {state}{cosine}")
    total_bytes = sum(path.stat().st_size for path in (folder / "payload").rglob("*") if path.is_file())
    console.print(f"wrote {folder} for {plan.device.title}: {size(total_bytes)}, run.sh, device.sh, manifest.json")


def _execute(
    plan: Plan,
    reference: Feed | None,
    bundled: tuple[Bundled, ...],
    folder: Path,
    options: Options,
    transport: str,
    console: Console,
) -> None:
    environment = {
        **({"EDGE_HOST": options.host} if options.host else {}),
        **({"ANDROID_SERIAL": options.serial} if options.serial else {}),
        **({"EDGE_TOOLS": str(options.tools.resolve())} if options.tools else {}),
    }
    if transport == "ssh" and not options.host:
        raise DeployError("a Linux board needs --host user@board")
    backends = [segment.compiler for segment in plan.segments]
    done = execute(folder, backends, options.runs, options.time_limit_s, environment)
    seen = compared(plan, bundled, folder / "results", reference)
    row = _row(plan, bundled, done, seen, transport, folder)
    store.write_json(folder / "measured.json", dataclasses.asdict(row))
    latency = total(done.parts)
    found = interval(seconds(latency.typical_s), seconds(latency.low_s), seconds(latency.high_s))
    told = seen.note if seen.error is None else f"its outputs against the reference: {error_text(row)}"
    console.print(f"measured on {done.device}: {found}; {told or 'its outputs are wrong'}")
    _record(row, options, console)
    if seen.wrong:
        raise RunError(f"{done.device} computes something else than the plan: {seen.wrong}; it is recorded as failed")


def _record(row: store.Row, options: Options, console: Console) -> None:
    run_folder = options.plan.parent.parent
    if options.plan.parent.name == PLANS_DIR and (run_folder / store.OUTCOMES_FILE).exists():
        store.append_row(run_folder, row)
        console.print(
            f"added to {run_folder / store.OUTCOMES_FILE}; the same `python -m experiments.pareto` draws it now, in "
            "place of its prediction",
        )


def _row(
    plan: Plan, bundled: tuple[Bundled, ...], done: Executed, seen: Compared, transport: str, folder: Path
) -> store.Row:
    parts, key = done.parts, store.deployed_key(plan, done.device)
    if seen.wrong:
        last = plan.segments[-1]
        failure = Failure(
            plan_digest=plan.digest,
            segment=len(plan.segments) - 1,
            compiler=last.compiler,
            action="run",
            reason=f"on {done.device}, {seen.wrong}",
            log="",
        )
        return store.row(plan, key, plan.segments[0].graph.name, _cuts(plan), failure)
    notes = tuple(dict.fromkeys([*(part.note for part in parts), *filter(None, [seen.note])]))
    if len(parts) > 1:
        notes = (*notes, "segments were measured one by one: what passes between them takes more")
    energy, why_not = _energy(bundled, [part.latency for part in parts])
    cold = [part.cold_s for part in parts if part.cold_s is not None]
    outcome = Evaluation(
        plan_digest=plan.digest,
        latency=total(parts),
        energy=energy,
        peak_memory_bytes=None,
        artefact_bytes=sum(p.stat().st_size for p in (folder / "payload").rglob("*") if p.is_file()),
        dram_bytes=None,
        output_error=seen.error,
        runs_on=f"{done.device} through {transport}",
        placement=None,
        misplaced=(),
        samples=None,
        notes=(*notes, *why_not),
        compile_s=0.0,
    )
    row = store.row(plan, key, plan.segments[0].graph.name, _cuts(plan), outcome)
    return dataclasses.replace(row, compile_s=None, cold_s=sum(cold) if len(cold) == len(parts) else None)


def _energy(bundled: tuple[Bundled, ...], latencies: Sequence[Latency]) -> tuple[Energy | None, tuple[str, ...]]:
    """Model what the measured time cost; None with the reason where a segment's figures are missing."""
    parts: list[Energy] = []
    notes: list[str] = []
    for entry, latency in zip(bundled, latencies, strict=True):
        energy, why_not = model_energy(entry.segment, entry.artefact.precision, latency, _traffic(entry))
        notes += why_not
        parts += [energy] if energy else []
    return (add_energies(tuple(parts)) if len(parts) == len(bundled) else None), tuple(notes)


def _traffic(entry: Bundled) -> int | None:
    try:
        return get_compiler(entry.segment.compiler).estimate(entry.artefact).dram_bytes
    except CompilerError:
        return None  # this backend simulates no traffic; the energy model says what it takes instead


def _cuts(plan: Plan) -> tuple[str, ...]:
    made: set[str] = set()
    cuts: dict[str, None] = {}
    for segment in plan.segments:
        cuts.update((spec.name, None) for spec in segment.graph.inputs() if spec.name in made)
        made.update(spec.name for spec in segment.graph.outputs())
    return tuple(cuts)
