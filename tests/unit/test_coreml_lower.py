"""The strict lowering: what converts is right, what is not handled is refused by its name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers.adapter import CompilerError
from compilers.coreml.lower import TABLE, lower
from compilers.coreml.lower.windows import _overhang, _same
from compilers.coreml.package import read_package
from compilers.coreml.suite import convert_and_run
from compilers.coreml.write import NODES_KEY, package_digest, read_ports, write_package

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]

FLOAT = TensorProto.FLOAT


def make(
    op_type: str,
    inputs: dict[str, Array],
    constants: dict[str, Array] | None = None,
    *,
    order: Sequence[str] | None = None,
    outputs: int = 1,
    opset: int = 18,
    elem: int = FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node; `order` lists its inputs ("" = omitted), by default inputs then constants."""
    constants = constants or {}
    names = [f"y{i}" for i in range(outputs)] if outputs > 1 else ["y"]
    node = helper.make_node(op_type, order or [*inputs, *constants], names, name="the_node", **attributes)
    return model_of([node], inputs, constants, dict.fromkeys(names, elem), opset=opset)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Array],
    constants: dict[str, Array],
    outputs: dict[str, int],
    *,
    opset: int = 18,
) -> onnx.ModelProto:
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    results = [helper.make_tensor_value_info(n, elem, None) for n, elem in outputs.items()]
    initialisers = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(list(nodes), "test", declared, results, initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def reference(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, inputs)]


