"""The search against brute force: an independent evaluator over every plan of small random problems."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partition.search import (
    Baselines,
    Constraints,
    Cost,
    Infeasible,
    Place,
    Problem,
    SegmentTable,
    Space,
    Tensor,
    Transfer,
    coarsen,
    convex_gap,
    cover_gaps,
    lazy_convex,
    lazy_frontier,
    search,
    search_convex,
    search_parallel,
    search_segments,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NANO = 1e-9
SCALE = {"latency": 1e9, "energy": 1e9, "memory": 1, "error": 1e9, "period": 1e9}
rngs = st.randoms(use_true_random=False)
many = settings(max_examples=170, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
few = settings(many, max_examples=40)


def random_problem(rng: Random, most_nodes: int, *, places: int | None = None, dispatch: bool = True) -> Problem:
    """Small integer costs, so that ties and shared tensors are common."""
    count = rng.randint(2, most_nodes)
    where = [Place(processor=f"p{i}") for i in range(places or rng.randint(2, 3))]
    nodes = [f"n{i}" for i in range(count)]
    readers = {i: [j for j in range(i + 1, count) if rng.random() < 0.45] for i in range(count)}
    fed = {j for after in readers.values() for j in after}
    tensors = [
        Tensor(
            name="x",
            size_bytes=rng.randint(0, 5),
            producer=None,
            consumers=tuple(nodes[j] for j in range(count) if j == 0 or j not in fed),
            source=rng.choice([None, "p0", "p1"]),
        )
    ]
    for i, after in readers.items():
        target = rng.choice([None, "p0", "p1"]) if not after or rng.random() < 0.15 else None
        tensors.append(
            Tensor(
                name=f"t{i}",
                size_bytes=rng.randint(0, 5),
                producer=nodes[i],
                consumers=tuple(nodes[j] for j in after),
                target=target,
            )
        )
        if rng.random() < 0.3:  # a second result, which fewer read, or nobody
            some = tuple(nodes[j] for j in after if rng.random() < 0.5)
            tensors.append(Tensor(name=f"s{i}", size_bytes=rng.randint(0, 5), producer=nodes[i], consumers=some))
    refused = {(n, p) for n in nodes for p in where[1:] if rng.random() < 0.1}
    return Problem(
        nodes=tuple(nodes),
        tensors=tuple(tensors),
        places=tuple(where),
        transfers={(a.home, b.home): random_transfer(rng) for a in where for b in where if a != b},
        costs={(n, p): random_cost(rng) for n in nodes for p in where if (n, p) not in refused},
        dispatch={p: random_cost(rng, peak=False) for p in where} if dispatch else {},
        refusals={n: {p: "no kernel" for m, p in refused if m == n} for n in nodes},
    )


def random_cost(rng: Random, *, peak: bool = True) -> Cost:
    return Cost(
        latency_s=rng.randint(0, 9) * NANO,
        energy_j=rng.randint(0, 9) * NANO,
        memory_bytes=rng.randint(1, 6) if peak else 0,
        error=rng.randint(0, 3) * NANO,
    )


def random_transfer(rng: Random) -> Transfer:
    return Transfer(
        latency_s=rng.randint(0, 3) * NANO,
        bytes_per_s=1e9 / rng.randint(1, 2),
        energy_j=rng.randint(0, 3) * NANO,
        energy_j_per_byte=rng.randint(0, 2) * NANO,
    )


def random_table(rng: Random, problem: Problem) -> SegmentTable:
    table = SegmentTable.empty(problem)
    for start, stop, place in segments(problem):
        if stop == start + 1 or rng.random() < 0.9:
            table.set((start, stop, place), random_cost(rng))
    return table


class Total:
    """Costs of one plan in whole ns and nJ."""

    def __init__(self) -> None:
        self.latency = self.energy = self.memory = self.error = self.segments = 0
        self.loads: dict[str, int] = {}

    def add(self, cost: Cost, place: Place) -> None:
        latency = round(cost.latency_s * 1e9)
        self.latency += latency
        self.energy += round(cost.energy_j * 1e9)
        self.memory = max(self.memory, int(cost.memory_bytes))
        self.error += round(cost.error * 1e9)
        self.loads[place.processor] = self.loads.get(place.processor, 0) + latency

    def point(self, kinds: Iterable[str]) -> tuple[int, ...]:
        return tuple(max(self.loads.values()) if kind == "period" else getattr(self, kind) for kind in kinds)


def add_moves(problem: Problem, where: Mapping[str, Place], total: Total) -> None:
    """A tensor goes once to every other memory that wants it; its reader's processor waits for it."""
    homes = {place.home: place for place in problem.places}
    for tensor in problem.tensors:
        origin = tensor.source if tensor.producer is None else where[tensor.producer].home
        if origin is None:
            continue
        waits = {where[consumer].home: where[consumer] for consumer in tensor.consumers}
        if tensor.target is not None:
            # Delivery loads the processor that made the output.
            waits.setdefault(tensor.target, where[tensor.producer] if tensor.producer else homes[tensor.target])
            if tensor.producer:
                waits[tensor.target] = where[tensor.producer]
        for home, place in waits.items():
            if home != origin:
                total.add(problem.transfers[origin, home].cost(tensor.size_bytes), place)


