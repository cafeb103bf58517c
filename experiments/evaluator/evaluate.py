"""Plan in, Evaluation or Failure out.

A plan is compiled first (`compile_plan`, may run in parallel), then evaluated (`evaluate`): what can run on
the processor it is for is measured, what the vendor's compiler simulates is read, the rest is modelled.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Final

from compilers import (
    Action,
    Artefact,
    CompilerError,
    Estimate,
    Latency,
    Limits,
    PassingError,
    Placement,
    Source,
    compile_segment,
    get_compiler,
    known_bad,
)
from experiments.evaluator.calibrated import calibrated, is_covered, latency_models
from experiments.evaluator.energy import Energy, UnknownFigureError, add_energies, measured_energy, modelled_energy
from experiments.evaluator.fidelity import Feed, broken, integers_off, output_error
from experiments.evaluator.power.sysfs import governor
from experiments.evaluator.roofline import moved_bytes, roofline
from experiments.evaluator.run import Run, fresh_median, run_artefact
from experiments.evaluator.values import Evaluation, Failure, Misplacement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from experiments.evaluator.power.meter import Meter
    from partition import CalibrationSet, Plan, Segment

NOT_METERED: Final = "energy not measured by"
PROVISIONAL: Final = "provisional"
_WEAKEST_FIRST = (Source.MODELLED, Source.PUBLISHED, Source.SIMULATED, Source.MEASURED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What all candidates of one run share: where artefacts lie, the limits, the feed and its reference.

    With a calibration, latencies on the devices it covers are predicted by it, not simulated or modelled alone.
    `meters` are those of this machine's processors, by kind: what is timed here is metered too, and timed in
    `processes` fresh processes.
    """

    build: Path
    limits: Limits
    feed: Feed
    reference: Feed
    calibration: CalibrationSet | None = None
    budget_s: float = 5.0
    processes: int = 2
    meters: Mapping[str, Meter] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _SegmentCost:
    latency: Latency
    energy: Energy | None
    dram_bytes: int | None
    peak_memory_bytes: int | None
    placement: Placement | None
    run: Run | None
    notes: tuple[str, ...]
    uncalibrated: str | None


class _FailedError(Exception):
    """Carries the Failure of one segment up to its plan."""

    def __init__(self, index: int, segment: Segment, action: Action, error: CompilerError) -> None:
        super().__init__(error.reason)
        self.index, self.segment, self.action, self.error = index, segment, action, error

    def failure(self, plan: Plan) -> Failure:
        return Failure(
            plan_digest=plan.digest,
            segment=self.index,
            compiler=self.segment.compiler,
            action=self.action.value,
            reason=self.error.reason,
            log=self.error.log,
            passing=isinstance(self.error, PassingError),
        )


def is_measured(plan: Plan) -> bool:
    """Tell whether a part of the plan is for this machine or one that answers, so that the clock needs it to itself."""
    return any(get_compiler(s.compiler).is_timed(s.device, s.processor) for s in plan.segments)