def same(
    model: onnx.ModelProto, inputs: dict[str, Array], folder: Path, tolerance: float = 1e-5, compute: str = "fp32"
) -> None:
    got = convert_and_run(model, list(inputs.values()), folder, compute=compute)
    for a, b in zip(got, reference(model, inputs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_enough_operators() -> None:
    assert len(TABLE) >= 110
    assert {"Conv", "QuantizeLinear", "DequantizeLinear", "Gemm", "HardSwish"} <= set(TABLE)


# -- the bug patterns that other converters have (shared/notes/coreml.md, sections 1 and 6) ---------------------

X = normal(1, 4, 6, 6)
PROBES: dict[str, tuple[onnx.ModelProto, dict[str, Array]]] = {
    "clip with a computed bound": (
        model_of(
            [
                helper.make_node("ReduceMean", ["x"], ["m"], name="mean", keepdims=0),
                helper.make_node("Clip", ["x", "", "m"], ["y"], name="clip"),
            ],
            {"x": X},
            {},
            {"y": FLOAT},
        ),
        {"x": X},
    ),
    "reciprocal of a small value": (make("Reciprocal", {"x": X * 1e-3}), {"x": X * 1e-3}),
    "reciprocal of zero": (make("Reciprocal", {"x": np.zeros(2, np.float32)}), {"x": np.zeros(2, np.float32)}),
    "fmod of negatives": (make("Mod", {"a": X}, {"b": X[::, ::-1] + 3}, fmod=1), {"a": X}),
    "pad with axes out of order": (
        make(
            "Pad",
            {"x": X},
            {"pads": np.array([1, 2, 3, 4]), "axes": np.array([3, 2])},
            order=["x", "pads", "", "axes"],
        ),
        {"x": X},
    ),
    "pad that crops": (make("Pad", {"x": X}, {"pads": np.array([0, 0, -1, 2, 0, 0, 1, -2])}), {"x": X}),
    "resize of channels": (
        make(
            "Resize",
            {"x": X},
            {"scales": np.array([1, 2, 1, 1], np.float32)},
            order=["x", "", "scales"],
            mode="nearest",
        ),
        {"x": X},
    ),
    "resize by scales, opset 11": (
        make(
            "Resize",
            {"x": X},
            {"roi": np.empty(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)},
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
            opset=11,
        ),
        {"x": X},
    ),
    "resize by sizes, opset 11": (
        make(
            "Resize",
            {"x": X},
            {"roi": np.empty(0, np.float32), "scales": np.empty(0, np.float32), "sizes": np.array([1, 4, 9, 4])},
            mode="linear",
            opset=11,
        ),
        {"x": X},
    ),
    "resize linear by a fraction": (
        make(
            "Resize",
            {"x": X},
            {"scales": np.array([1, 1, 1.7, 0.6], np.float32)},
            order=["x", "", "scales"],
            mode="linear",
        ),
        {"x": X},
    ),
    "conv_transpose with output_shape": (
        make("ConvTranspose", {"x": X}, {"w": normal(4, 3, 3, 3)}, strides=[2, 2], output_shape=[12, 12]),
        {"x": X},
    ),
    "conv_transpose with output_padding": (
        make(
            "ConvTranspose", {"x": X}, {"w": normal(4, 3, 3, 3), "b": normal(3)}, strides=[2, 2], output_padding=[1, 1]
        ),
        {"x": X},
    ),
    "log_softmax over a wide range": (
        make("LogSoftmax", {"x": np.array([[0, 0, 0, 200.0]], np.float32)}),
        {"x": np.array([[0, 0, 0, 200.0]], np.float32)},
    ),
    "softplus far out": (
        make("Softplus", {"x": np.linspace(-30, 100, 40, dtype=np.float32)}),
        {"x": np.linspace(-30, 100, 40, dtype=np.float32)},
    ),
    "gelu by tanh": (make("Gelu", {"x": X}, approximate="tanh", opset=20), {"x": X}),
    "average pool with ceil_mode and counted pads": (
        make(
            "AveragePool",
            {"x": X},
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[1, 1, 0, 0],
            ceil_mode=1,
            count_include_pad=1,
            opset=19,
        ),
        {"x": X},
    ),
    "average pool 7x7 with pads 3": (
        make(
            "AveragePool",
            {"x": normal(1, 2, 9, 9)},
            kernel_shape=[7, 7],
            strides=[4, 4],
            pads=[3, 3, 3, 3],
            count_include_pad=1,
        ),
        {"x": normal(1, 2, 9, 9)},
    ),
    "conv kernel (3, 2) with stride 2": (
        make("Conv", {"x": normal(1, 2, 5, 5)}, {"w": normal(3, 2, 3, 2)}, pads=[1, 1, 1, 1], strides=[2, 2]),
        {"x": normal(1, 2, 5, 5)},
    ),
    "max pool with ceil_mode": (
        make("MaxPool", {"x": X}, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1),
        {"x": X},
    ),
    "argmax, last of equals": (
        make("ArgMax", {"x": np.round(X)}, axis=2, select_last_index=1, elem=TensorProto.INT64),
        {"x": np.round(X)},
    ),
    "matmul of a vector": (make("MatMul", {"a": normal(3)}, {"b": normal(2, 3, 4)}), {"a": normal(3)}),
    "matmul by a vector": (make("MatMul", {"a": normal(2, 4, 3)}, {"b": normal(3)}), {"a": normal(2, 4, 3)}),
    "where that broadcasts": (
        make("Where", {"c": X[0] > 0, "a": normal(1), "b": normal(6, 1)}),
        {"c": X[0] > 0, "a": normal(1), "b": normal(6, 1)},
    ),
    "scatter with a negative index": (
        make("ScatterND", {"d": normal(4, 3)}, {"i": np.array([[-1], [1]]), "u": normal(2, 3, seed=1)}),
        {"d": normal(4, 3)},
    ),
    "gather of one constant place": (make("Gather", {"x": X}, {"i": np.array(-2)}, axis=1), {"x": X}),
    "gather of constant places, evenly": (make("Gather", {"x": X}, {"i": np.array([1, 3, 5])}, axis=2), {"x": X}),
    "gather of constant places, unevenly": (make("Gather", {"x": X}, {"i": np.array([3, 0, 1])}, axis=1), {"x": X}),
    "gather of one element": (make("Gather", {"x": normal(5)}, {"i": np.array(4)}), {"x": normal(5)}),
    "gather_nd with computed negative indices": (
        make("GatherND", {"d": normal(4, 3), "i": np.array([[-1, 0], [1, -2]])}),
        {"d": normal(4, 3), "i": np.array([[-1, 0], [1, -2]])},
    ),
    "max of one input": (make("Max", {"x": X}), {"x": X}),
    "integer division towards zero": (
        make("Div", {"a": np.array([-7, 7, -6])}, {"b": np.array([2, -2, 4])}, elem=TensorProto.INT64),
        {"a": np.array([-7, 7, -6])},
    ),
    "softmax before opset 13": (make("Softmax", {"x": X}, axis=1, opset=11), {"x": X}),
    "upsample linear, opset 9": (
        make("Upsample", {"x": X}, {"s": np.array([1, 1, 2, 2], np.float32)}, mode="linear", opset=9),
        {"x": X},
    ),
    "window partition through rank 6": (
        model_of(
            [
                helper.make_node("Reshape", ["x", "s6"], ["r"], name="split"),
                helper.make_node("Transpose", ["r"], ["t"], name="swap", perm=[0, 2, 4, 1, 3, 5]),
                helper.make_node("Reshape", ["t", "s4"], ["y"], name="join"),
            ],
            {"x": X},
            {"s6": np.array([1, 4, 2, 3, 2, 3]), "s4": np.array([4, 4, 3, 3])},
            {"y": FLOAT},
        ),
        {"x": X},
    ),
}


@pytest.mark.parametrize("name", PROBES)
def test_probe(name: str, tmp_path: Path) -> None:
    same(*PROBES[name], tmp_path)


# -- recurrent operators and operators that ONNX defines by others ---------------------------------------------


def recurrent(op_type: str, gates: int, **attributes: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A node over 5 steps, batch 2, 3 inputs and 4 units, with biases and initial states."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    constants = {
        "w": normal(directions, gates * 4, 3, seed=1),
        "r": normal(directions, gates * 4, 4, seed=2),
        "b": normal(directions, 2 * gates * 4, seed=3),
        "h": normal(directions, 2, 4, seed=4),
        "c": normal(directions, 2, 4, seed=5),
    }
    states = 2 if op_type == "LSTM" else 1
    order = ["x", "w", "r", "b", "", "h", "c"][: 5 + states]
    inputs = {"x": normal(5, 2, 3)}
    constants = {name: value for name, value in constants.items() if name in order}
    return make(op_type, inputs, constants, order=order, outputs=1 + states, hidden_size=4, **attributes), inputs


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent(op_type: str, gates: int, direction: str, tmp_path: Path) -> None:
    same(*recurrent(op_type, gates, direction=direction), tmp_path)


def test_gru_with_the_other_reset(tmp_path: Path) -> None:
    same(*recurrent("GRU", 3, linear_before_reset=1), tmp_path)


def test_lstm_stays_one_operation(tmp_path: Path) -> None:
    model, inputs = recurrent("LSTM", 4)
    convert_and_run(model, list(inputs.values()), tmp_path)
    assert [o.type for o in read_package(tmp_path / "model.mlpackage").operations].count("lstm") == 1


def test_a_long_unrolled_sequence_is_refused() -> None:
    weights = {"w": normal(1, 4, 3), "r": normal(1, 4, 4)}
    with pytest.raises(CompilerError, match="129 steps is not handled, 128 at most"):
        lower(make("RNN", {"x": normal(129, 1, 3)}, weights, hidden_size=4), "iOS17")


def test_attention_is_lowered_by_its_definition(tmp_path: Path) -> None:
    inputs = {name: normal(2, 3, 4, 8, seed=seed) for seed, name in enumerate("qkv")}
    model = make("Attention", inputs, opset=23, is_causal=1)
    got = convert_and_run(model, list(inputs.values()), tmp_path)[0]
    scores = inputs["q"] @ inputs["k"].swapaxes(-1, -2) / np.sqrt(8)
    weights = np.exp(np.where(np.tri(4, dtype=bool), scores, -np.inf))
    np.testing.assert_allclose(got, weights / weights.sum(axis=-1, keepdims=True) @ inputs["v"], rtol=1e-4, atol=1e-5)
    nodes = json.loads(read_package(tmp_path / "model.mlpackage").metadata[NODES_KEY])
    assert set(nodes.values()) <= {"the_node", "q", "k", "v", "y"}, "inner operations count as the outer node's"


def test_a_refusal_inside_a_definition_names_the_outer_node() -> None:
    with pytest.raises(CompilerError, match=r"node 'the_node/Cast_\d+' \(Cast\)"):
        lower(make("DynamicQuantizeLinear", {"x": X}, outputs=3, opset=21), "iOS17")


# -- refusals name the node, the operator and what is not handled ----------------------------------------------

REFUSALS: dict[str, tuple[onnx.ModelProto, str]] = {
    "dilations": (make("MaxPool", {"x": X}, kernel_shape=[2, 2], dilations=[2, 2]), "dilations"),
    "indices output": (
        model_of(
            [helper.make_node("MaxPool", ["x"], ["y", "i"], name="the_node", kernel_shape=[2, 2])],
            {"x": X},
            {},
            {"y": FLOAT, "i": TensorProto.INT64},
        ),
        "output 1 ('i') is not handled",
    ),
    "computed axes": (
        make("ReduceMean", {"x": X, "axes": np.array([1])}),
        "input 1 ('axes') must be a constant",
    ),
    "computed pad value": (
        make("Pad", {"x": X, "v": np.array(0, np.float32)}, {"pads": np.zeros(8, np.int64)}, order=["x", "pads", "v"]),
        "input 2 ('v') must be a constant",
    ),
    "cast to uint8": (make("Cast", {"x": X}, to=TensorProto.UINT8, elem=TensorProto.UINT8), "float32 to uint8"),
    "int64 beyond int32": (
        make("Equal", {"a": np.array([1])}, {"b": np.array([2**40])}, elem=TensorProto.BOOL),
        "does not fit the int32",
    ),
    "double": (make("Relu", {"x": X.astype(np.float64)}, elem=TensorProto.DOUBLE), "float64"),
    "training": (
        make("BatchNormalization", {"x": X}, {k: normal(4) for k in "abcd"}, training_mode=1, outputs=3),
        "training_mode=1",
    ),
    "crop and resize": (
        make(
            "Resize",
            {"x": X},
            {"r": np.ones(8, np.float32), "s": np.ones(4, np.float32)},
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
        "tf_crop_and_resize",
    ),
    "no lowering": (make("NonZero", {"x": X}, elem=TensorProto.INT64), "operator NonZero has no Core ML lowering"),
    "16-bit activations": (
        make("QuantizeLinear", {"x": X}, {"s": np.float32(1), "z": np.uint16(0)}, opset=21, elem=TensorProto.UINT16),
        "quantised type uint16 is not handled",
    ),
    "rank 6": (make("Relu", {"x": normal(1, 1, 2, 2, 2, 2)}), "rank 1 to 5"),
    "empty": (make("Relu", {"x": np.zeros((2, 0), np.float32)}), "none empty"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name: str) -> None:
    model, words = REFUSALS[name]
    with pytest.raises(CompilerError) as refused:
        lower(model, "iOS17")
    assert words in refused.value.reason


def test_refusal_names_the_node_and_operator() -> None:
    with pytest.raises(CompilerError, match=r"node 'the_node' \(MaxPool\): attribute dilations"):
        lower(REFUSALS["dilations"][0], "iOS17")


def test_unread_attribute_is_refused() -> None:
    model = make("Relu", {"x": X})
    model.graph.node[0].attribute.append(helper.make_attribute("from_the_future", 3))
    with pytest.raises(CompilerError, match="attribute from_the_future=3 is not handled"):
        lower(model, "iOS17")


def test_unread_input_is_refused() -> None:
    model = make("Relu", {"x": X, "more": X}, order=["x", "more"])
    with pytest.raises(CompilerError, match=r"input 1 \('more'\) is not handled"):
        lower(model, "iOS17")


def test_dynamic_shape_is_refused() -> None:
    model = make("Relu", {"x": X})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(CompilerError, match="'x' has no static shape; bind its dimensions first"):
        lower(model, "iOS17")


def test_unknown_target_is_refused() -> None:
    with pytest.raises(CompilerError, match="deployment target 'iOS3'"):
        lower(make("Relu", {"x": X}), "iOS3")


# -- names, types, 8-bit weights, determinism -------------------------------------------------------------------


def test_names_and_types_that_mil_cannot_hold_are_restored(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["input.1", "0"], ["out/0"], name="/a/Greater"),
        helper.make_node("ReduceMax", ["input.1"], ["3.scalar"], name="max", keepdims=0),
        helper.make_node("ArgMax", ["input.1"], ["bool"], name="arg", axis=1, keepdims=0),
        helper.make_node("Identity", ["input.1"], ["copy"], name="copy"),
    ]
    outputs = {"out/0": TensorProto.BOOL, "3.scalar": FLOAT, "bool": TensorProto.INT64, "copy": FLOAT}
    inputs = {"input.1": X, "0": np.array(0.1, np.float32)}
    same(model_of(nodes, inputs, {}, outputs), inputs, tmp_path)


@pytest.mark.parametrize("word", ["any", "true", "tuple", "int8", "uint64", "fp16", "bf16", "bool", "state", "block"])
def test_a_tensor_may_be_called_by_a_word_of_mil(word: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", [word], ["m"], name=word),
        helper.make_node("Neg", ["m"], [f"{word}_workaround"], name="neg"),
    ]
    same(model_of(nodes, {word: X}, {}, {f"{word}_workaround": FLOAT}), {word: X}, tmp_path)
    nodes = [helper.make_node("Relu", ["x"], ["m"], name="relu"), helper.make_node("Neg", ["m"], [word], name="neg")]
    same(model_of(nodes, {"x": X}, {}, {word: FLOAT}), {"x": X}, tmp_path)


_WIDE = np.array([[60_000, -70_000, 5, 100_000]], np.int32)  # none of it, doubled, fits 16 bits
_LONG = (np.arange(70_000)[None] % 8).astype(np.float32)
_TWO = {"k": np.array([2], np.int64)}


@pytest.mark.parametrize(
    ("op_type", "inputs", "constants", "outputs", "elem"),
    [
        ("TopK", {"x": np.array([[3, 1, 2]], np.float32)}, _TWO, 2, FLOAT),
        ("TopK", {"x": _WIDE}, _TWO, 2, TensorProto.INT32),
        ("TopK", {"x": _LONG}, {"k": np.array([70_000], np.int64)}, 2, FLOAT),
        ("Gather", {"x": _WIDE, "i": np.zeros(2, np.int64)}, {}, 1, TensorProto.INT32),
        ("GatherND", {"x": _WIDE, "i": np.array([[0, 3], [0, 1]], np.int64)}, {}, 1, TensorProto.INT32),
        ("GatherND", {"x": _LONG, "i": np.array([[0, 69_999], [0, 40_002]], np.int64)}, {}, 1, FLOAT),
        ("Squeeze", {"x": _WIDE}, {"a": np.array([0], np.int64)}, 1, TensorProto.INT32),
    ],
)
def test_integers_of_an_fp16_program_keep_their_32_bits(
    op_type: str, inputs: dict[str, Array], constants: dict[str, Array], outputs: int, elem: int, tmp_path: Path
) -> None:
    first = [f"y{i}" for i in range(outputs)] if outputs > 1 else ["y"]
    nodes = [
        helper.make_node("Add", ["x", "x"], ["double"], name="add"),  # so that the data is no constant and no input
        helper.make_node(op_type, ["double", *[n for n in inputs if n != "x"], *constants], first, name="the_node"),
    ]
    made = {name: TensorProto.INT64 if index else elem for index, name in enumerate(first)}
    same(model_of(nodes, inputs, constants, made), inputs, tmp_path, compute="fp16")


def test_weights_stay_eight_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = {
        "q": rng.integers(-127, 128, (8, 4, 3, 3), dtype=np.int8),
        "s": rng.uniform(0.01, 0.1, 8).astype(np.float32),
        "z": np.zeros(8, np.int8),
        "bq": rng.integers(-500, 500, 8, dtype=np.int32),
        "bz": np.zeros(8, np.int32),
        "xs": np.float32(0.02),
        "xz": np.uint8(120),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="q"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="dq"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dqw", axis=0),
        helper.make_node("DequantizeLinear", ["bq", "s", "bz"], ["b"], name="dqb", axis=0),
        helper.make_node("Conv", ["xd", "w", "b"], ["y"], name="conv"),
    ]
    model = model_of(nodes, {"x": X}, constants, {"y": FLOAT})
    (got,) = convert_and_run(model, [X], tmp_path)
    np.testing.assert_array_equal(got, reference(model, {"x": X})[0])
    operations = read_package(tmp_path / "model.mlpackage").operations
    (weights,) = [o for o in operations if o.type == "constexpr_affine_dequantize"]
    data = weights.inputs["quantized_data"][0]
    assert isinstance(data, np.ndarray)
    assert data.dtype == np.uint8, "signed weights come out wrong on Apple's GPU and NPU"
    np.testing.assert_array_equal(data.astype(int) - 128, constants["q"])


def test_conversion_is_deterministic(tmp_path: Path) -> None:
    model = make("Conv", {"x": X}, {"w": normal(8, 4, 3, 3), "b": normal(8)}, pads=[1, 1, 1, 1])
    digests = set()
    for name in ("a", "b"):
        path = tmp_path / f"{name}.mlpackage"
        write_package(lower(model, "iOS17"), path, target="iOS17", compute="fp16")
        digests.add(package_digest(path))
    assert len(digests) == 1


@pytest.mark.parametrize("target", ["iOS16", "iOS17", "iOS18", "iOS26"])
def test_targets(target: str, tmp_path: Path) -> None:
    model = make("Conv", {"x": X}, {"w": normal(8, 4, 3, 3)})
    (got,) = convert_and_run(model, [X], tmp_path, target=target)
    np.testing.assert_allclose(got, reference(model, {"x": X})[0], rtol=1e-5, atol=1e-5)


def test_quantize_needs_ios17() -> None:
    model = make("QuantizeLinear", {"x": X}, {"s": np.float32(0.1), "z": np.uint8(3)}, elem=TensorProto.UINT8)
    with pytest.raises(CompilerError, match="coremltools refuses MIL quantize"):
        lower(model, "iOS16")


def test_package_tells_the_node_of_each_operation(tmp_path: Path) -> None:
    path = tmp_path / "m.mlpackage"
    write_package(lower(make("HardSwish", {"x": X}), "iOS17"), path, target="iOS17", compute="fp32")
    program = read_package(path)
    nodes = json.loads(program.metadata[NODES_KEY])
    named = {o.type: nodes.get(o.name) for o in program.operations if o.type != "const"}
    assert named["sigmoid_hard"] == "the_node"
    inputs, outputs = read_ports(program.metadata)
    assert [p.name for p in (*inputs, *outputs)] == ["x", "y"]


# -- windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_overhang_gives_the_size_that_onnx_infers(size: int, stride: int) -> None:
    more = _overhang(3, stride, (1, 0), size)
    model = make("MaxPool", {"x": normal(1, 1, size)}, kernel_shape=[3], strides=[stride], pads=[1, 0], ceil_mode=1)
    (wanted,) = reference(model, {"x": normal(1, 1, size)})
    assert (size + 1 + more - 3) // stride + 1 == wanted.shape[-1]


def test_same_padding_puts_the_odd_row_where_it_belongs() -> None:
    assert _same(3, 2, 6, lower=False) == (0, 1)
    assert _same(3, 2, 6, lower=True) == (1, 0)
