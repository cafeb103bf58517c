"""ort_cpu, ort_qnn and snpe on the real wheels: artefacts, numerics, placement, simulated cost, refusals."""

from __future__ import annotations

import dataclasses
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import (
    Action,
    Artefact,
    CompilerError,
    Limits,
    Source,
    StartError,
    compile_segment,
    get_compiler,
    in_child,
)
from compilers.ort_session import reference_session, source_names
from compilers.qnn.chip import DEFAULT_MODE, OPTIMISATION_MODE, target
from compilers.qnn.dlc import only_graph, read_dlc
from compilers.qnn.dlc_session import estimate_dlc
from compilers.qnn.layout import channels_last
from compilers.qnn.profile import read_estimates
from compilers.snpe import SDK_VARIABLES
from experiments.calibration.features import OPTIONS
from graphs import Graph, from_proto, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LIMITS = Limits(time_s=120)
HOST, SA8255P, SM8650 = (load_device(name) for name in ("host", "sa8255p", "sm8650"))
QNN_HERE = get_compiler("ort_qnn").available(Action.COMPILE, SA8255P, "npu")

needs_qnn = pytest.mark.skipif(not QNN_HERE, reason="the QNN wheel does not work here")


def model(nodes: list[onnx.NodeProto], shape: list[int], **weights: np.ndarray[Any, Any]) -> Graph:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "case",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).normal(0, 0.1, shape).astype(np.float32)


def convolutions(between: str = "Relu") -> Graph:
    """Case T4: A=Conv; B=`between`(A); C=Relu(A); D=B+C; E=Conv1x1(D)."""
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="A", pads=[1] * 4),
        helper.make_node(between, ["a"], ["b"], name="B"),
        helper.make_node("Relu", ["a"], ["c"], name="C"),
        helper.make_node("Add", ["b", "c"], ["d"], name="D"),
        helper.make_node("Conv", ["d", "we"], ["y"], name="E"),
    ]
    return model(nodes, [1, 8, 16, 16], wa=weight(8, 8, 3, 3), we=weight(8, 8, 1, 1))


def quantised() -> Graph:
    """x -> Q/DQ -> Conv with int8 weights per channel -> Q/DQ -> y."""
    stored = np.random.default_rng(3).integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"], name="qx"),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xf"], name="dx"),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], name="dw", axis=0),
        helper.make_node("Conv", ["xf", "wf"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["c", "sc", "zx"], ["cq"], name="qc"),
        helper.make_node("DequantizeLinear", ["cq", "sc", "zx"], ["y"], name="dc"),
    ]
    return model(
        nodes,
        [1, 8, 16, 16],
        w=stored,
        sx=np.array(0.03, np.float32),
        zx=np.array(128, np.uint8),
        sw=np.linspace(0.001, 0.003, 8, dtype=np.float32),
        zw=np.zeros(8, np.int8),
        sc=np.array(0.1, np.float32),
    )


def segment(graph: Graph, compiler: str, precision: str, device: Any = SA8255P, **options: str) -> Segment:
    processor = "cpu" if compiler == "ort_cpu" else "npu"
    return Segment(
        graph=graph,
        device=device,
        processor=processor,
        compiler=compiler,
        precision=precision,
        options=tuple(options.items()),
    )


