"""Models and plans of which some nodes are int8 and the rest float: cuts, costs, and the error they predict."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from experiments.mixing import cut_mixed, decibels, in_steps, measured_noise, mixed_problem, part_of, with_noise
from experiments.proposals import propose_splits
from experiments.split_costs import members, moved_bytes, unit_problem, with_homes
from experiments.splitting import search as split_search
from graphs import Calibration, Graph, GraphError, Mixer, extract, float_form, from_proto, quantise, random_inputs
from graphs.quantisation.runtime import open_session
from partition import Plan, load_device
from partition.search import Constraints, Infeasible, Piece, Place, Solution, search

if TYPE_CHECKING:
    from pathlib import Path


def residual(opset: int = 17, width: int = 4, side: int = 8) -> Graph:
    """Two outputs, a shared tensor, a Relu that int8 leaves out, a batch normalisation that folds."""
    random = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(random.normal(0, 0.3, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["c"], name="conv2", pads=[1] * 4),
        helper.make_node("Add", ["c", "r"], ["s"], name="add"),
        helper.make_node("Sigmoid", ["s"], ["z"], name="sigmoid"),
        helper.make_node("GlobalAveragePool", ["s"], ["y"], name="pool"),
    ]
    positive = numpy_helper.from_array(np.full(width, 0.7, np.float32), "v")
    weights = [
        weight("w1", width, 3, 3, 3),
        weight("w2", width, width, 3, 3),
        *(weight(n, width) for n in "gbm"),
        positive,
    ]
    ends = {"x": [1, 3, side, side], "z": [1, width, side, side], "y": [1, width, 1, 1]}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in ends.items()}
    graph = helper.make_graph(nodes, "residual", [values["x"]], [values["z"], values["y"]], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    return from_proto(model, name="residual")


def mixer_of(graph: Graph) -> Mixer:
    return Mixer(float_form(graph), quantise(graph, "int8", Calibration.random(graph, 2, 0)))


@pytest.fixture(scope="module")
def mixer() -> Mixer:
    return mixer_of(residual())


@pytest.fixture(scope="module", params=[11, 17])
def any_opset(request: pytest.FixtureRequest) -> Mixer:
    return mixer_of(residual(request.param))


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(open_session(model).run(None, feed))


def test_everything_in_int8_is_the_qdq_graph_to_the_bit(any_opset: Mixer) -> None:
    mixer = any_opset
    feed = random_inputs(mixer.floating, 0)
    everything = mixer.mix([node.name for node in mixer.floating.nodes()]).graph
    for found, wanted in zip(run(everything.proto(), feed), run(mixer.quantised.proto(), feed), strict=True):
        assert np.array_equal(found, wanted)


def test_nothing_in_int8_is_the_float_graph_to_the_bit(mixer: Mixer) -> None:
    feed = random_inputs(mixer.floating, 0)
    for found, wanted in zip(run(mixer.mix([]).graph.proto(), feed), run(mixer.floating.proto(), feed), strict=True):
        assert np.array_equal(found, wanted)


def test_borders_are_converted_on_the_int8_side(any_opset: Mixer) -> None:
    mixer = any_opset
    assert set(mixer.bound) == {"relu"}
    mixture = mixer.mix(["conv2"])
    kinds = {node.name: node.op_type for node in mixture.graph.nodes()}
    assert kinds["relu"] == "Relu"
    mine = sorted(kinds[name] for name, owners in mixture.owners.items() if owners == ("conv2",))
    # r and w2 (and the bias that folding may have made) come in coded; the result is coded and given back in float.
    assert mine.count("QuantizeLinear") == 2
    assert "Conv" in mine
    inside = [name for name, owners in mixture.owners.items() if owners == ("conv2",)]
    part = extract(mixture.graph, inside)
    assert [spec.dtype for spec in (*part.inputs(), *part.outputs())] == ["float32", "float32"]
    assert [spec.name for spec in part.inputs()] == ["r"]
    assert [spec.name for spec in part.outputs()] == ["c"]


def test_between_int8_nodes_the_tensor_passes_coded(mixer: Mixer) -> None:
    mixture = mixer.mix(["conv1", "relu", "conv2"])
    first = [name for name, owners in mixture.owners.items() if set(owners) <= {"conv1", "relu"}]
    given = {spec.name: spec.dtype for spec in extract(mixture.graph, first).outputs()}
    assert sorted(given.values()) == ["float32", "uint8"]  # the addition reads floats, the convolution codes


def test_the_error_grows_with_what_is_int8(mixer: Mixer) -> None:
    feed = random_inputs(mixer.floating, 0)
    names = [spec.name for spec in mixer.floating.outputs()]
    reference = dict(zip(names, run(mixer.floating.proto(), feed), strict=True))
    everything = [node.name for node in mixer.floating.nodes()]
    one, every = mixer.errors([["conv2"], everything], feed, reference)
    assert one["z"].sqnr_db is not None
    assert every["z"].sqnr_db is not None
    assert one["z"].sqnr_db > every["z"].sqnr_db > 20


def test_what_int8_joins_is_not_parted(mixer: Mixer) -> None:
    with pytest.raises(GraphError, match="'relu' is part of 'conv1' in int8"):
        mixer.mix(["conv1"])
    with pytest.raises(GraphError, match="no node 'conv9'"):
        mixer.mix(["conv9"])


def test_forms_of_two_graphs_do_not_mix() -> None:
    graph = residual()
    other = extract(graph, ["conv1", "norm", "relu", "conv2"])
    with pytest.raises(GraphError, match="differ at"):
        Mixer(float_form(graph), quantise(other, "int8", Calibration.random(other, 1, 0)))


INT8, CPU8, FP16 = with_homes(
    [
        Place(processor="npu", backend="ort_qnn", precision="int8"),
        Place(processor="cpu", backend="ort_cpu", precision="int8"),
        Place(processor="npu", backend="ort_qnn", precision="fp16"),
    ]
)
DEVICE = load_device("sa8255p")
SIZE = 4 * 8 * 8 * 4


@pytest.fixture(autouse=True)
def takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the vendor's own refusals (and its child process) out of tests of our arithmetic."""
    monkeypatch.setattr("compilers.ort_qnn.OrtQnnCompiler.unsupported", lambda *_: {})


