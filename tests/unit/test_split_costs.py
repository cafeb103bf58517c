from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from experiments import split_costs
from experiments.evaluator.roofline import roofline
from experiments.split_costs import (
    CostError,
    members,
    moved_bytes,
    moves,
    offered_places,
    operator_problem,
    single_cuts,
    unit_problem,
)
from experiments.splitting.bounds import lower_bounds, peak_memory_table
from experiments.splitting.oracle import structural_key
from graphs import Calibration, Graph, extract, from_proto, quantise
from partition import compile_units, load_device, quantised_units
from partition.search import Baselines, Piece, Place, Space, coarsen, crossing, search, search_parallel, segments

CPU = Place(processor="cpu", backend="ort_cpu", precision="fp32")
NPU = Place(processor="npu", backend="ort_qnn", precision="fp16")
BYTES = 8 * 16 * 16 * 4


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.full(shape, 0.1, np.float32), name)


def branched(side: object = 16) -> Graph:
    """Case T4: a feeds B and C, D joins them."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="A", pads=[1] * 4),
        helper.make_node("Erf", ["a"], ["b"], name="B"),
        helper.make_node("Relu", ["a"], ["c"], name="C"),
        helper.make_node("Add", ["b", "c"], ["d"], name="D"),
        helper.make_node("Conv", ["d", "w2"], ["y"], name="E"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, side, side]) for n in ("x", "y")]
    weights = [weight("w1", 8, 8, 3, 3), weight("w2", 8, 8, 1, 1)]
    graph = helper.make_graph(nodes, "t4", ends[:1], ends[1:], weights)
    return from_proto(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]))


@pytest.fixture(autouse=True)
def takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the vendor's own refusals (and its child process) out of tests of our arithmetic."""
    monkeypatch.setattr("compilers.ort_qnn.OrtQnnCompiler.unsupported", lambda *_: {})


@pytest.fixture
def graph() -> Graph:
    return branched()


def piece(place: Place, *nodes: str) -> Piece:
    return Piece(place=place, nodes=nodes)


def test_a_node_costs_the_longer_of_compute_and_traffic(graph: Graph) -> None:
    device = load_device("sa8255p")
    problem = operator_problem(graph, device, (CPU, NPU))
    macs, weights = 8 * 8 * 9 * 256, 8 * 8 * 9 * 4
    cpu = device.processor("cpu")
    assert device.dram_bytes_per_s is not None
    assert device.dram_j_per_byte is not None
    assert cpu.active_w is not None
    latency_s = max(macs / cpu.macs_per_s["fp32"].value, (weights + BYTES) / device.dram_bytes_per_s.value)
    cost = problem.costs["A", CPU]
    assert cost.latency_s == pytest.approx(latency_s)
    energy_j = macs * cpu.energy_j_per_mac["fp32"].value + (weights + BYTES) * device.dram_j_per_byte.value
    assert cost.energy_j == pytest.approx(energy_j + latency_s * cpu.active_w.value)


def test_a_graph_without_shapes_has_no_cost() -> None:
    graph = branched()
    shapeless = helper.make_node("NonZero", ["x"], ["y"], name="where")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8]),
        helper.make_tensor_value_info("y", TensorProto.INT64, None),
    ]
    model = helper.make_model(helper.make_graph([shapeless], "dynamic", ends[:1], ends[1:]), ir_version=9)
    device = load_device("sa8255p")
    operator_problem(graph, device, (CPU, NPU))
    with pytest.raises(CostError, match="dynamic"):
        operator_problem(from_proto(model), device, (CPU, NPU))


def test_pins_keep_operators_of_one_group_apart(graph: Graph) -> None:
    pins = dict.fromkeys("ACDE", "npu") | {"B": "cpu"}
    problem = unit_problem(graph, operator_problem(graph, load_device("sa8255p"), (CPU, NPU), pins))
    assert sorted(sorted(members(problem, [n])) for n in problem.nodes) == [["A", "C"], ["B"], ["D"], ["E"]]
    (best,) = search(problem)
    assert [(p.place.processor, set(p.nodes)) for p in best.segments] == [
        ("npu", {"A", "C"}),
        ("cpu", {"B"}),
        ("npu", {"D", "E"}),
    ]
    assert moves(problem, best.segments) == (("a", BYTES), ("b", BYTES))
    assert moved_bytes(problem, best.segments) == 2 * BYTES


def test_units_of_a_quantised_graph_hold_whole_bound_operators(graph: Graph) -> None:
    variant = quantise(graph, "int8", Calibration.random(graph, 1, 0))
    places = (dataclasses.replace(CPU, precision="int8"), dataclasses.replace(NPU, precision="int8"))
    fine = operator_problem(variant, load_device("sa8255p"), places)
    bound = coarsen(fine, quantised_units(variant), Space.FUSED_GROUP_BORDERS)
    units = unit_problem(variant, bound)
    assert sorted(members(units, units.nodes)) == sorted(fine.nodes)
    assert [set(members(units, [n])) for n in units.nodes] == [set(u) for u in compile_units(variant)]
    assert {n for n in members(units, units.nodes) if n in "ABCDE"} == set("ABCDE")


def test_without_marks_followers_fuse(graph: Graph) -> None:
    assert [set(unit) for unit in compile_units(graph)] == [{"A", "B", "C", "D"}, {"E"}]


def test_a_single_cut_costs_what_the_baselines_say(graph: Graph) -> None:
    problem = operator_problem(graph, load_device("sa8255p"), (CPU, NPU))
    judge = Baselines(problem, search(problem))
    cuts = single_cuts(problem)
    assert len(cuts) == 2 * 4
    for cut in cuts:
        placing = {n: cut.first if i < cut.position else cut.second for i, n in enumerate(problem.nodes)}
        same = judge.judge("same", placing)
        assert cut.latency_s == pytest.approx(same.latency_s, abs=2e-8)
        assert cut.energy_j == pytest.approx(same.energy_j, abs=2e-8)
        assert cut.moved_bytes == moved_bytes(problem, same.segments)
    assert crossing(problem)[0].tolist() == [0, BYTES, 2 * BYTES, 2 * BYTES, BYTES, 0]


