"""The split search's question about one graph on one device: places, modelled costs, and plans made of its answers.

`experiments.proposals` and `experiments.splits` ask with the same costs, built here from the device's figures.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from compilers import Action, get_compiler
from graphs import Graph, Node, extract
from partition import Device, Figure, Plan, Processor, Segment, activations, compile_units
from partition.search import (
    FREE,
    Cost,
    Piece,
    Place,
    Problem,
    Space,
    Tensor,
    Transfer,
    coarsen,
    crossing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CODED_SHARE: Final = 0.25  # of a float32 tensor that its int8 form takes
_CODED_HOME: Final = " int8"


class CostError(ValueError):
    """A graph or a device whose splits cannot be costed; the message says what is missing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CutPoint:
    """One cut of the node order: `position` nodes run on `first`, the others on `second`."""

    position: int
    first: Place
    second: Place
    latency_s: float
    energy_j: float
    moved_bytes: int


def offered_places(
    device: Device, backends: Sequence[str], precision: str, *, every_backend: bool = False
) -> tuple[Place, ...]:
    """Give each processor the first backend (or every one) that compiles for it, in the precision it has a rate for."""
    places: list[Place] = []
    for processor in device.processors:
        able = [b for b in backends if get_compiler(b).available(Action.COMPILE, device, processor.name)]
        rate = precision_on(processor, precision)
        chosen = able if every_backend else able[:1]
        places += [Place(processor=processor.name, backend=b, precision=rate) for b in chosen if rate]
    return tuple(places)


def precision_on(processor: Processor, precision: str) -> str | None:
    """Return the precision that a processor has a rate for: one without fp16 runs the float graph in fp32."""
    if precision in processor.macs_per_s:
        return precision
    return "fp32" if precision == "fp16" and "fp32" in processor.macs_per_s else None


def missing_figures(device: Device, places: Sequence[Place]) -> tuple[str, ...]:
    """Name what the device file lacks for a latency and an energy of every place; it would count nothing."""
    figures: dict[str, Figure | None] = {"dram.j_per_byte": device.dram_j_per_byte, "handover_s": device.handover_s}
    for place in places:
        processor = device.processor(place.processor)
        where = f"processors.{place.processor}"
        figures[f"{where}.active_w"] = processor.active_w
        figures[f"{where}.energy_j_per_mac.{place.precision}"] = processor.energy_j_per_mac.get(place.precision)
    return tuple(key for key, figure in figures.items() if figure is None)


def operator_problem(graph: Graph, device: Device, places: tuple[Place, ...], pins: Mapping[str, str] = {}) -> Problem:
    """Ask about the operators of a graph, one node each, with costs modelled from the device's figures.

    `pins` maps nodes to the processor they must run on. A tensor handed over in shared DRAM costs the
    synchronisation, once per processor that reads it, and its way to DRAM and back. Graph inputs and outputs lie
    in DRAM for every processor; their way is part of what a dispatch costs.

    Raises:
        CostError: a node or a tensor whose shape, and so whose cost, is not known.
    """
    costless = [node.name for node in graph.nodes() if node.macs is None or node.weight_bytes is None]
    shapeless = [t.name for t in activations(graph) if t.size_bytes is None]
    if costless or shapeless:
        why = graph.uncosted_nodes()
        what = (
            f"node {costless[0]!r} has no work count ({why[costless[0]]})"
            if costless
            else f"tensor {shapeless[0]!r} has no known shape"
        )
        raise CostError(
            f"{what}, so a split of {graph.name} has no modelled cost; else give costs of your own for every node with "
            "--costs FILE (docs/search.md)"
        )
    io_bytes = _boundary_bytes_by_node(graph)
    return Problem(
        nodes=tuple(node.name for node in graph.nodes()),
        tensors=tuple(
            Tensor(name=t.name, size_bytes=t.size_bytes or 0, producer=t.producer, consumers=t.consumers)
            for t in activations(graph)
        ),
        places=places,
        transfers={(a.home, b.home): _transfer(device) for a in places for b in places if a.home != b.home},
        costs={
            (node.name, place): _node_cost(node, io_bytes.get(node.name, 0), device, place)
            for node in graph.nodes()
            for place in places
        },
        dispatch={place: dispatch_cost(device, place) for place in places},
        refusals=_refusals(graph, places, pins),
    )


