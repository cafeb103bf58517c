"""Cost of a given placement, and the greedy placement: what baselines and pruning need of single plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partition.search.arrays import Bools, Ints
    from partition.search.encode import Encoded

WEIGHTS: Final = (1.0, 0.5, 0.0)


def plan_cost(encoded: Encoded, chosen: Sequence[int]) -> Ints:
    """Add up (latency, energy, memory, error) of all nodes in order, each on its chosen place, in integer steps."""
    rows = encoded.node_cost[np.arange(len(chosen)), chosen]
    total = rows.sum(0)
    total[2] = rows[:, 2].max()
    opened = np.append(True, np.diff(chosen) != 0)
    total += encoded.dispatch[np.array(chosen)[opened]].sum(0)
    for number, tensor in enumerate(encoded.problem.tensors):
        origin = _origin(encoded, number, chosen)
        if origin is None:
            continue
        wanted = {encoded.place_home[chosen[encoded.node_index[name]]] for name in tensor.consumers}
        wanted |= set() if tensor.target is None else {encoded.homes.index(tensor.target)}
        for home in wanted - {origin}:
            total += encoded.move(number, origin, home)
    return np.asarray(total)


def _origin(encoded: Encoded, number: int, chosen: Sequence[int]) -> int | None:
    """Return the memory in which a tensor is made or fed; None when it is wherever it is wanted."""
    tensor = encoded.problem.tensors[number]
    if tensor.producer is not None:
        return encoded.place_home[chosen[encoded.node_index[tensor.producer]]]
    return None if tensor.source is None else encoded.homes.index(tensor.source)


class Greedy:
    """Places nodes in order, each where it costs least given the choices before it."""

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded
        self._reads: list[list[int]] = [[] for _ in encoded.problem.nodes]
        self._makes: list[list[int]] = [[] for _ in encoded.problem.nodes]
        self._made_by = [tensor.producer for tensor in encoded.problem.tensors]
        self._homes = np.array(encoded.place_home)
        self._moves = encoded.move_cost.reshape(-1, len(encoded.homes), len(encoded.homes), 4)
        for number, tensor in enumerate(encoded.problem.tensors):
            for name in dict.fromkeys(tensor.consumers):
                self._reads[encoded.node_index[name]].append(number)
            if tensor.producer is not None:
                self._makes[encoded.node_index[tensor.producer]].append(number)

    def place(self, latency_weight: float) -> list[int]:
        """Minimise latency_weight * latency + (1 - latency_weight) * energy, transfers and dispatch included."""
        encoded, weights = self._encoded, np.array([latency_weight, 1 - latency_weight])
        chosen: list[int] = []
        origin = [_origin(encoded, t, chosen) if made is None else None for t, made in enumerate(self._made_by)]
        copies = np.zeros((len(origin), len(encoded.homes)), bool)
        for t, home in enumerate(origin):
            copies[t, slice(None) if home is None else home] = True
        for node in range(len(self._reads)):
            cost = self._costs(node, origin, copies)[:, :2] @ weights
            if chosen:
                cost[chosen[-1]] -= encoded.dispatch[chosen[-1], :2] @ weights
            cost[~encoded.allowed[node]] = np.inf
            chosen.append(int(cost.argmin()))
            home = encoded.place_home[chosen[-1]]
            copies[self._reads[node], home] = True
            for t in self._makes[node]:
                origin[t], copies[t] = home, np.arange(len(encoded.homes)) == home
        return chosen

    def _costs(self, node: int, origin: Sequence[int | None], copies: Bools) -> Ints:
        """Return the cost rows of running `node` as a new segment, by place."""
        encoded, homes = self._encoded, self._homes
        total: Ints = encoded.node_cost[node] + encoded.dispatch
        for t in self._reads[node]:
            if origin[t] is not None:
                total += self._moves[t, origin[t], homes] * ~copies[t, homes, None]
        for t in self._makes[node]:
            target = encoded.problem.tensors[t].target
            if target is not None:
                total += self._moves[t, homes, encoded.homes.index(target)]
        return total


def known_points(encoded: Encoded) -> Ints:
    """Return the costs of some complete plans: everything on one place, and greedy ones."""
    count = len(encoded.problem.nodes)
    greedy = Greedy(encoded)
    plans = [[place] * count for place in np.flatnonzero(encoded.allowed.all(0)).tolist()]
    plans += [greedy.place(weight) for weight in WEIGHTS]
    return np.array([plan_cost(encoded, plan) for plan in plans])


class Hopeless:
    """Tells which partial plans lead only to plans that a known complete one beats."""

    def __init__(self, points: Ints) -> None:
        order = np.lexsort(points.T[::-1])
        points = points[order]
        first = np.append(True, points[1:, 1] < np.minimum.accumulate(points[:, 1])[:-1])
        self._latency, self._energy = points[first].T

    def of(self, corners: Ints) -> Bools:
        """Tell for each (least latency, least energy) whether a known plan beats it in one and equals it in the other.

        An equal corner is kept: it may be the known plan itself.
        """
        last = np.searchsorted(self._latency, corners[:, 0], side="right") - 1
        at = np.maximum(last, 0)
        better = (self._latency[at] < corners[:, 0]) | (self._energy[at] < corners[:, 1])
        return np.asarray((last >= 0) & (self._energy[at] <= corners[:, 1]) & better)
