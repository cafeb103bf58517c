"""`python -m experiments.placement`, step by step: quantise, settle, cost the boundary, prove, suggest, report."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import Action, CompilerError, Limits, PassingError, StartError, get_compiler
from experiments import store
from experiments.candidates import see_options
from experiments.console import open_console
from experiments.evaluator.fidelity import reference_outputs
from experiments.explain.boundary import crossings
from experiments.explain.parts import plan_of
from experiments.explain.proof import Proof, prove
from experiments.explain.report import Explained, print_report, write_report
from experiments.explain.rules import refused_by
from experiments.explain.settle import Request, Settled, settle
from experiments.explain.suggest import suggestions
from experiments.model import calibration_for, variant
from graphs import Graph, random_inputs
from partition import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from experiments.evaluator.fidelity import Feed
    from experiments.explain.rules import Rule
    from experiments.explain.suggest import Suggestion
    from partition import Device, Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to explain: `rules` are what the target refuses beyond the compiler here, `options` the backend's own."""

    backend: str
    precision: str
    rules: Sequence[Rule]
    options: tuple[tuple[str, str], ...]
    out: Path
    seed: int
    time_limit_s: float


def explain(graph: Graph, device: Device, options: Options) -> int:
    """Explain where the nodes of `graph` run, print the table, write the files, and return the exit code.

    Raises:
        GraphError: the graph cannot be quantised.
        UserError: the backend has no such option, or `out` cannot be written.
    """
    console = open_console()
    processor, why_not = _accelerator(device, options.backend)
    if why_not is not None:
        return _no_library(graph, device, options.backend, why_not, console)
    store.open_run(options.out)
    request = _request(graph, device, processor, options)
    try:
        explained = _explained(request, options, lambda text: console.print(text, style="dim"))
    except StartError as error:
        return _no_library(graph, device, options.backend, error.reason, console)
    except PassingError as error:
        console.print(f"nothing is said about the nodes, for what failed is no matter of the graph: {error.reason}")
        return 1
    print_report(explained, console)
    folder = options.out / "placement" / f"{graph.name}-{options.backend}-{device.name}-{options.precision}"
    write_report(explained, folder)
    console.print(f"\nwrote placement.csv, placement.json and plans/ to {folder}")
    return 0 if explained.settled.artefacts else 1


def _request(graph: Graph, device: Device, processor: str, options: Options) -> Request:
    build = options.out / "build"
    form = variant(graph, options.precision, calibration_for(graph, None, options.seed), build)
    whole = Segment(
        graph=form, device=device, processor=processor, compiler=options.backend, precision=options.precision,
        options=options.options,
    )  # fmt: skip
    see_options([whole])
    return Request(
        graph=form,
        device=device,
        processor=processor,
        cpu=next((p.name for p in device.processors if p.kind == "cpu"), "cpu"),
        backend=options.backend,
        precision=options.precision,
        build=build,
        limits=Limits(time_s=options.time_limit_s),
        options=options.options,
    )


def _accelerator(device: Device, backend: str) -> tuple[str, str | None]:
    """Return the processor that the backend compiles for, or why there is none."""
    compiler = get_compiler(backend)
    whys = {p.name: compiler.why_not(Action.COMPILE, device, p.name) for p in device.processors if p.kind != "cpu"}
    able = next((name for name, why in whys.items() if why is None), None)
    if able is not None:
        return able, None
    return "", "; ".join(dict.fromkeys(filter(None, whys.values()))) or f"{device.name} has no accelerator"


def _no_library(graph: Graph, device: Device, backend: str, why_not: str, console: Console) -> int:
    nodes = len(graph.nodes())
    console.print(f"library missing: none of the {nodes} nodes can be placed by {backend} on {device.name}: {why_not}")
    return 1


def _explained(request: Request, options: Options, tell: Callable[[str], None]) -> Explained:
    rules = options.rules
    feed = random_inputs(request.graph, options.seed)
    refused = refused_by(request.graph, rules)
    for rule in rules:
        if not refused_by(request.graph, [rule]):
            tell(f"no node matches {rule}")
    whole = settle(request, {}, tell) if refused else None
    settled = settle(request, refused, tell)
    plan = _plan(request, settled)
    try:
        reference = reference_outputs(request.graph, feed, request.limits)
    except CompilerError as error:
        proof = Proof(error=None, why_not=f"there is no reference: {error.reason}")
        offered: tuple[Suggestion, ...] = ()
    else:
        # Where nothing at all is taken, the chip or the precision is the matter, and no rewrite mends that.
        offered = tuple(suggestions(request, settled, rules, feed, reference, tell)) if settled.artefacts else ()
        proof = _proof(request, plan, feed, reference)
    return Explained(
        request=request,
        settled=settled,
        whole=whole,
        crossings=crossings(request.graph, settled.runs),
        plan=plan,
        proof=proof,
        suggestions=offered,
    )


def _plan(request: Request, settled: Settled) -> Plan | None:
    """Return the plan with the refused nodes on the CPU; None where the device file lists no CPU."""
    if request.cpu not in {processor.name for processor in request.device.processors}:
        return None
    return plan_of(request.graph, settled.runs, request.device, request.backend, request.precision, request.options)


def _proof(request: Request, plan: Plan | None, feed: Feed, reference: Feed) -> Proof:
    if plan is None:
        return Proof(error=None, why_not=f"the device file of {request.device.name} lists no CPU")
    return prove(plan, feed, reference, request.build, request.limits)
