"""The front door of the exact search: build the state graph, set labels, turn what is left into plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

import numpy as np

from partition.search.bounds import Supported, Weigher
from partition.search.contract import contract
from partition.search.encode import Encoded
from partition.search.general import RowLabels, nondominated
from partition.search.infeasible import explain, unplaceable
from partition.search.intervals import IntervalStates, segment_of
from partition.search.labels import PairLabels
from partition.search.pieces import in_space, piece, pieces_of_nodes, pinned
from partition.search.plans import Hopeless, known_points
from partition.search.problem import Constraints, Infeasible, Solution, Space
from partition.search.prune import Filled
from partition.search.scheme import BASE, scheme_for
from partition.search.states import AdditiveStates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partition.search.arrays import Floats, Ints
    from partition.search.intervals import SegmentTable
    from partition.search.problem import Objective, Piece, Problem
    from partition.search.scheme import Scheme
    from partition.search.states import StateGraph

OBJECTIVES: Final[tuple[Objective, ...]] = ("latency", "energy")
NO_LIMITS: Final = Constraints()
BATCH: Final = 256
SOLUTION_FIELDS: Final = ("latency", "energy", "memory", "error", "period")
MANY_STATES: Final = 20_000
HULL_GAP: Final = 0.05


class Frontier(Sequence[Solution]):
    """All Pareto-optimal plans of `space`, or within `gap_ratio` of them; a plan is made when it is asked for.

    `costs` are the objective values in SI units, one row per plan, in the order of `objectives`;
    `paths(numbers)` are the decisions behind plans, for those who know the state graph.
    """

    def __init__(
        self,
        *,
        objectives: tuple[Objective, ...],
        rows: Ints,
        scheme: Scheme,
        paths: Callable[[Sequence[int]], list[list[int]]],
        pieces: Callable[[list[int]], tuple[Piece, ...]],
        space: str,
        effort: Effort,
        gap_ratio: float = 0.0,
    ) -> None:
        self._prove: Callable[[Ints], float] | None = None
        self.objectives, self.space, self.effort, self.gap_ratio = objectives, space, effort, gap_ratio
        self._rows, self._scheme, self.paths, self._pieces = rows, scheme, paths, pieces
        self.costs = np.stack([_column(scheme, kind, rows) / scheme.per_unit(kind) for kind in objectives], axis=1)

    def __len__(self) -> int:
        return len(self._rows)

    def proved_by(self, prove: Callable[[Ints], float]) -> Frontier:
        """Note what proves a gap of any (latency, energy) rows, sorted and in integer steps; return this frontier."""
        self._prove = prove
        return self

    def gap_with(self, points: Floats) -> float:
        """Return the gap that these plans' proof leaves when `points` (latency, energy) stand in for them."""
        if self._prove is None:
            return self.gap_ratio
        steps: Ints = np.rint(points * self._scheme.encoded.per_unit[:2]).astype(np.int64)
        return self._prove(steps)

    @overload
    def __getitem__(self, index: int) -> Solution: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Solution, ...]: ...
    def __getitem__(self, index: int | slice) -> Solution | tuple[Solution, ...]:
        if isinstance(index, slice):
            wanted = range(len(self))[index]
            return tuple(map(self._solution, wanted, self.paths(wanted)))
        number = range(len(self))[index]
        return self._solution(number, self.paths([number])[0])

    def __iter__(self) -> Iterator[Solution]:
        for start in range(0, len(self), BATCH):
            yield from self[start : start + BATCH]

    def _solution(self, number: int, path: list[int]) -> Solution:
        row = self._rows[number : number + 1]
        latency_s, energy_j, memory_bytes, error, period_s = (_si(self._scheme, kind, row) for kind in SOLUTION_FIELDS)
        assert latency_s is not None
        assert energy_j is not None
        return Solution(
            segments=self._pieces(path),
            latency_s=latency_s,
            energy_j=energy_j,
            memory_bytes=memory_bytes,
            error=error,
            period_s=period_s,
            space=self.space,
            gap_ratio=self.gap_ratio,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """What the search looked at: states, arcs, labels kept."""

    states: int
    arcs: int
    labels: int


def frontier(
    problem: Problem,
    *,
    space: Space = Space.CONVEX_CUTS,
    objectives: tuple[Objective, ...] = OBJECTIVES,
    constraints: Constraints = NO_LIMITS,
) -> tuple[Solution, ...]:
    """Return all Pareto-optimal plans of `space` for additive node costs, one per distinct cost.

    Raises:
        Infeasible: no plan meets the constraints; says which and by how much.
        TooWide: the state space passed its limit; says what to ask for instead.
    """
    return tuple(search(problem, space=space, objectives=objectives, constraints=constraints))


def search(
    problem: Problem,
    *,
    space: Space = Space.CONVEX_CUTS,
    objectives: tuple[Objective, ...] = OBJECTIVES,
    constraints: Constraints = NO_LIMITS,
) -> Frontier:
    """Do what `frontier` does, but put plans together only when they are looked at."""
    problem, space = in_space(pinned(problem, constraints.pinned), space)
    encoded = Encoded(problem)
    unplaceable(encoded)
    # Without a cost per segment the order of execution costs nothing, so one order already holds every plan.
    order_is_free = not encoded.pays_dispatch and constraints.max_segments is None
    if (order_is_free or space is Space.CONVEX_CUTS) and _may_contract(objectives, constraints):
        encoded = Encoded(contract(encoded))
    scheme = scheme_for(encoded, objectives, constraints)
    one_order = order_is_free or space is not Space.CONVEX_CUTS
    hopeless = _beaten(encoded, scheme)
    graph = AdditiveStates(encoded, scheme, one_order=one_order, hopeless=hopeless).build()
    return solve(
        graph,
        scheme,
        objectives,
        problem.space_name(space),
        lambda path: pieces_of_nodes(encoded, path, regroup=order_is_free),
        hopeless,
    )


def _beaten(encoded: Encoded, scheme: Scheme) -> Hopeless | None:
    """Return what tells hopeless states by a few plans that keep all limits; of two objectives, or with error a third.

    With error the plans are those without any, which nothing beats there.
    """
    kinds = [c.kind for c in scheme.coordinates]
    if not scheme.plain and kinds != ["latency", "energy", "error"]:
        return None
    points = known_points(encoded)
    points = points[points[:, 3] == 0] if not scheme.plain else points
    points = points[scheme.within(points[:, [BASE[kind] for kind in kinds]])]
    return Hopeless(points[:, :2]) if len(points) else None


def _may_contract(objectives: tuple[Objective, ...], constraints: Constraints) -> bool:
    return "period" not in objectives and constraints.period_s is None and constraints.power_cap_w is None


def search_segments(
    problem: Problem,
    table: SegmentTable,
    *,
    objectives: tuple[Objective, ...] = OBJECTIVES,
    constraints: Constraints = NO_LIMITS,
) -> Frontier:
    """Return all Pareto-optimal plans over all cuts of the problem's node order, for any segment costs."""
    encoded = Encoded(pinned(problem, constraints.pinned), table.rows)
    unplaceable(encoded)
    scheme = scheme_for(encoded, objectives, constraints)
    states = IntervalStates(encoded, scheme, table)
    return solve(
        states.build(),
        scheme,
        objectives,
        problem.space_name(Space.ORDER_CUTS),
        lambda path: tuple(
            piece(problem, place, range(start, stop)) for start, stop, place in (segment_of(problem, w) for w in path)
        ),
    )


def solve(
    graph: StateGraph,
    scheme: Scheme,
    objectives: tuple[Objective, ...],
    space: str,
    pieces: Callable[[list[int]], tuple[Piece, ...]],
    hopeless: Hopeless | None = None,
) -> Frontier:
    """Set labels on any state graph whose arcs carry the scheme's coordinates; `pieces` reads a path.

    `hopeless` tells labels that a known plan beats in latency and energy and equals at least in all else.
    """
    labels = _labels(graph, scheme, hopeless)
    rows = labels.points
    ends = np.flatnonzero(scheme.within(rows))
    if not len(ends):
        raise Infeasible(explain(graph, scheme))
    wanted = np.stack([_column(scheme, kind, rows[ends]) for kind in objectives], axis=1)
    if not (scheme.plain and objectives == OBJECTIVES):
        ends = ends[nondominated(wanted)]
    return Frontier(
        objectives=objectives,
        rows=rows[ends],
        scheme=scheme,
        paths=lambda numbers: labels.paths(ends[np.array(numbers, dtype=int)]),
        pieces=pieces,
        space=space,
        effort=Effort(states=graph.states, arcs=graph.arcs, labels=labels.stored),
    )


def _labels(graph: StateGraph, scheme: Scheme, hopeless: Hopeless | None) -> PairLabels | RowLabels | Filled:
    """Choose how to set labels: packed pairs, with a hull first where there are many states, or rows."""
    if not scheme.plain:
        return RowLabels(graph, scheme.coordinates, hopeless)
    if graph.states > MANY_STATES and scheme.pair_limits == (None, None):
        hull = Supported(Weigher(graph))
        hull.refine(HULL_GAP)
        return Filled(graph, hull, 0.0)
    return PairLabels(graph, scheme.pair_limits)


def _column(scheme: Scheme, kind: str, rows: Ints) -> Ints:
    found = scheme.column(kind, rows)
    assert found is not None, f"objective {kind} is not tracked"
    return found


def _si(scheme: Scheme, kind: str, row: Ints) -> float | None:
    """Return one coordinate of a label in its SI unit, None when it is not tracked."""
    found = scheme.column(kind, row)
    return None if found is None else float(found[0] / scheme.per_unit(kind))
