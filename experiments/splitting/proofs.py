"""What the search has no proof for, and so refuses: modes, objectives and costs that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partition.search import Constraints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.splitting.request import Options
    from partition.search import Objective


def without_proof(options: Options, constraints: Constraints, objectives: tuple[Objective, ...]) -> str | None:
    """Return why these options do not go together, the first reason where there are several, or None."""
    reasons = (
        *_of_errors(options, objectives),
        *_of_memory(options, objectives),
        *_of_modes(options, constraints, objectives),
        *_of_costs(options, constraints, objectives),
    )
    return next((reason for wrong, reason in reasons if wrong), None)


def _of_errors(options: Options, objectives: tuple[Objective, ...]) -> Iterator[tuple[bool, str]]:
    if "error" in objectives or options.min_sqnr is not None:
        mixes = len(options.precisions) > 1 and "int8" in options.precisions
        yield (
            not mixes,
            "the error of the outputs is what a mix of int8 and float trades; ask for --precisions int8,fp16",
        )
        compiled = options.oracle == "compile"
        yield compiled, "the error of the outputs comes with the modelled costs, not with --oracle compile"


def _of_memory(options: Options, objectives: tuple[Objective, ...]) -> Iterator[tuple[bool, str]]:
    if "memory" in objectives or options.memory_cap is not None:
        yield (
            len(options.precisions) > 1 and "int8" in options.precisions,
            (
                "peak memory is that of one precision: in a mix, what is alive beside a segment has the form that"
                " others gave it, which no cost of the segment tells; ask for it with one in --precisions"
            ),
        )
        yield (
            options.where not in {"units", "order"},
            (
                "peak memory needs a cost per segment, which --space units and order have: elsewhere what is alive"
                " beside it depends on all that ran before"
            ),
        )
        yield options.oracle == "compile", "peak memory comes from the model, so not with --oracle compile"


def _of_modes(
    options: Options, constraints: Constraints, objectives: tuple[Objective, ...]
) -> Iterator[tuple[bool, str]]:
    wants_period = "period" in objectives or constraints.period_s is not None
    yield wants_period and options.mode != "pipelined", "a period is what --mode pipelined has; ask for it there"
    proved = objectives == ("latency", "energy") and constraints == Constraints(deadline_s=constraints.deadline_s)
    yield (
        options.mode == "parallel" and not proved,
        "--mode parallel finds the frontier of latency and energy, under --deadline and --pin alone",
    )


def _of_costs(
    options: Options, constraints: Constraints, objectives: tuple[Objective, ...]
) -> Iterator[tuple[bool, str]]:
    given = options.costs is not None
    yield (
        given and len(options.precisions) > 1,
        "--costs has one cost per processor; give one precision in --precisions",
    )
    if options.oracle == "compile":
        yield options.mode == "parallel", "--oracle compile is for --mode sequential and pipelined"
        yield given, "--oracle compile takes no --costs: it asks the compilers"
        reason = "--oracle compile needs a cost per segment, which --space units, order and convex have"
        yield options.where == "layers", reason
        return
    yield options.max_compiles is not None, "--max-compiles is for --oracle compile"
    covered = options.mode == "sequential" and objectives == ("latency", "energy") and constraints == Constraints()
    yield (
        options.gap > 0 and not covered,
        "--gap is for --oracle compile, or for latency and energy without other constraints than --pin",
    )
