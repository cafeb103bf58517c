"""A plan with the CPU behind it, for a program (`guard`) and for `experiments.guard` (`run`)."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from compilers import Action, CompilerError, Limits, compile_segment, get_compiler
from experiments.arguments import UserError
from experiments.evaluator.child_session import ChildSession, EndedError, PlanSession, Step, steps_of
from experiments.evaluator.fallback import Arrays, Breaker, Event, FallbackError, FallbackSession, one_line
from experiments.evaluator.fidelity import output_error, worst
from experiments.plans import read_plan
from experiments.units import counted, seconds
from graphs import Verdict, random_inputs
from partition import Plan, Segment, load_device

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from graphs import OutputError, TensorSpec

_SIGNALS: Final = {"hang": signal.SIGSTOP, "crash": signal.SIGSEGV}
_KILL_MARGIN_S: Final = 10.0


def guard(
    plan: Plan,
    build: Path,
    *,
    breaker: Breaker | None = None,
    limits: Limits | None = None,
    log: Path | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> FallbackSession:
    """Compile the plan and the same segments for this machine's CPU, and return a session with the second behind.

    The plan runs in a child process, which is ended when a call takes longer than the breaker's limit and started anew
    at the next call; what it prints goes to `log`. Waits until the plan has loaded; one that does not load is a failure
    as any other, and the CPU answers.

    Raises:
        CompilerError: the plan cannot run on this machine, or cannot be compiled; or the CPU's cannot.
    """
    return _guarded(plan, build, breaker or Breaker(), limits or Limits(), (log, on_event))[2]


def _guarded(
    plan: Plan,
    build: Path,
    breaker: Breaker,
    limits: Limits,
    told: tuple[Path | None, Callable[[Event], None] | None],
) -> tuple[ChildSession, PlanSession, FallbackSession]:
    log, on_event = told
    outputs = [spec.name for spec in plan.outputs]
    behind = PlanSession(_compiled(on_cpu(plan), build, limits), outputs)
    steps = _compiled(plan, build, limits)
    first = ChildSession(steps, outputs, time_limit_s=breaker.time_limit_s, limits=limits, log=log)
    try:
        first.wait()
    except (EndedError, CompilerError) as error:
        if on_event is not None:
            on_event(Event(at_s=time.monotonic(), what="not loaded", reason=one_line(error)))
    # The child keeps the limit by itself; the outer one is for what even ending it does not end.
    outer = dataclasses.replace(breaker, time_limit_s=breaker.time_limit_s + _KILL_MARGIN_S)
    session = FallbackSession(first, behind, plan.outputs, inputs=_inputs(plan), breaker=outer, on_event=on_event)
    return first, behind, session


def on_cpu(plan: Plan) -> Plan:
    """Return the plan with each segment on this machine's CPU through ONNX Runtime; fp16 becomes fp32 there."""
    host = load_device("host")

    def moved(segment: Segment) -> Segment:
        precision = "fp32" if segment.precision == "fp16" else segment.precision
        return Segment(graph=segment.graph, device=host, processor="cpu", compiler="ort_cpu", precision=precision)

    return dataclasses.replace(plan, segments=tuple(moved(segment) for segment in plan.segments))


def _compiled(plan: Plan, build: Path, limits: Limits) -> tuple[Step, ...]:
    for segment in plan.segments:
        why_not = get_compiler(segment.compiler).why_not(Action.RUN, segment.device, segment.processor)
        if why_not is not None:
            raise CompilerError(f"the plan cannot run on this machine: {why_not}")
    return steps_of(plan, [compile_segment(segment, build, limits) for segment in plan.segments])


def run(options: argparse.Namespace) -> int:
    """Call the guarded plan, with the faults asked for, and report.

    Raises:
        PlanError: the file is no plan.
        CompilerError: the plan cannot run on this machine.
    """
    plan = read_plan(options.plan)
    log = options.log or options.plan.resolve().parent.parent / f"guard-{plan.digest[:12]}.jsonl"
    printed, begin = log.with_suffix(".out" if log.suffix == ".log" else ".log"), time.monotonic()
    _see_writable(log)

    def told(event: Event) -> None:
        print(f"{time.monotonic() - begin:7.2f} s  {event.what:11} {event.reason}")
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "what": event.what, "reason": event.reason}) + "\n")

    breaker = Breaker(time_limit_s=options.time_limit, failures=options.failures, pause_s=options.pause)
    first, behind, session = _guarded(plan, options.build, breaker, Limits(), (printed, told))
    feed = _feed(plan, options.seed)
    with session:
        tally = _calls(first, session, feed, behind.run(feed), options)
    _report(tally)
    untold = [event.reason for event in session.events if event.what == "not told"]
    if untold:
        print(f"{counted(len(untold), 'event')} could not be written to the log, the last: {untold[-1]}")
    print(f"events: {log}; what the plan's process printed: {printed}")
    return 1 if tally.unanswered else 0


