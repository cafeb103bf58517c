"""Split plans worth compiling: the search runs on modelled node costs, the compilers then tell the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.split_costs import (
    CostError,
    cut,
    handed_over,
    members,
    offered_places,
    operator_problem,
    plan_of,
    single_cuts,
    unit_problem,
)
from partition.search import Infeasible, Piece, Problem, Solution, TooWide, frontier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphs import Graph
    from partition import Device, Plan


def propose_splits(
    graph: Graph, by_precision: Mapping[str, Graph], device: Device, backends: Sequence[str], count: int
) -> Iterator[tuple[Plan, tuple[str, ...]]]:
    """Yield up to `count` plans per precision that use two or more processors, with the tensors they hand over.

    First those on the exact frontier of the modelled costs, then the best plans with one cut. A graph whose costs
    are not known has none.
    """
    for precision, variant in by_precision.items():
        places = offered_places(device, backends, precision)
        if len(places) < 2:
            continue
        try:
            problem = unit_problem(variant, operator_problem(variant, device, places))
        except CostError:
            continue
        for pieces in _best(problem, count):
            yield plan_of(graph, device, pieces, cut(variant, pieces)), handed_over(variant, pieces)


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
