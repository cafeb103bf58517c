from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphs import Calibration, Graph, GraphError, from_proto, layer_errors, load, quantise, random_inputs, zoo
from graphs.error import Verdict, compare
from graphs.quantisation import RECIPES, ranges
from graphs.quantisation.blocks import BLOCK, _pack, block_scales
from graphs.quantisation.half import inlined
from graphs.quantisation.runtime import open_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Feed = dict[str, np.ndarray]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    opset: int = 17,
) -> onnx.ModelProto:
    def declare(tensors: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in tensors.items()]

    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "small", declare(inputs), declare(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def small(opset: int = 17) -> Graph:
    """Everything that went wrong once: a bias shared through Identity, a batch norm, a LayerNorm, MatMul + Add."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.normal(size=shape) * scale).astype(np.float32)

    constants = {
        "w1": normal(8, 3, 3, 3, scale=0.2), "b1": normal(8, scale=0.1), "w2": normal(8, 8, 3, 3, scale=0.1),
        "scale": np.ones(8, np.float32), "shift": normal(8, scale=0.1), "mean": normal(8, scale=0.1),
        "var": np.ones(8, np.float32), "fw": normal(8, 64), "fb": normal(64), "gw": normal(64, 10),
        "gb": normal(10), "ls": np.ones(64, np.float32), "lb": np.zeros(64, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c1", "scale", "shift", "mean", "var"], ["n1"], name="bn1"),
        helper.make_node("Relu", ["n1"], ["r1"], name="relu1"),
        helper.make_node("Identity", ["b1"], ["b2"], name="identity"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1] * 4),
        helper.make_node("Add", ["c2", "r1"], ["a"], name="add"),
        helper.make_node("GlobalAveragePool", ["a"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "fw"], ["m"], name="fc1"),
        helper.make_node("Add", ["m", "fb"], ["ma"], name="fc1_bias"),
        helper.make_node("LayerNormalization", ["ma", "ls", "lb"], ["ln"], name="norm"),
        helper.make_node("Gemm", ["ln", "gw", "gb"], ["y"], name="fc2"),
    ]
    return from_proto(model_of(nodes, constants, {"x": [1, 3, 16, 16]}, {"y": [1, 10]}, opset), name="small")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small()


@pytest.fixture(scope="module")
def int8(graph: Graph) -> Graph:
    return quantise(graph, "int8", Calibration.random(graph, 4))


def run(graph: Graph, feed: Feed) -> Feed:
    session = open_session(inlined(graph))
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))


def constant_of(graph: Graph, tensor: str) -> np.ndarray:
    """Follow a tensor through its DequantizeLinear to the stored values."""
    producer = next(node for node in graph.nodes() if tensor in node.outputs)
    assert producer.op_type == "DequantizeLinear"
    return graph.constant(producer.inputs[0])


def scale_of(graph: Graph, tensor: str) -> np.ndarray:
    return graph.constant(next(node for node in graph.nodes() if tensor in node.outputs).inputs[1])


def input_of(graph: Graph, node: str, port: int) -> str:
    return next(found for found in graph.nodes() if found.name == node).inputs[port]


# -- recipes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "bound_db"), [("int8", 25), ("int8-per-tensor", 25), ("w8a16", 27), ("fp16", 55), ("w4", 14)]
)
@pytest.mark.parametrize("opset", [17, 21])
def test_every_recipe_keeps_the_interface_and_the_values(recipe: str, bound_db: float, opset: int) -> None:
    graph = small(opset)
    lowered = quantise(graph, recipe, Calibration.random(graph, 4))
    assert lowered.name == f"small-{recipe}"
    assert (lowered.inputs(), lowered.outputs()) == (graph.inputs(), graph.outputs())
    feed = random_inputs(graph, 99)
    error = compare(run(graph, feed), run(lowered, feed))["y"]
    assert error.sqnr_db is not None
    assert error.sqnr_db > bound_db


def test_int8_scales_are_as_the_npu_needs_them(int8: Graph) -> None:
    for node in ("conv1", "conv2"):
        weight = input_of(int8, node, 1)
        assert constant_of(int8, weight).dtype == np.int8
        assert scale_of(int8, weight).shape == (8,)
        assert constant_of(int8, input_of(int8, node, 2)).dtype == np.int32
    assert scale_of(int8, input_of(int8, "fc2", 1)).shape == (10,)
    activation = next(node for node in int8.nodes() if node.name == "r1_QuantizeLinear")
    assert int8.initializers()[activation.inputs[2]].dtype == "uint8"


def test_layer_norm_scale_is_one_uint8_tensor_in_every_recipe(graph: Graph) -> None:
    for recipe in ("int8", "int8-per-tensor", "w8a16"):
        lowered = quantise(graph, recipe, Calibration.random(graph, 1))
        scale = input_of(lowered, "norm", 1)
        assert constant_of(lowered, scale).dtype == np.uint8
        assert scale_of(lowered, scale).shape == ()


def test_per_tensor_has_one_scale_a_weight(graph: Graph) -> None:
    lowered = quantise(graph, "int8-per-tensor", Calibration.random(graph, 1))
    assert all(scale_of(lowered, input_of(lowered, node, 1)).shape == () for node in ("conv1", "conv2", "fc2"))


def test_w8a16_has_16_bit_activations_and_8_bit_weights(graph: Graph) -> None:
    lowered = quantise(graph, "w8a16", Calibration.random(graph, 1))
    pair = next(node for node in lowered.nodes() if node.name == "a_QuantizeLinear")
    assert lowered.initializers()[pair.inputs[2]].dtype == "uint16"
    assert pair.domain == ""
    assert constant_of(lowered, input_of(lowered, "conv1", 1)).dtype == np.int8


def test_names_of_surviving_nodes_stay(graph: Graph, int8: Graph) -> None:
    kept = {node.name for node in graph.nodes()} & {node.name for node in int8.nodes()}
    assert kept == {"conv1", "conv2", "add", "pool", "flatten", "fc1", "norm", "fc2"}


def test_a_bias_shared_through_identity_is_a_constant_of_each_convolution(int8: Graph) -> None:
    assert {node.op_type for node in int8.nodes()}.isdisjoint({"Identity", "BatchNormalization"})
    assert input_of(int8, "conv1", 2) != input_of(int8, "conv2", 2)


def test_mixed_keeps_the_named_nodes_float(graph: Graph) -> None:
    lowered = quantise(graph, "mixed", Calibration.random(graph, 2), keep_float=("fc2",))
    assert lowered.name == "small-mixed"
    assert lowered.initializers()[input_of(lowered, "fc2", 1)].dtype == "float32"
    assert constant_of(lowered, input_of(lowered, "conv1", 1)).dtype == np.int8


def test_keep_float_holds_for_fp16_and_w4(graph: Graph) -> None:
    lowered = quantise(graph, "fp16", keep_float=("fc2",))
    assert lowered.initializers()[input_of(lowered, "fc2", 1)].dtype == "float32"
    # fc2 has the only weight with the 32 inputs that a block needs.
    with pytest.raises(GraphError, match="no constant MatMul, Gemm or Conv weight"):
        quantise(graph, "w4", keep_float=("fc2",))


def test_fp16_has_half_the_weights_and_float32_ends(graph: Graph) -> None:
    lowered = quantise(graph, "fp16")
    assert lowered.initializers()[input_of(lowered, "conv1", 1)].dtype == "float16"
    assert [spec.dtype for spec in (*lowered.inputs(), *lowered.outputs())] == ["float32", "float32"]
    assert {node.name for node in graph.nodes()} <= {node.name for node in lowered.nodes()}


def test_resnet18_keeps_its_direction() -> None:
    graph = zoo.build("resnet18", size=96)
    lowered = quantise(graph, "int8", Calibration.random(graph, 2))
    feed = random_inputs(graph, 99)
    error = compare(run(graph, feed), run(lowered, feed))[graph.outputs()[0].name]
    assert error.cosine is not None
    assert error.cosine >= 0.99


def test_a_clip_away_from_zero_is_not_swallowed_by_the_range() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["m"], name="mul"),
        helper.make_node("Clip", ["m", "low", "high"], ["y"], name="clip"),
    ]
    constants = {"two": np.float32([2]), "low": np.array(1, np.float32), "high": np.array(3, np.float32)}
    graph = from_proto(model_of(nodes, constants, {"x": [1, 64]}, {"y": [1, 64]}))
    lowered = quantise(graph, "int8", Calibration.random(graph, 4))
    output = run(lowered, {"x": np.full((1, 64), -1.0, np.float32)})["y"]
    assert output.min() > 0.9


def test_a_constant_with_a_name_that_quantisation_derives_keeps_its_value() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x_scale"], ["m"], name="mul"),
        helper.make_node("Add", ["m", "m_zero_point"], ["y"], name="add"),
    ]
    constants = {"x_scale": np.full(4, 100, np.float32), "m_zero_point": np.full(4, 7, np.float32)}
    graph = from_proto(model_of(nodes, constants, {"x": [1, 4]}, {"y": [1, 4]}))
    feed = random_inputs(graph, 1)
    error = compare(run(graph, feed), run(quantise(graph, "int8", Calibration.random(graph, 8)), feed))["y"]
    assert error.cosine is not None
    assert error.cosine > 0.99


def test_the_copy_of_a_shared_bias_is_not_taken_for_a_tensor_with_its_name_and_number() -> None:
    """Of basic-pitch: the third convolution's result was called by the shared bias's name and a number."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["b1"], name="one"),
        helper.make_node("Conv", ["b1", "w2", "b"], ["b2"], name="two"),
        helper.make_node("Conv", ["b2", "w3", "b"], ["y"], name="three"),
    ]
    constants = {f"w{i}": rng.normal(0, 0.3, (8, 8, 1, 1)).astype(np.float32) for i in (1, 2, 3)}
    constants["b"] = np.linspace(-1, 1, 8, dtype=np.float32)
    graph = from_proto(model_of(nodes, constants, {"x": [1, 8, 4, 4]}, {"y": [1, 8, 4, 4]}))
    feed = random_inputs(graph, 1)
    error = compare(run(graph, feed), run(quantise(graph, "int8", Calibration.random(graph, 8)), feed))["y"]
    assert error.cosine is not None
    assert error.cosine > 0.99


