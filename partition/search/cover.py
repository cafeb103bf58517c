"""Frontiers with a proven gap for graphs whose exact frontier is too large to enumerate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partition.search.bounds import Supported, Weigher
from partition.search.encode import Encoded
from partition.search.frontier import NO_LIMITS, OBJECTIVES, Effort, Frontier
from partition.search.infeasible import unplaceable
from partition.search.pieces import in_space, pieces_of_nodes
from partition.search.problem import Space, TooWide
from partition.search.prune import Filled
from partition.search.scheme import scheme_for
from partition.search.states import AdditiveStates

if TYPE_CHECKING:
    from partition.search.problem import Problem
    from partition.search.states import StateGraph


def certified_cover(problem: Problem, gap_ratio: float, *, space: Space = Space.CONVEX_CUTS) -> Frontier:
    """Return plans of which one matches any plan of `space` within `gap_ratio` in latency and energy.

    First come plans on the convex hull, which for large graphs are close enough; where they are not, label
    setting fills the gaps. The result's `gap_ratio` is the one that was proved; it is above the one asked for
    only when filling the gaps would take too much memory.

    Raises:
        Infeasible: a node is refused everywhere.
        TooWide: the state space of `space` passed its limit.
    """
    problem, space = in_space(problem, space)
    encoded = Encoded(problem)
    unplaceable(encoded)
    scheme = scheme_for(encoded, OBJECTIVES, NO_LIMITS)
    order_is_free = not encoded.pays_dispatch
    graph = AdditiveStates(encoded, scheme, one_order=order_is_free or space is not Space.CONVEX_CUTS).build()
    hull = Supported(Weigher(graph))
    proved = hull.refine(gap_ratio)
    filled = _filled(graph, hull, gap_ratio) if proved > gap_ratio else None
    return Frontier(
        objectives=OBJECTIVES,
        rows=hull.points if filled is None else filled.points,
        scheme=scheme,
        paths=lambda numbers: [hull.paths[n] for n in numbers] if filled is None else filled.paths(np.array(numbers)),
        pieces=lambda path: pieces_of_nodes(encoded, path, regroup=order_is_free),
        space=problem.space_name(space),
        effort=Effort(states=graph.states, arcs=graph.arcs, labels=0 if filled is None else filled.stored),
        gap_ratio=proved if filled is None else gap_ratio,
    )


def _filled(graph: StateGraph, hull: Supported, gap_ratio: float) -> Filled | None:
    try:
        return Filled(graph, hull, gap_ratio)
    except TooWide:  # then the gap that the hull proves stands
        return None
