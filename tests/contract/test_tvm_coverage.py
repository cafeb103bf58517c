"""Models whose operators TVM's importer lacks, or whose shapes are computed, through the adapter on the real wheel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from compilers import Action, Artefact, Limits, compile_segment, get_compiler, reference_session
from graphs import Graph, from_proto, load, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

Array = np.ndarray[Any, Any]

TVM = get_compiler("tvm")
HOST = load_device("host")
pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "tiles"))


def values(*shape: int) -> Array:
    return np.random.default_rng(3).normal(0, 0.3, shape).astype(np.float32)


def proto(nodes: list[onnx.NodeProto], shape: list[int], weights: dict[str, Array], opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def compiled(graph: Graph, folder: Path, precision: str = "fp32") -> Artefact:
    segment = Segment(graph=graph, device=HOST, processor="cpu", compiler="tvm", precision=precision)
    (folder / "artefact").mkdir()
    return compile_segment(segment, folder / "artefact", Limits(time_s=300))


def test_computed_shapes_and_a_recurrent_layer(tmp_path: Path) -> None:
    """What is unrolled is one node to the user; the convolution of one dimension is laid out all the same."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1]),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Transpose", ["b"], ["c"], perm=[2, 0, 1], name="turn"),
        node("LSTM", ["c", "lw", "lr", "lb"], ["d"], hidden_size=6, direction="bidirectional", name="lstm"),
        node("Shape", ["d"], ["s"], name="shape"),
        node("Gather", ["s", "zero"], ["n"], name="pick"),
        node("Concat", ["n", "minus"], ["to"], axis=0, name="join"),
        node("Reshape", ["d", "to"], ["e"], name="flat"),
        node("Celu", ["e"], ["y"], alpha=2.0, name="celu"),
    ]
    weights = {
        "w": values(5, 4, 3), "lw": values(2, 24, 5), "lr": values(2, 24, 6), "lb": values(2, 48),
        "zero": np.array([0]), "minus": np.array([-1]),
    }  # fmt: skip
    graph = from_proto(proto(nodes, [1, 4, 7], weights))
    artefact = compiled(graph, tmp_path)
    rows = json.loads((artefact.directory / "functions.json").read_text())
    named = {name for row in rows for call in row["nodes"] for name in call}
    assert named == {"conv", "relu", "turn", "lstm", "flat", "celu"} - ({"flat"} - named)
    assert float(artefact.fact("relative_error")) < 1e-5


def test_a_transposed_convolution_behind_a_convolution(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("ConvTranspose", ["b", "t"], ["c"], strides=[2, 2]),
        node("Conv", ["c", "w2"], ["y"]),
    ]
    graph = from_proto(
        proto(nodes, [1, 3, 8, 8], {"w": values(4, 3, 3, 3), "t": values(4, 5, 2, 2), "w2": values(2, 5, 1, 1)})
    )
    assert float(compiled(graph, tmp_path).fact("relative_error")) < 1e-5


@pytest.mark.parametrize(("op_type", "dies"), [("Max", False), ("Min", False), ("Mean", True)])
def test_convolutions_are_laid_out_beside_operators_that_convert_layout_dies_of(
    op_type: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, dies: bool
) -> None:
    from compilers.tvm import frontend
    from compilers.tvm.targets import host_target

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node(op_type, ["a", "m"], ["b"]),
        node("Conv", ["b", "w2"], ["y"]),
    ]
    weights = {"w": values(4, 3, 3, 3), "w2": values(2, 4, 1, 1), "m": values(4, 1, 1)}
    graph = from_proto(proto(nodes, [1, 3, 9, 9], weights))
    frontend.fuse(frontend.read(graph), host_target())
    assert ("SLayout" in capfd.readouterr().err) is dies
    assert float(compiled(graph, tmp_path).fact("relative_error")) < 1e-5


def test_an_index_of_an_axis_of_one_element_is_checked_inside_it(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=0)
    graph = from_proto(proto([node], [1, 4, 8], {"i": np.array([0, 0, 0])}))
    artefact = compiled(graph, tmp_path)
    assert artefact.fact("functions_safe") == ""


def test_the_largest_of_nothing_but_infinities_is_one(tmp_path: Path) -> None:
    """As of a mask that leaves nothing; TVM's own reduction starts from the largest finite number."""
    graph = from_proto(proto([helper.make_node("ReduceMax", ["x"], ["y"], axes=[1])], [2, 20], {}, opset=13))
    with TVM.load(compiled(graph, tmp_path)) as session:
        x = np.full((2, 20), -np.inf, np.float32)
        x[1, 3] = -5
        assert session.run({"x": x})["y"].tolist() == [[-np.inf], [-5]]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_the_place_of_an_extreme_is_one_where_all_are_alike(dtype: type[Any], tmp_path: Path) -> None:
    """Of bytes that are all 0, and of infinities, TVM's own search ends at -1, which is no index."""
    ends = (-np.inf, np.inf) if dtype == np.float32 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(0).integers(0, 3, (4, 6)).astype(dtype)
    x[:2], x[:, 0], x[:, 1] = np.array(ends)[:, None], *ends
    attributes: list[dict[str, int]] = [{"axis": -1}, {"axis": 0, "keepdims": 0}, {"axis": 1, "select_last_index": 1}]
    nodes = [
        helper.make_node(op, ["x"], [f"{op}{i}"], **given)
        for op in ("ArgMax", "ArgMin")
        for i, given in enumerate(attributes)
    ]
    value = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), x.shape)
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.INT64, None) for node in nodes]
    body = helper.make_graph(nodes, "case", [value], outputs)
    graph = from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    with TVM.load(compiled(graph, tmp_path)) as session, reference_session(graph) as reference:
        found, expected = session.run({"x": x}), reference.run({"x": x})
    for name, places in expected.items():
        np.testing.assert_array_equal(found[name], places)


