"""Weighted single-objective passes over a state graph: supported plans, and lower bounds from every state.

One backward pass serves many weights at once. For weights w it gives the least w-cost to go from each state,
hence a plan on the convex hull of the frontier, and a bound that no plan can beat.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from partition.search.arrays import Floats, Indices, Ints
    from partition.search.states import StateGraph

AXES: Final = np.array([[1.0, 0.0], [0.0, 1.0]])
# Sums of up to 10^5 floats below 2^53 are right to about 1e-11; a bound is lowered by more than that.
SAFE: Final = 1 - 1e-10
MOST_ROUNDS: Final = 40


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """The result for each row of `weights`: the least cost to go per state, one best plan and its cost."""

    weights: Floats
    to_go: Floats
    points: Ints
    paths: list[list[int]]

    @property
    def least(self) -> Floats:
        """Return, per weight, a value that the weighted cost of no plan is below."""
        return np.asarray(self.to_go[0] * SAFE)


class Weigher:
    """Runs weighted passes over one state graph with coordinates (latency, energy)."""

    def __init__(self, graph: StateGraph) -> None:
        self.graph = graph
        source = np.concatenate([level.source for level in graph.levels])
        order = np.argsort(source, kind="stable")
        self._cost = np.concatenate([level.cost for level in graph.levels])[order]
        self._target = np.concatenate([level.target for level in graph.levels])[order]
        self._what = np.concatenate([level.what for level in graph.levels])[order]
        by_source = source[order]
        self._first = np.concatenate([[0], np.flatnonzero(np.diff(by_source)) + 1])
        self._stop = np.append(self._first[1:], len(by_source))
        self._state = by_source[self._first]

    def run(self, weights: Floats) -> Pass:
        """Do one backward pass for all rows of `weights`; unreachable ends have infinite cost to go."""
        to_go, best = self._pass(self._cost.astype(float) @ weights.T)
        points, paths = self._follow(best) if np.isfinite(to_go[0]).all() else (np.zeros((0, 2), np.int64), [])
        return Pass(weights=weights, to_go=to_go, points=points, paths=paths)

    def priced(self, decisions: Floats, weights: Floats) -> tuple[Floats, list[list[int]]]:
        """Return the least totals, and a plan of each, when decision d costs `decisions[:, d]` above its weighted cost.

        One total per row of `decisions` and `weights`.
        """
        extra = np.append(decisions, np.zeros((len(decisions), 1)), axis=1)  # decision -1 is none
        to_go, best = self._pass(self._cost.astype(float) @ weights.T + extra[:, self._what].T)
        return to_go[0], self._follow(best)[1]

    def _pass(self, price: Floats) -> tuple[Floats, Indices]:
        """Go backward once for every column of arc prices: the least to go per state, and the arc that it takes."""
        to_go = np.full((self.graph.states, price.shape[1]), np.inf)
        best = np.zeros((self.graph.states, price.shape[1]), np.int32)
        to_go[-1] = 0.0
        cuts = np.searchsorted(self._state, self.graph.bounds)
        for low, high in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            if low < high:
                self._settle(slice(low, high), price, to_go, best)
        return to_go, best

    def _settle(self, part: slice, price: Floats, to_go: Floats, best: Indices) -> None:
        """Choose the best arc of every state of one level: its arcs lead to levels settled before."""
        first, stop, states = self._first[part], self._stop[part], self._state[part]
        arcs = slice(first[0], stop[-1])
        total = price[arcs] + to_go[self._target[arcs]]
        least = np.minimum.reduceat(total, first - first[0], axis=0)
        is_best = total == np.repeat(least, stop - first, axis=0)
        number = np.where(is_best, np.arange(arcs.start, arcs.stop)[:, None], np.iinfo(np.int32).max)
        to_go[states] = least
        best[states] = np.minimum.reduceat(number, first - first[0], axis=0)

    def _follow(self, best: Indices) -> tuple[Ints, list[list[int]]]:
        """Walk all best plans from the start to the end, level by level, and add up their exact costs."""
        width, end = best.shape[1], self.graph.states - 1
        state, points = np.zeros(width, np.int64), np.zeros((width, 2), np.int64)
        steps = []
        while (state != end).any():
            going = np.flatnonzero(state != end)
            arc = best[state[going], going]
            points[going] += self._cost[arc]
            state[going] = self._target[arc]
            step = np.full(width, -1)
            step[going] = self._what[arc]
            steps.append(step)
        return points, [row[row >= 0].tolist() for row in np.array(steps).T]


class Supported:
    """Plans on the convex hull of a frontier, found by halving gaps, and the gap that they prove."""

    def __init__(self, weigher: Weigher) -> None:
        self._weigher = weigher
        self.first = weigher.run(AXES)
        self._weights, self._least = [self.first.weights], [self.first.least]
        self.points, self.paths = self.first.points, self.first.paths
        self._keep_front()

    def refine(self, gap_ratio: float) -> float:
        """Look between neighbours whose gap is larger than `gap_ratio` until none is, or nothing new is found."""
        asked: set[tuple[int, ...]] = set()
        for _ in range(MOST_ROUNDS):
            gaps = self.gaps()
            pairs = [tuple(self.points[i : i + 2].ravel().tolist()) for i in np.flatnonzero(gaps > gap_ratio)]
            pairs = [pair for pair in pairs if pair not in asked]
            if not pairs:
                break
            asked |= set(pairs)
            corners = np.array(pairs, float)
            normal = np.stack([corners[:, 1] - corners[:, 3], corners[:, 2] - corners[:, 0]], axis=1)
            self._take(self._weigher.run(normal / normal.sum(1, keepdims=True)))
        return float(self.gaps().max(initial=0.0))

    def _take(self, found: Pass) -> None:
        self._weights.append(found.weights)
        self._least.append(found.least)
        self.points = np.concatenate([self.points, found.points])
        self.paths = self.paths + found.paths
        self._keep_front()

    def _keep_front(self) -> None:
        order = np.lexsort(self.points.T[::-1])
        energy = self.points[order, 1]
        order = order[np.append(True, energy[1:] < np.minimum.accumulate(energy)[:-1])]
        self.points, self.paths = self.points[order], [self.paths[i] for i in order]

    def gaps(self) -> Floats:
        """Return the proven ratio between each point and the next.

        A plan that neither neighbour matches within e lies below corner / (1 + e), where the corner is the
        later latency with the earlier energy; it cannot exist once some weight prices that below the least
        possible cost. Beyond the outer points there is nothing, as they have the least latency and energy.
        """
        corner = np.stack([self.points[1:, 0], self.points[:-1, 1]], axis=1).astype(float)
        least = np.concatenate(self._least)
        price = corner @ np.concatenate(self._weights).T
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(least > 0, price / least, np.inf)
        return np.asarray(np.maximum(ratio.min(1, initial=np.inf) - 1, 0.0))