def pieces(*parts: tuple[Place, str]) -> list[Piece]:
    return [Piece(place=place, nodes=tuple(names.split())) for place, names in parts]


MIXES = [
    pieces((INT8, "conv1 relu"), (FP16, "conv2 add sigmoid pool")),
    pieces((FP16, "conv1 relu"), (INT8, "conv2"), (CPU8, "add"), (FP16, "sigmoid pool")),
    pieces((INT8, "conv1 relu"), (FP16, "conv2"), (INT8, "add sigmoid pool")),
    pieces((CPU8, "conv1 relu conv2"), (INT8, "add sigmoid pool")),
]


@pytest.mark.parametrize("plan", MIXES)
def test_stitched_pieces_are_the_mixed_graph_to_the_bit(mixer: Mixer, plan: list[Piece]) -> None:
    tensors = dict(random_inputs(mixer.floating, 0))
    lowered = [node for piece in plan if piece.place.precision == "int8" for node in piece.nodes]
    whole = mixer.mix(lowered).graph
    wanted = run(whole.proto(), tensors)
    for part in cut_mixed(mixer, plan):
        feed = {spec.name: tensors[spec.name] for spec in part.inputs()}
        tensors.update(zip([spec.name for spec in part.outputs()], run(part.proto(), feed), strict=True))
    for spec, array in zip(whole.outputs(), wanted, strict=True):
        assert np.array_equal(tensors[spec.name], array)