def orders(problem: Problem) -> Iterator[tuple[str, ...]]:
    """Yield every topological order."""
    before = {n: {t.producer for t in problem.tensors if n in t.consumers and t.producer} for n in problem.nodes}

    def extend(done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(done) == len(problem.nodes):
            yield done
        for node in problem.nodes:
            if node not in done and before[node] <= set(done):
                yield from extend((*done, node))

    yield from extend(())


def node_plans(problem: Problem, order: tuple[str, ...]) -> Iterator[Total]:
    """Evaluate every placement of the nodes executed in `order`."""
    choices = [[p for p in problem.places if (n, p) in problem.costs] for n in problem.nodes]
    for picked in itertools.product(*choices):
        where = dict(zip(problem.nodes, picked, strict=True))
        total, current = Total(), None
        for node in order:
            place = where[node]
            if place != current and place in problem.dispatch:
                total.add(problem.dispatch[place], place)
            total.segments += place != current
            current = place
            total.add(problem.costs[node, place], place)
        add_moves(problem, where, total)
        yield total


def segment_plans(problem: Problem, table: SegmentTable) -> Iterator[Total]:
    """Evaluate every chain of segments of the node order, on every place that takes them."""
    count = len(problem.nodes)
    for cuts in itertools.product((False, True), repeat=count - 1):
        borders = (0, *(i + 1 for i, cut in enumerate(cuts) if cut), count)
        pairs = list(itertools.pairwise(borders))
        for picked in itertools.product(range(len(problem.places)), repeat=len(pairs)):
            rows = [table.rows[start, stop, place] for (start, stop), place in zip(pairs, picked, strict=True)]
            if any(math.isinf(row[0]) for row in rows):
                continue
            total, where = Total(), {}
            for (start, stop), number, row in zip(pairs, picked, rows, strict=True):
                place = problem.places[number]
                where.update(dict.fromkeys(problem.nodes[start:stop], place))
                total.add(Cost(latency_s=row[0], energy_j=row[1], memory_bytes=row[2], error=row[3]), place)
            total.segments = len(pairs)
            add_moves(problem, where, total)
            yield total


def front(points: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    distinct = set(points)
    return sorted(
        p for p in distinct if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in distinct)
    )


def found(costs: np.ndarray, kinds: tuple[str, ...]) -> list[tuple[int, ...]]:
    return sorted(tuple(round(v * SCALE[k]) for v, k in zip(row, kinds, strict=True)) for row in costs.tolist())


PAIRS = (("latency", "energy"), ("latency", "energy", "memory"), ("latency", "energy", "error"))


@many
@given(rng=rngs, kinds=st.sampled_from(PAIRS))
def test_interval_frontier_is_that_of_brute_force(rng: Random, kinds: tuple[str, ...]) -> None:
    places = rng.randint(2, 3)
    problem = random_problem(rng, 7 if places == 2 else 6, places=places)
    table = random_table(rng, problem)
    truth = front(total.point(kinds) for total in segment_plans(problem, table))
    result = search_segments(problem, table, objectives=kinds)
    assert found(result.costs, kinds) == truth
    for plan in result:
        assert [node for piece in plan.segments for node in piece.nodes] == list(problem.nodes)


@many
@given(rng=rngs, kinds=st.sampled_from(PAIRS), dispatch=st.booleans())
def test_additive_frontier_of_one_order_is_that_of_brute_force(
    rng: Random, kinds: tuple[str, ...], dispatch: bool
) -> None:
    problem = random_problem(rng, 6, dispatch=dispatch)
    truth = front(total.point(kinds) for total in node_plans(problem, problem.nodes))
    result = search(problem, space=Space.ORDER_CUTS, objectives=kinds)
    assert found(result.costs, kinds) == truth


@many
@given(rng=rngs, kinds=st.sampled_from(PAIRS), dispatch=st.booleans())
def test_additive_frontier_of_all_convex_cuts_is_that_of_brute_force(
    rng: Random, kinds: tuple[str, ...], dispatch: bool
) -> None:
    problem = random_problem(rng, 5, dispatch=dispatch)
    truth = front(total.point(kinds) for order in orders(problem) for total in node_plans(problem, order))
    result = search(problem, objectives=kinds)
    assert found(result.costs, kinds) == truth


@few
@given(rng=rngs)
def test_plans_cost_what_the_frontier_says_and_are_executable(rng: Random) -> None:
    problem = random_problem(rng, 6)
    for plan in search(problem):
        where = {node: piece.place for piece in plan.segments for node in piece.nodes}
        order = tuple(node for piece in plan.segments for node in piece.nodes)
        assert sorted(order) == sorted(problem.nodes)
        position = {node: i for i, node in enumerate(order)}
        for tensor in problem.tensors:
            assert all(tensor.producer is None or position[tensor.producer] < position[c] for c in tensor.consumers)
        total = Total()
        for piece in plan.segments:
            total.add(problem.dispatch[piece.place], piece.place)
            for node in piece.nodes:
                total.add(problem.costs[node, piece.place], piece.place)
        add_moves(problem, where, total)
        assert (total.latency, total.energy) == (round(plan.latency_s * 1e9), round(plan.energy_j * 1e9))


@few
@given(rng=rngs)
def test_pipelined_frontier_is_that_of_brute_force(rng: Random) -> None:
    problem = random_problem(rng, 5)
    kinds = ("period", "energy")
    truth = front(total.point(kinds) for order in orders(problem) for total in node_plans(problem, order))
    assert found(search(problem, objectives=kinds).costs, kinds) == truth


@many
@given(rng=rngs, data=st.data())
def test_constraints_leave_exactly_the_plans_that_keep_them(rng: Random, data: st.DataObject) -> None:
    problem = random_problem(rng, 5)
    plans = list(node_plans(problem, problem.nodes))
    limits = {
        name: data.draw(st.none() | st.integers(min(values), max(values)), label=name)
        for name in ("latency", "energy", "memory", "error", "segments")
        if (values := [getattr(plan, name) for plan in plans])
    }
    watts = data.draw(st.none() | st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5]), label="power")

    def keeps(plan: Total) -> bool:
        inside = all(limit is None or getattr(plan, name) <= limit for name, limit in limits.items())
        return inside and (watts is None or plan.energy <= watts * plan.latency)

    constraints = Constraints(
        deadline_s=_times(limits["latency"], NANO),
        energy_cap_j=_times(limits["energy"], NANO),
        memory_cap_bytes=limits["memory"],
        error_cap=_times(limits["error"], NANO),
        max_segments=limits["segments"],
        power_cap_w=watts,
    )
    kinds = ("latency", "energy")
    truth = front(plan.point(kinds) for plan in plans if keeps(plan))
    if truth:
        result = search(problem, space=Space.ORDER_CUTS, constraints=constraints)
        assert found(result.costs, kinds) == truth
    else:
        with pytest.raises(Infeasible) as caught:
            search(problem, space=Space.ORDER_CUTS, constraints=constraints)
        assert caught.value.conflicts