def test_control_flow_stays_float_and_still_reads_what_it_captures() -> None:
    def branch(name: str, operation: str) -> onnx.GraphProto:
        body = [helper.make_node(operation, ["c"], [f"{name}_out"], name=f"{name}_op")]
        return helper.make_graph(
            body, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [1, 8])]
        )

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["c"], name="fc"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("ReduceMax", ["x"], ["top"], name="top", keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["flag"], name="flag"),
        helper.make_node("If", ["flag"], ["i"], name="if", then_branch=branch("then", "Neg"),
                         else_branch=branch("else", "Abs")),
        helper.make_node("Add", ["i", "r"], ["y"], name="add"),
    ]  # fmt: skip
    constants = {"w": np.eye(8, dtype=np.float32), "zero": np.array(0, np.float32)}
    graph = from_proto(model_of(nodes, constants, {"x": [1, 8]}, {"y": [1, 8]}))
    lowered = quantise(graph, "int8", Calibration.random(graph, 4))
    feed = random_inputs(graph, 5)
    error = compare(run(graph, feed), run(lowered, feed))["y"]
    assert error.cosine is not None
    assert error.cosine > 0.98


@pytest.mark.parametrize("recipe", ["int8", "w8a16", "fp16", "w4"])
def test_external_weights_give_the_same_graph(graph: Graph, tmp_path: Path, recipe: str) -> None:
    path = tmp_path / "external.onnx"
    onnx.save_model(graph.proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    external = load(path)
    assert external.base_dir == tmp_path
    calibration = Calibration.random(graph, 1)
    assert quantise(external, recipe, calibration) == quantise(graph, recipe, calibration)


def test_gelu_is_fused_and_operators_of_onnx_runtime_are_typed() -> None:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "x"], ["t"], name="product", domain="com.microsoft", transB=1),
        helper.make_node("Div", ["t", "root"], ["d"], name="div"),
        helper.make_node("Erf", ["d"], ["e"], name="erf"),
        helper.make_node("Add", ["e", "one"], ["a"], name="add"),
        helper.make_node("Mul", ["t", "a"], ["m"], name="mul"),
        helper.make_node("Mul", ["m", "half"], ["y"], name="halve"),
    ]
    constants = {name: np.array(value, np.float32) for name, value in (("root", 2**0.5), ("one", 1), ("half", 0.5))}
    model = model_of(nodes, constants, {"x": [1, 8, 4]}, {"y": [1, 8, 8]})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = from_proto(model)
    for recipe in ("int8", "w8a16"):
        lowered = quantise(graph, recipe, Calibration.random(graph, 4))
        operations = [node.op_type for node in lowered.nodes() if not node.op_type.endswith("Linear")]
        assert operations == ["FusedMatMul", "Gelu"]
        assert "t_QuantizeLinear" in {node.name for node in lowered.nodes()}


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        ("int7", {}, "no quantisation recipe 'int7'; there are int8, "),
        ("int8", {"method": "best"}, "no calibration method 'best'"),
        ("mixed", {}, "needs the nodes that stay float"),
        ("mixed", {"keep_float": ("nothing",)}, r"has no nodes \['nothing'\]"),
        ("mixed", {"keep_float": ("bn1",)}, r"\['bn1'\] of small are folded into others"),
    ],
)
def test_wrong_arguments_are_refused(graph: Graph, recipe: str, arguments: dict, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        quantise(graph, recipe, Calibration.random(graph, 1), **arguments)


def test_ranges_need_calibration_data(graph: Graph) -> None:
    with pytest.raises(GraphError, match="needs calibration data"):
        quantise(graph, "int8")


def test_a_quantised_graph_is_not_quantised_again(int8: Graph) -> None:
    with pytest.raises(GraphError, match="quantised already"):
        quantise(int8, "int8", Calibration.random(int8, 1))


def test_an_infinite_tensor_is_refused_with_its_nodes_and_can_be_kept_float() -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["b"], name="compare"),
        helper.make_node("Where", ["b", "x", "minus"], ["w"], name="mask"),
        helper.make_node("Softmax", ["w"], ["s"], name="softmax"),
        helper.make_node("Mul", ["s", "two"], ["y"], name="mul"),
    ]
    constants = {
        "zero": np.array(0, np.float32), "minus": np.array(-np.inf, np.float32), "two": np.float32([2])
    }  # fmt: skip
    graph = from_proto(model_of(nodes, constants, {"x": [1, 16]}, {"y": [1, 16]}))
    calibration = Calibration.random(graph, 2)
    with pytest.raises(GraphError, match=r"Tensor 'w' is not finite .*\['mask', 'softmax'\]"):
        quantise(graph, "int8", calibration)
    lowered = quantise(graph, "mixed", calibration, keep_float=("mask", "softmax"))
    assert np.isfinite(run(lowered, random_inputs(graph, 3))["y"]).all()


