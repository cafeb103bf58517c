"""Packed projections cut where they are made: the same values bit for bit, and only where a range is taken."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import reference_session
from graphs import Calibration, Graph, from_proto, quantise, random_inputs
from graphs.packed import unpacked

TOKENS, HEADS, CHANNELS = 5, 2, 4


def graph_of(
    nodes: list[Any], shape: list[int], outputs: list[str], constants: dict[str, Any], opset: int = 17
) -> Graph:
    body = helper.make_graph(
        nodes,
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def views(how: str) -> tuple[list[Any], dict[str, Any], int]:
    """Nodes from "p" [1, tokens, 3 * heads * channels] to "t", their constants, and the axis of "t" that has the 3."""
    node = helper.make_node
    split = np.array([1, TOKENS, 3, HEADS, CHANNELS], np.int64)
    if how == "to the front":
        nodes = [node("Reshape", ["p", "s"], ["r"]), node("Transpose", ["r"], ["t"], perm=[2, 0, 3, 1, 4])]
        return nodes, {"s": split}, 0
    if how == "tokens first":  # torch.export of nn.MultiheadAttention
        nodes = [
            node("Reshape", ["p", "s"], ["r"]), node("Unsqueeze", ["r", "front"], ["u"]),
            node("Transpose", ["u"], ["m"], perm=[3, 2, 1, 0, 4]), node("Squeeze", ["m", "back"], ["t"]),
        ]  # fmt: skip
        flat = np.array([1, TOKENS, 3, HEADS * CHANNELS], np.int64)
        return nodes, {"s": flat, "front": np.array([0]), "back": np.array([3])}, 0
    return [node("Reshape", ["p", "s"], ["t"])], {"s": split}, 2


def attention(how: str) -> Graph:
    nodes, constants, axis = views(how)
    rng = np.random.default_rng(0)
    parts = [helper.make_node("Gather", ["t", f"i{n}"], [f"part{n}"], name=f"take{n}", axis=axis) for n in range(3)]
    product = helper.make_node("MatMul", ["x", "w"], ["p"], name="project")
    constants |= {f"i{n}": np.array(n if n < 2 else -1, np.int64) for n in range(3)}
    constants["w"] = rng.normal(0, 1, (6, 3 * HEADS * CHANNELS)).astype(np.float32)
    return graph_of([product, *nodes, *parts], [1, TOKENS, 6], [f"part{n}" for n in range(3)], constants)


def run(graph: Graph, feed: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    with reference_session(graph) as session:
        return list(session.run(feed).values())


@pytest.mark.parametrize("how", ["to the front", "tokens first", "in place"])
def test_queries_keys_and_values_are_cut_from_their_product_bit_for_bit(how: str) -> None:
    graph = attention(how)
    found = unpacked(graph)
    counts = Counter(node.op_type for node in found.nodes())
    assert counts["Gather"] == 0
    assert counts["Slice"] == 3
    assert counts["MatMul"] == 1
    assert all(node.inputs[0] == "p" for node in found.nodes() if node.op_type == "Slice"), (
        "no view of the whole is left"
    )
    assert {f"take{n}" for n in range(3)} <= {node.name for node in found.nodes()}, "each part keeps its name"
    feed = random_inputs(graph, 0)
    for new, old in zip(run(found, feed), run(graph, feed), strict=True):
        np.testing.assert_array_equal(new, old)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_view_before_a_gather_keeps_its_values(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    split = data.draw(st.permutations([*shape, data.draw(st.integers(1, 3))]))
    source = [shape[0] * int(np.prod(split)) // int(np.prod(shape)), *shape[1:]]
    order = data.draw(st.permutations(range(len(split))))
    axis = data.draw(st.integers(0, len(split) - 1))
    index = data.draw(st.integers(0, split[order[axis]] - 1))
    graph = graph_of(
        [
            helper.make_node("Neg", ["x"], ["p"]),
            helper.make_node("Reshape", ["p", "s"], ["r"]),
            helper.make_node("Transpose", ["r"], ["t"], perm=order),
            helper.make_node("Gather", ["t", "i"], ["y"], axis=axis),
        ],
        source, ["y"], {"s": np.array(split, np.int64), "i": np.array(index, np.int64)},
    )  # fmt: skip
    feed = random_inputs(graph, 0)
    np.testing.assert_array_equal(run(unpacked(graph), feed)[0], run(graph, feed)[0])


def test_what_is_no_range_or_no_view_stays() -> None:
    strided = graph_of(
        [
            helper.make_node("Neg", ["x"], ["p"]),
            helper.make_node("Reshape", ["p", "s"], ["t"]),
            helper.make_node("Gather", ["t", "i"], ["y"], axis=3),
        ],
        [1, 4, 6], ["y"], {"s": np.array([1, 4, 2, 3], np.int64), "i": np.array(1, np.int64)},
    )  # fmt: skip
    plain = graph_of(
        [helper.make_node("Gather", ["x", "i"], ["y"], axis=1)], [1, 4, 6], ["y"], {"i": np.array(0, np.int64)}
    )
    several = graph_of(
        [helper.make_node("Reshape", ["x", "s"], ["t"]), helper.make_node("Gather", ["t", "i"], ["y"], axis=2)],
        [1, 4, 6], ["y"], {"s": np.array([1, 4, 2, 3], np.int64), "i": np.array([1, 0], np.int64)},
    )  # fmt: skip
    for graph in (strided, plain, several):
        assert unpacked(graph) is graph


def test_a_view_that_something_else_reads_stays() -> None:
    nodes, constants, _ = views("to the front")
    graph = graph_of(
        [
            helper.make_node("Neg", ["x"], ["p"]), *nodes,
            helper.make_node("Gather", ["t", "i"], ["y"], axis=0), helper.make_node("Relu", ["t"], ["z"]),
        ],
        [1, TOKENS, 3 * HEADS * CHANNELS], ["y", "z"], {**constants, "i": np.array(1, np.int64)},
    )  # fmt: skip
    found = unpacked(graph)
    assert Counter(node.op_type for node in found.nodes())["Slice"] == 1
    feed = random_inputs(graph, 0)
    for new, old in zip(run(found, feed), run(graph, feed), strict=True):
        np.testing.assert_array_equal(new, old)


def test_quantising_cuts_packed_projections() -> None:
    graph = attention("to the front")
    found = quantise(graph, "w8a16", Calibration.random(graph, 1, 0))
    kinds = Counter(node.op_type for node in found.nodes())
    assert (kinds["Gather"], kinds["Slice"]) == (0, 3)
