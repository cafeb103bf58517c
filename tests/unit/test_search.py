from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from partition.search import (
    FREE,
    Baselines,
    Constraints,
    Cost,
    Infeasible,
    Place,
    Problem,
    ProblemError,
    SegmentTable,
    Space,
    Tensor,
    TooWide,
    Transfer,
    additive_table,
    certified_cover,
    coarsen,
    cover_gaps,
    frontier,
    lazy_frontier,
    search,
    search_parallel,
    search_segments,
)
from partition.search import states as states_module
from partition.search.contract import contract
from partition.search.encode import Encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

NPU, GPU, CPU = Place(processor="npu"), Place(processor="gpu"), Place(processor="cpu")
MS = 1e-3


def t6(**changes: object) -> Problem:
    """Case T6: tensor a is read by B and C; sizes in bytes, one byte per ms."""
    sizes = {"x": 1, "a": 4, "b": 3, "c": 1, "d": 3, "y": 2}
    ends = {"x": (None, "A"), "a": ("A", "BC"), "b": ("B", "D"), "c": ("C", "D"), "d": ("D", "E"), "y": ("E", "")}
    times = {"A": (9, 4), "B": (8, 5), "C": (1, 8), "D": (2, 9), "E": (9, 2)}
    move = Transfer(latency_s=MS, bytes_per_s=1e3)
    fields: dict[str, object] = {
        "nodes": tuple("ABCDE"),
        "tensors": tuple(
            Tensor(
                name=name,
                size_bytes=sizes[name],
                producer=producer,
                consumers=tuple(consumers),
                source="gpu" if name == "x" else None,
                target="gpu" if name == "y" else None,
            )
            for name, (producer, consumers) in ends.items()
        ),
        "places": (NPU, GPU),
        "transfers": {("npu", "gpu"): move, ("gpu", "npu"): move},
        "costs": {
            (node, place): Cost(latency_s=ms * MS, energy_j=0.0)
            for node, both in times.items()
            for place, ms in zip((NPU, GPU), both, strict=True)
        },
    }
    return Problem(**(fields | changes))  # type: ignore[arg-type]


def chain(count: int, places: tuple[Place, ...] = (GPU, NPU), **changes: object) -> Problem:
    """A chain in which the GPU takes 1 ms and 2 mJ per node, the NPU 2 ms and 1 mJ."""
    nodes = tuple(f"n{i}" for i in range(count))
    cost = {GPU: Cost(latency_s=MS, energy_j=2 * MS), NPU: Cost(latency_s=2 * MS, energy_j=MS)}
    fields: dict[str, object] = {
        "nodes": nodes,
        "tensors": tuple(
            Tensor(name=f"t{i}", size_bytes=0, producer=a, consumers=(b,))
            for i, (a, b) in enumerate(itertools.pairwise(nodes))
        ),
        "places": places,
        "transfers": {(a.home, b.home): Transfer(latency_s=0.0) for a in places for b in places if a != b},
        "costs": {
            (node, place): cost.get(place, Cost(latency_s=MS, energy_j=MS)) for node in nodes for place in places
        },
    }
    return Problem(**(fields | changes))  # type: ignore[arg-type]


def where(problem: Problem, **constraints: object) -> dict[str, str]:
    plan = search(problem, constraints=Constraints(**constraints))[0]  # type: ignore[arg-type]
    return {node: piece.place.processor for piece in plan.segments for node in piece.nodes}


def test_t6_is_26_ms_and_unique() -> None:
    (plan,) = frontier(t6())
    assert plan.latency_s == 0.026
    assert [(p.place, "".join(p.nodes)) for p in plan.segments] == [(GPU, "A"), (NPU, "BCD"), (GPU, "E")]
    assert plan.space == "all convex cuts"
    assert plan.gap_ratio == 0


def test_a_result_that_nobody_reads_is_no_price_of_a_cut() -> None:
    """By hand: A on the GPU, t over in 2 ms and 1 mJ, B on the CPU; that A also makes s costs no hand-over."""
    nodes = {"A": {GPU: (0, 0), CPU: (4, 5)}, "B": {GPU: (9, 1), CPU: (0, 7)}}
    move = Transfer(latency_s=2 * MS, bytes_per_s=1e3, energy_j=MS, energy_j_per_byte=2 * MS)
    problem = Problem(
        nodes=("A", "B"),
        tensors=(
            Tensor(name="t", size_bytes=0, producer="A", consumers=("B",)),
            Tensor(name="s", size_bytes=2, producer="A", consumers=()),
        ),
        places=(GPU, CPU),
        transfers={("gpu", "cpu"): move, ("cpu", "gpu"): move},
        costs={
            (node, place): Cost(latency_s=ms * MS, energy_j=mj * MS)
            for node, both in nodes.items()
            for place, (ms, mj) in both.items()
        },
    )
    found = [(round(p.latency_s / MS), round(p.energy_j / MS)) for p in frontier(problem)]
    assert found == [(2, 8), (9, 1)]


