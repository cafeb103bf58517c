"""How much the place of the cut matters (R7): latency and bytes moved against cut position, and by granularity."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from experiments.split_costs import CutPoint, members, moved_bytes, single_cuts, unit_problem
from partition.search import Baselines, Frontier, Infeasible, Problem, Space, TooWide, crossing, search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.splitting.request import Request
    from partition.search import Piece, Place


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Granularity:
    """The fastest plan of one way to cut: modelled latency and energy, bytes moved, number of segments."""

    name: str
    latency_s: float
    energy_j: float
    moved_bytes: int
    segments: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """Plans with one cut, per operator position; `border_positions` are those between fused groups.

    `single_positions` are those that one tensor crosses.
    """

    cuts: tuple[CutPoint, ...]
    border_positions: frozenset[int]
    single_positions: frozenset[int]
    granularities: tuple[Granularity, ...]
    left_out: tuple[str, ...]


def sensitivity(request: Request) -> Sensitivity:
    """Cost every single cut of the operator order, and the fastest plan by layer, fused group, operator and mixed."""
    problem = request.operators
    found, left_out = _granularities(request)
    return Sensitivity(
        cuts=single_cuts(problem),
        border_positions=_borders(request),
        single_positions=_single_tensor_positions(problem),
        granularities=tuple(found),
        left_out=tuple(left_out),
    )


def _borders(request: Request) -> frozenset[int]:
    """Return the positions of the operator order at which no fused group is cut in two."""
    units = unit_problem(request.variant, request.operators)
    owner = {m: name for name in units.nodes for m in members(units, [name])}
    order = [owner[members(request.operators, [node])[0]] for node in request.operators.nodes]
    last = {name: position for position, name in enumerate(order)}
    reach, found = 0, set()
    for position, name in enumerate(order):
        reach = max(reach, last[name])
        if reach == position:
            found.add(position + 1)
    return frozenset(found - {len(order)})


def _single_tensor_positions(problem: Problem) -> frozenset[int]:
    _, count = crossing(problem)
    return frozenset(position for position, tensors in enumerate(count.tolist()) if tensors == 1)


def _granularities(request: Request) -> tuple[list[Granularity], list[str]]:
    """Find the fastest plan of each way to cut; one that finds none is left out with its reason."""
    problem = request.operators
    spaces: list[tuple[str, Callable[[], Frontier]]] = [
        ("by layer (single-tensor cuts)", lambda: search(problem, space=Space.SINGLE_TENSOR_CUTS)),
        ("by fused group (all convex cuts)", lambda: search(unit_problem(request.variant, problem))),
        ("per operator (all cuts of one order)", lambda: search(problem, space=Space.ORDER_CUTS)),
    ]
    found, left_out, frontiers = [], [], []
    for name, ask in spaces:
        try:
            frontiers.append(ask())
        except (Infeasible, TooWide) as error:
            left_out.append(f"{name}: {error}")
            continue
        best = min(frontiers[-1], key=lambda s: (s.latency_s, s.energy_j))
        found.append(_granularity(problem, name, best.latency_s, best.energy_j, best.segments))
    if frontiers:
        found += _rules(problem, frontiers)
    return found, left_out


def _rules(problem: Problem, frontiers: Sequence[Frontier]) -> list[Granularity]:
    """Cost the rules without a search over cuts: each operator where it is fastest, and R7's static with dynamic."""
    judge = Baselines(problem, frontiers[-1])
    static = min(frontiers[0], key=lambda s: (s.latency_s, s.energy_j))
    placing: dict[str, Place] = {m: piece.place for piece in static.segments for m in piece.nodes}
    start = {node: placing[members(problem, [node])[0]] for node in problem.nodes}
    rules = [
        ("per operator, fastest place of each", judge.greedy(transfers=False)),
        ("mixed: by layer, then the 80 % rule", judge.mixed_rule("mixed", start)),
    ]
    return [_granularity(problem, name, s.latency_s, s.energy_j, s.segments) for name, s in rules]


def _granularity(
    problem: Problem, name: str, latency_s: float, energy_j: float, pieces: tuple[Piece, ...]
) -> Granularity:
    return Granularity(
        name=name,
        latency_s=latency_s,
        energy_j=energy_j,
        moved_bytes=moved_bytes(problem, pieces),
        segments=len(pieces),
    )
