"""Problem -> integer arrays. All arithmetic inside the search is on int64, so equal costs compare equal.

A cost is a row of coordinates: latency and energy in steps, 1 ns and 1 nJ or finer, then whatever else the question
needs (peak memory, output error, segment count, load per processor). A coordinate adds up or takes the maximum.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.problem import FREE, Cost, ProblemError, TooWide

if TYPE_CHECKING:
    from partition.search.arrays import Bools, Floats, Ints
    from partition.search.problem import Place, Problem, Transfer

PACK_LIMIT: Final = 1 << 31
_NANO: Final = 9  # decimals of the step of ordinary problems
_FINEST: Final = 18
_ENOUGH: Final = 1 << 20  # steps in the dearest plan, below which they are made finer
MOST_HOMES: Final = 6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """The size of one integer step: 1 ns and 1 nJ, more where a plan could pass 2^31, less where all have few steps."""

    latency_s: float
    energy_j: float


class Encoded:
    """One problem in integers.

    `node_cost[node, place]`, `move_cost[tensor, from, to]` and `dispatch[place]` are rows
    (latency, energy, memory, error); memory is in bytes, error in units of 1e-9. `allowed[node, place]`.
    """

    def __init__(self, problem: Problem, segments: Floats | None = None) -> None:
        self.problem = problem
        self.homes = problem.homes()
        if len(self.homes) > MOST_HOMES:
            raise TooWide(f"{len(self.homes)} memories; the search keeps track of copies in at most {MOST_HOMES}")
        self.node_index = {name: index for index, name in enumerate(problem.nodes)}
        self.place_home = [self.homes.index(place.home) for place in problem.places]
        self.allowed = self._allowed()
        node, move, dispatch = self._node_seconds(), self._move_seconds(), self._dispatch_seconds()
        worst = _worst_moves(move, len(self.homes)) + (
            node.max(1).sum(0) + len(node) * dispatch.max(0) if segments is None else _worst_segments(segments)
        )
        latency_s, energy_j = problem.grain if problem.grain and segments is None else _steps(worst[0], worst[1])
        self.units = Units(latency_s=latency_s, energy_j=energy_j)
        self.steps = np.array([self.units.latency_s, self.units.energy_j, 1.0, 1e-9])
        self.per_unit = np.rint(1 / self.steps)  # dividing by it keeps 26 ms at 0.026
        self.node_cost, self.move_cost, self.dispatch = (self.integers(part) for part in (node, move, dispatch))

    def integers(self, costs: Floats) -> Ints:
        """Round rows of SI floats (latency, energy, memory, error) to integer steps."""
        steps: Ints = np.rint(costs / self.steps).astype(np.int64)
        return steps

    def _allowed(self) -> Bools:
        problem = self.problem
        allowed = np.ones((len(problem.nodes), len(problem.places)), dtype=bool)
        for name, reasons in problem.refusals.items():
            for place in reasons:
                if place in problem.places:
                    allowed[self.node_index[name], problem.places.index(place)] = False
        return allowed

    def _node_seconds(self) -> Floats:
        problem = self.problem
        rows = np.zeros((len(problem.nodes), len(problem.places), 4))
        if not problem.costs:
            return rows
        for n, name in enumerate(problem.nodes):
            for p, place in enumerate(problem.places):
                if self.allowed[n, p]:
                    rows[n, p] = _row(_lookup(problem, name, place))
        return rows

    def _move_seconds(self) -> Floats:
        homes, transfers = self.homes, self.problem.transfers
        size = np.array([tensor.size_bytes for tensor in self.problem.tensors], dtype=float)
        rows = np.zeros((len(size), len(homes) ** 2, 4))
        for index, pair in enumerate((start, stop) for start in homes for stop in homes):
            if pair[0] != pair[1] and pair in transfers:
                rows[:, index, 0], rows[:, index, 1] = _move(transfers[pair], size)
        return rows

    def _dispatch_seconds(self) -> Floats:
        return np.array([_row(self.problem.dispatch.get(place, FREE)) for place in self.problem.places])

    def move(self, tensor: int, start: int, stop: int) -> Ints:
        """Return the cost row of moving a tensor from one memory to another; zeros within one."""
        return np.asarray(self.move_cost[tensor, start * len(self.homes) + stop])

    @cached_property
    def pays_dispatch(self) -> bool:
        """Tell whether the number of segments matters to the cost at all."""
        return bool(self.dispatch.any())


def counted(problem: Problem) -> Problem:
    """Return the problem with its costs in whole steps, so that sums of them are the same in every grouping."""
    if problem.grain is not None or not problem.costs:
        return problem
    encoded = Encoded(problem)
    step_s, step_j = encoded.units.latency_s, encoded.units.energy_j
    per_s, per_j = encoded.per_unit[:2]
    costs = {
        key: dataclasses.replace(
            cost, latency_s=round(cost.latency_s / step_s) / per_s, energy_j=round(cost.energy_j / step_j) / per_j
        )
        for key, cost in problem.costs.items()
    }
    return dataclasses.replace(problem, costs=costs, grain=(step_s, step_j))


def _lookup(problem: Problem, name: str, place: Place) -> Cost:
    try:
        return problem.costs[name, place]
    except KeyError:
        raise ProblemError(f"node {name!r} has no cost on {place} and no refusal says why") from None


def _row(cost: Cost) -> tuple[float, float, float, float]:
    return cost.latency_s, cost.energy_j, cost.memory_bytes, cost.error


def _move(transfer: Transfer, size: Floats) -> tuple[Floats, Floats]:
    transfer.cost(0)  # refuses NaN and negative figures
    return (
        transfer.latency_s + size / transfer.bytes_per_s,
        transfer.energy_j + size * transfer.energy_j_per_byte,
    )


def _worst_moves(move: Floats, homes: int) -> Floats:
    """Bound what all moves together can cost: every tensor to every other memory."""
    return np.asarray(move.max(1, initial=0.0).sum(0) * max(homes - 1, 1), dtype=float)


def _worst_segments(rows: Floats) -> Floats:
    """Bound the cost of any chain of segments, by the dearest chain in each coordinate."""
    dear = np.where(np.isfinite(rows), rows, -np.inf).max(2)
    most = np.full((len(dear), 4), -np.inf)
    most[0] = 0.0
    for stop in range(1, len(dear)):
        most[stop] = (most[:stop] + dear[:stop, stop]).max(0)
    return np.asarray(np.maximum(most[-1], 0.0))


def _steps(worst_s: float, worst_j: float) -> tuple[float, float]:
    """Return 1e-9 for both, or for one that is not packed by it a coarser power of ten.

    Where either tells too few costs apart, both are as much finer as both allow: a power cap compares them exactly.
    """
    room = [_decimals(worst, PACK_LIMIT / 2) - 1 for worst in (worst_s, worst_j)]
    finer = max(_decimals(worst, _ENOUGH) for worst in (worst_s, worst_j) if worst) if worst_s or worst_j else 0
    finer = max(min(finer, *room), _NANO)
    return tuple(float(f"1e{-min(finer, most)}") for most in room)  # type: ignore[return-value]


def _decimals(worst: float, steps: float) -> int:
    """Return the fewest decimals with which `worst` has so many steps, at most `_FINEST`."""
    return min(math.ceil(math.log10(steps) - math.log10(worst)), _FINEST) if worst else _FINEST
