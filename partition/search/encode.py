"""Problem -> integer arrays. All arithmetic inside the search is on int64, so equal costs compare equal.

A cost is a row of coordinates: latency in ns, energy in nJ, then whatever else the question needs (peak
memory, output error, segment count, load per processor). A coordinate adds up or takes the maximum.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.problem import FREE, Cost, ProblemError, TooWide

if TYPE_CHECKING:
    from partition.search.arrays import Bools, Floats, Ints
    from partition.search.problem import Place, Problem, Transfer

PACK_LIMIT: Final = 1 << 31
FINEST: Final = 1e-9
MOST_HOMES: Final = 6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """The size of one integer step: 1 ns and 1 nJ unless a plan could then pass 2^31 steps."""

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
        self.units = Units(latency_s=_step(worst[0]), energy_j=_step(worst[1]))
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


def _step(worst: float) -> float:
    """Return the finest power-of-ten step with which `worst` stays packable into 31 bits."""
    step = FINEST
    while worst / step >= PACK_LIMIT / 2:
        step *= 10
    return step