def test_a_constant_without_bounds_keeps_its_reader_float() -> None:
    constants = {"w": np.ones((4, 3, 1, 1), np.float32), "floor": np.array(-np.inf, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Max", ["c", "floor"], ["y"], name="masked"),
    ]
    made = from_proto(model_of(nodes, constants, {"x": [1, 3, 4, 4]}, {"y": [1, 4, 4, 4]}), name="masked")
    lowered = quantise(made, "int8", Calibration.random(made, 32))
    feed = random_inputs(made, 5)
    assert compare(run(made, feed), run(lowered, feed))["y"].cosine > 0.99
    assert np.isneginf(lowered.constant("floor"))


def test_a_gemm_bias_of_one_row_is_quantised_as_a_vector() -> None:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(size=(8, 4)).astype(np.float32),
        "b": rng.normal(size=(1, 4)).astype(np.float32),
    }
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc")]
    made = from_proto(model_of(nodes, constants, {"x": [1, 8]}, {"y": [1, 4]}), name="row")
    feed = random_inputs(made, 5)
    assert compare(run(made, feed), run(quantise(made, "int8", Calibration.random(made, 8)), feed))["y"].cosine > 0.99


@pytest.mark.parametrize("recipe", ["int8", "int8-per-tensor", "w8a16"])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 1), (1, 4), (3, 1), (3, 4)])
def test_gemms_keep_biases_of_every_shape_and_factor(shape: tuple[int, ...], recipe: str) -> None:
    rng = np.random.default_rng(0)
    constants = {f"w{i}": rng.normal(size=(4, 4)).astype(np.float32) for i in (1, 2)}
    # The second name is one that a copy might be given.
    constants |= {name: rng.normal(0, 9, shape).astype(np.float32) for name in ("b", "b_flat", "b_bias")}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b"], ["a"], name="one", alpha=2.0, beta=0.25, transB=1),
        helper.make_node("Sub", ["a", "b_flat"], ["c"], name="sub"),
        helper.make_node("Gemm", ["c", "w2", "b"], ["d"], name="two", beta=3.0),
        helper.make_node("Sub", ["d", "b_bias"], ["y"], name="end"),
    ]
    made = from_proto(model_of(nodes, constants, {"x": [3, 4]}, {"y": [3, 4], "b": list(shape)}), name="biases")
    feed = random_inputs(made, 5)
    wanted, got = run(made, feed), run(quantise(made, recipe, Calibration.random(made, 400)), feed)
    assert compare(wanted, got)["y"].cosine > 0.999
    np.testing.assert_array_equal(got["b"], constants["b"])