def outputs(artefact: Artefact, feeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_child(run_artefact, artefact, feeds, limits=LIMITS)


def run_artefact(artefact: Artefact, feeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with get_compiler(artefact.compiler).load(artefact) as session:
        return [session.run(feed) for feed in feeds]


def reference(graph: Graph, feed: dict[str, Any]) -> dict[str, Any]:
    with reference_session(graph) as session:
        return session.run(feed)


# ort_cpu


def test_ort_cpu_runs_what_the_reference_says(tmp_path: Path) -> None:
    graph = convolutions("Erf")
    feed = random_inputs(graph, 1)
    artefact = compile_segment(segment(graph, "ort_cpu", "fp32", HOST, threads="2"), tmp_path, LIMITS)
    with get_compiler("ort_cpu").load(artefact) as session:
        found = session.run(feed)
        assert session.on_device
    np.testing.assert_allclose(found["y"], reference(graph, feed)["y"], rtol=1e-5, atol=1e-6)
    assert artefact.fact("threads") == "2"
    assert set(get_compiler("ort_cpu").placement(artefact).units.values()) == {"cpu"}


def test_ort_cpu_runs_a_qdq_graph_as_int8(tmp_path: Path) -> None:
    graph = quantised()
    feed = random_inputs(graph, 1)
    artefact = compile_segment(segment(graph, "ort_cpu", "int8", HOST), tmp_path, LIMITS)
    with get_compiler("ort_cpu").load(artefact) as session:
        found = session.run(feed)["y"]
    assert np.abs(found - reference(graph, feed)["y"]).max() <= 0.1 + 1e-6


def test_the_reference_keeps_both_of_two_quantisers() -> None:
    """Case T9: default optimisations drop one of two Q/DQ pairs in a row."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s1", "z"], ["q1"], name="q1"),
        helper.make_node("DequantizeLinear", ["q1", "s1", "z"], ["d1"], name="d1"),
        helper.make_node("QuantizeLinear", ["d1", "s2", "z"], ["q2"], name="q2"),
        helper.make_node("DequantizeLinear", ["q2", "s2", "z"], ["y"], name="d2"),
    ]
    scales = {"s1": np.array(0.02, np.float32), "s2": np.array(0.05, np.float32)}
    graph = model(nodes, [1, 4, 8, 8], z=np.array(128, np.uint8), **scales)
    x = np.random.default_rng(0).normal(0, 2, (1, 4, 8, 8)).astype(np.float32)
    once = (np.clip(np.rint(x / np.float32(0.02)) + 128, 0, 255) - 128).astype(np.float32) * np.float32(0.02)
    twice = (np.clip(np.rint(once / np.float32(0.05)) + 128, 0, 255) - 128).astype(np.float32) * np.float32(0.05)
    np.testing.assert_array_equal(reference(graph, {"x": x})["y"], twice)


@pytest.mark.parametrize(
    ("compiler", "precision", "graph", "device", "options", "named"),
    [
        ("ort_cpu", "fp16", convolutions(), HOST, {}, "float32"),
        ("ort_cpu", "int8", convolutions(), HOST, {}, "no QuantizeLinear"),
        ("ort_cpu", "fp32", quantised(), HOST, {}, "quantised already"),
        ("ort_cpu", "fp32", convolutions(), HOST, {"thread": "1"}, "no option thread "),
        ("ort_cpu", "fp32", convolutions(), HOST, {"threads": "0"}, "at least 1"),
        ("ort_qnn", "fp32", convolutions(), SA8255P, {}, "fp16 or int8"),
        ("ort_qnn", "fp16", convolutions(), SA8255P, {"vtcm_mb": "16"}, "8 MB"),
        ("ort_qnn", "fp16", convolutions(), SA8255P, {"extended_udma": "1"}, "extended_udma"),
        ("snpe", "fp16", convolutions(), SA8255P, {"offload_graph_io_quantization": "1"}, "offload"),
    ],
)
def test_refusals_name_the_cause(
    tmp_path: Path, compiler: str, precision: str, graph: Graph, device: Any, options: dict[str, str], named: str
) -> None:
    with pytest.raises(CompilerError, match=named):
        get_compiler(compiler).compile(segment(graph, compiler, precision, device, **options), tmp_path)


# ort_qnn


@needs_qnn
def test_a_convolution_in_fp16_is_whole_on_the_npu_and_simulated(tmp_path: Path) -> None:
    graph, qnn = convolutions("Sigmoid"), get_compiler("ort_qnn")
    artefact = compile_segment(segment(graph, "ort_qnn", "fp16"), tmp_path, LIMITS)
    placement, cost = qnn.placement(artefact), qnn.estimate(artefact)
    assert placement.elsewhere("npu") == ()
    assert {"A", "B", "C", "D", "E"} <= placement.units.keys()
    assert cost.latency.source is Source.SIMULATED
    assert 1e-6 < cost.latency.typical_s < 1e-4
    feed = random_inputs(graph, 2)
    (found,) = outputs(artefact, [feed])
    np.testing.assert_allclose(found["y"], reference(graph, feed)["y"], rtol=1e-2, atol=1e-3)


@needs_qnn
def test_an_operator_of_the_cpu_is_named_with_the_reason(tmp_path: Path) -> None:
    """Case T4: two NPU segments around B, and the artefact reloads in a fresh process."""
    graph, qnn = convolutions("Erf"), get_compiler("ort_qnn")
    artefact = compile_segment(segment(graph, "ort_qnn", "fp16"), tmp_path, LIMITS)
    placement = qnn.placement(artefact)
    assert placement.elsewhere("npu") == ("B",)
    assert "Erf" in placement.reasons["B"]
    assert artefact.fact("partitions") == "2"
    with pytest.raises(CompilerError, match=r"B: .*Erf"):
        qnn.estimate(artefact)
    feed = random_inputs(graph, 2)
    (found,) = outputs(artefact, [feed])
    np.testing.assert_allclose(found["y"], reference(graph, feed)["y"], rtol=1e-2, atol=1e-3)


@needs_qnn
def test_a_new_input_reaches_both_processors(tmp_path: Path) -> None:
    """Case T5: Erf on the CPU and Mul, Add on the NPU read the same input."""
    nodes = [
        helper.make_node("Erf", ["x"], ["e"], name="erf"),
        helper.make_node("Mul", ["x", "two"], ["d"], name="mul"),
        helper.make_node("Add", ["e", "d"], ["y"], name="add"),
    ]
    graph = model(nodes, [1, 8, 4, 4], two=np.array(2, np.float32))
    artefact = compile_segment(segment(graph, "ort_qnn", "fp16"), tmp_path, LIMITS)
    feeds = [{"x": np.full((1, 8, 4, 4), value, np.float32)} for value in (1, 2, 3)]
    for found, right in zip(outputs(artefact, feeds), (2.8427, 4.9953, 7.0), strict=True):
        np.testing.assert_allclose(found["y"], right, atol=4e-3)


@needs_qnn
@pytest.mark.parametrize(("offload", "elsewhere"), [("0", 0), ("1", 2)])
def test_quantisers_at_the_edge_are_where_the_option_puts_them(tmp_path: Path, offload: str, elsewhere: int) -> None:
    graph, qnn = quantised(), get_compiler("ort_qnn")
    asked = segment(graph, "ort_qnn", "int8", offload_graph_io_quantization=offload)
    artefact = compile_segment(asked, tmp_path, LIMITS)
    placement = qnn.placement(artefact)
    left = placement.elsewhere("npu")
    assert len(left) == elsewhere
    assert all("configured to not take" in placement.reasons[name] for name in left)
    assert qnn.estimate(artefact).latency.typical_s > 0
    feed = random_inputs(graph, 2)
    (found,) = outputs(artefact, [feed])
    assert np.abs(found["y"] - reference(graph, feed)["y"]).max() <= 0.1 + 1e-6


@needs_qnn
def test_a_graph_that_the_npu_refuses_whole_is_an_error_not_a_cpu_run(tmp_path: Path) -> None:
    graph = model([helper.make_node("Erf", ["x"], ["y"], name="only")], [1, 8, 4, 4])
    with pytest.raises(CompilerError, match=r"no node is on the NPU.*only: .*Erf"):
        compile_segment(segment(graph, "ort_qnn", "fp16"), tmp_path, LIMITS)


@needs_qnn
def test_a_provider_that_cannot_start_is_an_error_not_a_cpu_run(tmp_path: Path) -> None:
    """An unknown chip fails inside the provider; ONNX Runtime then runs all on the CPU without a word."""
    asked = segment(convolutions(), "ort_qnn", "fp16", with_soc_model("9999"))
    with pytest.raises(StartError, match=r"could not start.*INVALID_CONFIG"):
        compile_segment(asked, tmp_path, LIMITS)


@needs_qnn
def test_a_chip_without_simulator_compiles_and_gives_no_estimate(tmp_path: Path) -> None:
    qnn = get_compiler("ort_qnn")
    artefact = compile_segment(segment(convolutions(), "ort_qnn", "fp16", SM8650), tmp_path, LIMITS)
    assert artefact.fact("simulated") == "false"
    with pytest.raises(CompilerError, match="no simulator of sm8650"):
        qnn.estimate(artefact)
    assert "no simulator" in (qnn.why_not(Action.ESTIMATE, SM8650, "npu") or "")
    assert qnn.why_not(Action.ESTIMATE, SA8255P, "npu") is None


@pytest.mark.parametrize("compiler", ["ort_qnn", "snpe"])
@pytest.mark.parametrize("action", list(Action))
def test_chips_of_others_are_refused_with_a_sentence(compiler: str, action: Action) -> None:
    backend = get_compiler(compiler)
    assert "is a cpu" in (backend.why_not(action, SA8255P, "cpu") or "")
    assert "soc_model" in (backend.why_not(action, load_device("a17_pro"), "npu") or "")
    assert "no processor npu" in (backend.why_not(action, HOST, "npu") or "")


# snpe


@needs_qnn
def test_the_dlc_holds_what_was_asked(tmp_path: Path) -> None:
    graph, snpe = quantised(), get_compiler("snpe")
    artefact = compile_segment(segment(graph, "snpe", "int8"), tmp_path, LIMITS)
    (dlc,) = read_dlc(artefact.main_file)
    operators = dlc.operators()
    assert (operators["Conv2d"], operators["Quantize"], operators["Dequantize"]) == (1, 1, 1)
    (x,), (y,) = dlc.by_role("input"), dlc.by_role("output")
    assert (x.name, x.shape, x.dtype) == ("x", (1, 16, 16, 8), "float32")
    assert (y.name, y.shape, y.dtype) == ("y", (1, 16, 16, 8), "float32")
    (stored,) = (t for t in dlc.by_role("static") if t.shape == (3, 3, 8, 8))
    assert (stored.dtype, stored.axis) == ("sfixed8", 3)
    np.testing.assert_allclose(stored.scales, np.linspace(0.001, 0.003, 8), rtol=1e-6)
    assert snpe.placement(artefact).elsewhere("npu") == ()
    assert snpe.estimate(artefact).latency.source is Source.SIMULATED


@needs_qnn
def test_a_segment_that_one_dlc_cannot_hold_is_refused_by_its_operator(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"whole segment.*B: .*Erf"):
        compile_segment(segment(convolutions("Erf"), "snpe", "fp16"), tmp_path, LIMITS)


def test_channels_last_changes_the_layout_and_nothing_else() -> None:
    graph = convolutions()
    feed = random_inputs(graph, 3)
    last = channels_last(graph)
    assert (last.inputs, last.outputs) == (("x",), ("y",))
    found = reference(last.graph, {"x": feed["x"].transpose(0, 2, 3, 1)})["y"].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found, reference(graph, feed)["y"])


@needs_qnn
@pytest.mark.parametrize("backend", ["ort_qnn", "snpe"])
def test_a_chip_of_integers_refuses_float_by_that_name(tmp_path: Path, backend: str) -> None:
    with pytest.raises(CompilerError, match=f"{backend} has no fp16 for qcs6490"):
        compile_segment(segment(convolutions(), backend, "fp16", load_device("qcs6490")), tmp_path, LIMITS)


@needs_qnn
@pytest.mark.parametrize("backend", ["ort_qnn", "snpe"])
@pytest.mark.parametrize("operands", [["a", "h"], ["h", "a"]])
def test_a_product_with_hard_sigmoid_is_no_hard_sigmoid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, operands: list[str]
) -> None:
    """The provider's fusion misreads one order of the operands in float16 (docs/vendor_bugs.md)."""
    for name in SDK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="A"),
        helper.make_node("HardSigmoid", ["a"], ["h"], name="H", alpha=1 / 6, beta=0.5),
        helper.make_node("Mul", operands, ["y"], name="M"),
    ]
    graph = model(nodes, [1, 8, 16, 16], w=weight(8, 8, 1, 1))
    artefact = compile_segment(segment(graph, backend, "fp16"), tmp_path, LIMITS)
    feed = random_inputs(graph, 2)
    (found,), right = outputs(artefact, [feed]), reference(graph, feed)
    np.testing.assert_allclose(found["y"], right["y"], rtol=0, atol=5e-3)
    assert set(get_compiler(backend).placement(artefact).units) >= {"A", "M"}