def test_t6_next_best_is_27_ms() -> None:
    # Pinning B away from its best place leaves the second best plan: only C and D on the NPU.
    (plan,) = frontier(t6(), constraints=Constraints(pinned={"B": "gpu"}))
    assert plan.latency_s == 0.027
    assert [n for p in plan.segments if p.place == NPU for n in p.nodes] == ["C", "D"]


def test_t6_baselines_and_their_gaps() -> None:
    problem = t6()
    found = {s.name: s for s in Baselines(problem, search(problem)).all()}
    assert {name: round(s.latency_s / MS) for name, s in found.items()} == {
        "all on npu": 34,
        "all on gpu": 28,
        "greedy per operator": 27,
        "fastest place per operator": 27,
        "best single cut": 28,
        "minimum cut": 26,
        "80 % rule from npu": 26,
        "80 % rule from gpu": 26,
    }
    assert found["best single cut"].latency_gap_ratio == pytest.approx(28 / 26 - 1)
    assert found["greedy per operator"].front_gap_ratio == pytest.approx(27 / 26 - 1)
    assert found["minimum cut"].front_gap_ratio == 0


def test_the_80_percent_rule_moves_what_passes_it() -> None:
    problem = t6()
    # At home on the GPU, 80 % of 10 ms is 8 ms: only D (9 ms) passes it.
    rule = Baselines(problem, search(problem)).dynamic_rule(1, threshold_s=10 * MS)
    assert [n for p in rule.segments if p.place == NPU for n in p.nodes] == ["D"]
    given = {s.name: s for s in Baselines(problem, search(problem)).all(10 * MS)}
    assert given["80 % rule from gpu at 0.01 s"].segments == rule.segments
    best = given["80 % rule from gpu"]
    assert best.latency_s <= rule.latency_s


def test_min_cut_needs_two_places() -> None:
    problem = chain(2, (GPU, NPU, CPU))
    with pytest.raises(ProblemError, match="two places"):
        Baselines(problem, search(problem)).min_cut()


def test_chain_frontier_trades_one_node_after_the_other() -> None:
    plans = frontier(chain(4))
    assert [(round(p.latency_s / MS), round(p.energy_j / MS)) for p in plans] == [
        (4, 8),
        (5, 7),
        (6, 6),
        (7, 5),
        (8, 4),
    ]


def test_three_objectives_keep_what_two_would_drop() -> None:
    costs = {
        ("n0", GPU): Cost(latency_s=MS, energy_j=MS, memory_bytes=100),
        ("n0", NPU): Cost(latency_s=2 * MS, energy_j=2 * MS, memory_bytes=10),
    }
    problem = chain(1, costs=costs)
    assert len(frontier(problem)) == 1
    three = frontier(problem, objectives=("latency", "energy", "memory"))
    assert [plan.memory_bytes for plan in three] == [100, 10]


def test_pipelined_throughput_balances_the_processors() -> None:
    plans = search(chain(6), objectives=("period", "energy"))
    best = plans[0]
    # Four nodes of 1 ms on the GPU and two of 2 ms on the NPU: each is busy for 4 ms per inference.
    assert best.period_s == pytest.approx(4 * MS)
    assert best.latency_s == pytest.approx(8 * MS)


def test_dispatch_is_paid_per_segment_and_limits_count_them() -> None:
    dispatch = {GPU: Cost(latency_s=0.1 * MS, energy_j=0.0), NPU: Cost(latency_s=0.1 * MS, energy_j=0.0)}
    problem = chain(4, dispatch=dispatch)
    assert all(len(plan.segments) <= 2 for plan in search(problem))
    one = search(problem, constraints=Constraints(max_segments=1))
    assert [len(plan.segments) for plan in one] == [1, 1]