def test_half_takes_no_name_that_another_constant_has() -> None:
    constants = {"w": np.eye(4, dtype=np.float32), "w_inside": np.full((4,), 7, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Add", ["a", "w_inside"], ["y"], name="add"),
    ]
    made = from_proto(model_of(nodes, constants, {"x": [3, 4]}, {"y": [3, 4], "w": [4, 4]}), name="names")
    x = np.ones((3, 4), np.float32)
    got = run(quantise(made, "fp16"), {"x": x})
    np.testing.assert_array_equal(got["y"], x + 7)
    np.testing.assert_array_equal(got["w"], constants["w"])


@pytest.mark.parametrize("recipe", ["int8", "w8a16"])
def test_a_bias_that_is_added_elsewhere_keeps_its_own_32_bits(recipe: str) -> None:
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(16, 16)).astype(np.float32), "b": rng.normal(size=16).astype(np.float32)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["c"], name="fc1"),
        helper.make_node("Add", ["c", "b"], ["a"], name="add"),
        helper.make_node("Gemm", ["a", "w", "b"], ["y"], name="fc2"),
    ]
    made = from_proto(model_of(nodes, constants, {"x": [1, 16]}, {"y": [1, 16]}), name="shared")
    lowered = quantise(made, recipe, Calibration.random(made, 32))
    biases = [constant_of(lowered, input_of(lowered, name, 2)) for name in ("fc1", "fc2")]
    assert {bias.dtype for bias in biases} == {np.dtype(np.int32)}
    feed = random_inputs(made, 5)
    assert compare(run(made, feed), run(lowered, feed))["y"].cosine > 0.99