def _boundary_bytes_by_node(graph: Graph) -> dict[str, int]:
    """Charge each graph input to the first node that reads it, each graph output to its maker."""
    charged: dict[str, int] = {}
    for t in activations(graph):
        ends = [t.consumers[0] if t.consumers and t.producer is None else None, t.producer if t.is_output else None]
        for node in filter(None, ends):
            charged[node] = charged.get(node, 0) + (t.size_bytes or 0)
    return charged


def _node_cost(node: Node, io_bytes: int, device: Device, place: Place) -> Cost:
    """Cost a node as the longer of compute and its weights' way from DRAM; activations stay on the chip.

    The same model as the evaluator's roofline of a segment, which this sum is never below.
    """
    processor = device.processor(place.processor)
    macs, traffic = node.macs or 0, (node.weight_bytes or 0) + io_bytes
    latency_s = macs / processor.macs_per_s[place.precision].value
    if device.dram_bytes_per_s is not None:
        latency_s = max(latency_s, traffic / device.dram_bytes_per_s.value)
    energy_j = macs * value(processor.energy_j_per_mac.get(place.precision))
    energy_j += traffic * value(device.dram_j_per_byte) + latency_s * value(processor.active_w)
    return Cost(latency_s=latency_s, energy_j=energy_j)


def dispatch_cost(device: Device, place: Place) -> Cost:
    """Cost starting a segment on a place."""
    processor = device.processor(place.processor)
    latency_s = value(processor.dispatch_s)
    return Cost(latency_s=latency_s, energy_j=latency_s * value(processor.active_w))


def _transfer(device: Device) -> Transfer:
    """A handover in shared DRAM: the synchronisation, and the tensor written and read once."""
    return Transfer(latency_s=value(device.handover_s), energy_j_per_byte=2 * value(device.dram_j_per_byte))


def _refusals(graph: Graph, places: tuple[Place, ...], pins: Mapping[str, str]) -> dict[str, dict[Place, str]]:
    refusals: dict[str, dict[Place, str]] = {}
    for place in places:
        for node, reason in get_compiler(place.backend).unsupported(graph).items():
            refusals.setdefault(node, {})[place] = reason
        for node, processor in pins.items():
            if place.processor != processor:
                refusals.setdefault(node, {})[place] = f"pinned to {processor}"
    return refusals


def unit_problem(graph: Graph, problem: Problem) -> Problem:
    """Coarsen an operator problem to what a compiler fuses anyway and quantisation binds.

    Operators that different places take stay apart, or a refusal would spread over a whole fused group. The problem
    may be coarse already, by what quantisation binds.
    """
    owner = {m: name for name in problem.nodes for m in members(problem, [name])}
    marks = {m: frozenset(problem.refusals.get(name, ())) for m, name in owner.items()}
    units = [tuple(dict.fromkeys(owner[m] for m in unit)) for unit in compile_units(graph, marks)]
    return coarsen(problem, units, Space.FUSED_GROUP_BORDERS)


def members(problem: Problem, names: Sequence[str]) -> tuple[str, ...]:
    """Name the operators behind (possibly coarse) nodes."""
    return tuple(member for name in names for member in problem.members.get(name, (name,)))


def is_int8(place: Place) -> bool:
    """Tell whether the place computes in int8."""
    return place.precision == "int8"


def with_homes(places: Sequence[Place]) -> tuple[Place, ...]:
    """Give the int8 places of a mix of precisions a memory of their own, because their tensors have another form."""
    return tuple(
        dataclasses.replace(place, memory=f"{place.processor}{_CODED_HOME}") if is_int8(place) else place
        for place in places
    )


def moved_share(origin: str, wanted: str) -> float:
    """Return the share of a tensor's float bytes that a move between two memories of a mix takes."""
    return CODED_SHARE if origin.endswith(_CODED_HOME) and wanted.endswith(_CODED_HOME) else 1.0


def moved_bytes(problem: Problem, pieces: Sequence[Piece]) -> int:
    """Sum the bytes that change memory: each tensor once per other memory that reads it."""
    return sum(size for _, size in moves(problem, pieces))


