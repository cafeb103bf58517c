"""NaN, infinities, integers at their ends and other corners of operators, through the adapter against known values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compilers import Action, Limits, compile_segment, get_compiler, reference_session
from graphs import from_proto
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]

TVM = get_compiler("tvm")
HOST = load_device("host")
pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")

NAN, INF = np.nan, np.inf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "tiles"))


def of(op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, list(inputs), [f"y{index or ''}" for index in range(outputs)], **attributes)


def model(node: onnx.NodeProto, feed: Feed, constants: Feed, opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feed.items()
    ]
    ends = [helper.make_empty_tensor_value_info(name) for name in node.output]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "corner", inputs, ends, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto)


def results(node: onnx.NodeProto, feed: Feed, folder: Path, opset: int = 18, **constants: Array) -> list[Array]:
    """Compile one node and run it."""
    graph = from_proto(model(node, feed, constants, opset))
    segment = Segment(graph=graph, device=HOST, processor="cpu", compiler="tvm", precision="fp32")
    with TVM.load(compile_segment(segment, folder, Limits(time_s=300))) as session:
        found = session.run(feed)
    return [np.asarray(found[name]) for name in node.output]


def expected(node: onnx.NodeProto, feed: Feed, opset: int = 18, **constants: Array) -> list[Array]:
    found = reference_session(from_proto(model(node, feed, constants, opset))).run(feed)
    return [np.asarray(found[name]) for name in node.output]


def numbers(*shape: int, seed: int = 0) -> Array:
    """Some are NaN, an infinity or a zero of either sign."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 2, shape).astype(np.float32)
    some = random.random(shape) < 0.25
    x[some] = random.choice(np.array([NAN, INF, -INF, -0.0, 0.0, 1, -1], np.float32), int(some.sum()))
    return x


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (of("Relu", "x"), {}),
        (of("Sign", "x"), {}),
        (of("Elu", "x"), {}),
        (of("Erf", "x"), {}),
        (of("HardSigmoid", "x"), {}),
        (of("ThresholdedRelu", "x"), {}),
        (of("Clip", "x", "low", "high"), {"low": np.float32(-1), "high": np.float32(1)}),
        (of("Max", "x", "z"), {"z": numbers(5, 37, seed=1)}),
        (of("Min", "x", "z"), {"z": numbers(5, 37, seed=1)}),
        (of("ReduceLogSumExp", "x", "axes"), {"axes": np.array([1])}),
        (of("Softmax", "x"), {}),
        (of("TopK", "x", "k", outputs=2), {"k": np.array([9])}),
        (of("TopK", "x", "k", outputs=2, largest=0, axis=0), {"k": np.array([4])}),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_nan_and_infinities_become_what_onnx_runtime_makes_of_them(
    node: onnx.NodeProto, constants: Feed, tmp_path: Path
) -> None:
    feed = {"x": numbers(5, 37)}
    for got, wanted in zip(results(node, feed, tmp_path, **constants), expected(node, feed, **constants), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("width", [5, 32])
def test_the_extreme_of_what_has_a_nan_is_one(op_type: str, width: int, tmp_path: Path) -> None:
    """As in numpy; ONNX Runtime's answer depends on where the NaN stands."""
    x = np.random.default_rng(0).normal(size=(6, width)).astype(np.float32)
    x[range(4), [0, 1, width - 1, 2]] = NAN
    (got,) = results(of(op_type, "x", "axes", keepdims=0), {"x": x}, tmp_path, axes=np.array([1]))
    np.testing.assert_array_equal(got, x.max(axis=1) if op_type == "ReduceMax" else x.min(axis=1))


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_the_place_of_the_extreme_is_that_of_the_first_nan(op_type: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 33)).astype(np.float32)
    x[0, 5], x[1, [7, 9]], x[2, 32] = NAN, NAN, NAN
    (got,) = results(of(op_type, "x", axis=1, keepdims=0), {"x": x}, tmp_path)
    assert got.tolist() == (np.argmax(x, 1) if op_type == "ArgMax" else np.argmin(x, 1)).tolist()


