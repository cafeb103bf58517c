"""Every backend gives what the graph gives: each output by its name, in its shape, with its value.

Also scalars, constants, and outputs that are inputs, which some formats do not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import (
    Action,
    Artefact,
    CompilerError,
    Limits,
    compile_segment,
    get_compiler,
    in_child,
    reference_session,
)
from compilers.qnn import edge
from graphs import Calibration, Graph, from_proto, quantise, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

Feed = dict[str, np.ndarray[Any, Any]]
LIMITS = Limits(time_s=300)
PLACES = {
    "ort_cpu": ("host", "cpu"),
    "tvm": ("host", "cpu"),
    "ort_qnn": ("sa8255p", "npu"),
    "snpe": ("sa8255p", "npu"),
    "coreml": ("a17_pro", "npu"),
}
CONSTANTS = {
    "vector": np.float32([1, 2, 3]),
    "image": np.float32([[[[1, 2]]]]),
    "number": np.float32(4),
    "indices": np.int64([5, 7]),
}


def edges() -> Graph:
    """An image, a scalar computed and one fed, constants (stated, made by nodes, of shapes), and the input itself."""
    node, value = helper.make_node, helper.make_tensor_value_info
    outputs = {
        "y": [1, 8, 8, 8], "mean": [], "x": [1, 8, 8, 8], "stated": [2], "doubled": [3], "shape": [4],
        **{name: list(array.shape) for name, array in CONSTANTS.items()},
    }  # fmt: skip
    integers = {"indices", "shape"}
    weights = {"w": np.random.default_rng(0).normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32), **CONSTANTS}
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
            node("Mul", ["a", "scale"], ["b"], name="scaled"),
            node("Relu", ["b"], ["y"], name="relu"),
            node("ReduceMean", ["b"], ["mean"], name="all", keepdims=0),
            node("Constant", [], ["stated"], name="told", value=numpy_helper.from_array(np.float32([7, 8]))),
            node("Add", ["vector", "vector"], ["doubled"], name="twice"),
            node("Shape", ["a"], ["shape"], name="sized"),
        ],
        "edges",
        [value("x", TensorProto.FLOAT, [1, 8, 8, 8]), value("scale", TensorProto.FLOAT, [])],
        [value(n, TensorProto.INT64 if n in integers else TensorProto.FLOAT, shape) for n, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def run(artefact: Artefact, feed: Feed) -> Feed:
    with get_compiler(artefact.compiler).load(artefact) as session:
        return session.run(feed)


def test_an_output_that_an_input_decides_is_never_taken_for_a_constant(tmp_path: Path) -> None:
    """No feed that is drawn passes the limit, so samples cannot tell."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Greater", ["x", "far"], ["beyond"], name="g")],
        "beyond",
        [value("x", TensorProto.FLOAT, [4])],
        [value("beyond", TensorProto.BOOL, [4])],
        [numpy_helper.from_array(np.float32(1e9), "far")],
    )
    read = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    with pytest.raises(CompilerError, match="lacks the output 'beyond', which is no constant"):
        edge.write_constants(read, set(), tmp_path)


@pytest.mark.parametrize("precision", ["float", "int8"])
@pytest.mark.parametrize("backend", PLACES)
def test_outputs_are_those_of_the_graph(backend: str, precision: str, tmp_path: Path) -> None:
    name, processor = PLACES[backend]
    device, graph = load_device(name), edges()
    if not get_compiler(backend).available(Action.COMPILE, device, processor):
        pytest.skip(f"{backend} does not work here")
    if precision == "int8":
        graph = quantise(graph, "int8", Calibration.random(graph, 2))
    else:
        precision = "fp32" if processor == "cpu" else "fp16"
    segment = Segment(graph=graph, device=device, processor=processor, compiler=backend, precision=precision)
    feed = random_inputs(graph, 0)
    wanted = reference_session(graph).run(feed)
    got = in_child(run, compile_segment(segment, tmp_path, LIMITS), feed, limits=LIMITS)
    assert {n: (v.shape, v.dtype) for n, v in got.items()} == {n: (v.shape, v.dtype) for n, v in wanted.items()}
    for output, values in wanted.items():
        np.testing.assert_allclose(got[output], values, rtol=0.02, atol=0.05, err_msg=output)