def test_places_that_share_a_memory_hand_over_for_nothing() -> None:
    fast = Place(processor="npu", backend="qnn", memory="dram")
    slow = Place(processor="cpu", backend="ort", memory="dram")
    costs = {
        ("n0", fast): Cost(latency_s=MS, energy_j=0),
        ("n0", slow): Cost(latency_s=9 * MS, energy_j=0),
        ("n1", fast): Cost(latency_s=9 * MS, energy_j=0),
        ("n1", slow): Cost(latency_s=MS, energy_j=0),
    }
    (plan,) = frontier(chain(2, (fast, slow), transfers={}, costs=costs))
    assert plan.latency_s == pytest.approx(2 * MS)
    assert [str(p.place) for p in plan.segments] == ["npu/qnn", "cpu/ort"]


def test_coarse_nodes_keep_their_operators_and_name_the_restriction() -> None:
    problem = coarsen(t6(), [["A"], ["B", "C", "D"], ["E"]], Space.FUSED_GROUP_BORDERS)
    (plan,) = frontier(problem)
    assert plan.latency_s == 0.026
    assert [p.nodes for p in plan.segments] == [("A",), ("B", "C", "D"), ("E",)]
    assert plan.space == "fused-group borders (all convex cuts)"
    with pytest.raises(ProblemError, match="exactly once"):
        coarsen(t6(), [["A"], ["B"]], Space.FUSED_GROUP_BORDERS)


def test_single_tensor_cuts_are_a_restriction_that_is_named() -> None:
    # Between A and E two tensors cross every cut, so B, C and D stay together.
    (plan,) = frontier(t6(), space=Space.SINGLE_TENSOR_CUTS)
    assert [p.nodes for p in plan.segments] == [("A",), ("B", "C", "D"), ("E",)]
    assert plan.space == "single-tensor cuts (all cuts of one order)"
    # A plan that separates them is outside of this space.
    with pytest.raises(Infeasible, match="pinned"):
        frontier(t6(), space=Space.SINGLE_TENSOR_CUTS, constraints=Constraints(pinned={"B": "gpu", "C": "npu"}))
    with pytest.raises(ProblemError, match="coarsen"):
        frontier(t6(), space=Space.FUSED_GROUP_BORDERS)


def test_interval_costs_need_not_add_up() -> None:
    problem = t6()
    table = additive_table(problem)
    assert search_segments(problem, table)[0].latency_s == 0.026
    # Fused on the GPU the whole graph is faster than the sum of its nodes.
    table.set((0, 5, 1), Cost(latency_s=20 * MS, energy_j=0.0))
    plan = search_segments(problem, table)[0]
    assert plan.latency_s == 0.020
    assert len(plan.segments) == 1
    assert plan.space == "all cuts of one order"


def test_refused_segments_are_not_used() -> None:
    problem = t6()
    table = SegmentTable.of(
        problem, lambda place, nodes: Cost(latency_s=len(nodes) * MS, energy_j=0) if place == GPU else None
    )
    plan = search_segments(problem, table)[0]
    assert {piece.place for piece in plan.segments} == {GPU}


def test_identical_segments_are_asked_for_once() -> None:
    problem = chain(8)
    asked: list[tuple[str, int]] = []

    def oracle(place: Place, nodes: tuple[str, ...]) -> Cost:
        asked.append((place.processor, len(nodes)))
        each = problem.costs[nodes[0], place]
        return Cost(latency_s=len(nodes) * each.latency_s, energy_j=len(nodes) * each.energy_j)

    lazy = lazy_frontier(
        problem, additive_table(problem), oracle, key=lambda place, nodes: (place.processor, len(nodes))
    )
    assert len(asked) == len(set(asked)) == lazy.oracle_calls
    assert lazy.possible_calls == 16
    assert lazy.frontier is not None
    assert len(lazy.frontier) == 9


def test_a_bound_that_proves_too_high_is_lowered_and_reported() -> None:
    problem = chain(4)
    half = additive_table(problem).rows / 2
    number = {name: i for i, name in enumerate(problem.nodes)}

    def oracle(place: Place, nodes: tuple[str, ...]) -> Cost:
        row = half[number[nodes[0]], number[nodes[-1]] + 1, problem.places.index(place)]
        return Cost(latency_s=row[0], energy_j=row[1])

    lazy = lazy_frontier(problem, additive_table(problem), oracle)
    assert lazy.bound_scale == pytest.approx(0.5)
    assert lazy.frontier is not None
    assert lazy.frontier.costs[0] == pytest.approx([2 * MS, 4 * MS])