def moves(problem: Problem, pieces: Sequence[Piece]) -> tuple[tuple[str, int], ...]:
    """List (tensor, bytes) of every move of a tensor to another memory; in a mix, also to its other form."""
    home_of = _homes(problem, pieces)
    found: list[tuple[str, int]] = []
    for t in problem.tensors:
        origin = t.source if t.producer is None else home_of[t.producer]
        wanted = {home_of[name] for name in t.consumers} | ({t.target} if t.target else set())
        if origin is not None:
            found += [(t.name, int(t.size_bytes * moved_share(origin, home))) for home in wanted - {origin}]
    return tuple(found)


def _homes(problem: Problem, pieces: Sequence[Piece]) -> dict[str, str]:
    owner = {node: piece.place.home for piece in pieces for node in piece.nodes}
    return {name: owner[members(problem, [name])[0]] for name in problem.nodes}


def single_cuts(problem: Problem) -> tuple[CutPoint, ...]:
    """List every plan that changes the memory once in the node order, with its cost and what it moves."""
    size, count = crossing(problem)
    found = []
    for first in problem.places:
        for second in problem.places:
            if first.home != second.home:
                found += _cuts_of_pair(problem, first, second, size, count)
    return tuple(found)


def _cuts_of_pair(
    problem: Problem, first: Place, second: Place, size: Array, count: NDArray[np.int64]
) -> list[CutPoint]:
    work = _sums(problem, first) + _sums(problem, second, backwards=True)
    opened = [problem.dispatch.get(place, FREE) for place in (first, second)]
    move = problem.transfers[first.home, second.home]
    latency = work[0] + sum(o.latency_s for o in opened) + count * move.latency_s + size / move.bytes_per_s
    energy = work[1] + sum(o.energy_j for o in opened) + count * move.energy_j + size * move.energy_j_per_byte
    return [
        CutPoint(
            position=position,
            first=first,
            second=second,
            latency_s=float(latency[position]),
            energy_j=float(energy[position]),
            moved_bytes=int(size[position] * moved_share(first.home, second.home)),
        )
        for position in range(1, len(problem.nodes))
        if np.isfinite(latency[position])
    ]


def _sums(problem: Problem, place: Place, *, backwards: bool = False) -> Array:
    """Sum (latency, energy) of the nodes before (or from) each position; infinite where the place refuses one."""
    rows = np.zeros((2, len(problem.nodes)))
    for number, node in enumerate(problem.nodes):
        cost = problem.costs.get((node, place))
        refused = cost is None or place in problem.refusals.get(node, {})
        rows[:, number] = np.inf if refused or cost is None else (cost.latency_s, cost.energy_j)
    none = np.zeros((2, 1))
    if backwards:
        return np.concatenate([rows[:, ::-1].cumsum(1)[:, ::-1], none], axis=1)
    return np.concatenate([none, rows.cumsum(1)], axis=1)


def plan_of(graph: Graph, device: Device, pieces: Sequence[Piece], parts: Sequence[Graph]) -> Plan:
    """Make a plan of pieces and the model cut out for each."""
    return Plan.of(graph, (segment_of(part, device, piece) for piece, part in zip(pieces, parts, strict=True)))


def cut(variant: Graph, pieces: Sequence[Piece]) -> tuple[Graph, ...]:
    """Cut the graph: one part per piece, each a valid model by itself."""
    return tuple(extract(variant, piece.nodes) for piece in pieces)


def segment_of(part: Graph, device: Device, piece: Piece) -> Segment:
    """Make the segment of one piece out of the model cut out for it."""
    return Segment(
        graph=part,
        device=device,
        processor=piece.place.processor,
        compiler=piece.place.backend,
        precision=piece.place.precision,
    )


def handed_over(graph: Graph, pieces: Sequence[Piece]) -> tuple[str, ...]:
    """List the tensors that one piece makes and another one reads."""
    owner = {node: index for index, piece in enumerate(pieces) for node in piece.nodes}
    return tuple(
        t.name
        for t in activations(graph)
        if t.producer is not None and any(owner[c] != owner[t.producer] for c in t.consumers)
    )


def value(figure: Figure | None) -> float:
    """Return a figure's value; one that the device file lacks counts nothing (`missing_figures` names it)."""
    return 0.0 if figure is None else figure.value