@pytest.mark.parametrize("pads", [0, 1])
def test_a_pool_passes_over_nan_and_knows_infinity(pads: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(1, 16, 9, 9)).astype(np.float32)
    x[0, :, 4, 4], x[0, :, 6:, 6:] = NAN, -INF
    node = of("MaxPool", "x", kernel_shape=[3, 3], pads=[pads] * 4)
    (got,) = results(node, {"x": x}, tmp_path)
    edged = np.pad(np.nan_to_num(x, nan=-INF, neginf=-INF), [(0, 0), (0, 0), (pads, pads), (pads, pads)],
                   constant_values=-INF)  # fmt: skip
    windows = np.lib.stride_tricks.sliding_window_view(edged, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(got, windows.max(axis=(4, 5)))
    assert got[0, 0, -1, -1] == -INF


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("padding", ["SAME_LOWER", "SAME_UPPER"])
def test_a_pool_with_strides_is_padded_as_onnx_says(op_type: str, padding: str, tmp_path: Path) -> None:
    node = of(op_type, "x", kernel_shape=[3, 2], strides=[2, 2], auto_pad=padding)
    feed = {"x": np.random.default_rng(0).normal(size=(1, 3, 10, 13)).astype(np.float32)}
    np.testing.assert_allclose(results(node, feed, tmp_path)[0], expected(node, feed)[0], rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_nothing_is_left_of_a_number_shifted_out(direction: str, dtype: type[Any], tmp_path: Path) -> None:
    bits = np.iinfo(dtype).bits
    x = np.full(40, np.iinfo(dtype).max, dtype)
    counts = np.arange(40, dtype=dtype) + dtype(bits - 20 if bits > 20 else 0)
    (got,) = results(of("BitShift", "x", "n", direction=direction), {"x": x, "n": counts}, tmp_path)
    mask = int(x[0])
    wanted = [(mask << int(n) if direction == "LEFT" else mask >> int(n)) & mask for n in counts]
    assert got.tolist() == wanted


def test_a_sign_is_left_of_a_negative_number_shifted_out(tmp_path: Path) -> None:
    x = np.array([-100, 100, -1, 7], np.int32)
    node = of("BitShift", "x", "n", direction="RIGHT")
    (got,) = results(node, {"x": x}, tmp_path, 28, n=np.array([3, 40, 32, 1], np.int32))
    assert got.tolist() == [-13, 0, -1, 3]


def test_an_integer_to_a_power_wraps_around(tmp_path: Path) -> None:
    x = np.array([3, -7, 10**6, -(10**9), 2**40 + 3, np.iinfo(np.int64).min], np.int64)
    (got,) = results(of("Pow", "x", "n"), {"x": x}, tmp_path, n=np.array(5))
    assert got.tolist() == [(int(v) ** 5 + 2**63) % 2**64 - 2**63 for v in x]


@pytest.mark.parametrize(
    ("node", "x", "constants"),
    [
        (of("Sign", "x"), np.array([0, 1, 200], np.uint8), {}),
        (of("Equal", "x", "z"), np.array([True, False, True]), {"z": np.array([True, True, False])}),
        (of("ReduceMean", "x", "axes"), np.array([[1, 2, 4], [-1, -2, -5]], np.int32), {"axes": np.array([1])}),
        (of("TopK", "x", "k", outputs=2), np.array([5, -300, 7, 5], np.int16), {"k": np.array([3])}),
        (of("Unique", "x", outputs=4), np.array([[3, 1, 3], [2, 1, 0]], np.float32), {}),
        (of("Elu", "x"), np.array([-2, 0, 3], np.float16), {}),
        (of("Selu", "x"), np.array([-2, 0, 3], np.float16), {}),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_what_the_importer_has_for_other_types_alone(
    node: onnx.NodeProto, x: Array, constants: Feed, tmp_path: Path
) -> None:
    for got, wanted in zip(
        results(node, {"x": x}, tmp_path, **constants), expected(node, {"x": x}, **constants), strict=True
    ):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=2e-3)


def test_a_deformable_convolution_of_float16(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    feed = {"x": random.normal(size=(1, 2, 6, 6)), "o": random.normal(0, 0.3, (1, 18, 6, 6))}
    feed = {name: array.astype(np.float16) for name, array in feed.items()}
    weight = random.normal(size=(3, 2, 3, 3)).astype(np.float16)
    node = of("DeformConv", "x", "w", "o", kernel_shape=[3, 3], pads=[1] * 4)
    (got,), (wanted,) = results(node, feed, tmp_path, 19, w=weight), expected(node, feed, 19, w=weight)
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("starts", "ends", "axes"), [([1, -3], [100, -1], [0, 2]), ([0], [2], None), ([-2], [2**63 - 1], [1])]
)
def test_a_slice_whose_limits_are_attributes(
    starts: list[int], ends: list[int], axes: list[int] | None, tmp_path: Path
) -> None:
    node = of("Slice", "x", starts=starts, ends=ends, axes=axes)
    feed = {"x": numbers(5, 2, 7)}
    np.testing.assert_array_equal(results(node, feed, tmp_path, 9)[0], expected(node, feed, 9)[0])


@pytest.mark.parametrize(("op_type", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_recurrent_layers_of_opset_7(op_type: str, gates: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {"w": (1, gates * 4, 3), "r": (1, gates * 4, 4), "b": (1, gates * 8)}
    constants = {name: random.normal(0, 0.4, shape).astype(np.float32) for name, shape in weights.items()}
    node, feed = of(op_type, "x", "w", "r", "b", hidden_size=4), {"x": random.normal(size=(5, 2, 3)).astype(np.float32)}
    (got,), (wanted,) = results(node, feed, tmp_path, 7, **constants), expected(node, feed, 7, **constants)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