def test_a_whole_plan_is_the_model_that_the_main_job_compiles(mixer: Mixer) -> None:
    everything = " ".join(node.name for node in mixer.floating.nodes())
    assert cut_mixed(mixer, pieces((INT8, everything))) == (mixer.quantised,)
    assert cut_mixed(mixer, pieces((FP16, everything))) == (mixer.floating,)
    assert part_of(mixer, pieces((INT8, everything))[0]) == mixer.quantised
    assert {spec.dtype for spec in part_of(mixer, pieces((INT8, "conv2"))[0]).inputs()} == {"uint8"}


def test_a_border_of_precisions_is_never_free(mixer: Mixer) -> None:
    problem = mixed_problem(mixer, DEVICE, [INT8, CPU8, FP16])
    assert problem.members["relu"] == ("conv1", "relu")  # int8 has no Relu of its own
    assert DEVICE.dram_bytes_per_s is not None
    convert = problem.transfers[INT8.home, FP16.home].cost(SIZE)
    assert convert.latency_s == pytest.approx(1.25 * SIZE / DEVICE.dram_bytes_per_s.value)
    assert convert.energy_j > 0
    handover = problem.transfers[INT8.home, CPU8.home].cost(SIZE)
    assert handover.energy_j == pytest.approx(problem.transfers[CPU8.home, INT8.home].cost(SIZE).energy_j)
    assert DEVICE.dram_j_per_byte is not None
    assert handover.energy_j == pytest.approx(SIZE / 4 * 2 * DEVICE.dram_j_per_byte.value)  # a quarter of the bytes


def test_int8_operators_cost_their_own_work(mixer: Mixer) -> None:
    problem = mixed_problem(mixer, DEVICE, [INT8, FP16], {"conv2": "npu"})
    assert 0 < problem.costs["conv2", INT8].latency_s < problem.costs["conv2", FP16].latency_s
    assert problem.costs["relu", INT8].latency_s > 0
    pinned = mixed_problem(mixer, DEVICE, [INT8, CPU8, FP16], {"conv2": "npu"})
    assert pinned.refusals["conv2"] == {CPU8: "pinned to npu"}


def test_bytes_moved_are_those_of_the_form(mixer: Mixer) -> None:
    problem = mixed_problem(mixer, DEVICE, [INT8, CPU8, FP16])
    assert moved_bytes(problem, MIXES[0]) == SIZE
    assert moved_bytes(problem, MIXES[3]) == 2 * SIZE // 4


def test_the_error_predicted_adds_up_and_the_search_trades_it(mixer: Mixer, tmp_path: Path) -> None:
    problem = unit_problem(mixer.floating, mixed_problem(mixer, DEVICE, [INT8, FP16]))
    feed = random_inputs(mixer.floating, 0)
    ends = [spec.name for spec in mixer.floating.outputs()]
    reference = dict(zip(ends, run(mixer.floating.proto(), feed), strict=True))
    parts = [members(problem, [node]) for node in problem.nodes]
    noise = measured_noise(mixer, parts, feed, reference, tmp_path)
    assert noise == measured_noise(mixer, parts, feed, reference, tmp_path)  # read, not measured again
    assert len(list(tmp_path.iterdir())) == 1
    assert all(n > 0 for n in noise)
    found = search(with_noise(problem, noise), objectives=("latency", "energy", "error"))
    by_error = {s.error or 0.0: {p.place.precision for p in s.segments} for s in found}
    assert by_error[0.0] == {"fp16"}
    assert by_error[max(by_error)] == {"int8"}
    assert max(by_error) == pytest.approx(sum(noise), rel=1e-3)
    (together,) = mixer.errors([[node for part in parts for node in part]], feed, reference)
    worst = min(e.sqnr_db for e in together.values() if e.sqnr_db is not None)
    predicted = decibels(sum(noise))
    assert predicted == pytest.approx(worst, abs=3)  # dB: noises of one input are not independent


