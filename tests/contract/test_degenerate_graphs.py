"""Graphs with next to nothing in them: every recipe and every backend gives what the graph gives, or says why not.

No operations, none that an input decides, outputs that are inputs, constants or weights, empty tensors, scalars alone.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from compilers import Action, CompilerError, Limits, get_compiler, in_child, reference_session
from graphs import Calibration, Graph, GraphError, from_proto, quantise, random_inputs, save
from partition import Segment, load_device

Feed = dict[str, np.ndarray[Any, Any]]
Shapes = dict[str, list[int]]
PLACES = {
    "ort_cpu": ("host", "cpu"),
    "tvm": ("host", "cpu"),
    "ort_qnn": ("sa8255p", "npu"),
    "snpe": ("sa8255p", "npu"),
    "coreml": ("a17_pro", "npu"),
}
RECIPES = ("int8", "int8-per-tensor", "w8a16", "fp16")
WEIGHT = np.random.default_rng(0).normal(0, 0.3, (4, 4)).astype(np.float32)
EMPTY = np.zeros((0, 4), np.float32)
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
X: Shapes = {"x": [2, 4]}


def built(nodes: list[NodeProto], inputs: Shapes, outputs: Shapes, **constants: np.ndarray[Any, Any]) -> Graph:
    """The constants beside the weight; one that nothing reads is left out of the file."""
    used = {name for node in nodes for name in node.input} | set(outputs)
    values = {name: value for name, value in {"w": WEIGHT, **constants}.items() if name in used}
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in end.items()] for end in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "degenerate", *ends, [numpy_helper.from_array(v, n) for n, v in values.items()])
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def graphs() -> dict[str, Graph]:
    node, y = helper.make_node, {"y": [2, 4]}
    return {
        "no operations": built([], X, X),
        "constants alone": built([], {}, {"w": [4, 4]}),
        "no inputs": built([node("MatMul", ["w", "w"], ["y"], name="product")], {}, {"y": [4, 4]}),
        "its input, beside an operation": built([PRODUCT], X, X),
        "its input too": built([PRODUCT], X, {**y, **X}),
        "its weight too": built([PRODUCT], X, {**y, "w": [4, 4]}),
        "a constant too": built([PRODUCT], X, {**y, "c": [3]}, c=np.float32([1, 2, 3])),
        "what a Relu reads too": built([PRODUCT, node("Relu", ["y"], ["r"], name="r")], X, {"r": [2, 4], **y}),
        "an empty operand": built(
            [node("Concat", ["x", "e"], ["z"], name="joined", axis=0), node("MatMul", ["z", "w"], ["y"], name="m")],
            X, y, e=EMPTY,
        ),
        "an empty constant too": built([PRODUCT], X, {**y, "e": [0, 4]}, e=EMPTY),
        "an empty slice too": built(
            [PRODUCT, node("Slice", ["y", "zero", "zero"], ["s"], name="none")], X, {**y, "s": [0, 4]},
            zero=np.int64([0]),
        ),
        "scalars": built([node("Sigmoid", ["x"], ["y"], name="s")], {"x": []}, {"y": []}),
    }  # fmt: skip


NOTHING_TO_DO = ["no operations", "constants alone", "no inputs", "its input, beside an operation"]
REFUSED = {
    "ort_cpu": [],
    "tvm": [],
    "ort_qnn": [(name, "float") for name in NOTHING_TO_DO],
    "snpe": [(name, "float") for name in NOTHING_TO_DO]
    + [("an empty slice too", precision) for precision in ("float", "int8")],
    "coreml": [("constants alone", "float"), ("no inputs", "float"), ("an empty operand", "int8")]
    + [(f"an empty {what} too", precision) for what in ("constant", "slice") for precision in ("float", "int8")],
}


def wide(graph: Graph) -> Calibration:
    """So much data that the feed of the test lies within its ranges."""
    return Calibration.random(graph, 64, seed=1)


def differences(got: Feed, wanted: Feed) -> list[str]:
    """Say which outputs are not there, or have another shape, type or value."""
    return [
        f"{name}: {got.get(name)} and not {value}"
        for name, value in wanted.items()
        if name not in got
        or (got[name].shape, got[name].dtype) != (value.shape, value.dtype)
        or not np.allclose(got[name], value, rtol=0.02, atol=0.05)
    ]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_keeps_every_output_or_has_nothing_to_do(recipe: str) -> None:
    for name, graph in graphs().items():
        feed = random_inputs(graph, 0)
        if name in NOTHING_TO_DO and (recipe != "fp16" or not graph.nodes()):
            with pytest.raises(GraphError, match="nothing to quantise"):
                quantise(graph, recipe, wide(graph))
            continue
        lower = quantise(graph, recipe, wide(graph))
        assert (lower.inputs(), lower.outputs()) == (graph.inputs(), graph.outputs()), name
        wanted = reference_session(graph).run(feed)
        assert not differences(reference_session(lower).run(feed), wanted), name
        # What no operation makes is given as it is, not lowered.
        passed = {spec.name for spec in graph.outputs()} - {made for node in graph.nodes() for made in node.outputs}
        for output in passed:
            np.testing.assert_array_equal(reference_session(lower).run(feed)[output], wanted[output])


@pytest.mark.parametrize("backend", PLACES)
def test_a_backend_gives_what_the_graph_gives_or_says_why_not(backend: str) -> None:
    device, processor = PLACES[backend]
    if not get_compiler(backend).available(Action.COMPILE, load_device(device), processor):
        pytest.skip(f"{backend} does not work here")
    refused, wrong = in_child(outcomes, backend, limits=Limits(time_s=300))
    assert not wrong
    assert sorted(refused) == sorted(REFUSED[backend])
    for reason in refused.values():
        assert not re.match(r"\w+Error:", reason), f"an exception, not a refusal: {reason}"


def outcomes(backend: str) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], list[str]]]:
    """Compile and run them all in one child: what was refused and why, and what came out wrong."""
    refused, wrong = {}, {}
    for name, graph in graphs().items():
        for precision in ("float",) if name in NOTHING_TO_DO else ("float", "int8"):
            form = quantise(graph, "int8", wide(graph)) if precision == "int8" else graph
            feed = random_inputs(graph, 0)
            try:
                got = run(backend, form, feed, precision)
            except CompilerError as error:
                refused[name, precision] = error.reason
                continue
            off = differences(got, reference_session(form).run(feed))
            if off or len(got) != len(graph.outputs()):
                wrong[name, precision] = off
    return refused, wrong


def run(backend: str, graph: Graph, feed: Feed, precision: str) -> Feed:
    device, processor = PLACES[backend]
    asked = precision if precision == "int8" else "fp32" if processor == "cpu" else "fp16"
    segment = Segment(graph=graph, device=load_device(device), processor=processor, compiler=backend, precision=asked)
    compiler, folder = get_compiler(backend), Path(tempfile.mkdtemp(dir=Path.cwd()))  # the child's own folder
    save(graph, folder / "segment.onnx")
    compiler.check_request(segment)
    with compiler.load(compiler.compile(segment, folder)) as session:
        return session.run(feed)