@needs_qnn
def test_a_transpose_of_six_axes_is_taken_and_costs_what_moving_bytes_does(tmp_path: Path) -> None:
    """As it stands the provider refuses it, or the simulator takes 125,871,056 cycles for it (docs/vendor_bugs.md)."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="A"),
        helper.make_node("Reshape", ["a", "apart"], ["b"], name="B"),
        helper.make_node("Transpose", ["b"], ["c"], name="T", perm=[0, 1, 3, 5, 2, 4]),
        helper.make_node("Reshape", ["c", "flat"], ["y"], name="R"),
    ]
    shapes = {"apart": np.array([1, 32, 8, 2, 8, 2]), "flat": np.array([1, 32, 4, 64])}
    graph = model(nodes, [1, 16, 16, 16], w=weight(32, 16, 1, 1), **shapes)
    artefact = compile_segment(segment(graph, "ort_qnn", "fp16"), tmp_path, LIMITS)
    feed = random_inputs(graph, 2)
    (found,), right = outputs(artefact, [feed]), reference(graph, feed)
    np.testing.assert_allclose(found["y"], right["y"], rtol=0, atol=5e-3)
    assert get_compiler("ort_qnn").estimate(artefact).latency.high_s < 1e-3


@needs_qnn
def test_an_sdk_that_is_named_and_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in SDK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    snpe = get_compiler("snpe")
    assert snpe.why_not(Action.RUN, SA8255P, "npu") is None
    monkeypatch.setenv("SNPE_ROOT", str(tmp_path))
    assert str(tmp_path) in (snpe.why_not(Action.RUN, SA8255P, "npu") or "")


@needs_qnn
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_dlc_is_loaded_back_simulated_and_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str
) -> None:
    for name in SDK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    graph = quantised() if precision == "int8" else convolutions("Sigmoid")
    artefact = compile_segment(segment(graph, "snpe", precision), tmp_path, LIMITS)
    (expected,) = read_estimates((artefact.directory / "profile.csv").read_text(), partitions=1)
    assert in_child(estimate_dlc, artefact.main_file, "52", "8", DEFAULT_MODE, limits=LIMITS) == expected
    feed = random_inputs(graph, 2)
    (found,) = outputs(artefact, [feed])
    right = reference(graph, feed)["y"]
    np.testing.assert_allclose(found["y"], right, rtol=0, atol=0.1 + 1e-6 if precision == "int8" else 5e-3)


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    proto = graph.proto()
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = names.get(value.name, value.name)
    for node in proto.graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
    return from_proto(proto)


@needs_qnn
@pytest.mark.parametrize(
    "names",
    [
        {"x": "input.0", "y": "save_infer_model/scale_0.tmp_1"},
        {"x": "0", "y": "é:1"},
    ],
)
def test_a_dlc_gives_outputs_by_the_names_of_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: dict[str, str]
) -> None:
    """The library composes a DLC under C identifiers (docs/vendor_bugs.md)."""
    for name in SDK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    graph = renamed(convolutions("Sigmoid"), names)
    artefact = compile_segment(segment(graph, "snpe", "fp16"), tmp_path, LIMITS)
    feed = random_inputs(graph, 2)
    (found,) = outputs(artefact, [feed])
    np.testing.assert_allclose(found[names["y"]], reference(graph, feed)[names["y"]], rtol=0, atol=5e-3)


@needs_qnn
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_outputs_whose_identifiers_are_the_same_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: tuple[int, ...]
) -> None:
    for name in SDK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    names = ("u/v", "u.v", "u:v")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="m"),
        helper.make_node("Relu", ["p"], [names[0]], name="r"),
        helper.make_node("Sigmoid", [names[0]], [names[1]], name="s"),
        helper.make_node("Tanh", [names[1]], [names[2]], name="t"),
    ]
    value = helper.make_tensor_value_info
    ends = [value(names[index], TensorProto.FLOAT, [4, 8]) for index in order]
    start, constant = value("x", TensorProto.FLOAT, [4, 8]), numpy_helper.from_array(weight(8, 8), "w")
    proto = helper.make_model(
        helper.make_graph(nodes, "case", [start], ends, [constant]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    graph = from_proto(proto)
    artefact = compile_segment(segment(graph, "snpe", "fp16"), tmp_path, LIMITS)
    feed = random_inputs(graph, 5)
    (found,), right = outputs(artefact, [feed]), reference(graph, feed)
    assert set(found) == set(names)
    for name in names:
        np.testing.assert_allclose(found[name], right[name], rtol=0, atol=5e-3)


@needs_qnn
def test_a_dlc_for_a_chip_without_simulator_gives_no_estimate(tmp_path: Path) -> None:
    artefact = compile_segment(segment(convolutions(), "snpe", "fp16"), tmp_path, LIMITS)
    other = in_child(estimate_dlc, artefact.main_file, "62", "8", "2", limits=LIMITS)
    assert other.cycles > 0  # soc_model reaches the compiler: 62 is another chip, with a simulator
    with pytest.raises(CompilerError, match="no simulator of soc_model 57"):
        in_child(estimate_dlc, artefact.main_file, "57", "8", "2", limits=LIMITS)


@needs_qnn
def test_another_api_version_is_refused_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompilerError, match=r"core API 2\.40, and .*2\.39"):
        in_child(_with_other_api, limits=LIMITS)


def _with_other_api() -> None:
    from compilers.qnn import api

    api.CORE_API = (2, 39)  # type: ignore[misc]
    api.Qnn(52)


@needs_qnn
def test_a_dlc_that_is_none_is_refused_before_the_library_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "no.dlc"
    path.write_bytes(b"PK")
    with pytest.raises(CompilerError, match=r"no\.dlc"):
        in_child(estimate_dlc, path, "52", "8", "2", limits=LIMITS)


@needs_qnn
def test_snpe_net_run_gets_channels_last_files_and_gives_channels_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A tool that copies its input to its output stands in for the SDK's; the files and layouts are real."""
    tool = tmp_path / "sdk" / "bin" / "x86_64-linux-clang" / "snpe-net-run"
    tool.parent.mkdir(parents=True)
    tool.write_text(
        '#!/bin/sh\nset -e\ntest "$1" = --container\ntest -f "$2"\nmkdir -p "$6/Result_0"\n'
        'cp "$(sed "s/^x:=//" "$4")" "$6/Result_0/y.raw"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path / "sdk"))
    monkeypatch.delenv("SNPE_ROOT", raising=False)
    snpe, graph = get_compiler("snpe"), convolutions()
    artefact = compile_segment(segment(graph, "snpe", "fp16"), tmp_path, LIMITS)
    assert snpe.why_not(Action.RUN, SA8255P, "npu") is None
    feed = random_inputs(graph, 4)
    with snpe.load(artefact) as session:
        np.testing.assert_array_equal(session.run(feed)["y"], feed["x"])
        assert not session.on_device
        tool.write_text("#!/bin/sh\necho no DSP >&2\nexit 3\n")
        with pytest.raises(CompilerError, match="ended with 3: no DSP"):
            session.run(feed)


@needs_qnn
def test_a_dlc_holds_no_optimisation_mode(tmp_path: Path) -> None:
    """It is what a runtime prepares for its chip, so the one deployed is the one predicted, in whatever mode."""
    found = {}
    for mode in ("2", "3"):
        options = (("htp_graph_finalization_optimization_mode", mode),)
        asked = dataclasses.replace(segment(convolutions(), "snpe", "fp16"), options=options)
        artefact = compile_segment(asked, tmp_path, LIMITS)
        assert artefact.fact("optimisation_mode") == mode
        graph = only_graph(artefact.main_file)
        with zipfile.ZipFile(artefact.main_file) as file:
            found[mode] = graph.nodes, graph.tensors, file.getinfo("model.params.bin").file_size
    assert found["2"] == found["3"]


@pytest.mark.parametrize("backend", ["ort_qnn", "snpe"])
def test_what_is_compiled_by_default_is_what_calibrations_simulate(backend: str) -> None:
    plain = target(segment(convolutions(), backend, "fp16"), backend=backend, fixed_io=backend == "snpe")
    assert plain.optimisation_mode == dict(OPTIONS[backend])[OPTIMISATION_MODE]


# names


def test_source_names_undo_what_the_optimiser_appends() -> None:
    found = source_names(
        ["conv_token_3", "Transpose_token_4", "Transpose", "d/duplicated", "d", "m/MatMulAddFusion"],
        {"conv", "Transpose", "d", "m"},
    )
    assert found == {
        "conv_token_3": "conv",
        "Transpose_token_4": "Transpose_token_4",
        "Transpose": "Transpose",
        "d/duplicated": "d/duplicated",
        "d": "d",
        "m/MatMulAddFusion": "m",
    }


def with_soc_model(soc_model: str) -> Any:
    npu = SA8255P.processor("npu")
    ids = {"qnn": {**npu.ids["qnn"], "soc_model": soc_model}}
    others = tuple(p for p in SA8255P.processors if p.name != "npu")
    return dataclasses.replace(SA8255P, processors=(*others, dataclasses.replace(npu, ids=ids)))
