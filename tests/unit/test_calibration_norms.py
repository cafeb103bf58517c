"""Norms behind a Concat stay in float, as the measured quantised graphs have them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers.ort_session import reference_session
from experiments.calibration.norms import float_norms
from graphs import Calibration, Graph, from_proto, quantise, random_inputs


def _dense(*, joined: bool, shared: bool = False) -> Graph:
    """Return two convolutions, of which the second reads a norm with a Relu: of both images joined, or of one."""
    draw = np.random.default_rng(0)
    channels = 8 if joined else 4

    def weight(name: str, *shape: int, least: float = -1.0) -> onnx.TensorProto:
        return numpy_helper.from_array(draw.uniform(least, 1.0, shape).astype(np.float32), name)

    nodes = [helper.make_node("Conv", ["image", "w"], ["one"], "one", pads=[1, 1, 1, 1])]
    if joined:
        nodes.append(helper.make_node("Concat", ["image", "one"], ["both"], "join", axis=1))
    else:
        nodes.append(helper.make_node("MaxPool", ["one"], ["both"], "join", kernel_shape=[1, 1]))
    for place, (x, y) in enumerate([("both", "y"), ("y_relu", "z")] if shared else [("both", "y")]):
        norm = f"norm{place}"
        nodes.append(helper.make_node("BatchNormalization", [x, "scale", "bias", "mean", "var"], [y], norm))
        nodes.append(helper.make_node("Relu", [y], [f"{y}_relu"], f"relu{place}"))
        if shared and not place:
            nodes[-1].output[0] = "kept"
            nodes.append(helper.make_node("Concat", ["kept"], ["y_relu"], "again", axis=1))
    nodes.append(helper.make_node("Conv", [nodes[-1].output[0], "v"], ["out"], "two"))
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 3, 8, 8])],
        [
            weight("w", 4, 4, 3, 3), weight("v", 3, channels, 1, 1), weight("scale", channels),
            weight("bias", channels), weight("mean", channels), weight("var", channels, least=0.5),
        ],
    )  # fmt: skip
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def _kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op_type for node in graph.proto().graph.node)


@pytest.mark.parametrize("recipe", ["int8", "w8a16"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_norm_behind_a_concat_and_its_relu_are_in_float(recipe: str, *, shared: bool) -> None:
    graph = _dense(joined=True, shared=shared)
    found = float_norms(quantise(graph, recipe, Calibration.random(graph, 2, 0)), graph)
    model = found.proto().graph
    maker = {name: node for node in model.node for name in node.output}
    weights = {w.name: numpy_helper.to_array(w) for w in model.initializer}
    for norm in (node for node in model.node if node.op_type == "BatchNormalization"):
        given = {w.name: numpy_helper.to_array(w) for w in graph.proto().graph.initializer}
        for name, original in zip(norm.input[1:], ("scale", "bias", "mean", "var"), strict=True):
            np.testing.assert_array_equal(weights[name], given[original])
        assert maker[norm.input[0]].op_type == "DequantizeLinear"
        (reader,) = (node for node in model.node if norm.output[0] in node.input)
        assert reader.op_type == "Relu"
    assert _kinds(found)["BatchNormalization"] == _kinds(found)["Relu"] == (2 if shared else 1)
    feed = random_inputs(graph, 1)
    exact, got = (reference_session(g).run(feed)["out"] for g in (graph, found))
    assert np.abs(got - exact).max() < 0.05 * np.ptp(exact)


def test_other_norms_are_as_the_quantiser_has_them() -> None:
    graph = _dense(joined=False)
    quantised = quantise(graph, "int8", Calibration.random(graph, 2, 0))
    assert float_norms(quantised, graph) is quantised
