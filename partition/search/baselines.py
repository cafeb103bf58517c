"""Strategies that people use instead of an exact search, each evaluated by the same costs.

They say what exactness is worth: `Strategy.latency_gap_ratio` and `front_gap_ratio` against an exact frontier.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import networkx as nx
import numpy as np

from partition.search.encode import Encoded
from partition.search.infeasible import unplaceable
from partition.search.pieces import pieces_of_nodes
from partition.search.plans import Greedy, plan_cost
from partition.search.problem import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partition.search.arrays import Bools, Floats, Ints
    from partition.search.frontier import Frontier
    from partition.search.problem import Piece, Place, Problem

THRESHOLD_SHARE: Final = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One plan of a baseline, its cost, and how far it is from the exact frontier.

    `latency_gap_ratio`: latency above the least possible. `front_gap_ratio`: every plan of the frontier is at
    most this ratio better in at least one objective; 0 means that the plan is on the frontier.
    """

    name: str
    segments: tuple[Piece, ...]
    latency_s: float
    energy_j: float
    latency_gap_ratio: float
    front_gap_ratio: float


class Baselines:
    """The baselines of one problem, judged by its exact frontier over (latency, energy)."""

    def __init__(self, problem: Problem, exact: Frontier) -> None:
        self._encoded = Encoded(problem)
        unplaceable(self._encoded)
        self.problem, self._exact = problem, exact
        self._count = len(problem.nodes)

    def all(self, threshold_s: float | None = None) -> tuple[Strategy, ...]:
        """Return every baseline that the problem admits, the single-place plans first.

        The 80 % rule is there at its best, and with `threshold_s` at that threshold, too.
        """
        found = [*self.single_places(), self.greedy(), self.greedy(transfers=False), self.best_single_cut()]
        if len(self.problem.places) == 2:
            found.append(self.min_cut())
        thresholds = (None,) if threshold_s is None else (None, threshold_s)
        homes = [home for home in range(len(self.problem.places)) if self._takes_all(home)]
        found += [self.dynamic_rule(home, threshold) for home in homes for threshold in thresholds]
        return tuple(strategy for strategy in found if strategy is not None)

    def period_s(self, pieces: Sequence[Piece]) -> float:
        """Return the time of the busiest processor: its nodes, dispatches, and the moves that it waits for or makes.

        A reader waits for a tensor that was made elsewhere; an output of the graph is moved by its maker.
        """
        encoded, problem = self._encoded, self.problem
        owner = {member: piece.place for piece in pieces for member in piece.nodes}
        place = {name: owner[problem.members.get(name, (name,))[0]] for name in problem.nodes}
        load = dict.fromkeys((piece.place.processor for piece in pieces), 0)
        for piece in pieces:
            load[piece.place.processor] += int(encoded.dispatch[problem.places.index(piece.place), 0])
        for number, name in enumerate(problem.nodes):
            load[place[name].processor] += int(encoded.node_cost[number, problem.places.index(place[name]), 0])
        for number, t in enumerate(problem.tensors):
            origin = t.source if t.producer is None else place[t.producer].home
            waits = {place[name].home: place[name].processor for name in t.consumers}
            if t.target is not None and t.producer is not None:
                waits[t.target] = place[t.producer].processor
            for wanted, processor in waits.items():
                if origin not in {None, wanted}:
                    start, stop = encoded.homes.index(str(origin)), encoded.homes.index(wanted)
                    load[processor] += int(encoded.move(number, start, stop)[0])
        return float(max(load.values()) / encoded.per_unit[0])

    def single_places(self) -> tuple[Strategy, ...]:
        """Run everything on one place, for each place that takes every node."""
        places = range(len(self.problem.places))
        return tuple(
            self._judge(f"all on {self.problem.places[p]}", [p] * self._count) for p in places if self._takes_all(p)
        )

    def _takes_all(self, place: int) -> bool:
        return bool(self._encoded.allowed[:, place].all())

    def greedy(self, *, transfers: bool = True) -> Strategy:
        """Give each node, in order, the place where it ends soonest given the choices before it.

        Without `transfers` only the node's own latency counts, as when a table of per-operator times is all
        there is.
        """
        if transfers:
            return self._judge("greedy per operator", Greedy(self._encoded).place(1.0))
        latency = np.where(self._encoded.allowed, self._encoded.node_cost[..., 0], np.iinfo(np.int64).max)
        return self._judge("fastest place per operator", latency.argmin(1).tolist())

    def best_single_cut(self) -> Strategy | None:
        """Run a prefix of the node order on one place and the rest on another; the least latency of all such."""
        places = range(len(self.problem.places))
        plans = [
            [p] * cut + [q] * (self._count - cut)
            for p in places
            for q in places
            if p != q
            for cut in range(1, self._count)
        ]
        plans = [plan for plan in plans if self._encoded.allowed[range(self._count), plan].all()]
        return self._judge("best single cut", min(plans, key=self._latency)) if plans else None

    def min_cut(self) -> Strategy:
        """Minimise latency over two places by a minimum cut; exact for latency when segments cost no dispatch."""
        if len(self.problem.places) != 2:
            raise ProblemError(f"a minimum cut separates two places; the problem has {len(self.problem.places)}")
        network = _network(self._encoded)
        _, (near, _) = nx.minimum_cut(network, "place 0", "place 1")
        return self._judge("minimum cut", [0 if node in near else 1 for node in range(self._count)])

    def judge(self, name: str, placing: Mapping[str, Place]) -> Strategy:
        """Cost any other plan that keeps the node order: node -> place."""
        return self._judge(name, self._numbers(placing))

    def mixed_rule(self, name: str, placing: Mapping[str, Place]) -> Strategy:
        """Start from a static plan and move the nodes whose latency passes 80 % of a threshold, the best of all.

        A late node goes to the other place that runs it soonest, as in `dynamic_rule`.
        """
        start = np.array(self._numbers(placing))
        times = self._encoded.node_cost[np.arange(self._count), start, 0]
        plans = [self._moved(start, times > limit) for limit in (-1, *np.unique(times).tolist())]
        return self._judge(name, min(plans, key=self._latency))

    def _numbers(self, placing: Mapping[str, Place]) -> list[int]:
        return [self.problem.places.index(placing[node]) for node in self.problem.nodes]

    def dynamic_rule(self, home: int, threshold_s: float | None = None) -> Strategy:
        """Move a node off its home place when its predicted latency passes 80 % of a threshold.

        It goes to the other place that runs it soonest, behind a barrier, which is what the transfers and the
        dispatch of a new segment cost here. Without `threshold_s` every threshold that changes the plan is
        tried and the best one taken, so the rule is shown at its best.
        """
        start = np.full(self._count, home)
        times = self._encoded.node_cost[:, home, 0]
        if threshold_s is not None:
            limit = THRESHOLD_SHARE * threshold_s / self._encoded.units.latency_s
            name = f"{self._rule_name(home)} at {threshold_s:.3g} s"
            return self._judge(name, self._moved(start, times > limit))
        plans = [self._moved(start, times > limit) for limit in (-1, *np.unique(times).tolist())]
        return self._judge(self._rule_name(home), min(plans, key=self._latency))

    def _rule_name(self, home: int) -> str:
        return f"80 % rule from {self.problem.places[home]}"

    def _moved(self, start: Ints, late: Bools) -> list[int]:
        never = np.iinfo(np.int64).max
        cost = np.where(self._encoded.allowed, self._encoded.node_cost[..., 0], never)
        cost[np.arange(self._count), start] = never
        movable = late & (cost.min(1) < never)
        return [int(place) for place in np.where(movable, cost.argmin(1), start)]

    def _latency(self, chosen: Sequence[int]) -> int:
        return int(plan_cost(self._encoded, chosen)[0])

    def _judge(self, name: str, chosen: Sequence[int]) -> Strategy:
        places = len(self.problem.places)
        path = [node * places + place for node, place in enumerate(chosen)]
        cost = plan_cost(self._encoded, chosen) / self._encoded.per_unit
        return Strategy(
            name=name,
            segments=pieces_of_nodes(self._encoded, path, regroup=not self._encoded.pays_dispatch),
            latency_s=float(cost[0]),
            energy_j=float(cost[1]),
            latency_gap_ratio=ratio_over(float(cost[0]), float(self._exact.costs[:, 0].min())),
            front_gap_ratio=front_gap(cost[:2], self._exact.costs),
        )


