"""Graphs written so that the provider does not misread them: the same values, whatever the form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers.qnn.workarounds import block_swaps, readable
from graphs import Calibration, Graph, from_proto, quantise

TRANSPOSES = st.integers(1, 7).flatmap(
    lambda rank: st.tuples(st.lists(st.integers(1, 4), min_size=rank, max_size=rank), st.permutations(range(rank)))
)


@given(TRANSPOSES)
def test_the_swaps_of_blocks_are_the_transpose(transpose: tuple[list[int], list[int]]) -> None:
    shape, order = transpose
    values = np.arange(math.prod(shape))
    swapped = values
    swaps = block_swaps(shape, order)
    for a, x, y, b in swaps:
        swapped = swapped.reshape(a, x, y, b).transpose(0, 2, 1, 3)
    if swaps:
        assert np.array_equal(swapped.ravel(), values.reshape(shape).transpose(order).ravel())


@pytest.mark.parametrize(
    ("shape", "order", "swaps"),
    [
        ([1, 128, 16, 2, 16, 2], [0, 1, 3, 5, 2, 4], [(128, 16, 2, 32), (256, 256, 2, 1)]),  # MobileViT takes apart
        ([1, 128, 2, 2, 16, 16], [0, 1, 4, 2, 5, 3], [(128, 4, 16, 16), (4096, 2, 16, 1)]),  # and puts together
        ([1, 2, 8, 7, 8, 7, 96], [0, 1, 2, 4, 3, 5, 6], []),  # windows of Swin: four axes move
        ([1, 2, 58, 28, 28], [0, 2, 1, 3, 4], []),  # a channel shuffle: two
        ([4, 0, 2, 3, 2, 2], [5, 3, 1, 0, 2, 4], []),  # nothing to move
    ],
)
def test_only_what_has_five_axes_is_taken_apart(
    shape: list[int], order: list[int], swaps: list[tuple[int, int, int, int]]
) -> None:
    assert block_swaps(shape, order) == swaps


def unfolding(*, read_twice: bool = False) -> Graph:
    """A product, MobileViT's way into patches and back, and another product."""
    shapes = {"apart": [1, 6, 4, 2, 4, 2], "flat": [1, 6, 4, 16], "again": [1, 6, 2, 2, 4, 4], "image": [1, 6, 8, 8]}
    node = helper.make_node
    nodes = [
        node("Mul", ["x", "two"], ["m"], name="mul"),
        node("Reshape", ["m", "apart"], ["a"], name="apart"),
        node("Transpose", ["a"], ["b"], name="patches", perm=[0, 1, 3, 5, 2, 4]),
        node("Reshape", ["b", "flat"], ["c"], name="flat"),
        node("Mul", ["c", "two"], ["d"], name="between"),
        node("Reshape", ["d", "again"], ["e"], name="again"),
        node("Transpose", ["e"], ["f"], name="pixels", perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", ["f", "image"], ["y"], name="image"),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    if read_twice:
        outputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    weights = [numpy_helper.from_array(np.array(size, np.int64), name) for name, size in shapes.items()]
    graph = helper.make_graph(
        nodes, "unfolding", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 8, 8])], outputs,
        [*weights, numpy_helper.from_array(np.float32(2), "two")],
    )  # fmt: skip
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def outputs_of(graph: Graph) -> list[np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(graph.proto().SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(1, 6, 8, 8)).astype(np.float32)
    found: list[np.ndarray[Any, Any]] = session.run(None, {"x": x})
    return found


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_graph_with_steps_computes_the_same_and_keeps_the_names(precision: str) -> None:
    graph = unfolding()
    if precision == "int8":
        graph = quantise(graph, "int8", Calibration.random(graph, 2, 0))
    written = readable(graph)
    assert all(np.array_equal(a, b) for a, b in zip(outputs_of(graph), outputs_of(written), strict=True))
    nodes = {node.name: node for node in written.nodes()}
    assert {"patches", "pixels", "flat", "image"} <= nodes.keys()
    assert max(len(spec.shape or ()) for spec in written.tensors().values()) == 4
    ends = [tuple((spec.name, spec.shape, spec.dtype) for spec in g.outputs()) for g in (graph, written)]
    assert ends[0] == ends[1]
    assert readable(written) is written


def test_what_another_reads_stays_as_it_is() -> None:
    graph = unfolding(read_twice=True)
    names = [node.name for node in readable(graph).nodes()]
    assert "patches/step0" not in names
    assert "pixels/step0" in names