def settings() -> dict[str, object]:
    """Tell what of this machine may change between two runs, and the times with it."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"usable_cores": usable, "governor": governor()}


def depends_on(plan: Plan) -> list[object]:
    """List what a plan's costs depend on, JSON-ready: devices' figures, compilers, and this machine where it is one.

    Versions that are known to be bad are part of it, so that no cost of theirs is taken from an earlier run.
    """
    asked = [(get_compiler(s.compiler), s) for s in plan.segments]
    machines = [compiler.machine(s.device, s.processor) for compiler, s in asked]
    here = [machines, settings()] if any(machines) else []
    versions = [compiler.version() for compiler, _ in asked]
    bad = filter(None, (known_bad(s.compiler) for _, s in asked))
    return [plan.digest, [repr(s.device) for _, s in asked], versions, here, *bad]


def compile_plan(plan: Plan, context: Context) -> tuple[Artefact, ...] | Failure:
    """Compile every segment of the plan, or say which one failed and why."""
    artefacts = []
    for index, segment in enumerate(plan.segments):
        try:
            artefacts.append(compile_segment(segment, context.build, context.limits))
        except CompilerError as error:
            return _FailedError(index, segment, Action.COMPILE, error).failure(plan)
    return tuple(artefacts)


def evaluate(plan: Plan, artefacts: tuple[Artefact, ...], context: Context) -> Evaluation | Failure:
    """Cost a compiled plan, running its segments one after the other on the real tensors that pass them."""
    tensors: Feed | None = dict(context.feed)
    costs = []
    try:
        for index, (segment, artefact) in enumerate(zip(plan.segments, artefacts, strict=True)):
            run = _run_segment(index, segment, artefact, tensors, context)
            tensors = None if run is None or tensors is None else {**tensors, **run.outputs}
            costs.append(_cost_segment(index, segment, artefact, run, context))
        return _sum_up(plan, artefacts, tuple(costs), tensors, context)
    except _FailedError as failed:
        return failed.failure(plan)


def estimate_segment(segment: Segment, context: Context) -> tuple[Latency, Energy | None]:
    """Compile one segment and cost it as `evaluate` would, without running it.

    Raises:
        CompilerError: it cannot be compiled, or nothing tells a cost that compares with those of other segments.
    """
    artefact = compile_segment(segment, context.build, context.limits)
    try:
        cost = _cost_segment(0, segment, artefact, None, context)
    except _FailedError as failed:
        raise failed.error from failed
    if cost.uncalibrated:
        raise CompilerError(cost.uncalibrated)
    return cost.latency, cost.energy


def _run_segment(
    index: int, segment: Segment, artefact: Artefact, tensors: Feed | None, context: Context
) -> Run | None:
    """Run the segment where this machine can; None when it, or one before it, cannot run here."""
    if tensors is None or not get_compiler(segment.compiler).available(Action.RUN, segment.device, segment.processor):
        return None
    feed = {spec.name: tensors[spec.name] for spec in segment.graph.inputs()}
    meter = context.meters.get(segment.device.processor(segment.processor).kind)
    try:
        run = run_artefact(artefact, feed, limits=context.limits, budget_s=context.budget_s, meter=meter)
        return _repeated(run, artefact, feed, context)
    except CompilerError as error:
        raise _FailedError(index, segment, Action.RUN, error) from error


def _repeated(run: Run, artefact: Artefact, feed: Feed, context: Context) -> Run:
    """Time it in further processes: what one process cannot show is how far another one's median lies off."""
    if run.samples is None:
        return run
    others_s = tuple(fresh_median(artefact, feed, limits=context.limits) for _ in range(context.processes - 1))
    return dataclasses.replace(run, samples=dataclasses.replace(run.samples, others_s=others_s))


def _cost_segment(index: int, segment: Segment, artefact: Artefact, run: Run | None, context: Context) -> _SegmentCost:
    compiler = get_compiler(segment.compiler)
    uncalibrated = None
    try:
        if run and run.samples:
            latency, traffic = run.samples.latency(), None
            notes = run.samples.warnings()
            notes = (*notes, f"{PROVISIONAL}: {artefact.provisional}") if artefact.provisional else notes
        else:
            estimate, notes, uncalibrated = _estimate(segment, artefact, context)
            latency, traffic = estimate.latency, estimate.dram_bytes
            notes = (*notes, *filter(None, [estimate.note]))
            if estimate.uncosted_nodes:
                notes = (*notes, f"{len(estimate.uncosted_nodes)} nodes have no cost in the estimate")
    except CompilerError as error:
        raise _FailedError(index, segment, Action.ESTIMATE, error) from error
    energy, energy_note = _energy(segment, artefact.precision, latency, traffic, run, context)
    return _SegmentCost(
        latency=latency,
        energy=energy,
        dram_bytes=traffic,
        peak_memory_bytes=run.peak_memory_bytes if run else None,
        placement=_placement(compiler.name, artefact),
        run=run,
        notes=(*notes, *energy_note),
        uncalibrated=uncalibrated,
    )