def _see_writable(log: Path) -> None:
    """Refuse a log that cannot be written before anything is compiled.

    Raises:
        UserError: the file cannot be opened.
    """
    try:
        with log.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UserError(f"--log {log} cannot be written: {error.strerror}") from error


@dataclasses.dataclass(slots=True)
class _Tally:
    """Seconds of each call by who answered, how many nobody did, and how far the plan's answers are from the CPU's."""

    plan_s: list[float] = dataclasses.field(default_factory=list)
    cpu_s: list[float] = dataclasses.field(default_factory=list)
    unanswered: int = 0
    errors: list[OutputError] = dataclasses.field(default_factory=list)


def _calls(
    first: ChildSession, session: FallbackSession, feed: Arrays, expected: Arrays, options: argparse.Namespace
) -> _Tally:
    tally = _Tally()
    for call in range(1, options.runs + 1):
        for kind in (kind for kind, at in options.fault if at == call):
            _inject(first, kind, call)
        by_cpu, begin = session.answered_by_second, time.perf_counter()
        try:
            outputs = session.run(feed)
        except FallbackError as error:
            tally.unanswered += 1
            print(f"call {call}: {error}")
            continue
        taken_s = time.perf_counter() - begin
        if session.answered_by_second > by_cpu:
            tally.cpu_s.append(taken_s)
        else:
            tally.plan_s.append(taken_s)
            tally.errors.append(output_error(expected, outputs))
        time.sleep(max(options.every - taken_s, 0.0))
    return tally


def _inject(first: ChildSession, kind: str, call: int) -> None:
    """Do to the plan's process what a faulty driver does: stop it, or end it by a segmentation fault."""
    if first.pid is None:
        print(f"before call {call}: no {kind}, the plan has no process now")
        return
    print(f"before call {call}: {_SIGNALS[kind].name} to the plan's process {first.pid}")
    os.kill(first.pid, _SIGNALS[kind])


def _inputs(plan: Plan) -> tuple[TensorSpec, ...]:
    """List what comes from outside: what a segment reads and none before it makes, and outputs that nobody makes."""
    outside: dict[str, TensorSpec] = {}
    made: set[str] = set()
    for segment in plan.segments:
        outside = {**{spec.name: spec for spec in segment.graph.inputs() if spec.name not in made}, **outside}
        made.update(spec.name for spec in segment.graph.outputs())
    return (*outside.values(), *(spec for spec in plan.outputs if spec.name not in {*made, *outside}))


def _feed(plan: Plan, seed: int) -> Arrays:
    """Draw what comes from outside."""
    drawn: Arrays = {}
    for segment in plan.segments:
        drawn = {**random_inputs(segment.graph, seed), **drawn}
    return {
        spec.name: drawn[spec.name] if spec.name in drawn else np.zeros(spec.shape or (), spec.dtype)
        for spec in _inputs(plan)
    }


def _difference(error: OutputError) -> str:
    if error.mismatch_ratio == 0.0 or error.verdict is Verdict.EMPTY:
        return "the same as the CPU's"
    if error.relative_max is not None:
        return f"within {error.relative_max:.2g} of the CPU's, relative to its peak"
    share = "" if error.mismatch_ratio is None else f"{error.mismatch_ratio:.2%} of an output, "
    return f"other than the CPU's: {share}{error.verdict.value}"


def _report(tally: _Tally) -> None:
    answered = {"the plan": tally.plan_s, "the CPU": tally.cpu_s}
    parts = [
        f"{len(taken)} by {who} (median {seconds(float(np.median(taken)))})" for who, taken in answered.items() if taken
    ]
    total = len(tally.plan_s) + len(tally.cpu_s) + tally.unanswered
    print(f"{total} calls: {', '.join(parts) or 'none answered'}; {tally.unanswered} unanswered")
    if tally.plan_s:
        print(f"the plan's answers are {_difference(worst(tally.errors))}")