def ratio_over(value: float, best: float) -> float:
    """Return by which ratio a value is above the best, which may be 0 where nothing has a modelled cost."""
    return 0.0 if value == best else value / best - 1 if best else math.inf


def front_gap(point: Floats, front: Floats) -> float:
    """Return the least e with which `point` / (1 + e) is no longer beaten in every objective by a front point."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = point / front
    # An objective that is zero for both cannot be improved and says nothing, unless they all are.
    ratio = np.where(np.isnan(ratio), np.inf, ratio).min(1)
    return max(float(np.where(np.isinf(ratio), 1.0, ratio).max()) - 1, 0.0)


def _network(encoded: Encoded) -> nx.DiGraph[object]:
    """Build the flow network: the source side is place 0, an edge is paid when its tail is there and its head is not.

    A tensor that several nodes read gets one helper per direction, so that it is paid once per memory.
    """
    problem = encoded.problem
    network: nx.DiGraph[object] = nx.DiGraph()
    never = int(encoded.node_cost[..., 0].sum() + encoded.move_cost[..., 0].sum() + 1)
    for node in range(len(problem.nodes)):
        cost = np.where(encoded.allowed[node], encoded.node_cost[node, :, 0], never)
        network.add_edge("place 0", node, capacity=int(cost[1]))
        network.add_edge(node, "place 1", capacity=int(cost[0]))
    homes = {problem.places[place].home: f"place {place}" for place in (0, 1)}
    if len(homes) == 1:
        return network
    index = [encoded.homes.index(place.home) for place in problem.places]
    out, back = index[0] * len(encoded.homes) + index[1], index[1] * len(encoded.homes) + index[0]
    for number, tensor in enumerate(problem.tensors):
        ends: list[object] = [encoded.node_index[name] for name in tensor.consumers]
        ends += [homes[tensor.target]] if tensor.target in homes else []
        maker = homes.get(tensor.source or "") if tensor.producer is None else encoded.node_index[tensor.producer]
        if maker is None:
            continue
        _pay_once(network, maker, ends, (number, "out"), int(encoded.move_cost[number, out, 0]), never, forward=True)
        _pay_once(network, maker, ends, (number, "back"), int(encoded.move_cost[number, back, 0]), never, forward=False)
    return network


def _pay_once(
    network: nx.DiGraph[object],
    maker: object,
    ends: Sequence[object],
    helper: object,
    cost: int,
    never: int,
    *,
    forward: bool,
) -> None:
    """Charge `cost` once if `maker` is on place 0 and any end is not (or the reverse, when not `forward`)."""
    _edge(network, maker, helper, cost, forward=forward)
    for end in ends:
        _edge(network, helper, end, never, forward=forward)


def _edge(network: nx.DiGraph[object], tail: object, head: object, cost: int, *, forward: bool) -> None:
    first, second = (tail, head) if forward else (head, tail)
    old = network.get_edge_data(first, second, {"capacity": 0})["capacity"]
    network.add_edge(first, second, capacity=old + cost)
