"""Run a plan part after part on the tensors that really pass between its segments, against the whole graph."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import Action, CompilerError, compile_segment, get_compiler
from experiments.evaluator.fidelity import Feed, broken, output_error
from experiments.evaluator.run import run_artefact

if TYPE_CHECKING:
    from pathlib import Path

    from compilers import Limits
    from graphs import OutputError
    from partition import Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What a stitched run came to: the worst output's error, or why there is none."""

    error: OutputError | None
    why_not: str


def prove(plan: Plan, feed: Feed, reference: Feed, build: Path, limits: Limits) -> Proof:
    """Compile and run every segment and compare the outputs with `reference`, those of the graph in one piece."""
    try:
        outputs = stitched(plan, feed, build, limits)
    except CompilerError as error:
        return Proof(error=None, why_not=error.reason)
    found = {name: outputs[name] for name in reference if name in outputs}
    reason = broken(reference, found)
    return Proof(error=None if reason else output_error(reference, found), why_not=reason or "")


def stitched(plan: Plan, feed: Feed, build: Path, limits: Limits) -> Feed:
    """Run the segments one after the other and return every tensor that passed.

    Raises:
        CompilerError: a segment does not compile, or cannot run on this machine.
    """
    tensors = dict(feed)
    for segment in plan.segments:
        why_not = get_compiler(segment.compiler).why_not(Action.RUN, segment.device, segment.processor)
        if why_not is not None:
            raise CompilerError(f"{segment.compiler} cannot run here: {why_not}")
        artefact = compile_segment(segment, build, limits)
        inputs = {spec.name: tensors[spec.name] for spec in segment.graph.inputs()}
        tensors.update(run_artefact(artefact, inputs, limits=limits, budget_s=None).outputs)
    return tensors
