"""Sub-models: case T7 and its kind, checked bit for bit against the whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import (
    Graph,
    GraphError,
    extract,
    fixed_outputs,
    from_proto,
    load,
    random_inputs,
    save,
    unused_inputs,
)

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
info = helper.make_tensor_value_info

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from graphs import TensorSpec


def run(graph: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run on ONNX Runtime with every graph optimisation off; only the tensors that the graph asks for are fed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    content = graph.proto().SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in graph.outputs()]
    values = session.run(names, {spec.name: feed[spec.name] for spec in graph.inputs()})
    return dict(zip(names, values, strict=True))


def run_parts(graph: Graph, feed: dict[str, np.ndarray], *parts: set[str]) -> dict[str, np.ndarray]:
    tensors = dict(feed)
    for part in parts:
        tensors |= run(extract(graph, part), tensors)
    return {spec.name: tensors[spec.name] for spec in graph.outputs()}


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def names(specs: Iterable[TensorSpec]) -> list[str]:
    return [spec.name for spec in specs]


def build(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def t7(*, conditional: bool = False) -> onnx.ModelProto:
    """Case T7 of shared/cases.md; with `conditional`, an If whose branches capture t."""
    weight = np.random.default_rng(0).normal(0, 0.1, (4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"], name="MatMul1"),
        helper.make_node("Clip", ["a", "", "max"], ["t"], name="Clip"),
        helper.make_node("MatMul", ["t", "W"], ["b"], name="MatMul2"),
        helper.make_node("Add", ["b", "t"], ["y"], name="Add"),
    ]
    inputs = [info("x", FLOAT, ["N", 4]), info("unused", FLOAT, ["N", 1])]
    outputs = [info("y", FLOAT, ["N", 4]), info("t", FLOAT, ["N", 4])]
    if conditional:
        then = helper.make_graph([helper.make_node("Exp", ["t"], ["p"])], "p", [], [info("p", FLOAT, None)])
        other = helper.make_graph([helper.make_node("MatMul", ["t", "W"], ["q"])], "q", [], [info("q", FLOAT, None)])
        nodes.append(helper.make_node("If", ["c"], ["z"], name="If", then_branch=then, else_branch=other))
        inputs.append(info("c", BOOL, []))
        outputs.append(info("z", FLOAT, None))
    constants = [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(np.float32(1), "max")]
    return build(nodes, inputs, outputs, constants)


def t7_feed() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(0, 10, (3, 4)).astype(np.float32)
    return {"x": x, "unused": np.zeros((3, 1), np.float32), "c": np.array(False)}


def test_t7_cut_at_a_shared_tensor() -> None:
    graph = from_proto(t7(), bind={"N": 3})
    front, back = extract(graph, {"Clip", "MatMul1"}), extract(graph, {"Add", "MatMul2"})
    assert [node.name for node in front.nodes()] == ["MatMul1", "Clip"]
    assert (names(front.inputs()), names(front.outputs())) == (["x"], ["t"])
    assert set(front.initializers()) == {"W", "max"}
    assert (names(back.inputs()), names(back.outputs())) == (["t"], ["y"])
    assert set(back.initializers()) == {"W"}
    assert front.nodes()[1].inputs == ("a", "", "max")
    assert "" not in front.tensors()
    for part in (front, back):
        onnx.checker.check_model(part.proto(), full_check=True)
    whole = run(graph, t7_feed())
    assert set(whole) == {"y", "t"}
    assert same(whole, run_parts(graph, t7_feed(), {"MatMul1", "Clip"}, {"MatMul2", "Add"}))


def test_t7_unused_input_is_reported() -> None:
    graph = from_proto(t7(), bind={"N": 3})
    assert unused_inputs(graph) == ("unused",)
    assert names(graph.inputs()) == ["x", "unused"]
    assert unused_inputs(extract(graph, {"Clip", "MatMul1"})) == ()


def test_what_no_input_decides_is_told_by_the_graph() -> None:
    node, float32 = helper.make_node, TensorProto.FLOAT
    nodes = [
        node("Greater", ["x", "far"], ["beyond"], name="g"),  # the same for every feed that anybody draws
        node("Mul", ["far", "far"], ["product"], name="m"),
        node("EyeLike", ["x"], ["unit"], name="e"),
        node("NonZero", ["x"], ["places"], name="n"),
        node("Shape", ["places"], ["count"], name="s"),
        node("RandomNormal", [], ["drawn"], name="r", shape=[2], seed=1.0),
        node(
            "If", ["yes"], ["chosen"], name="i",
            then_branch=helper.make_graph([node("Neg", ["x"], ["t"])], "then", [], [info("t", float32, [2, 2])]),
            else_branch=helper.make_graph([node("Abs", ["x"], ["f"])], "else", [], [info("f", float32, [2, 2])]),
        ),
    ]  # fmt: skip
    ends = {
        "beyond": (TensorProto.BOOL, [2, 2]), "product": (float32, []), "far": (float32, []), "count": (7, [2]),
        "unit": (float32, [2, 2]), "drawn": (float32, [2]), "chosen": (float32, [2, 2]), "x": (float32, [2, 2]),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "fixed",
        [info("x", float32, [2, 2]), info("yes", TensorProto.BOOL, [])],
        [info(name, *about) for name, about in ends.items()],
        [numpy_helper.from_array(np.float32(1e9), "far")],
    )
    read = from_proto(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]))
    assert fixed_outputs(read) == {"product", "far", "unit"}


@pytest.mark.parametrize("condition", [True, False])
def test_t7_captured_values_stay(condition: bool) -> None:
    graph = from_proto(t7(conditional=True), bind={"N": 3})
    branch = extract(graph, {"If"})
    assert names(branch.inputs()) == ["c", "t"]
    assert set(branch.initializers()) == {"W"}
    feed = t7_feed() | {"c": np.array(condition)}
    parts = [{"MatMul1", "Clip"}, {"If"}, {"MatMul2", "Add"}]
    assert same(run(graph, feed), run_parts(graph, feed, *parts))


def test_all_nodes_give_the_same_graph() -> None:
    model = t7(conditional=True)
    del model.graph.input[1]
    graph = from_proto(model, bind={"N": 3})
    assert extract(graph, [node.name for node in reversed(graph.nodes())]) == graph


def test_a_part_is_read_back_the_same(tmp_path: Path) -> None:
    part = extract(from_proto(t7(conditional=True), bind={"N": 3}), {"Clip", "MatMul2", "If"})
    save(part, tmp_path / "part.onnx")
    again = load(tmp_path / "part.onnx")
    assert again == part
    assert again.nodes() == part.nodes()
    assert again.tensors() == part.tensors()


def test_parts_share_the_weights_of_the_whole() -> None:
    graph = from_proto(t7(), bind={"N": 3})
    whole, part = graph.constant("W"), extract(graph, {"MatMul1"}).constant("W")
    assert np.shares_memory(whole, part)


def test_the_shape_of_a_part_comes_from_the_whole() -> None:
    """The If's condition is outside, so the part alone could not know more than the whole does."""
    graph = from_proto(t7(conditional=True), bind={"N": 3})
    assert extract(graph, {"If"}).outputs()[0].shape == (3, 4)