def test_a_pin_takes_single_cuts_away(graph: Graph) -> None:
    problem = operator_problem(graph, load_device("sa8255p"), (CPU, NPU), {"A": "npu", "E": "npu"})
    assert single_cuts(problem) == ()
    problem = operator_problem(graph, load_device("sa8255p"), (CPU, NPU), {"E": "npu"})
    assert {(c.first, c.second) for c in single_cuts(problem)} == {(CPU, NPU)}


def test_the_bound_is_the_roofline_where_that_is_all_there_is_and_below_it_elsewhere(graph: Graph) -> None:
    device = load_device("sa8255p")
    problem = operator_problem(graph, device, (CPU, NPU), {"B": "cpu"})
    bounds = lower_bounds(graph, device, problem, lambda place: place == CPU)
    for start, stop, number in segments(problem):
        place, part = problem.places[number], extract(graph, problem.nodes[start:stop])
        model = roofline(part, device, device.processor(place.processor), place.precision).latency
        bound = bounds.rows[start, stop, number, 0]
        if place == CPU:
            assert bound == pytest.approx(model.typical_s)
        else:
            assert bound <= model.low_s
    assert np.isinf(bounds.rows[0, 2, 1, 0])  # B is not for the NPU


def test_a_modelled_call_that_is_free_says_so(graph: Graph) -> None:
    device = load_device("sa8255p")
    estimate = roofline(graph, device, device.processor("cpu"), "fp32")
    assert estimate.note == "sa8255p gives no dispatch of its cpu, so that a call itself is free"
    assert not roofline(graph, device, device.processor("npu"), "fp16").note


def test_peak_memory_is_the_weights_of_the_segment_and_what_is_alive(graph: Graph) -> None:
    problem = operator_problem(graph, load_device("sa8255p"), (CPU, NPU))
    memory = peak_memory_table(graph, problem).rows[..., 0, 2]
    alive = [2 * BYTES, 2 * BYTES, 3 * BYTES, 3 * BYTES, 2 * BYTES]
    assert memory[0, 1] == alive[0] + 8 * 8 * 9 * 4
    assert memory[0, 5] == max(alive) + graph.weight_bytes
    assert memory[1, 2] == alive[1]


def test_the_period_is_the_busiest_processor(graph: Graph) -> None:
    problem = operator_problem(graph, load_device("sa8255p"), (CPU, NPU))
    found = search(problem, objectives=("latency", "energy", "period"))
    judge = Baselines(problem, search(problem))
    for solution in found:
        assert judge.period_s(solution.segments) == solution.period_s


def test_parallel_branches_of_fused_groups(graph: Graph) -> None:
    pins = {"A": "npu", "B": "cpu", "C": "npu"}
    problem = unit_problem(graph, operator_problem(graph, load_device("sa8255p"), (CPU, NPU), pins))
    for schedule in search_parallel(problem):
        assert sorted(n for p in schedule.segments for n in p.nodes) == sorted("ABCDE")


def test_segments_of_one_structure_have_one_key() -> None:
    nodes = [helper.make_node("Conv", [t, f"w{i}"], [u], name=f"conv{i}", pads=[1] * 4)
             for i, (t, u) in enumerate([("x", "a"), ("a", "b"), ("b", "y")])]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 16, 16]) for n in ("x", "y")]
    weights = [weight("w0", 8, 8, 3, 3), weight("w1", 8, 8, 3, 3), weight("w2", 8, 8, 3, 3)]
    model = helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights), ir_version=9)
    graph = from_proto(model)
    key = structural_key(graph, operator_problem(graph, load_device("sa8255p"), (CPU, NPU)))
    assert key(NPU, ("conv0",)) == key(NPU, ("conv1",)) == key(NPU, ("conv2",))
    assert key(NPU, ("conv0", "conv1")) == key(NPU, ("conv1", "conv2"))
    assert len({key(NPU, ("conv0",)), key(CPU, ("conv0",)), key(NPU, ("conv0", "conv1"))}) == 3


def test_structure_tells_attributes_and_small_constants_apart() -> None:
    def made(padding: int, target: list[int]) -> Graph:
        side = 16 + 2 * padding - 2
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[padding] * 4),
            helper.make_node("Reshape", ["a", "shape"], ["y"], name="flat"),
        ]
        ends = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ]
        total = 8 * side * side
        shape = numpy_helper.from_array(np.array([*target, total // int(np.prod(target))], np.int64), "shape")
        weights = [weight("w", 8, 8, 3, 3), shape]
        return from_proto(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), ir_version=9))

    keys = set()
    for graph in (made(1, [1]), made(0, [1]), made(1, [2])):
        problem = operator_problem(graph, load_device("sa8255p"), (CPU, NPU))
        keys.add(structural_key(graph, problem)(NPU, ("conv", "flat")))
    assert len(keys) == 3


def test_places_are_the_first_backend_of_each_processor() -> None:
    device = load_device("sa8255p")
    assert offered_places(device, ("ort_cpu", "ort_qnn", "snpe"), "fp16") == (CPU, NPU)
    every = offered_places(device, ("ort_cpu", "ort_qnn", "snpe"), "fp16", every_backend=True)
    assert [p.backend for p in every] == ["ort_cpu", "ort_qnn", "snpe"]
    assert split_costs.missing_figures(device, (CPU, NPU)) == ()
