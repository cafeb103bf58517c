"""The optional second Apple target; what needs Apple's packages runs only where the extra `coreai` is installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, CompilerError
from compilers.coreai import CoreAICompiler, fold_biases, narrowed, relative_error
from graphs import Calibration, Graph, from_proto, quantise, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

Array = np.ndarray[Any, Any]

INSTALLED = all(importlib.util.find_spec(name) for name in ("coreai", "coreai_onnx"))
needs_coreai = pytest.mark.skipif(not INSTALLED, reason="needs `pip install edgefrontier[coreai]`")


def small_net() -> Graph:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "m": (8, 4)}
    weights = {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["in/x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "m"], ["out/y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("in/x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("out/y", TensorProto.FLOAT, (1, 4))],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def segment_of(graph: Graph, precision: str) -> Segment:
    device = load_device("a17_pro")
    return Segment(graph=graph, device=device, processor="npu", compiler="coreai", precision=precision)


def test_why_not() -> None:
    compiler = CoreAICompiler()
    reason = compiler.why_not(Action.COMPILE, load_device("host"), "cpu")
    assert reason is not None
    assert "Apple devices only" in reason
    reason = compiler.why_not(Action.COMPILE, load_device("a17_pro"), "npu")
    assert reason is None if INSTALLED else "edgefrontier[coreai]" in str(reason)
    assert compiler.why_not(Action.ESTIMATE, load_device("a17_pro"), "npu") is not None


def test_int32_biases_are_folded() -> None:
    graph = quantise(small_net(), "int8", Calibration.random(small_net(), count=1))
    model = graph.proto()
    before = sum(n.op_type == "DequantizeLinear" for n in model.graph.node)
    fold_biases(model)
    after = sum(n.op_type == "DequantizeLinear" for n in model.graph.node)
    assert after < before
    feed = random_inputs(graph, 0)
    from compilers import reference_session

    with reference_session(graph) as a, reference_session(from_proto(model)) as b:
        np.testing.assert_array_equal(a.run(feed)["out/y"], b.run(feed)["out/y"])


def test_the_border_is_32_bit() -> None:
    assert narrowed({"x": np.array([1, 2])}, "x").dtype == np.int32
    with pytest.raises(CompilerError, match="does not fit the 32 bits"):
        narrowed({"x": np.array([2**31])}, "x")
    with pytest.raises(CompilerError, match="'y' is missing; got x"):
        narrowed({"x": np.array([1])}, "y")


def test_relative_error() -> None:
    wanted = {"y": np.array([3.0, 4.0]), "i": np.array([1])}
    assert relative_error({"y": np.array([3.0, 4.5]), "i": np.array([2])}, wanted) == pytest.approx(0.1)


def test_fp32_on_the_neural_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="fp16 and int8 only"):
        CoreAICompiler().compile(segment_of(small_net(), "fp32"), tmp_path)


@needs_coreai
@pytest.mark.parametrize(("precision", "bound"), [("fp16", 2e-3), ("int8", 0.05)])
def test_compiles_and_runs_on_apples_runtime(precision: str, bound: float, tmp_path: Path) -> None:
    graph = small_net()
    if precision == "int8":
        graph = quantise(graph, "int8", Calibration.random(graph, count=1))
    artefact = CoreAICompiler().compile(segment_of(graph, precision), tmp_path)
    assert artefact.fact("runs_on") == "Apple runtime on Linux CPU"
    assert float(artefact.fact("proof_error")) < bound
    with CoreAICompiler().load(artefact) as session:
        assert not session.on_device
        assert session.run(random_inputs(graph, 1))["out/y"].shape == (1, 4)
    with pytest.raises(CompilerError, match="closed"):
        session.run({})