def _times(limit: int | None, unit: float) -> float | None:
    return None if limit is None else limit * unit


@few
@given(rng=rngs, share=st.sampled_from([0.0, 0.2, 0.5]))
def test_lazy_frontier_is_exact_or_within_its_gap(rng: Random, share: float) -> None:
    problem = random_problem(rng, 6)
    true = random_table(rng, problem)
    bounds = SegmentTable(np.where(np.isfinite(true.rows), np.floor(true.rows * 1e9 * rng.uniform(0.5, 1)) / 1e9, 9e-9))
    number = {name: i for i, name in enumerate(problem.nodes)}

    def oracle(place: Place, nodes: tuple[str, ...]) -> Cost | None:
        row = true.rows[number[nodes[0]], number[nodes[-1]] + 1, problem.places.index(place)]
        return None if math.isinf(row[0]) else Cost(latency_s=row[0], energy_j=row[1])

    exact = search_segments(problem, true)
    lazy = lazy_frontier(problem, bounds, oracle, gap_ratio=share)
    assert lazy.oracle_calls <= lazy.possible_calls
    assert lazy.gap_ratio <= share
    assert lazy.frontier is not None
    if share == 0:
        assert found(lazy.frontier.costs, ("latency", "energy")) == found(exact.costs, ("latency", "energy"))
    assert cover_gaps(lazy.frontier.costs, exact.costs).max() <= share + 1e-9


