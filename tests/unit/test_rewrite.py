"""Lossless rewrites: bit-identical values, and refused where they would not be the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import reference_session
from graphs import Graph, GraphError, from_proto, random_inputs, rewrite_of


def one(op_type: str, shape: list[int], out: list[int], *inputs: np.ndarray[Any, Any], **attributes: Any) -> Graph:
    names = [f"c{index}" for index in range(len(inputs))]
    node = helper.make_node(op_type, ["x", *names], ["y"], name="only", **attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(array, name) for array, name in zip(inputs, names, strict=True)],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def run(graph: Graph, feed: dict[str, Any]) -> np.ndarray[Any, Any]:
    with reference_session(graph) as session:
        return session.run(feed)["y"]


def pad(shape: list[int], before: list[int], after: list[int], mode: str = "reflect") -> Graph:
    out = [size + a + b for size, a, b in zip(shape, before, after, strict=True)]
    return one("Pad", shape, out, np.array([*before, *after], np.int64), mode=mode)


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_reflect_pad_is_unrolled_bit_for_bit(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    before, after = ([data.draw(st.integers(0, size - 1)) for size in shape] for _ in range(2))
    graph = pad(shape, before, after)
    found = rewrite_of(graph, "only")
    if not any([*before, *after]):
        assert found is None
        return
    assert found is not None
    text, rewritten = found
    assert {node.op_type for node in rewritten.nodes()} <= {"Slice", "Concat"}
    assert "Slices" in text
    feed = random_inputs(graph, 0)
    np.testing.assert_array_equal(run(rewritten, feed), run(graph, feed))


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_another_pad_has_no_rewrite(mode: str) -> None:
    assert rewrite_of(pad([1, 2, 4, 4], [0, 0, 1, 1], [0, 0, 1, 1], mode), "only") is None


def test_an_operator_that_onnx_defines_by_others_is_replaced_by_them() -> None:
    graph = one("Mish", [1, 8, 4, 4], [1, 8, 4, 4])
    found = rewrite_of(graph, "only")
    assert found is not None
    assert [node.op_type for node in found[1].nodes()] == ["Softplus", "Tanh", "Mul"]
    feed = random_inputs(graph, 0)
    np.testing.assert_array_equal(run(found[1], feed), run(graph, feed))


def test_an_operator_without_a_definition_has_no_rewrite() -> None:
    assert rewrite_of(one("Erf", [1, 4], [1, 4]), "only") is None


def test_an_unknown_node_is_named() -> None:
    with pytest.raises(GraphError, match="other"):
        rewrite_of(one("Erf", [1, 4], [1, 4]), "other")
