"""The explanation as one table for people, and as files for machines."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from compilers import Action, CompilerError, get_compiler
from experiments import store
from experiments.console import plain_table
from experiments.explain.boundary import boundary_s, extra_dispatch_s, moved_in, moved_out
from experiments.plans import write_plan
from experiments.units import counted, interval, seconds, significant, size
from graphs import save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from compilers import Artefact
    from experiments.explain.boundary import Crossing
    from experiments.explain.proof import Proof
    from experiments.explain.settle import Request, Settled
    from experiments.explain.suggest import Suggestion
    from partition import Plan, Run

ALONG: Final = "shares quantised tensors with the refused node"
_HEADER: Final = (
    "node", "operator", "segment", "unit", "cause", "reason", "segment_in_bytes", "segment_out_bytes", "boundary_s",
    "boundary_low_s", "boundary_high_s", "suggestion",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Everything there is to say about one placement; `whole` is that without the profile, where there is one."""

    request: Request
    settled: Settled
    whole: Settled | None
    crossings: tuple[Crossing, ...]
    plan: Plan | None
    proof: Proof
    suggestions: tuple[Suggestion, ...]


def print_report(explained: Explained, console: Console) -> None:
    """Print one line per segment and refused node, then what the boundary costs, the proof and the rewrites."""
    request, settled = explained.request, explained.settled
    console.print(
        f"{request.graph.name} on {request.device.title}, {request.backend} {request.precision}: "
        f"{counted(len(request.graph.nodes()) - len(settled.refused), 'node')} on the {request.processor}, "
        f"{len(settled.refused)} refused",
    )
    headings = ("segment", "node", "operator", "unit", "cause", "reason", "in", "out", "time", "suggestion")
    table = plain_table(*headings, overflow="fold")
    for index in range(len(settled.runs)):
        for cells in _lines(explained, index):
            table.add_row(*cells)
    console.print(table)
    for line in _summary(explained):
        console.print(line)


def write_report(explained: Explained, folder: Path) -> None:
    """Write every node to placement.csv, the whole to placement.json, the plan and the rewritten graphs."""
    folder.mkdir(parents=True, exist_ok=True)
    store.write_csv(folder / "placement.csv", _HEADER, _rows(explained))
    store.write_json(folder / "placement.json", _content(explained))
    if explained.plan is not None:
        write_plan(explained.plan, folder)
    for number, suggestion in enumerate(explained.suggestions):
        save(suggestion.graph, folder / f"rewritten_{number}.onnx")


def _lines(explained: Explained, index: int) -> Iterator[tuple[str, ...]]:
    """Yield the table's lines of one segment: one for what stays together, one for each refused node."""
    settled, run = explained.settled, explained.settled.runs[index]
    kinds = {node.name: node.op_type for node in explained.request.graph.nodes()}
    refused = [node for node in run.nodes if node in settled.refused]
    along = [node for node in run.nodes if node not in settled.refused]
    moves = (
        size(moved_in(explained.crossings, index)),
        size(moved_out(explained.crossings, index)),
        _time(explained, index),
    )
    if along:
        names = along[0] if len(along) == 1 else f"{along[0]} ... {along[-1]} ({len(along)} nodes)"
        why = "" if run.place == explained.request.processor else ALONG
        blank = moves if not refused else ("", "", "")
        yield (str(index), names, kinds[along[0]] if len(along) == 1 else "", run.place, "", why, *blank, "")
    for number, node in enumerate(refused):
        refusal = settled.refused[node]
        cells = moves if number == 0 else ("", "", "")
        yield (
            str(index), node, kinds[node], run.place, refusal.cause.value, refusal.reason, *cells,
            _suggested(explained, node),
        )  # fmt: skip


def _time(explained: Explained, index: int) -> str:
    """Give an accelerator segment its simulated time, a stay on the CPU the modelled time of its boundary."""
    artefact = explained.settled.artefacts.get(index)
    if artefact is not None:
        found = simulated_s(explained.request, artefact)
        return f"{seconds(found)} simulated" if found is not None else "no simulator"
    cost = _boundary(explained, index)
    return f"{interval(*map(seconds, cost))} to and fro, modelled" if cost else "-"


def _boundary(explained: Explained, index: int) -> tuple[float, float, float] | None:
    found = explained.crossings
    if len(explained.settled.runs) == 1:
        return None
    return boundary_s(explained.request.device, moved_in(found, index), moved_out(found, index))


def simulated_s(request: Request, artefact: Artefact) -> float | None:
    """Return the simulated seconds of an artefact on the accelerator; None where the chip has no simulator."""
    compiler = get_compiler(request.backend)
    if not compiler.available(Action.ESTIMATE, request.device, request.processor):
        return None
    try:
        return compiler.estimate(artefact).latency.typical_s
    except CompilerError:
        return None  # the simulator has no cost for it, which the table shows as unknown