def diamond() -> Graph:
    """T4 of shared/cases.md: a feeds B and C, D joins them."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="A"),
        helper.make_node("Erf", ["a"], ["b"], name="B"),
        helper.make_node("Relu", ["a"], ["c"], name="C"),
        helper.make_node("Add", ["b", "c"], ["d"], name="D"),
        helper.make_node("Neg", ["d"], ["y"], name="E"),
    ]
    return from_proto(build(nodes, [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]))


@pytest.mark.parametrize("part", [{"A", "D"}, {"A", "C", "D", "E"}, {"A", "E"}])
def test_a_part_that_would_wait_for_itself_is_refused(part: set[str]) -> None:
    with pytest.raises(GraphError, match=r"cannot run as one part: '[BCD]' outside needs a result of it"):
        extract(diamond(), part)


@pytest.mark.parametrize("part", [{"A", "C"}, {"B", "C"}, {"D", "E"}, {"B", "C", "D"}])
def test_parts_without_such_a_path_are_taken(part: set[str]) -> None:
    assert {node.name for node in extract(diamond(), part).nodes()} == part


def test_ends_are_in_a_stable_order() -> None:
    part = extract(diamond(), ["C", "B"])
    assert (names(part.inputs()), names(part.outputs())) == (["a"], ["b", "c"])


def test_a_part_behind_a_data_dependent_shape_keeps_what_is_known() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["n"], name="A"), helper.make_node("Neg", ["n"], ["y"], name="B")]
    graph = from_proto(build(nodes, [info("x", FLOAT, [4])], [info("y", TensorProto.INT64, None)]))
    part = extract(graph, {"B"})
    onnx.checker.check_model(part.proto(), full_check=True)
    assert part.proto().graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    assert part.inputs()[0].shape is None
    with pytest.raises(GraphError, match="input 'n' has no known shape"):
        random_inputs(part, 0)


def test_functions_metadata_and_types_are_kept() -> None:
    body = [helper.make_node("Relu", ["p"], ["q"])]
    function = helper.make_function("mine", "F", ["p"], ["q"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("F", ["x"], ["a"], domain="mine", name="one"),
        helper.make_node("F", ["a"], ["b"], domain="mine", name="two"),
        helper.make_node("F", ["b"], ["y"], domain="mine", name="three"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", FLOAT, [2])], [info("y", FLOAT, None)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function])
    helper.set_model_props(model, {"author": "me"})
    part = extract(from_proto(model), {"one", "two"}).proto()
    onnx.checker.check_model(part, full_check=True)
    assert [info.name for info in part.graph.value_info] == ["a"]
    assert (len(part.functions), len(part.opset_import), part.metadata_props[0].value) == (1, 2, "me")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ([], "no nodes to cut"),
        ("A", "'A' is one name"),
        (["Aa"], "has no node 'Aa'"),
        (["A", "Z9"], "has no node 'Z9'"),
    ],
)
def test_bad_requests_are_refused(part: set[str], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        extract(diamond(), part)


def test_a_result_that_nobody_reads_is_refused() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["dead"], name="dead")]
    graph = from_proto(build(nodes, [info("x", FLOAT, [1])], [info("y", FLOAT, [1])]))
    with pytest.raises(GraphError, match="no result of dead is read"):
        extract(graph, {"dead"})


def test_a_border_without_a_dtype_is_refused_by_name() -> None:
    odd = helper.make_node("Odd", ["x"], ["a"], domain="com.microsoft", name="odd")
    more = helper.make_node("Odd", ["a"], ["y"], domain="com.microsoft", name="more")
    model = build([odd, more], [info("x", FLOAT, [1])], [info("y", FLOAT, [1])])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = from_proto(model)
    assert graph.tensors()["a"].dtype == "unknown"
    with pytest.raises(GraphError, match="tensor 'a' has no known dtype"):
        extract(graph, {"more"})


def test_an_output_of_unknown_rank_does_not_forbid_cuts_elsewhere() -> None:
    odd = helper.make_node("Odd", ["b"], ["y"], name="odd", domain="com.microsoft")
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="r"), helper.make_node("Exp", ["a"], ["b"], name="e"), odd]
    model = build(nodes, [info("x", FLOAT, [2])], [info("y", FLOAT, None)])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = from_proto(model)
    assert names(extract(graph, ["e", "odd"]).outputs()) == ["y"]
