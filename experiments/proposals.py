"""Split plans worth compiling: the search runs on modelled node costs, the compilers then tell the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.mixing import cut_mixed, mixed_problem
from experiments.split_costs import (
    CostError,
    cut,
    handed_over,
    is_int8,
    members,
    offered_places,
    operator_problem,
    plan_of,
    single_cuts,
    unit_problem,
    with_homes,
)
from graphs import GraphError, Mixer, float_form
from partition.search import Infeasible, Piece, Problem, Solution, TooWide, frontier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphs import Graph
    from partition import Device, Plan


def propose_splits(
    graph: Graph, by_precision: Mapping[str, Graph], device: Device, backends: Sequence[str], count: int
) -> Iterator[tuple[Plan, tuple[str, ...]]]:
    """Yield up to `count` plans per precision that use two or more processors, with the tensors they hand over.

    First those on the exact frontier of the modelled costs, then the best plans with one cut. Where int8 is refused
    somewhere and a float precision is tried too, up to `count` plans of the frontier that mix the two follow. A graph
    whose costs are not known has none.
    """
    refused = False
    for precision, variant in by_precision.items():
        places = offered_places(device, backends, precision)
        if len(places) < 2:
            continue
        try:
            problem = unit_problem(variant, operator_problem(variant, device, places))
        except CostError:
            continue
        refused |= precision == "int8" and any(problem.refusals.values())
        for pieces in _best(problem, count):
            yield plan_of(graph, device, pieces, cut(variant, pieces)), handed_over(variant, pieces)
    # Where int8 takes everything, it beats float in the modelled time and energy of every device here.
    if refused:
        yield from _mixed(graph, by_precision, device, backends, count)


def _mixed(
    graph: Graph, by_precision: Mapping[str, Graph], device: Device, backends: Sequence[str], count: int
) -> Iterator[tuple[Plan, tuple[str, ...]]]:
    places = dict.fromkeys(place for precision in by_precision for place in offered_places(device, backends, precision))
    if all(map(is_int8, places)):
        return
    try:
        mixer = Mixer(float_form(graph), by_precision["int8"])
        problem = unit_problem(mixer.floating, mixed_problem(mixer, device, with_homes(tuple(places))))
        found = frontier(problem)
    except (CostError, GraphError, TooWide, Infeasible):  # then there is no mix to offer beside the others
        return
    mixes = [s.segments for s in found if len({is_int8(piece.place) for piece in s.segments}) == 2]
    for pieces in mixes[:count]:
        yield plan_of(graph, device, pieces, cut_mixed(mixer, pieces)), handed_over(mixer.floating, pieces)


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
    return [
        (
            Piece(place=cut.first, nodes=members(problem, problem.nodes[: cut.position])),
            Piece(place=cut.second, nodes=members(problem, problem.nodes[cut.position :])),
        )
        for cut in sorted(single_cuts(problem), key=lambda cut: cut.latency_s)
    ]


def _processors(pieces: tuple[Piece, ...]) -> int:
    return len({piece.place.processor for piece in pieces})
