"""What `experiments.advise` does: evaluate, simulate, choose, and set the learned and the published rules beside it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from experiments.advice.choice import Demands, choose
from experiments.advice.rates import rate_sentences
from experiments.arguments import UserError
from experiments.console import open_console
from experiments.evaluator.dynamics import Conditions, TraceError, parse_trace
from experiments.plans import read_plan
from experiments.sustained_job import evaluated_rows, simulate_all
from partition import Device, DeviceError, PlanError, load_device

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from experiments.store import Row
    from graphs import Graph


def run(options: argparse.Namespace) -> int:
    """Do the whole job and return the exit code.

    Raises:
        UserError: the arguments or the model cannot be used.
    """
    console = open_console()
    trace_text = "closed" if options.rate is None else f"poisson:{options.rate:g}/s"
    try:
        device = load_device(options.device)
        trace = parse_trace(trace_text, 60.0 * options.minutes, options.seed)
    except (DeviceError, TraceError) as error:
        raise UserError(str(error)) from error
    folder, rows = evaluated_rows(options, device)
    conditions = Conditions(ambient_c=(options.ambient, options.ambient))
    runs, notes = simulate_all(rows, device, trace, conditions, options, console)
    if not runs:
        console.print("no candidate can be simulated; the reasons are above", style="bold")
        return 1
    choice = choose(
        runs, Demands(deadline_s=options.deadline, cap_w=options.power_cap, slack_ratio=options.slack), device
    )
    console.print(f"\n{rows[0].model} on {device.title}, {trace.title}, {conditions.text()}", style="bold")
    for sentence in choice.sentences:
        console.print(f"  {sentence}")
    if choice.run is not None:
        for sentence in rate_sentences(choice.run, runs, device, conditions, options.seed):
            console.print(f"  {sentence}")
    if not options.no_rule:
        _print_rules(device, _graph(folder, rows), options, console)
    console.print(f"{len(notes)} things are assumed about the device (python -m experiments.sustained lists them)")
    return 0 if choice.run is not None else 1


def _print_rules(device: Device, graph: Graph | None, options: argparse.Namespace, console: Console) -> None:
    """Learn a rule for this device from the zoo, and say what it and the two published ones would choose."""
    from experiments.advice.examples import dense_layers, features, make_examples, zoo_works
    from experiments.advice.tree import cross_validated, decide, describe, learn
    from experiments.published.rules import density_rule, flow_chart

    examples = make_examples(device, (*dense_layers(), *zoo_works()))
    if not examples:
        console.print(f"{device.name} has throughput figures for fewer than two processors: no rule can be learned")
        return
    values, labels = [e.features for e in examples], [e.fastest for e in examples]
    tree = learn(values, labels)
    right = cross_validated(values, labels, [e.group for e in examples])
    shares = [sum(getattr(e, rule) == e.fastest for e in examples) / len(examples) for rule in ("density", "chart")]
    console.print(
        f"rule learned from {len(examples)} modelled cases ({right:.0%} right on models kept out):", style="bold"
    )
    for line in describe(tree):
        console.print(f"  {line}")
    console.print(f"published rules on the same cases: density {shares[0]:.0%} right, flow chart {shares[1]:.0%}")
    if graph is None or graph.macs is None:
        console.print("the work of this model is not known, so no rule can be asked about it")
        return
    case = features(graph.macs, graph.parameters, 1, options.rate or 1e3)
    verdict, path = decide(tree, case)
    billions = graph.parameters / 1e9
    console.print(
        f"for this model: learned rule {verdict} ({', '.join(path) or 'always'}), density {density_rule(billions, 1)},"
        f" flow chart {flow_chart(billions)}"
    )


def _graph(folder: Path, rows: Sequence[Row]) -> Graph | None:
    """Find the model's graph again: in a plan of the run, as a float one where there is one, or in the zoo."""
    from graphs import zoo

    whole = sorted((row for row in rows if row.segments == 1), key=lambda row: row.precision == "int8")
    for row in whole:
        with contextlib.suppress(PlanError):
            return read_plan(folder / "plans" / f"{row.plan_digest[:12]}.json").segments[0].graph
    return zoo.build(rows[0].model) if rows[0].model in zoo.names() else None