def test_plans_that_only_steps_of_noise_let_pass_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, place = (0.001, 0.003, 1.0), Place(processor="npu", precision="int8")
    monkeypatch.setattr(split_search, "_noise", lambda *_: noise)
    assert sum(in_steps(noise)[:2]) < 0.0035 < sum(noise[:2])
    plan = Solution(segments=(Piece(place=place, nodes=("a", "b")),), latency_s=1.0, energy_j=1.0, space="", error=0.0)
    problem = SimpleNamespace(nodes=("a", "b", "c"), members={})
    request: Any = SimpleNamespace(problem=problem, constraints=Constraints(error_cap=0.0045))
    (kept,) = split_search._with_full_noise(request, None, [plan])  # type: ignore[arg-type]
    assert kept.error == pytest.approx(0.004)
    request.constraints = Constraints(error_cap=0.0035)
    with pytest.raises(Infeasible, match=r"--min-sqnr 24.56 dB: the most reachable is 23.98 dB"):
        split_search._with_full_noise(request, None, [plan])  # type: ignore[arg-type]


def test_the_main_job_offers_a_mix_where_int8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object, graph: Graph) -> dict[str, str]:
        quantised = any(node.op_type == "QuantizeLinear" for node in graph.nodes())
        return {node.name: "no int8 kernel" for node in graph.nodes() if quantised and node.op_type == "Sigmoid"}

    graph = residual(width=128, side=96)  # enough work for a segment of its own to pay
    forms = {"fp16": graph, "int8": quantise(graph, "int8", Calibration.random(graph, 1, 0))}
    offered = list(propose_splits(graph, forms, DEVICE, ("ort_cpu", "ort_qnn"), 2))
    assert not any(_mixes(plan) for plan, _ in offered)
    monkeypatch.setattr("compilers.ort_qnn.OrtQnnCompiler.unsupported", refuses)
    offered = list(propose_splits(graph, forms, DEVICE, ("ort_cpu", "ort_qnn"), 2))
    mixes = [(plan, cuts) for plan, cuts in offered if _mixes(plan)]
    assert mixes
    for plan, cuts in mixes:
        assert cuts == ("s",)
        (sigmoid,) = (s for s in plan.segments if any(n.op_type == "Sigmoid" for n in s.graph.nodes()))
        assert sigmoid.precision in {"fp16", "fp32"}


def _mixes(plan: Plan) -> bool:
    return len({segment.precision == "int8" for segment in plan.segments}) == 2


def test_what_int8_makes_infinite_is_refused_there(mixer: Mixer) -> None:
    problem = unit_problem(mixer.floating, mixed_problem(mixer, DEVICE, [INT8, FP16]))
    noise = [math.inf, *[1e-4] * (len(problem.nodes) - 1)]
    noisy = with_noise(problem, in_steps(noise))
    assert noisy.refusals[problem.nodes[0]] == {INT8: "in int8 it makes an output NaN or infinite"}
    for plan in search(noisy, objectives=("latency", "energy", "error")):
        assert plan.segments[0].place == FP16
    assert sum(in_steps([1e-3, 2e-3, 5e-9])) == pytest.approx(3e-3, rel=1e-2)


def test_a_chain_of_activations_goes_with_the_node_that_stands_in_for_the_last() -> None:
    """Both of `Relu(Relu(x + x))` are left out in int8; the first has no range there, and that was an error."""
    names = ["x", "t", "u", "y"]
    kinds = ["Add", "Relu", "Relu"]
    nodes = [
        helper.make_node(kind, [names[i]] * (1 + (kind == "Add")), [names[i + 1]], name=f"n{i}")
        for i, kind in enumerate(kinds)
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 4]) for name in ("x", "y"))
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "chain", [x], [y]), ir_version=8, opset_imports=opset)
    mixer = mixer_of(from_proto(model, name="chain"))
    assert mixer.bound == {"n1": "n0", "n2": "n0"}
    feed = random_inputs(mixer.floating, 3)
    whole = run(mixer.int8, feed)
    np.testing.assert_array_equal(run(mixer.whole.graph.proto(), feed)[0], whole[0])
    with pytest.raises(GraphError, match="part of 'n0' in int8"):
        mixer.mix(["n0", "n2"])
