"""Find out what the accelerator takes: compile, note who was refused, and compile again until all parts stand."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import Artefact, Cause, CompilerError, DiedError, LimitError, PassingError, compile_segment, get_compiler
from experiments.explain.culprit import find_culprit
from experiments.explain.parts import cover, segment_of
from experiments.explain.rules import Refusal
from graphs import extract
from partition import Run, quantised_units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from compilers import Limits
    from graphs import Graph
    from partition import Device, Segment


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is to be placed where, and how the compiler may be used; `died` is what it died over, by segment."""

    graph: Graph
    device: Device
    processor: str
    cpu: str
    backend: str
    precision: str
    build: Path
    limits: Limits
    options: tuple[tuple[str, str], ...] = ()
    died: dict[str, DiedError] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """A cover whose accelerator parts all compile, and why each other node is not in one.

    `artefacts` are those of the accelerator runs, by index of `runs`; `bisections` counts the compiles that the
    search for nodes refused after they were claimed took.
    """

    runs: tuple[Run, ...]
    refused: Mapping[str, Refusal]
    artefacts: Mapping[int, Artefact]
    bisections: int


def settle(request: Request, refused: Mapping[str, Refusal], tell: Callable[[str], None]) -> Settled:
    """Place the graph, starting from the nodes that are `refused` already.

    Raises:
        PassingError: the backend cannot start, or something else than the graph is in the way (a full disk, a device
            without answer), so that nothing is said about any node.
    """
    known = dict(refused)
    probe = _Probe(request)
    while True:
        runs = cover(request.graph, known, request.processor, request.cpu)
        artefacts: dict[int, Artefact] = {}
        found: dict[str, Refusal] = {}
        for index, run in enumerate(runs):
            if run.place == request.processor:
                outcome = _try(request, run, probe, tell)
                if isinstance(outcome, Artefact):
                    artefacts[index] = outcome
                else:
                    found.update(outcome)
        if not found:
            return Settled(runs=runs, refused=known, artefacts=artefacts, bisections=probe.compiles)
        known.update(found)


def _try(request: Request, run: Run, probe: _Probe, tell: Callable[[str], None]) -> Artefact | dict[str, Refusal]:
    """Compile one part: the artefact when all of it is on the accelerator, else who is not and why."""
    compiler = get_compiler(request.backend)
    segment = segment_of(request.graph, run, request.device, request.backend, request.precision, request.options)
    try:
        artefact = _compiled(segment, request)
        reasons: Mapping[str, str] = compiler.placement(artefact).reasons
    except CompilerError as error:
        _see_about_graph(error)
        reasons = error.nodes
        if not any(node in run.nodes for node in reasons):
            return _blame(request, run, error, probe, tell)
    mine = {node: reason for node, reason in reasons.items() if node in run.nodes}
    if not mine:
        return artefact
    return {
        node: Refusal(cause=_cause(compiler.cause(why), request.graph, node), reason=why) for node, why in mine.items()
    }


def _compiled(segment: Segment, request: Request) -> Artefact:
    """Compile, and once more where the compile died: a crash or a limit that comes once may be another's doing.

    What died twice is remembered. Once a limit was passed twice, a part that passes it too is believed at once: each
    such compile takes all of the limit.
    """
    if segment.digest in request.died:
        raise request.died[segment.digest]
    try:
        return compile_segment(segment, request.build, request.limits)
    except LimitError as error:
        if any(isinstance(known, LimitError) for known in request.died.values()):
            request.died[segment.digest] = error
            raise
    except DiedError:
        pass
    try:
        return compile_segment(segment, request.build, request.limits)
    except DiedError as error:
        request.died[segment.digest] = error
        raise


def _see_about_graph(error: CompilerError) -> None:
    """Let pass what says something about the graph: a refusal, or a crash or limit that came twice."""
    if isinstance(error, PassingError) and not isinstance(error, DiedError):
        raise error


def _cause(told: Cause, graph: Graph, node: str) -> Cause:
    """Where the backend gives no reason and the node has a tensor without a known shape, that is the reason."""
    if told is not Cause.UNTOLD:
        return told
    named = next(candidate for candidate in graph.nodes() if candidate.name == node)
    tensors = graph.tensors()
    unknown = any(tensors[name].shape is None for name in (*named.reads, *named.outputs) if name in tensors)
    return Cause.DYNAMIC if unknown else told


def _blame(
    request: Request, run: Run, error: CompilerError, probe: _Probe, tell: Callable[[str], None]
) -> dict[str, Refusal]:
    """Name who makes a part fail that the provider had claimed, and others of its operator that fail alone too."""
    tell(f"{len(run.nodes)} nodes were claimed and then refused ({error.reason}); searching for the cause")
    inside = set(run.nodes)
    units = [unit for unit in quantised_units(request.graph) if unit[0] in inside]
    culprit = find_culprit(units, probe.fails)
    nodes = units[culprit.unit]
    company = [node for index in culprit.company for node in units[index]]
    blamed = {node: _claimed(error, company) for node in nodes}
    if not culprit.company:
        kinds = _operators(request.graph, nodes)
        alike = [unit for unit in units if unit != nodes and _operators(request.graph, unit) == kinds]
        blamed.update({node: _claimed(error, ()) for unit in alike if probe.fails([unit]) for node in unit})
    tell(f"{', '.join(blamed)}: found with {probe.compiles} compiles")
    return blamed


def _claimed(error: CompilerError, company: Sequence[str]) -> Refusal:
    beside = f"together with {company[0]}{' and others' if len(company) > 1 else ''}: " if company else ""
    return Refusal(cause=Cause.CLAIMED, reason=f"{beside}{error.reason}")


def _operators(graph: Graph, nodes: Sequence[str]) -> tuple[str, ...]:
    kinds = {node.name: node.op_type for node in graph.nodes()}
    return tuple(kinds[name] for name in nodes)


class _Probe:
    """Compile sub-models to see whether they fail; a sub-model that the provider leaves whole to the CPU does not."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.compiles = 0

    def fails(self, units: Sequence[tuple[str, ...]]) -> bool:
        request = self._request
        names = tuple(node for unit in units for node in unit)
        run = Run(place=request.processor, nodes=tuple(node.name for node in extract(request.graph, names).nodes()))
        segment = segment_of(request.graph, run, request.device, request.backend, request.precision, request.options)
        self.compiles += 1
        try:
            _compiled(segment, request)
        except CompilerError as error:
            _see_about_graph(error)
            return not error.nodes
        return False