def _estimate(segment: Segment, artefact: Artefact, context: Context) -> tuple[Estimate, tuple[str, ...], str | None]:
    """Predict by calibration where the device has one, and say how good that is; else estimate without.

    The last value says why the estimate cannot be compared with those of other segments on that processor.
    """
    calibration = context.calibration
    models = latency_models(segment, calibration) if calibration else ()
    if not models or calibration is None:
        why_not = f"there is no calibration of {segment.compiler} {segment.precision} on {segment.device.name}"
    else:
        try:
            estimate, note = calibrated(segment, models, calibration, context.build, context.limits)
        except CompilerError as error:
            why_not = f"not predicted by calibration: {error.reason}"
        else:
            return estimate, (note,), None
    try:
        estimate = _uncalibrated(segment, artefact)
    except CompilerError as error:
        raise CompilerError(f"{why_not}; {error.reason}") if calibration is not None else error from error
    simulated = get_compiler(segment.compiler).available(Action.ESTIMATE, segment.device, segment.processor)
    if calibration is None or simulated or not is_covered(segment, calibration):
        return estimate, (why_not,) if models else (), None
    return estimate, (), f"{why_not}; what the device file's figures say does not compare with calibrated latencies"


def _uncalibrated(segment: Segment, artefact: Artefact) -> Estimate:
    """Ask the backend; only where it has no estimator for this chip do the device's figures speak."""
    compiler = get_compiler(segment.compiler)
    why_not = compiler.why_not(Action.ESTIMATE, segment.device, segment.processor)
    if why_not is None:
        estimate = compiler.estimate(artefact)
        return dataclasses.replace(estimate, latency=_with_dispatch(estimate.latency, segment))
    processor = segment.device.processor(segment.processor)
    try:
        return roofline(segment.graph, segment.device, processor, segment.precision)
    except UnknownFigureError as error:
        raise CompilerError(f"{why_not}; nor can it be modelled: {error}") from error


def _with_dispatch(latency: Latency, segment: Segment) -> Latency:
    """Add what a call costs before the processor starts: a simulator sees the processor alone, a model has it."""
    dispatch = segment.device.processor(segment.processor).dispatch_s
    if latency.source is not Source.SIMULATED or dispatch is None:
        return latency
    return Latency(
        typical_s=latency.typical_s + dispatch.value,
        low_s=latency.low_s + dispatch.low,
        high_s=latency.high_s + dispatch.high,
        source=latency.source,
    )


def _energy(
    segment: Segment, precision: str, latency: Latency, traffic: int | None, run: Run | None, context: Context
) -> tuple[Energy | None, tuple[str, ...]]:
    """Take what the meter measured; else model it, and say why where a meter was asked."""
    kind = segment.device.processor(segment.processor).kind
    if run and run.energy:
        return measured_energy(context.meters[kind].title, run.energy), ()
    energy, notes = model_energy(segment, precision, latency, traffic)
    if run and run.no_energy:
        notes = (*notes, f"{NOT_METERED} {context.meters[kind].title}: {run.no_energy}")
    return energy, notes


def model_energy(
    segment: Segment, precision: str, latency: Latency, traffic: int | None
) -> tuple[Energy | None, tuple[str, ...]]:
    """Model the energy of a segment that takes `latency`; None with the reason where a figure is missing.

    Without a simulated traffic, weights and boundary tensors cross the DRAM once.
    """
    if segment.graph.macs is None:
        return None, ("no energy: the MACs of some nodes are not known",)
    dram_bytes = traffic if traffic is not None else moved_bytes(segment.graph)
    processor = segment.device.processor(segment.processor)
    try:
        energy = modelled_energy(
            segment.device,
            processor,
            precision,
            latency=latency,
            macs=segment.graph.macs,
            dram_bytes=dram_bytes,
        )
    except UnknownFigureError as error:
        return None, (f"no energy: {error}",)
    return energy, ()


def _placement(name: str, artefact: Artefact) -> Placement | None:
    try:
        return get_compiler(name).placement(artefact)
    except CompilerError:
        return None  # not known before the device runs it; the caller says so


