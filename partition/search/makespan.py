"""Bounds that no schedule passes: the load of every processor and every path through the graph, priced together.

For any weights that sum to 1 over processors and paths, the makespan is at least the weighted sum of their lengths,
and that sum is least when each node takes the place that is cheapest under the weights. With the energy priced too,
each choice of weights gives a line that all schedules lie above. Good weights are found by fictitious play: the
longest processor or path under the present choice gains weight.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partition.search.arrays import Bools, Floats, Ints
    from partition.search.bounds import Weigher

ROUNDS: Final = 300
ROUNDS_WITH_MOVES: Final = 40
SAFE: Final = 1 - 1e-9
NEVER: Final = np.inf


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Lines below all schedules: `prices @ (makespan, energy) >= least`, one per row, and the placings behind them."""

    prices: Floats
    least: Floats
    placings: tuple[tuple[int, ...], ...]

    def between(self, points: Ints) -> Floats:
        """Return, per point and the next, how far a schedule between them can be from both, as a ratio.

        Points are sorted and none beats another. A schedule that neither neighbour matches within e lies below their
        corner / (1 + e); it cannot exist once a line prices that below its least.
        """
        corners = np.stack([points[1:, 0], points[:-1, 1]], axis=1).astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.least > 0, (corners @ self.prices.T) / self.least, np.inf)
        return np.asarray(np.maximum(ratio.min(1, initial=np.inf) - 1, 0.0))

    def gap(self, points: Ints) -> float:
        """Return how far any schedule can be from the nearest of `points`; beyond the ends the axes bound."""
        ends = []
        for axis, value in ((0, points[0, 0]), (1, points[-1, 1])):
            least = float(self.least[self.prices[:, 1 - axis] == 0].max())
            ends.append(float(value) / least - 1 if least > 0 else np.inf if value else 0.0)
        return max(*ends, float(self.between(points).max(initial=0.0)), 0.0)


class Relaxation:
    """The schedules of one problem without their order: durations and energies by node and place."""

    def __init__(
        self,
        duration: Ints,
        energy: Ints,
        allowed: Bools,
        processor_of: Sequence[int],
        after: Sequence[Sequence[int]],
        moves: Weigher | None,
    ) -> None:
        """Take the arcs of `moves`, where there is such a graph, as costing what their moves cost."""
        self._moves = moves
        self._duration, self._energy = duration.astype(float), energy.astype(float)
        self._allowed, self._after = allowed, after
        self._unit = np.array(processor_of)
        self._here = self._unit[None, :] == np.arange(self._unit.max() + 1)[:, None]
        self._rows = np.arange(len(duration))

    def lines(self, scale: float, soonest: int) -> Lines:
        """Price energy at `scale` (makespan per energy) and powers of two around it; `soonest` bounds the makespan.

        The energy of moves takes part exactly, as far as their states are known.
        """
        prices = np.array([0.0, *(scale * 2.0**k for k in range(-6, 7))])
        weight = np.stack([self._weights(price) for price in prices])
        least, placings = self._with_moves(weight, prices)
        frugal = self._least(np.zeros((1, *self._duration.shape)), np.ones(1))[0]
        return Lines(
            prices=np.array([*((1.0, price) for price in prices), (1.0, 0.0), (0.0, 1.0)]),
            least=np.array([*least, float(soonest), frugal[0]]) * SAFE,
            placings=tuple(dict.fromkeys(placings)),
        )

    def _weights(self, price: float) -> Floats:
        """Find weights by (node, place) with a large least price, moves left out: quick, and a start for the others."""
        weight = np.full(self._duration.shape, 1.0 / len(self._here))
        energy = np.where(self._allowed, self._energy * price, NEVER)
        best, found = -np.inf, weight
        for turn in range(ROUNDS):
            cost = weight * self._duration + energy
            chosen = cost.argmin(1)
            value = float(cost[self._rows, chosen].sum())
            if value > best:
                best, found = value, weight.copy()
            weight += (self._longest(chosen) - weight) / (turn + 2)
        return found

    def _with_moves(self, weight: Floats, prices: Floats) -> tuple[Floats, list[tuple[int, ...]]]:
        """Go on with the energy of moves in every least price; return the best of each and the placings met."""
        best = np.full(len(prices), -np.inf)
        placings: list[tuple[int, ...]] = []
        for turn in range(ROUNDS_WITH_MOVES):
            least, chosen = self._least(weight, prices)
            best = np.maximum(best, least)
            placings += map(tuple, chosen)
            longest = np.stack([self._longest(np.array(one)) for one in chosen])
            weight = weight + (longest - weight) / (turn + 8)
        return best, placings

    def _least(self, weight: Floats, prices: Floats) -> tuple[Floats, list[list[int]]]:
        """Return the least priced total of any placing, and one that has it, per row of weights and price."""
        cost = weight * self._duration + prices[:, None, None] * self._energy
        if self._moves is None:
            cost = np.where(self._allowed, cost, NEVER)
            return cost.min(2).sum(1), cost.argmin(2).tolist()
        rows = np.stack([np.zeros(len(prices)), prices], axis=1)
        least, paths = self._moves.priced(cost.reshape(len(prices), -1), rows)
        return least, [self._placing(path) for path in paths]

    def _placing(self, path: list[int]) -> list[int]:
        placing = [0] * len(self._rows)
        for node, place in (divmod(what, self._duration.shape[1]) for what in path):
            placing[node] = place
        return placing

    def _longest(self, placing: Ints) -> Floats:
        """Tell which (node, place) pairs count in the longest processor or path of a placing."""
        spent = self._duration[self._rows, placing]
        load = np.bincount(self._unit[placing], spent, minlength=len(self._here))
        length, path = self._path(spent.tolist())
        if length > load.max():
            return np.repeat(path[:, None], self._here.shape[1], axis=1)
        return np.repeat(self._here[load.argmax()][None, :], len(spent), axis=0).astype(float)

    def _path(self, spent: list[float]) -> tuple[float, Floats]:
        tail = [0.0] * len(spent)
        best = [-1] * len(spent)
        for node in reversed(range(len(spent))):
            for reader in self._after[node]:
                if tail[reader] > (tail[best[node]] if best[node] >= 0 else 0.0):
                    best[node] = reader
            tail[node] = spent[node] + (tail[best[node]] if best[node] >= 0 else 0.0)
        path = np.zeros(len(spent))
        node = max(range(len(spent)), key=tail.__getitem__)
        length = tail[node]
        while node >= 0:
            path[node] = 1.0
            node = best[node]
        return length, path