def test_a_graph_without_float_work_has_nothing_to_quantise() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], name="cast", to=TensorProto.FLOAT)]
    made = from_proto(model_of(nodes, {}, {"x": [1, 8]}, {"y": [1, 8]}), name="cast")
    with pytest.raises(GraphError, match="nothing to quantise"):
        quantise(made, "int8", Calibration.random(made, 1))


def test_calibration_for_another_graph_is_refused(graph: Graph) -> None:
    other = zoo.build("resnet18", size=32)
    with pytest.raises(GraphError, match="Calibration batch 0 of random"):
        quantise(graph, "int8", Calibration.random(other, 1))


# -- side effects ----------------------------------------------------------------------------------------------


def test_quantising_is_silent_and_leaves_nothing_behind(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = (list(logging.getLogger().handlers), list(logging.getLogger().filters))
    for recipe in ("int8", "w8a16", "fp16", "w4"):
        quantise(graph, recipe, Calibration.random(graph, 1), method="percentile")
    assert (list(logging.getLogger().handlers), list(logging.getLogger().filters)) == before
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_same_bytes_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "digests.py"
    script.write_text(
        "import hashlib, importlib.util, sys\n"
        "from graphs import Calibration, quantise\n"
        f"spec = importlib.util.spec_from_file_location('tests_quantise', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "graph = module.small()\n"
        "for recipe in module.RECIPES:\n"
        "    keep = ('fc2',) if recipe == 'mixed' else ()\n"
        "    lowered = quantise(graph, recipe, Calibration.random(graph, 2), keep_float=keep)\n"
        "    print(recipe, lowered.digest, module.bytes_digest(lowered))\n"
    )
    printed = {_run_script(script, seed) for seed in ("1", "2")}
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == len(RECIPES)


def bytes_digest(graph: Graph) -> str:
    return hashlib.sha256(graph.proto().SerializeToString(deterministic=True)).hexdigest()


def _run_script(script: Path, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


# -- ranges ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tailed() -> tuple[np.ndarray, float, float]:
    values = np.random.default_rng(0).normal(size=200_000)
    values[0] = 100.0
    low, high = float(values.min()), float(values.max())
    return np.histogram(values, ranges.BINS, range=(low, high))[0], low, high


def test_percentile_and_entropy_cut_an_outlier(tailed: tuple[np.ndarray, float, float]) -> None:
    counts, low, high = tailed
    assert ranges._percentile(counts, low, high)[1] < 6
    entropy_low, entropy_high = ranges._entropy(counts, low, high)
    assert low <= entropy_low < 0
    assert 2 < entropy_high < 20


def test_methods_never_widen_a_range() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        low, high = sorted(rng.normal(size=2) * 10)
        counts = rng.integers(0, 5, ranges.BINS)
        for narrow in (ranges._percentile, ranges._entropy):
            first, last = narrow(counts, low, high)
            assert low <= first
            assert last <= high


def test_an_outlier_in_the_data_narrows_only_the_other_methods(tmp_path: Path) -> None:
    graph = from_proto(
        model_of(
            [helper.make_node("Mul", ["x", "two"], ["y"], name="mul")],
            {"two": np.float32([2])},
            {"x": [1, 4096]},
            {"y": [1, 4096]},
        )
    )
    data = np.random.default_rng(0).normal(size=(64, 4096)).astype(np.float32)
    data[3, 7] = 1000.0
    np.save(tmp_path / "data.npy", data)
    calibration = Calibration.from_path(graph, tmp_path / "data.npy")
    scales = {
        method: float(
            quantise(graph, "int8", calibration, method=method).constant("x_scale")  # type: ignore[arg-type]
        )
        for method in ("minmax", "percentile", "entropy")
    }
    assert scales["minmax"] == pytest.approx((1000 - data.min()) / 255, rel=1e-5)
    assert scales["percentile"] < scales["minmax"] / 50
    assert scales["entropy"] < scales["minmax"] / 4


# -- blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_are_within_half_a_step(axis: int) -> None:
    weight = np.random.default_rng(0).normal(size=(80, 70)).astype(np.float32)
    values, scales = block_scales(weight, axis)
    assert scales.shape[axis] == math.ceil(weight.shape[axis] / BLOCK)
    spread = np.repeat(scales, BLOCK, axis=axis).take(np.arange(weight.shape[axis]), axis=axis)
    assert np.abs(values * spread - weight).max() <= spread.max() / 2 * 1.0001
    assert np.abs(values).max() == 7


def test_zero_blocks_stay_zero_and_packing_is_as_onnx_reads_it() -> None:
    values, scales = block_scales(np.zeros((64, 3), np.float32), 0)
    assert not values.any()
    assert (scales == 1).all()
    numbers = np.array([-7, 3, 0, 7, -1], np.int8)
    tensor = onnx.TensorProto(data_type=TensorProto.INT4, dims=[5], raw_data=_pack(numbers))
    assert numpy_helper.to_array(tensor).astype(np.int8).tolist() == numbers.tolist()


def test_w4_weights_run_as_the_standard_says() -> None:
    rng = np.random.default_rng(0)
    constants = {
        "conv": rng.normal(size=(8, 48, 3, 3)).astype(np.float32),
        "fc": rng.normal(size=(10, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["c"], name="conv"),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fc"], ["y"], name="gemm", transB=1),
    ]
    graph = from_proto(model_of(nodes, constants, {"x": [1, 48, 6, 6]}, {"y": [1, 10]}))
    lowered = quantise(graph, "w4")
    assert lowered.initializers()[input_of(lowered, "gemm", 1)].dtype == "float32"  # 8 inputs: less than a block
    feed = random_inputs(graph, 0)
    reference = ReferenceEvaluator(lowered.proto()).run(None, feed)[0]
    np.testing.assert_allclose(run(lowered, feed)["y"], reference, rtol=1e-4, atol=1e-4)


# -- layers ----------------------------------------------------------------------------------------------------


def test_layer_errors_are_those_of_the_outputs_and_in_order(graph: Graph, int8: Graph) -> None:
    feed = random_inputs(graph, 99)
    errors = layer_errors(graph, int8, feed)
    assert list(errors) == ["r1", "c2", "a", "g", "f", "ma", "ln", "y"]
    assert errors["y"] == compare(run(graph, feed), run(int8, feed))["y"]
    assert all(error.verdict is Verdict.COMPARED for error in errors.values())


def test_layer_errors_find_the_layer_that_loses_most() -> None:
    rng = np.random.default_rng(0)
    bad = rng.normal(size=(32, 32)).astype(np.float32) * np.logspace(-4, 0, 32, dtype=np.float32)
    constants = {"w0": rng.normal(size=(32, 32)).astype(np.float32), "w1": bad, "w2": np.eye(32, dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["t0"], name="fc0"),
        helper.make_node("MatMul", ["t0", "w1"], ["t1"], name="fc1"),
        # Brings the small channels back up: what their shared scale has lost is lost.
        helper.make_node("Mul", ["t1", "level"], ["t2"], name="level"),
        helper.make_node("MatMul", ["t2", "w2"], ["y"], name="fc2"),
    ]
    constants["level"] = np.logspace(4, 0, 32, dtype=np.float32)
    graph = from_proto(model_of(nodes, constants, {"x": [1, 32]}, {"y": [1, 32]}))
    errors = layer_errors(graph, quantise(graph, "int8", Calibration.random(graph, 16)), random_inputs(graph, 9))
    sqnr = [errors[name].sqnr_db or math.nan for name in ("t0", "t1", "t2", "y")]
    losses = [before - after for before, after in itertools.pairwise(sqnr)]
    assert losses.index(max(losses)) == 1
    assert max(losses) > 15


def test_layer_errors_refuse_a_feed_that_does_not_fit(graph: Graph, int8: Graph) -> None:
    with pytest.raises(GraphError, match="names"):
        layer_errors(graph, int8, {"z": np.zeros(1, np.float32)})


def test_the_reference_is_the_graph_without_optimisations() -> None:
    """Case T9: two Q/DQ pairs in a row, which the default optimisation merges into one."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "fine", "zero"], ["q0"], name="q0"),
        helper.make_node("DequantizeLinear", ["q0", "fine", "zero"], ["d0"], name="d0"),
        helper.make_node("QuantizeLinear", ["d0", "coarse", "zero"], ["q1"], name="q1"),
        helper.make_node("DequantizeLinear", ["q1", "coarse", "zero"], ["y"], name="d1"),
    ]
    constants = {
        "fine": np.array(0.02, np.float32),
        "coarse": np.array(0.05, np.float32),
        "zero": np.array(128, np.uint8),
    }
    model = model_of(nodes, constants, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, opset=19)
    feed = {"x": (np.random.default_rng(0).normal(size=(1, 4, 8, 8)) * 2).astype(np.float32)}
    expected = ReferenceEvaluator(model).run(None, feed)[0]
    assert np.array_equal(open_session(model).run(None, feed)[0], expected)


# -- calibration data ------------------------------------------------------------------------------------------


def feeds_of(calibration: Calibration) -> list[Feed]:
    feeds = list(calibration)
    assert len(feeds) == calibration.count
    return feeds


@pytest.fixture(scope="module")
def pair() -> Graph:
    """Two inputs, float image and int64 numbers."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["c"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["c"], ["s"], name="sum", keepdims=0),
        helper.make_node("Add", ["image", "s"], ["y"], name="add"),
    ]
    model = model_of(nodes, {}, {"image": [2, 3]}, {"y": [2, 3]})
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [4]))
    return from_proto(model, name="pair")


