"""Split plans worth compiling: the search runs on modelled node costs, the compilers then tell the truth."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from compilers import Action, get_compiler
from graphs import Graph, Node, extract
from partition import Device, Figure, Plan, Processor, Segment, activations, quantised_units
from partition.search import (
    Cost,
    Infeasible,
    Piece,
    Place,
    Problem,
    Solution,
    Space,
    Tensor,
    TooWide,
    Transfer,
    coarsen,
    frontier,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


Names = tuple[str, ...]


def propose_splits(
    graph: Graph, by_precision: Mapping[str, Graph], device: Device, backends: Sequence[str], count: int
) -> Iterator[tuple[Plan, tuple[str, ...]]]:
    """Yield up to `count` plans per precision that use two or more processors, with the tensors they hand over.

    First those on the exact frontier of the modelled costs, then the best plans with one cut.
    """
    for precision, variant in by_precision.items():
        places = _places(device, backends, precision)
        if len(places) < 2 or any(node.macs is None for node in variant.nodes()):
            continue
        problem = coarsen(_problem(variant, device, places), quantised_units(variant), Space.FUSED_GROUP_BORDERS)
        for pieces in _best(problem, count):
            yield _plan(graph, variant, device, pieces), _handed_over(variant, pieces)


def _places(device: Device, backends: Sequence[str], precision: str) -> tuple[Place, ...]:
    """Give each processor the first backend that compiles for it, in the precision it has a rate for."""
    places = []
    for processor in device.processors:
        able = [b for b in backends if get_compiler(b).available(Action.COMPILE, device, processor.name)]
        rate = _precision_on(processor, precision)
        if able and rate:
            places.append(Place(processor=processor.name, backend=able[0], precision=rate))
    return tuple(places)


def _precision_on(processor: Processor, precision: str) -> str | None:
    """A processor without fp16 rates runs the float graph in fp32; a QDQ graph is int8 everywhere."""
    if precision in processor.macs_per_s:
        return precision
    return "fp32" if precision == "fp16" and "fp32" in processor.macs_per_s else None


def _problem(graph: Graph, device: Device, places: tuple[Place, ...]) -> Problem:
    nodes = graph.nodes()
    home = places[0].processor
    return Problem(
        nodes=tuple(node.name for node in nodes),
        tensors=tuple(
            Tensor(
                name=t.name,
                size_bytes=t.size_bytes or 0,
                producer=t.producer,
                consumers=t.consumers,
                source=home if t.producer is None else None,
                target=home if t.is_output else None,
            )
            for t in activations(graph)
        ),
        places=places,
        transfers={(a.home, b.home): _transfer(device) for a in places for b in places if a.home != b.home},
        costs={(node.name, place): _node_cost(node, device, place) for node in nodes for place in places},
        dispatch={place: _dispatch(device, place) for place in places},
        refusals=_refusals(graph, places),
    )


def _node_cost(node: Node, device: Device, place: Place) -> Cost:
    """Cost a node as compute plus its weights' way from DRAM; activations are taken to stay on the chip."""
    processor = device.processor(place.processor)
    macs, weights = node.macs or 0, node.weight_bytes or 0
    latency_s = macs / processor.macs_per_s[place.precision].value
    if device.dram_bytes_per_s is not None:
        latency_s += weights / device.dram_bytes_per_s.value
    energy_j = macs * _value(processor.energy_j_per_mac.get(place.precision))
    energy_j += weights * _value(device.dram_j_per_byte) + latency_s * _value(processor.active_w)
    return Cost(latency_s=latency_s, energy_j=energy_j)


def _dispatch(device: Device, place: Place) -> Cost:
    processor = device.processor(place.processor)
    latency_s = _value(processor.dispatch_s)
    return Cost(latency_s=latency_s, energy_j=latency_s * _value(processor.active_w))


def _transfer(device: Device) -> Transfer:
    """A handover in shared DRAM: the synchronisation, and the tensor written and read once."""
    return Transfer(latency_s=_value(device.handover_s), energy_j_per_byte=2 * _value(device.dram_j_per_byte))


def _refusals(graph: Graph, places: tuple[Place, ...]) -> dict[str, dict[Place, str]]:
    refusals: dict[str, dict[Place, str]] = {}
    for place in places:
        for node, reason in get_compiler(place.backend).unsupported(graph).items():
            refusals.setdefault(node, {})[place] = reason
    return refusals


def _best(problem: Problem, count: int) -> list[tuple[Piece, ...]]:
    try:
        exact: Sequence[Solution] = frontier(problem)
    except (TooWide, Infeasible):  # then the single cuts below are all there is to offer
        exact = ()
    chosen = [s.segments for s in sorted(exact, key=lambda s: s.latency_s) if _processors(s.segments) > 1]
    chosen += [pieces for pieces in _single_cuts(problem) if pieces not in chosen]
    return chosen[:count]


def _single_cuts(problem: Problem) -> list[tuple[Piece, ...]]:
    """List every plan that changes the processor once in the node order, by modelled latency."""
    options = []
    for position, first, second in product(range(1, len(problem.nodes)), problem.places, problem.places):
        before, after = problem.nodes[:position], problem.nodes[position:]
        if first.processor != second.processor and not _refused(problem, before, first, after, second):
            options.append((_latency_s(problem, before, first, after, second), position, first, second))
    return [
        (
            Piece(place=first, nodes=_members(problem, problem.nodes[:position])),
            Piece(place=second, nodes=_members(problem, problem.nodes[position:])),
        )
        for _, position, first, second in sorted(options, key=lambda option: option[0])
    ]


def _latency_s(problem: Problem, before: Names, first: Place, after: Names, second: Place) -> float:
    work = sum(problem.costs[node, first].latency_s for node in before)
    work += sum(problem.costs[node, second].latency_s for node in after)
    dispatch = problem.dispatch[first].latency_s + problem.dispatch[second].latency_s
    done = set(before)
    crossing = [t for t in problem.tensors if t.producer in done and not done.issuperset(t.consumers)]
    handover = problem.transfers[first.home, second.home]
    return work + dispatch + sum(handover.cost(t.size_bytes).latency_s for t in crossing)


def _refused(problem: Problem, before: Names, first: Place, after: Names, second: Place) -> bool:
    return any(first in problem.refusals.get(node, {}) for node in before) or any(
        second in problem.refusals.get(node, {}) for node in after
    )


def _members(problem: Problem, names: Names) -> Names:
    return tuple(member for name in names for member in problem.members.get(name, (name,)))


def _processors(pieces: tuple[Piece, ...]) -> int:
    return len({piece.place.processor for piece in pieces})


def _plan(graph: Graph, variant: Graph, device: Device, pieces: tuple[Piece, ...]) -> Plan:
    segments = tuple(
        Segment(
            graph=extract(variant, piece.nodes),
            device=device,
            processor=piece.place.processor,
            compiler=piece.place.backend,
            precision=piece.place.precision,
        )
        for piece in pieces
    )
    return Plan(graph_digest=graph.digest, segments=segments)


def _handed_over(graph: Graph, pieces: tuple[Piece, ...]) -> tuple[str, ...]:
    """List the tensors that one piece makes and a later one reads."""
    owner = {node: index for index, piece in enumerate(pieces) for node in piece.nodes}
    return tuple(
        t.name
        for t in activations(graph)
        if t.producer is not None and any(owner[c] != owner[t.producer] for c in t.consumers)
    )


def _value(figure: Figure | None) -> float:
    """A figure that the device file lacks costs nothing here: this only orders proposals, it is no result."""
    return 0.0 if figure is None else figure.value
