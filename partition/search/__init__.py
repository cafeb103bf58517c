"""Exact split search: every Pareto-optimal partition of a graph over places, and the space it is exact in."""

from partition.search.baselines import Baselines, Strategy, ratio_over
from partition.search.convex import convex_gap, lazy_convex, search_convex
from partition.search.cover import certified_cover
from partition.search.frontier import Effort, Frontier, frontier, search, search_segments
from partition.search.intervals import SegmentTable, additive_table, segments
from partition.search.lazy import LazyFrontier, cover_gaps, lazy_frontier
from partition.search.parallel import search_parallel
from partition.search.pieces import coarsen, crossing, in_space
from partition.search.problem import (
    FREE,
    Conflict,
    Constraints,
    Cost,
    Infeasible,
    Objective,
    Piece,
    Place,
    Problem,
    ProblemError,
    Solution,
    Space,
    Tensor,
    TooWide,
    Transfer,
)

__all__ = [
    "FREE",
    "Baselines",
    "Conflict",
    "Constraints",
    "Cost",
    "Effort",
    "Frontier",
    "Infeasible",
    "LazyFrontier",
    "Objective",
    "Piece",
    "Place",
    "Problem",
    "ProblemError",
    "SegmentTable",
    "Solution",
    "Space",
    "Strategy",
    "Tensor",
    "TooWide",
    "Transfer",
    "additive_table",
    "certified_cover",
    "coarsen",
    "convex_gap",
    "cover_gaps",
    "crossing",
    "frontier",
    "in_space",
    "lazy_convex",
    "lazy_frontier",
    "ratio_over",
    "search",
    "search_convex",
    "search_parallel",
    "search_segments",
    "segments",
]
