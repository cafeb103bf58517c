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


def one(
    op_type: str,
    shape: list[int],
    out: list[int],
    *inputs: np.ndarray[Any, Any],
    opset: int = 18,
    dtype: int = TensorProto.FLOAT,
    **attributes: Any,
) -> Graph:
    names = [f"c{index}" for index in range(len(inputs))]
    node = helper.make_node(op_type, ["x", *names], ["y"], name="only", **attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, out)],
        [numpy_helper.from_array(array, name) for array, name in zip(inputs, names, strict=True)],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9))


def run(graph: Graph, feed: dict[str, Any]) -> np.ndarray[Any, Any]:
    with reference_session(graph) as session:
        return session.run(feed)["y"]


def pad(shape: list[int], before: list[int], after: list[int], mode: str | None = "reflect", **about: Any) -> Graph:
    out = [size + a + b for size, a, b in zip(shape, before, after, strict=True)]
    stated = {} if mode is None else {"mode": mode}
    if about.get("opset", 18) < 11:
        return one("Pad", shape, out, pads=[*before, *after], **stated, **about)
    return one("Pad", shape, out, np.array([*before, *after], np.int64), *about.pop("more", ()), **stated, **about)


def check(graph: Graph) -> str:
    found = rewrite_of(graph, "only")
    assert found is not None
    text, rewritten = found
    assert {node.op_type for node in rewritten.nodes()} <= {"Slice", "Concat", "Identity"}
    feed = random_inputs(graph, 0)
    np.testing.assert_array_equal(run(rewritten, feed), run(graph, feed))
    return text


@given(data=st.data(), mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]))
@settings(max_examples=60, deadline=None)
def test_a_pad_of_any_mode_is_unrolled_bit_for_bit(data: st.DataObject, mode: str) -> None:
    shape = data.draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    before, after = ([data.draw(st.integers(0, size - 1)) for size in shape] for _ in range(2))
    assert mode in check(pad(shape, before, after, mode, opset=19))


@given(data=st.data(), mode=st.sampled_from(["constant", "reflect", "edge"]), opset=st.integers(7, 18))
@settings(max_examples=40, deadline=None)
def test_of_any_operator_set(data: st.DataObject, mode: str, opset: int) -> None:
    before, after = ([0, *(data.draw(st.integers(0, 2)) for _ in range(2))] for _ in range(2))
    check(pad([2, 4, 3], before, after, mode, opset=opset))


@pytest.mark.parametrize("mode", ["constant", "edge"])
@pytest.mark.parametrize(("before", "after"), [([-1, 0], [0, -2]), ([-1, 1], [2, -1]), ([0, 0], [-3, 2])])
def test_a_negative_pad_cuts(mode: str, before: list[int], after: list[int]) -> None:
    assert "Slice" in check(pad([5, 4], before, after, mode))


def test_a_pad_by_nothing_hands_its_input_on() -> None:
    assert check(pad([2, 3], [0, 0], [0, 0])) == "1 Identity in place of the reflect Pad"


def test_the_mode_is_constant_where_it_is_not_stated_and_its_value_counts() -> None:
    value = np.array(2.5, np.float32)
    graph = pad([1, 3], [0, 1], [0, 2], mode=None, more=(value,))
    assert check(graph) == "1 Concat in place of the constant Pad"
    assert run(graph, random_inputs(graph, 0))[0, -1] == 2.5


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.INT64, TensorProto.DOUBLE])
def test_of_other_dtypes(dtype: int) -> None:
    check(pad([3, 4], [1, 1], [1, 2], dtype=dtype))


def test_texts_are_padded_by_empty_ones_where_no_value_is_stated() -> None:
    found = rewrite_of(pad([2, 3], [0, 1], [0, 0], mode="constant", dtype=TensorProto.STRING), "only")
    assert found is not None
    (joined,) = found[1].nodes()
    assert found[1].constant(joined.inputs[0]).tolist() == [[""], [""]]


def test_a_type_that_pad_takes_and_slice_does_not_is_no_rewrite() -> None:
    graph = pad([2, 3], [0, 1], [0, 2], mode="edge", dtype=TensorProto.FLOAT8E4M3FN, opset=21)
    assert rewrite_of(graph, "only") is None


def test_by_axes_that_count_from_the_end() -> None:
    axes = np.array([-1, 0], np.int64)
    graph = one("Pad", [3, 2, 4], [5, 2, 5], np.array([1, 2, 0, 0], np.int64), np.array(0, np.float32), axes)
    check(graph)


def test_more_rows_than_the_axis_has_to_reflect_are_no_rewrite() -> None:
    assert rewrite_of(pad([1, 3], [0, 3], [0, 0]), "only") is None


def test_pads_that_are_no_constant_are_no_rewrite() -> None:
    pads = helper.make_tensor_value_info("p", TensorProto.INT64, [4])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Pad", ["x", "p"], ["y"], name="only")], "case", [x, pads], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert rewrite_of(from_proto(model), "only") is None


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