def _summary(explained: Explained) -> Iterator[str]:
    yield ""
    for crossing in explained.crossings:
        targets = ", ".join(f"{index} ({explained.settled.runs[index].place})" for index in crossing.targets)
        source = f"{crossing.source} ({explained.settled.runs[crossing.source].place})"
        yield f"crossing: {crossing.tensor}, {size(crossing.size_bytes)}, from segment {source} to {targets}"
    if len(explained.settled.artefacts) > 1:
        yield from _parts_against_whole(explained)
    if explained.settled.bisections:
        yield f"the nodes that were claimed and then refused were found with {explained.settled.bisections} compiles"
    if explained.settled.refused:
        yield f"the plan with the refused nodes on the CPU: {_proven(explained)}"
    for number, suggestion in enumerate(explained.suggestions):
        yield f"rewrite {number} of {', '.join(suggestion.nodes)}: {_offer(explained, suggestion)}"


def _parts_against_whole(explained: Explained) -> Iterator[str]:
    """Compare the parts with the graph in one part, where something says what that takes."""
    request, settled = explained.request, explained.settled
    parts = [found for a in settled.artefacts.values() if (found := simulated_s(request, a)) is not None]
    if len(parts) < len(settled.artefacts):
        return
    dispatch = extra_dispatch_s(request.device.processor(request.processor).dispatch_s, len(parts))
    calls = f"; {counted(len(parts) - 1, 'more call')} of it than one cost {seconds(dispatch)} (device file)"
    yield f"{len(parts)} accelerator parts take {seconds(sum(parts))} (simulated){calls if dispatch else ''}"
    whole = explained.whole
    if whole is not None and len(whole.artefacts) == 1 == len(whole.runs):
        yield f"without the profile's refusals, one part takes {seconds(simulated_s(request, whole.artefacts[0]))}"


def _proven(explained: Explained) -> str:
    error = explained.proof.error
    if error is None:
        return f"not proven: {explained.proof.why_not}"
    if error.cosine is None:
        return f"compiled and run in parts; against the graph in one piece: {error.verdict.value}"
    return (
        "compiled and run in parts; against the graph in one piece: "
        f"cosine {error.cosine:.6f}, largest difference {significant(error.relative_max or 0.0)} of the output's range"
    )


def _offer(explained: Explained, suggestion: Suggestion) -> str:
    after = suggestion.settled
    parts = counted(len(after.artefacts), "accelerator part")
    left = counted(len(after.refused), "refused node")
    text = f"{suggestion.text}; every output bit identical (both were run); {parts} and {left}"
    if len(after.artefacts) == 1 == len(after.runs):
        found = simulated_s(explained.request, after.artefacts[0])
        text += "" if found is None else f", {seconds(found)} simulated"
    return text


def _suggested(explained: Explained, node: str) -> str:
    for number, suggestion in enumerate(explained.suggestions):
        if node in suggestion.nodes:
            return f"rewrite {number}: {suggestion.text}"
    return ""


def _rows(explained: Explained) -> Iterator[dict[str, object]]:
    settled = explained.settled
    kinds = {node.name: node.op_type for node in explained.request.graph.nodes()}
    for index, run in enumerate(settled.runs):
        on_cpu = index not in settled.artefacts
        cost = (_boundary(explained, index) if on_cpu else None) or (None, None, None)
        for node in run.nodes:
            refusal = settled.refused.get(node)
            yield {
                "node": node,
                "operator": kinds[node],
                "segment": index,
                "unit": run.place,
                "cause": refusal and refusal.cause.value,
                "reason": refusal.reason if refusal else ALONG if run.place != explained.request.processor else None,
                "segment_in_bytes": moved_in(explained.crossings, index),
                "segment_out_bytes": moved_out(explained.crossings, index),
                "boundary_s": cost[0],
                "boundary_low_s": cost[1],
                "boundary_high_s": cost[2],
                "suggestion": _suggested(explained, node),
            }


def _content(explained: Explained) -> dict[str, Any]:
    request, settled = explained.request, explained.settled
    error = explained.proof.error
    return {
        "model": request.graph.name,
        "device": request.device.name,
        "backend": request.backend,
        "precision": request.precision,
        "plan_digest": explained.plan and explained.plan.digest,
        "segments": [_segment(explained, index, run) for index, run in enumerate(settled.runs)],
        "refused": {n: {"cause": r.cause.value, "reason": r.reason} for n, r in settled.refused.items()},
        "crossings": [dataclasses.asdict(crossing) for crossing in explained.crossings],
        "bisection_compiles": settled.bisections,
        "proof": {
            "verdict": error and error.verdict.value,
            "cosine": error and error.cosine,
            "relative_max": error and error.relative_max,
            "why_not": explained.proof.why_not,
        },
        "suggestions": [
            {"nodes": s.nodes, "text": s.text, "accelerator_parts": len(s.settled.artefacts)}
            for s in explained.suggestions
        ],
    }


def _segment(explained: Explained, index: int, run: Run) -> dict[str, Any]:
    artefact = explained.settled.artefacts.get(index)
    return {
        "unit": run.place,
        "nodes": run.nodes,
        "simulated_s": artefact and simulated_s(explained.request, artefact),
    }