def test_random_calibration_is_labelled_repeatable_and_begins_alike(graph: Graph) -> None:
    long, short = Calibration.random(graph, 3, seed=7), Calibration.random(graph, 2, seed=7)
    assert (long.source, long.is_random, long.count) == ("random", True, 3)
    assert np.array_equal(feeds_of(long)[1]["x"], feeds_of(short)[1]["x"])
    assert np.array_equal(feeds_of(long)[2]["x"], feeds_of(long)[2]["x"])
    assert not np.array_equal(feeds_of(long)[0]["x"], feeds_of(long)[1]["x"])
    digests = {long.digest, short.digest, Calibration.random(graph, 3, seed=8).digest}
    assert len(digests) == 3
    assert Calibration.random(graph, 3, seed=7) == long
    with pytest.raises(GraphError, match="at least one batch"):
        Calibration.random(graph, 0)


def test_leading_axis_of_npy_counts_samples(graph: Graph, tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(5, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "merged.npy", data)
    np.save(tmp_path / "separate.npy", data[:, None])
    merged = Calibration.from_path(graph, tmp_path / "merged.npy")
    assert not merged.is_random
    assert np.array_equal(np.concatenate([feed["x"] for feed in feeds_of(merged)]), data)
    separate = feeds_of(Calibration.from_path(graph, tmp_path / "separate.npy"))
    assert np.array_equal(np.concatenate([feed["x"] for feed in separate]), data)


def test_npz_files_and_folders_of_them(pair: Graph, tmp_path: Path) -> None:
    images, ids = np.arange(24, dtype=np.float32).reshape(4, 2, 3), np.arange(16).reshape(4, 4)
    np.savez(tmp_path / "all.npz", image=images, ids=ids)
    np.savez_compressed(tmp_path / "merged.npz", image=images.reshape(8, 3), ids=ids.ravel())
    folder = tmp_path / "folder"
    folder.mkdir()
    for index in range(4):
        np.savez(folder / f"{index}.npz", image=images[index], ids=ids[index])
    (folder / "notes.txt").write_text("not data")
    for path in ("all.npz", "merged.npz", "folder"):
        feeds = feeds_of(Calibration.from_path(pair, tmp_path / path))
        assert np.array_equal(np.stack([feed["image"] for feed in feeds]), images)
        assert np.array_equal(np.stack([feed["ids"] for feed in feeds]), ids)


def test_digest_follows_the_content(graph: Graph, tmp_path: Path) -> None:
    data = np.zeros((2, 3, 16, 16), np.float32)
    for name, values in {"a": data, "b": data, "c": data + 1}.items():
        np.save(tmp_path / f"{name}.npy", values)
    one, same, other = (Calibration.from_path(graph, tmp_path / f"{name}.npy").digest for name in "abc")
    assert one == same != other


def test_big_endian_files_are_read_as_numbers(graph: Graph, tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "big.npy", data.astype(">f4"))
    assert np.array_equal(feeds_of(Calibration.from_path(graph, tmp_path / "big.npy"))[0]["x"], data)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2, 3), np.float32)}, r"has the names \['x'\], but .* \['ids', 'image'\]"),
        ({"image": np.zeros((2, 2, 3)), "ids": np.zeros((2, 4), int)}, r"float64\[2, 2, 3\] .* float32\[2, 3\]"),
        ({"image": np.zeros((2, 2, 4), np.float32), "ids": np.zeros((2, 4), int)}, "leading axis"),
        ({"image": np.zeros((3, 3), np.float32), "ids": np.zeros((2, 4), int)}, r"float32\[3, 3\]"),
        ({"image": np.zeros((0, 2, 3), np.float32), "ids": np.zeros((0, 4), int)}, r"float32\[0, 2, 3\]"),
        ({"image": np.zeros((2, 2, 3), np.float32), "ids": np.zeros((3, 4), int)}, "different number of batches"),
        ({"image": np.array([None]), "ids": np.zeros((3, 4), int)}, "Python objects"),
        ({"image": np.zeros((3, 2, 2), np.float32).T, "ids": np.zeros((2, 4), int)}, "column by column"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(
    pair: Graph, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(GraphError, match=message):
        Calibration.from_path(pair, tmp_path / "data.npz")


def test_paths_without_usable_data_are_refused(graph: Graph, pair: Graph, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "broken.npy").write_bytes(b"not an array")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not an archive")
    np.save(tmp_path / "one.npy", np.zeros((1, 3, 16, 16), np.float32))
    whole = (tmp_path / "one.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-8])
    for path, target, message in [
        ("nowhere", graph, "no calibration data at"),
        ("empty", graph, "holds no .npy"),
        ("text.txt", graph, "neither .npy nor .npz"),
        ("broken.npy", graph, "not a readable .npy"),
        ("broken.npz", graph, "not a readable .npz"),
        ("one.npy", pair, "without a name"),
    ]:
        with pytest.raises(GraphError, match=message):
            Calibration.from_path(target, tmp_path / path)
    with pytest.raises(GraphError, match="truncated"):
        list(Calibration.from_path(graph, tmp_path / "short.npy"))


@pytest.mark.parametrize("name", ["data.npy", "data.npz"])
def test_memory_does_not_grow_with_the_number_of_batches(graph: Graph, tmp_path: Path, name: str) -> None:
    data = np.zeros((2000, 3, 16, 16), np.float32)  # 6 MB; one batch is 3 kB
    if name == "data.npy":
        np.save(tmp_path / name, data)
    else:
        np.savez(tmp_path / name, x=data)
    del data
    tracemalloc.start()
    try:
        assert sum(1 for _ in Calibration.from_path(graph, tmp_path / name)) == 2000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def image_graph(shape: tuple[int, ...], dtype: int = TensorProto.FLOAT) -> Graph:
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "image",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("images")
    for index, colour in enumerate([(255, 0, 0), (0, 128, 255)]):
        image.new("RGB", (20, 10), colour).save(folder / f"{index}.png")
    return folder


def test_images_are_resized_and_normalised_as_stated(images: Path) -> None:
    graph = image_graph((1, 3, 8, 6))
    imagenet, unit = (Calibration.from_path(graph, images, normalise=name) for name in ("imagenet", "unit"))
    assert unit.preparation == ("RGB, bilinear resize to 8x6 without crop, scaled to 0..1, unit normalisation, NCHW")
    assert unit.digest != imagenet.digest
    first = feeds_of(unit)[0]["x"]
    assert (first.shape, first.dtype) == ((1, 3, 8, 6), np.float32)
    assert [float(first[0, channel].mean()) for channel in range(3)] == [1.0, 0.0, 0.0]
    assert feeds_of(imagenet)[0]["x"][0, 0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)


def test_images_fill_other_layouts(images: Path) -> None:
    last = feeds_of(Calibration.from_path(image_graph((2, 8, 6, 3), TensorProto.UINT8), images))
    assert len(last) == 1
    assert last[0]["x"][:, 0, 0].tolist() == [[255, 0, 0], [0, 128, 255]]
    grey = feeds_of(Calibration.from_path(image_graph((1, 1, 8, 6)), images, normalise="unit"))
    assert grey[0]["x"].shape == (1, 1, 8, 6)


def test_images_that_do_not_fit_are_refused(images: Path, pair: Graph, tmp_path: Path) -> None:
    for graph, arguments, message in [
        (pair, {}, r"has the inputs \['image', 'ids'\]"),
        (image_graph((1, 4, 8, 6)), {}, "channels last; use .npz"),
        (image_graph((3, 3, 8, 6)), {}, "do not fill batches of 3"),
        (image_graph((1, 3, 8, 6)), {"normalise": "none"}, "no normalisation 'none'"),
    ]:
        with pytest.raises(GraphError, match=message):
            Calibration.from_path(graph, images, **arguments)
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(GraphError, match="not a readable image"):
        list(Calibration.from_path(image_graph((1, 3, 8, 6)), tmp_path))
    np.save(tmp_path / "data.npy", np.zeros(1))
    with pytest.raises(GraphError, match="arrays and images"):
        Calibration.from_path(image_graph((1, 3, 8, 6)), tmp_path)
