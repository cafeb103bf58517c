from __future__ import annotations

import networkx as nx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import Graph, from_proto
from partition import handovers
from partition.dag import activations, to_dag
from partition.split import SplitError


def conv(source: str, target: str, channels: int, kernel: int) -> tuple[onnx.NodeProto, onnx.TensorProto]:
    weight = numpy_helper.from_array(np.zeros((8, channels, kernel, kernel), np.float32), f"{target}_w")
    pads = [kernel // 2] * 4
    return helper.make_node("Conv", [source, weight.name], [target], name=target.upper(), pads=pads), weight


@pytest.fixture
def t4() -> Graph:
    """Case T4: A = Conv 3x3, B = Erf(a), C = Relu(a), D = Add(b, c), E = Conv 1x1 (d)."""
    first, first_weight = conv("x", "a", 8, 3)
    last, last_weight = conv("d", "y", 8, 1)
    nodes = [
        first,
        helper.make_node("Erf", ["a"], ["b"], name="B"),
        helper.make_node("Relu", ["a"], ["c"], name="C"),
        helper.make_node("Add", ["b", "c"], ["d"], name="D"),
        last,
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16])
    graph = helper.make_graph(nodes, "t4", [x], [y], [first_weight, last_weight])
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_edges_carry_the_tensors_and_their_bytes(t4: Graph) -> None:
    dag = to_dag(t4)
    assert nx.is_directed_acyclic_graph(dag)
    assert list(dag) == ["A", "B", "C", "D", "Y"]
    assert dag.edges["A", "B"] == {"tensors": ("a",), "bytes": 8192}
    assert dag.nodes["B"]["op_type"] == "Erf"


def test_weights_do_not_cross_and_shared_tensors_are_listed_once(t4: Graph) -> None:
    found = {tensor.name: tensor for tensor in activations(t4)}
    assert list(found) == ["x", "a", "b", "c", "d", "y"]
    assert found["a"].consumers == ("B", "C")
    assert found["x"].producer is None
    assert found["y"].is_output
    assert not found["y"].consumers


def test_two_tensors_between_two_nodes_add_up() -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["p", "q"], name="S", axis=0, num_outputs=2),
        helper.make_node("Add", ["p", "q"], ["y"], name="T"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    assert to_dag(from_proto(model)).edges["S", "T"] == {"tensors": ("p", "q"), "bytes": 32}


def capturing(kind: str) -> Graph:
    """A MatMul makes t, a Relu u of it; the body of the If or Loop behind reads t without listing it."""
    info = helper.make_tensor_value_info
    made = info("made", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"], name="A"), helper.make_node("Relu", ["t"], ["u"], name="B")]
    if kind == "If":
        branches = {
            f"{side}_branch": helper.make_graph([helper.make_node(op, ["u", "t"], ["made"])], side, [], [made])
            for side, op in (("then", "Add"), ("else", "Mul"))
        }
        nodes.append(helper.make_node("If", ["c"], ["y"], name="C", **branches))
    else:
        ends = [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, None)]
        steps = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "t"], ["made"])]
        body = helper.make_graph(steps, "body", ends, [info("on", TensorProto.BOOL, []), made])
        nodes.append(helper.make_node("Loop", ["", "c", "u"], ["y"], name="C", body=body))
    inputs = [info("x", TensorProto.FLOAT, [3, 4]), info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, kind, inputs, [info("y", TensorProto.FLOAT, [3, 4])], [weight])
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_what_a_body_captures_is_an_edge_and_crosses_a_cut(kind: str) -> None:
    dag = to_dag(capturing(kind))
    assert dag.edges["A", "C"] == {"tensors": ("t",), "bytes": 48}
    with pytest.raises(SplitError, match="wait for each other"):
        handovers(dag, [("A", "C"), ("B",)])
    moved = {h.tensor.name: (h.source, h.targets) for h in handovers(dag, [("A", "B"), ("C",)]) if h.source is not None}
    assert moved == {"t": (0, (1,)), "u": (0, (1,))}