def _sum_up(
    plan: Plan, artefacts: tuple[Artefact, ...], costs: tuple[_SegmentCost, ...], tensors: Feed | None, context: Context
) -> Evaluation:
    last = len(plan.segments) - 1
    outputs = None if tensors is None else {name: tensors[name] for name in context.reference if name in tensors}
    if outputs is not None:
        reason = broken(context.reference, outputs)
        if reason:
            raise _FailedError(last, plan.segments[last], Action.RUN, CompilerError(reason))
    off = () if outputs is None else integers_off(context.reference, outputs)
    energies = tuple(c.energy for c in costs if c.energy is not None)
    traffic = [c.dram_bytes for c in costs if c.dram_bytes is not None]
    peaks = [c.peak_memory_bytes for c in costs if c.peak_memory_bytes is not None]
    samples = [c.run.samples for c in costs if c.run and c.run.samples]
    return Evaluation(
        plan_digest=plan.digest,
        latency=_sequential_latency(plan, tuple(c.latency for c in costs)),
        energy=add_energies(energies) if len(energies) == len(costs) else None,
        peak_memory_bytes=max(peaks) if len(peaks) == len(costs) else None,
        artefact_bytes=sum(a.size_bytes for a in artefacts),
        dram_bytes=sum(traffic) if len(traffic) == len(costs) else None,
        output_error=output_error(context.reference, outputs) if outputs is not None else None,
        runs_on=_runs_on(artefacts, costs),
        placement=_placement_counts(costs),
        misplaced=_misplaced(plan, costs),
        samples=samples[0] if len(samples) == 1 == len(costs) else None,
        notes=tuple(dict.fromkeys([*(note for c in costs for note in c.notes), *off])),
        compile_s=sum(a.compile_s for a in artefacts),
        segment_latencies=tuple(c.latency for c in costs),
        segment_energies=tuple(c.energy for c in costs),
        temperature_c=costs[0].run.temperature_c if len(costs) == 1 and costs[0].run else None,
        uncalibrated=tuple(dict.fromkeys(c.uncalibrated for c in costs if c.uncalibrated)),
    )


def _sequential_latency(plan: Plan, parts: tuple[Latency, ...]) -> Latency:
    """Add the segments and one handover per tensor and processor that reads it; the weakest source names it."""
    handover = plan.device.handover_s
    crossings = sum(map(len, handovers(plan)))
    low, typical, high = (handover.low, handover.value, handover.high) if handover is not None else (0.0, 0.0, 0.0)
    return Latency(
        typical_s=sum(p.typical_s for p in parts) + crossings * typical,
        low_s=sum(p.low_s for p in parts) + crossings * low,
        high_s=sum(p.high_s for p in parts) + crossings * high,
        source=Source.MODELLED if crossings else min((p.source for p in parts), key=_WEAKEST_FIRST.index),
    )


def handovers(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """List, for each segment, the tensors it fetches from another processor; the first reader there fetches for all."""
    at: dict[str, set[str]] = {}
    fetched = []
    for segment in plan.segments:
        here = segment.processor
        wanted = [spec.name for spec in segment.graph.inputs()]
        fetched.append(tuple(name for name in wanted if name in at and here not in at[name]))
        for name in fetched[-1]:
            at[name].add(here)
        at.update({spec.name: {here} for spec in segment.graph.outputs()})
    return tuple(fetched)


def _runs_on(artefacts: tuple[Artefact, ...], costs: tuple[_SegmentCost, ...]) -> str:
    if any(c.run is None for c in costs):
        return "not run here"
    return " + ".join(dict.fromkeys(a.fact("runs_on", "this machine") for a in artefacts))


def _placement_counts(costs: tuple[_SegmentCost, ...]) -> Mapping[str, int] | None:
    if any(c.placement is None for c in costs):
        return None
    counts: dict[str, int] = {}
    for cost in costs:
        for unit, nodes in (cost.placement.counts() if cost.placement else {}).items():
            counts[unit] = counts.get(unit, 0) + nodes
    return counts


def _misplaced(plan: Plan, costs: tuple[_SegmentCost, ...]) -> tuple[Misplacement, ...]:
    found = []
    for segment, cost in zip(plan.segments, costs, strict=True):
        kind = segment.device.processor(segment.processor).kind
        if cost.placement and cost.placement.elsewhere(kind):
            reasons = {n: cost.placement.reasons.get(n, "no reason given") for n in cost.placement.elsewhere(kind)}
            found.append(Misplacement(asked=segment.processor, counts=cost.placement.counts(), reasons=reasons))
    return tuple(found)