def schedules(problem: Problem, order: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Start every node as early as `order` allows on each processor, for every placement; (makespan, energy)."""
    choices = [[p for p in problem.places if (n, p) in problem.costs] for n in problem.nodes]
    for picked in itertools.product(*choices):
        where = dict(zip(problem.nodes, picked, strict=True))
        free: dict[str, int] = {}
        there: dict[tuple[str, str], int] = {}
        total = Total()
        for node in order:
            place = where[node]
            begin = free.get(place.processor, 0)
            for tensor in problem.tensors:
                if node in tensor.consumers:
                    begin = max(begin, _arrival(problem, tensor, where, place.home, there, total))
            cost = problem.costs[node, place]
            dispatch = problem.dispatch.get(place, Cost(latency_s=0, energy_j=0))
            total.add(cost, place)
            total.add(dispatch, place)
            free[place.processor] = begin + round((cost.latency_s + dispatch.latency_s) * 1e9)
            for tensor in problem.tensors:
                if tensor.producer == node:
                    there[tensor.name, place.home] = free[place.processor]
                    if tensor.target is not None:
                        free["", tensor.name] = _arrival(problem, tensor, where, tensor.target, there, total)  # type: ignore[index]
        yield max(free.values()), total.energy


def _arrival(
    problem: Problem,
    tensor: Tensor,
    where: Mapping[str, Place],
    home: str,
    there: dict[tuple[str, str], int],
    total: Total,
) -> int:
    origin = tensor.source if tensor.producer is None else where[tensor.producer].home
    if origin is None:
        return 0
    if (tensor.name, home) not in there and origin != home:
        move = problem.transfers[origin, home].cost(tensor.size_bytes)
        total.add(move, problem.places[0])
        there[tensor.name, home] = there.get((tensor.name, origin), 0) + round(move.latency_s * 1e9)
    return there.get((tensor.name, home), 0)


@few
@given(rng=rngs)
def test_parallel_schedules_are_those_of_brute_force(rng: Random) -> None:
    problem = random_problem(rng, 5)
    problem = replace(problem, tensors=tuple(t if t.producer else replace(t, target=None) for t in problem.tensors))
    truth = front(point for order in orders(problem) for point in schedules(problem, order))
    result = search_parallel(problem)
    assert found(result.costs, ("latency", "energy")) == truth
    for plan in result:
        assert sorted(node for piece in plan.segments for node in piece.nodes) == sorted(problem.nodes)
    thin = search_parallel(problem, beam=1)
    assert cover_gaps(thin.costs, result.costs).max() <= thin.gap_ratio + 1e-9


def wide_problem(rng: Random, branches: int) -> Problem:
    """A stem, branches of two nodes on two places of like speed, and a join."""
    nodes = ["stem", *(f"{k}{i}" for i in range(branches) for k in "ab"), "join"]
    edges = [("stem", f"a{i}") for i in range(branches)] + [(f"a{i}", f"b{i}") for i in range(branches)]
    readers: dict[str, list[str]] = {"stem": [], **{n: [] for n in nodes[1:-1]}}
    for start, stop in [*edges, *((f"b{i}", "join") for i in range(branches))]:
        readers[start].append(stop)
    where = (Place(processor="p0"), Place(processor="p1"))
    return Problem(
        nodes=tuple(nodes),
        tensors=tuple(
            Tensor(name=f"t{n}", size_bytes=rng.randint(0, 3), producer=n, consumers=tuple(r))
            for n, r in readers.items()
        ),
        places=where,
        transfers={(a.home, b.home): random_transfer(rng) for a in where for b in where if a != b},
        costs={
            (n, p): Cost(latency_s=rng.randint(5, 30) * NANO, energy_j=rng.randint(1, 30) * NANO)
            for n in nodes
            for p in where
        },
    )


@settings(few, max_examples=8)
@given(rng=rngs)
def test_a_narrow_parallel_search_is_as_near_as_it_says(rng: Random) -> None:
    problem = wide_problem(rng, 3)
    truth, narrow = search_parallel(problem), search_parallel(problem, beam=2)
    assert truth.gap_ratio == 0
    assert cover_gaps(narrow.costs, truth.costs).max() <= narrow.gap_ratio + 1e-9
    assert narrow.gap_ratio < 1.5
    better = truth.costs * 0.5
    assert narrow.gap_with(better[np.argsort(better[:, 0])]) <= narrow.gap_ratio


class SetCosts:
    """A cost for every set of nodes on every place, no sum of anything, made up when it is first asked for."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.asked = 0

    def __call__(self, place: Place, nodes: tuple[str, ...]) -> Cost | None:
        self.asked += 1
        draw = Random(f"{self.seed} {place} {sorted(nodes)}")
        if len(nodes) > 1 and draw.random() < 0.1:
            return None
        return random_cost(draw)

    def bound(self, place: Place, nodes: tuple[str, ...]) -> Cost | None:
        true = SetCosts(self.problem, self.seed)(place, nodes)
        if true is None:
            return Cost(latency_s=NANO, energy_j=NANO)
        return replace(true, latency_s=true.latency_s // (2 * NANO) * NANO, energy_j=true.energy_j // (2 * NANO) * NANO)


def convex_plans(problem: Problem, cost: SetCosts) -> Iterator[Total]:
    """Evaluate every way to put convex segments one after the other, by sets of nodes that grow."""
    before = {n: {t.producer for t in problem.tensors if n in t.consumers and t.producer} for n in problem.nodes}

    def extend(done: frozenset[str], parts: tuple[tuple[Place, tuple[str, ...]], ...]) -> Iterator[Total]:
        if len(done) == len(problem.nodes):
            yield _plan_total(problem, parts, cost)
            return
        left = [n for n in problem.nodes if n not in done]
        for size in range(1, len(left) + 1):
            for part in itertools.combinations(left, size):
                grown = done | set(part)
                if all(before[n] <= grown for n in part):
                    for place in problem.places:
                        taken = all(place not in problem.refusals.get(n, {}) for n in part)
                        if taken and cost(place, part) is not None:
                            yield from extend(grown, (*parts, (place, part)))

    yield from extend(frozenset(), ())


def _plan_total(problem: Problem, parts: tuple[tuple[Place, tuple[str, ...]], ...], cost: SetCosts) -> Total:
    total, where = Total(), {}
    for place, nodes in parts:
        answer = cost(place, nodes)
        assert answer is not None
        total.add(answer, place)
        where.update(dict.fromkeys(nodes, place))
    total.segments = len(parts)
    add_moves(problem, where, total)
    return total


@settings(many, max_examples=50)
@given(rng=rngs, kinds=st.sampled_from(PAIRS))
def test_set_costs_over_all_convex_cuts_are_those_of_brute_force(rng: Random, kinds: tuple[str, ...]) -> None:
    problem = random_problem(rng, 5, places=2)
    costs = SetCosts(problem, rng.randint(0, 10**6))
    truth = front(total.point(kinds) for total in convex_plans(problem, costs))
    if not truth:
        with pytest.raises(Infeasible):
            search_convex(problem, costs, objectives=kinds)
        return
    result = search_convex(problem, costs, objectives=kinds)
    assert found(result.costs, kinds) == truth
    for plan in result:
        total = _plan_total(problem, tuple((p.place, p.nodes) for p in plan.segments), costs)
        assert (total.latency, total.energy) == (round(plan.latency_s * 1e9), round(plan.energy_j * 1e9))


@settings(few, max_examples=6)
@given(rng=rngs)
def test_set_costs_of_nine_nodes_with_branches(rng: Random) -> None:
    problem = wide_problem(rng, 3) if rng.random() < 0.5 else _ladder(rng)
    costs = SetCosts(problem, rng.randint(0, 10**6))
    truth = front(_by_sets(problem, costs))
    assert found(search_convex(problem, costs).costs, ("latency", "energy")) == truth


def _ladder(rng: Random) -> Problem:
    """Nine nodes: a chain of four and one of five, joined at the end."""
    problem = wide_problem(rng, 1)
    nodes = tuple(f"n{i}" for i in range(9))
    after = {0: (1,), 1: (2,), 2: (3,), 3: (8,), 4: (5,), 5: (6,), 6: (7,), 7: (8,)}
    return replace(
        problem,
        nodes=nodes,
        tensors=tuple(
            Tensor(name=f"t{i}", size_bytes=2, producer=nodes[i], consumers=tuple(nodes[j] for j in js))
            for i, js in after.items()
        ),
        costs={(n, p): random_cost(rng) for n in nodes for p in problem.places},
    )


def _by_sets(problem: Problem, cost: SetCosts) -> Iterator[tuple[int, int]]:
    """Go through all chains of node sets, keeping per set and placing of its nodes what is not dominated."""
    before = {n: {t.producer for t in problem.tensors if n in t.consumers and t.producer} for n in problem.nodes}
    states: dict[tuple[frozenset[str], tuple[tuple[str, Place], ...]], set[tuple[int, int]]] = {
        (frozenset(), ()): {(0, 0)}
    }
    for size in range(len(problem.nodes)):
        for (done, where), points in [item for item in states.items() if len(item[0][0]) == size]:
            left = [n for n in problem.nodes if n not in done]
            for count in range(1, len(left) + 1):
                for part in itertools.combinations(left, count):
                    grown = done | set(part)
                    if not all(before[n] <= grown for n in part):
                        continue
                    for place in problem.places:
                        answer = cost(place, part)
                        if answer is None:
                            continue
                        key = (grown, tuple(sorted([*where, *((n, place) for n in part)], key=str)))
                        latency, energy = round(answer.latency_s * 1e9), round(answer.energy_j * 1e9)
                        more = {(a + latency, b + energy) for a, b in points}
                        states[key] = set(front(states.get(key, set()) | more))
    for (done, where), points in states.items():
        if len(done) == len(problem.nodes):
            moves = Total()
            add_moves(problem, dict(where), moves)
            yield from ((a + moves.latency, b + moves.energy) for a, b in points)


@settings(few, max_examples=25)
@given(rng=rngs, share=st.sampled_from([0.0, 0.3]))
def test_lazy_set_costs_are_exact_or_within_their_gap(rng: Random, share: float) -> None:
    problem = random_problem(rng, 5, places=2)
    costs = SetCosts(problem, rng.randint(0, 10**6))
    try:
        exact = search_convex(problem, costs)
    except Infeasible:
        return
    lazy = lazy_convex(problem, costs.bound, costs, gap_ratio=share)
    assert lazy.frontier is not None
    assert lazy.oracle_calls <= lazy.possible_calls
    assert lazy.gap_ratio <= share + 1e-9
    assert cover_gaps(lazy.frontier.costs, exact.costs).max() <= share + 1e-9


@few
@given(rng=rngs)
def test_the_gap_to_all_convex_cuts_is_never_too_small(rng: Random) -> None:
    problem = random_problem(rng, 5, places=2)

    def dearer(place: Place, nodes: tuple[str, ...]) -> Cost:
        parts = [problem.costs[node, place] for node in nodes] + [problem.dispatch[place]]
        more = Random(f"{place} {sorted(nodes)}").randint(0, 4) * NANO
        return Cost(latency_s=sum(c.latency_s for c in parts) + more, energy_j=sum(c.energy_j for c in parts) + more)

    ordered = search_segments(problem, SegmentTable.of(problem, dearer))
    exact = search_convex(problem, dearer)
    assert cover_gaps(ordered.costs, exact.costs).max() <= convex_gap(problem, ordered) + 1e-9


def scaled(rng: Random, problem: Problem) -> Problem:
    """The same graph with costs that are no whole steps of anything, of any size: 1 ps to 1 s, 10 mW to 100 W."""
    seconds = 10.0 ** rng.uniform(-12, 0)
    joules = seconds * 10.0 ** rng.uniform(-2, 2)

    def cost(old: Cost) -> Cost:
        return replace(old, latency_s=rng.random() * seconds, energy_j=rng.random() * joules)

    transfers = {
        pair: Transfer(latency_s=rng.random() * seconds, bytes_per_s=5 / seconds, energy_j=rng.random() * joules)
        for pair in problem.transfers
    }
    dispatch = {place: cost(old) for place, old in problem.dispatch.items()}
    return replace(
        problem, costs={k: cost(old) for k, old in problem.costs.items()}, dispatch=dispatch, transfers=transfers
    )


@many
@given(rng=rngs)
def test_no_strategy_is_better_than_the_optimum_whatever_the_size_of_costs(rng: Random) -> None:
    problem = scaled(rng, random_problem(rng, 7, places=2, dispatch=rng.random() < 0.5))
    assume(all(len(reasons) < len(problem.places) for reasons in problem.refusals.values()))
    if rng.random() < 0.5:
        groups = [[name] for name in problem.nodes]
        at = rng.randrange(len(groups) - 1)
        problem = coarsen(problem, [*groups[:at], groups[at] + groups[at + 1], *groups[at + 2 :]], None)
    found = search(problem)
    judge = Baselines(problem, found)
    fastest = min(s.latency_s for s in found)
    least = min(s.period_s or 0.0 for s in search(problem, objectives=("period", "energy")))
    for strategy in judge.all():
        assert strategy.latency_s >= fastest
        assert strategy.latency_gap_ratio >= 0
        assert strategy.front_gap_ratio >= 0
        assert any(s.latency_s <= strategy.latency_s and s.energy_j <= strategy.energy_j for s in found)
        assert judge.period_s(strategy.segments) >= least


@many
@given(rng=rngs)
def test_a_plan_costs_what_its_parts_do_whatever_the_size_of_costs(rng: Random) -> None:
    problem = scaled(rng, random_problem(rng, 6, places=2))
    assume(all(len(reasons) < len(problem.places) for reasons in problem.refusals.values()))
    single = [cost.latency_s for cost in (*problem.costs.values(), *problem.dispatch.values())]
    dearest = max(*single, *(transfer.cost(5).latency_s for transfer in problem.transfers.values()))
    for solution in search(problem):
        where = {name: piece.place for piece in solution.segments for name in piece.nodes}
        exact = sum(problem.costs[name, place].latency_s for name, place in where.items())
        exact += sum(problem.dispatch[piece.place].latency_s for piece in solution.segments)
        for tensor in problem.tensors:
            origin = tensor.source if tensor.producer is None else where[tensor.producer].home
            wanted = {where[name].home for name in tensor.consumers} | ({tensor.target} if tensor.target else set())
            if origin is not None:
                exact += sum(
                    problem.transfers[origin, home].cost(tensor.size_bytes).latency_s for home in wanted - {origin}
                )
        assert abs(solution.latency_s - exact) <= 1e-4 * dearest + 1e-16