def test_a_bound_of_something_that_costs_nothing_is_lowered_to_nothing() -> None:
    problem = chain(3, refusals={"n1": {GPU: "no"}})
    assert np.isinf(additive_table(problem).rows).any(), "what a place refuses stays refused at any scale"
    lazy = lazy_frontier(problem, additive_table(problem), lambda *_: FREE)
    assert lazy.bound_scale == 0
    assert lazy.frontier is not None
    assert lazy.frontier.costs.tolist() == [[0.0, 0.0]]


def test_a_call_limit_gives_the_gap_proved_so_far() -> None:
    problem = chain(4)
    none = lazy_frontier(problem, additive_table(problem), lambda *_: None, max_calls=0)
    assert none.frontier is None
    assert math.isinf(none.gap_ratio)


def test_a_cover_is_within_its_gap_and_says_so() -> None:
    rng = np.random.default_rng(3)
    nodes = [f"n{i}" for i in range(60)]
    costs = {
        (n, p): Cost(latency_s=rng.uniform(1, 9) * MS, energy_j=rng.uniform(1, 9) * MS)
        for n in nodes
        for p in (GPU, NPU)
    }
    problem = chain(60, costs=costs)
    exact = search(problem)
    for gap in (0.1, 0.01, 0.0001):
        cover = certified_cover(problem, gap)
        assert cover.gap_ratio <= gap
        assert cover_gaps(cover.costs, exact.costs).max() <= gap + 1e-9
        assert len(cover) <= len(exact)
        assert cover[0].gap_ratio == cover.gap_ratio
        assert sum(len(piece.nodes) for piece in cover[len(cover) // 2].segments) == 60


def test_wide_graphs_say_what_to_ask_for_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "MOST_STATES", 3)
    with pytest.raises(TooWide, match="certified cover"):
        frontier(chain(4))


def test_refusals_everywhere_are_named_with_their_reasons() -> None:
    problem = t6(refusals={"D": {NPU: "no kernel", GPU: "rank 5"}})
    with pytest.raises(Infeasible, match=r"'D'.*npu: no kernel; gpu: rank 5"):
        frontier(problem)


@pytest.mark.parametrize(
    ("limits", "name", "best"),
    [
        ({"deadline_s": 0.02}, "deadline", 0.026),
        ({"max_segments": 0}, "number of segments", 1),
    ],
)
def test_infeasible_names_the_constraint_and_by_how_much(limits: Mapping[str, float], name: str, best: float) -> None:
    with pytest.raises(Infeasible) as caught:
        frontier(t6(), constraints=Constraints(**limits))  # type: ignore[arg-type]
    (conflict,) = caught.value.conflicts
    assert conflict.constraint == name
    assert conflict.best == pytest.approx(best)
    assert "too much" in str(caught.value)


def test_one_objective_gives_one_plan() -> None:
    assert [plan.latency_s for plan in frontier(chain(3), objectives=("latency",))] == [pytest.approx(3 * MS)]
    assert [plan.energy_j for plan in frontier(chain(3), objectives=("energy",))] == [pytest.approx(3 * MS)]


def test_segments_that_cannot_cover_the_graph_are_no_plan() -> None:
    problem = t6()
    with pytest.raises(Infeasible, match="no sequence of segments"):
        search_segments(problem, SegmentTable.empty(problem))


def test_a_deadline_and_a_power_cap_that_exclude_each_other_are_both_named() -> None:
    problem = chain(3)
    with pytest.raises(Infeasible) as caught:
        frontier(problem, constraints=Constraints(deadline_s=3 * MS, power_cap_w=0.6))
    names = {c.constraint: c for c in caught.value.conflicts}
    assert set(names) == {"deadline", "power cap"}
    assert names["deadline"].best == pytest.approx(6 * MS)
    assert names["power cap"].best == pytest.approx(2.0)


def test_limits_are_kept_and_just_met_limits_are_met() -> None:
    assert frontier(t6(), constraints=Constraints(deadline_s=0.026))[0].latency_s == 0.026
    assert sorted(where(chain(3), deadline_s=4 * MS, energy_cap_j=5 * MS).values()) == ["gpu", "gpu", "npu"]
    assert len(search(chain(3), constraints=Constraints(deadline_s=4 * MS))) == 2


def test_power_cap_keeps_a_plan_that_a_faster_one_dominates() -> None:
    costs = {
        ("n0", GPU): Cost(latency_s=MS, energy_j=MS),
        ("n0", NPU): Cost(latency_s=2 * MS, energy_j=MS),
    }
    (plan,) = frontier(chain(1, costs=costs), constraints=Constraints(power_cap_w=0.5))
    assert plan.latency_s == pytest.approx(2 * MS)


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf])
def test_meaningless_costs_are_refused(value: float) -> None:
    with pytest.raises(ProblemError, match="latency_s"):
        Cost(latency_s=value, energy_j=0.0)
    rows = np.zeros((6, 6, 2, 4))
    rows[0, 1, 0, 0] = value
    if not math.isinf(value):
        with pytest.raises(ProblemError, match="not negative"):
            SegmentTable(rows)