def test_a_gpu_searches_for_a_place_with_several_threads(tmp_path: Path) -> None:
    """TVM shares a reduction among threads only where it knows its start."""
    cast = helper.make_node("Cast", ["p"], ["y"], to=TensorProto.FLOAT)
    graph = from_proto(proto([helper.make_node("ArgMax", ["x"], ["p"], axis=1), cast], [1, 21, 33, 33], {}, opset=13))
    gpu = Segment(graph=graph, device=load_device("sm8650"), processor="gpu", compiler="tvm", precision="fp32")
    assert (compile_segment(gpu, tmp_path, Limits(time_s=300)).directory / "kernels.json").exists()


def test_what_reads_a_shape_that_is_known_at_run_time_only_is_lowered(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [node("ConstantOfShape", ["s"], ["a"]), node("Exp", ["a"], ["y"])]
    inputs = [helper.make_tensor_value_info("s", TensorProto.INT64, [2])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    body = helper.make_graph(nodes, "case", inputs, outputs)
    graph = from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    with TVM.load(compiled(graph, tmp_path)) as session:
        found = session.run({"s": np.array([2, 3])})["y"]
    np.testing.assert_array_equal(found, np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("centred", "known", "limits"),
    [
        (0, True, (20, 0.3, 0.4)),
        (1, True, (3, 0.5, None)),
        (0, False, (200, 0.1, 0.2)),
        (1, True, (0, 0.5, 0.5)),
        (0, True, (2**40, None, None)),
    ],
)
def test_the_boxes_that_are_kept_are_onnx_runtimes(
    centred: int, known: bool, limits: tuple[int, float | None, float | None], tmp_path: Path
) -> None:
    """Scores are equal, boxes without area; how many may be asked for at run time, and what follows has no number."""
    node = helper.make_node
    random = np.random.default_rng(5)
    boxes = random.integers(-4, 5, (2, 60, 4)).astype(np.float32)
    scores = (random.integers(0, 12, (2, 3, 60)) / 12).astype(np.float32)
    dtypes = (np.int64, np.float32, np.float32)
    names = ("most", "overlap", "least")
    bounds = {n: np.array([v], d) for n, v, d in zip(names, limits, dtypes, strict=True) if v is not None}
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, boxes.shape),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, scores.shape),
        *([] if known else [helper.make_tensor_value_info("most", TensorProto.INT64, [1])]),
    ]
    wanted = [name if name in bounds else "" for name in names]
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", *wanted], ["kept"], center_point_box=centred),
        node("Cast", ["kept"], ["numbers"], to=TensorProto.FLOAT),
        node("Relu", ["numbers"], ["y"]),
    ]
    outputs = [
        helper.make_tensor_value_info(n, t, None) for n, t in (("kept", TensorProto.INT64), ("y", TensorProto.FLOAT))
    ]
    given = [numpy_helper.from_array(array, name) for name, array in bounds.items() if known or name != "most"]
    body = helper.make_graph(nodes, "case", inputs, outputs, given)
    graph = from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    feed = {"boxes": boxes, "scores": scores} | ({} if known else {"most": bounds["most"]})
    with reference_session(graph) as reference, TVM.load(compiled(graph, tmp_path)) as session:
        expected, got = reference.run(feed), session.run(feed)
    for name in ("kept", "y"):
        np.testing.assert_array_equal(got[name], expected[name])
    assert (len(expected["kept"]) > 0) is (limits[0] > 0)


# ---- what ONNX Runtime's quantisers write


class _Feeds(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self._feeds = iter([{"x": random.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(3)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def network() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4, name="conv1"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w2"], ["c"], pads=[1] * 4, group=16, name="depthwise"),
        node("Add", ["b", "c"], ["d"], name="add"),
        node("GlobalAveragePool", ["d"], ["e"], name="pool"),
        node("Flatten", ["e"], ["f"], name="flatten"),
        node("MatMul", ["f", "w3"], ["y"], name="dense"),
    ]
    weights = {"w1": values(16, 3, 3, 3), "b1": values(16), "w2": values(16, 1, 3, 3), "w3": values(16, 10)}
    return proto(nodes, [1, 3, 12, 12], weights)


def written(kind: str, folder: Path) -> Path:
    source, target = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(network(), source)
    if kind.startswith("dynamic"):
        quantize_dynamic(source, target, weight_type=QuantType.QUInt8 if kind.endswith("uint8") else QuantType.QInt8)
    else:
        forms = {"quant_format": QuantFormat.QOperator, "weight_type": QuantType.QInt8}
        quantize_static(source, target, _Feeds(), per_channel=kind.endswith("channel"), **forms)
    return target


@pytest.mark.parametrize("kind", ["dynamic", "dynamic uint8", "operators", "operators by channel"])
def test_models_of_onnx_runtimes_quantisers_are_computed_in_integers(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    graph = load(path)
    artefact = compiled(graph, tmp_path, "fp32" if kind.startswith("dynamic") else "int8")
    feed = random_inputs(graph, 4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feed)
    with TVM.load(artefact) as session:
        np.testing.assert_allclose(session.run(feed)["y"], expected, rtol=1e-5, atol=1e-6)
    rows = json.loads((artefact.directory / "functions.json").read_text())
    functions = " ".join(row["function"] for row in rows)
    assert "conv2d" in functions
    assert kind == "dynamic uint8" or "dot_" in functions or "depthwise" in functions