def test_missing_costs_transfers_and_cycles_are_refused() -> None:
    costs = dict(t6().costs)
    del costs["C", GPU]
    with pytest.raises(ProblemError, match="'C' has no cost on gpu"):
        frontier(t6(costs=costs))
    with pytest.raises(ProblemError, match="no transfer cost"):
        t6(transfers={})
    with pytest.raises(ProblemError, match="cycle"):
        t6(nodes=tuple("BACDE"))
    with pytest.raises(ProblemError, match="no node of the problem"):
        t6(nodes=tuple("ABCD"))
    with pytest.raises(ProblemError, match="the places are npu, gpu"):
        frontier(t6(), constraints=Constraints(pinned={"A": "dsp"}))


def test_disconnected_parts_are_planned_together() -> None:
    problem = chain(2, tensors=())
    assert len(frontier(problem)) == 3


@pytest.mark.parametrize("latency_s", [1e-300, 5e-324])
def test_costs_below_every_step_count_nothing(latency_s: float) -> None:
    costs = {(f"n{i}", GPU): Cost(latency_s=latency_s, energy_j=MS) for i in range(3)}
    (plan,) = frontier(chain(3, places=(GPU,), costs=costs))
    assert (plan.latency_s, plan.energy_j) == (0.0, pytest.approx(3 * MS))


def test_large_values_use_a_coarser_step_and_still_fit() -> None:
    costs = {("n0", GPU): Cost(latency_s=5.0, energy_j=100.0), ("n0", NPU): Cost(latency_s=50.0, energy_j=10.0)}
    plans = frontier(chain(1, costs=costs))
    assert [(p.latency_s, p.energy_j) for p in plans] == [(5.0, 100.0), (50.0, 10.0)]


def two_branches() -> Problem:
    """A feeds B and C, D joins them; every node takes 1 ms anywhere and moves are free."""
    ends = {"x": (None, "A"), "a": ("A", "BC"), "b": ("B", "D"), "c": ("C", "D"), "y": ("D", "")}
    each = Cost(latency_s=MS, energy_j=MS)
    return t6(
        nodes=tuple("ABCD"),
        tensors=tuple(
            Tensor(name=name, size_bytes=0, producer=producer, consumers=tuple(consumers))
            for name, (producer, consumers) in ends.items()
        ),
        transfers={("npu", "gpu"): Transfer(latency_s=0.0), ("gpu", "npu"): Transfer(latency_s=0.0)},
        costs={(node, place): each for node in "ABCD" for place in (NPU, GPU)},
    )


def test_branches_run_at_the_same_time_on_two_processors() -> None:
    problem = two_branches()
    assert search(problem)[0].latency_s == pytest.approx(4 * MS)
    (plan,) = search_parallel(problem)
    assert plan.latency_s == pytest.approx(3 * MS)
    assert plan.gap_ratio == 0
    assert "schedules" in plan.space


def test_contention_is_a_worst_case_factor_and_not_below_one() -> None:
    (plan,) = search_parallel(two_branches(), contention=1.5)
    assert plan.latency_s == pytest.approx(4.5 * MS)
    with pytest.raises(ProblemError, match="contention"):
        search_parallel(two_branches(), contention=0.5)


def test_nodes_that_are_never_better_apart_are_joined() -> None:
    # Moving costs more than any node could gain, so the chain is one group.
    dear = Transfer(latency_s=9 * MS, energy_j=9 * MS)
    problem = chain(5, transfers={("gpu", "npu"): dear, ("npu", "gpu"): dear})
    joined = contract(Encoded(problem))
    assert joined.nodes == ("n4",)
    assert joined.members["n4"] == problem.nodes
    assert joined.restriction is None
    assert [len(plan.segments) for plan in frontier(problem)] == [1, 1]
    # Free moves leave every node its own choice.
    assert contract(Encoded(chain(5))).nodes == problem.nodes
