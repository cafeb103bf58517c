"""Models of which some nodes are int8 and the rest float."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import Calibration, Graph, GraphError, Mixer, extract, float_form, from_proto, quantise, random_inputs
from graphs.quantisation.runtime import open_session


def residual(opset: int = 17) -> Graph:
    """Two outputs, a shared tensor, a Relu that int8 leaves out, a batch normalisation that folds."""
    random = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(random.normal(0, 0.3, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["c"], name="conv2", pads=[1] * 4),
        helper.make_node("Add", ["c", "r"], ["s"], name="add"),
        helper.make_node("Sigmoid", ["s"], ["z"], name="sigmoid"),
        helper.make_node("GlobalAveragePool", ["s"], ["y"], name="pool"),
    ]
    positive = numpy_helper.from_array(np.full(4, 0.7, np.float32), "v")
    weights = [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3), *(weight(n, 4) for n in "gbm"), positive]
    ends = {"x": [1, 3, 8, 8], "z": [1, 4, 8, 8], "y": [1, 4, 1, 1]}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in ends.items()}
    graph = helper.make_graph(nodes, "residual", [values["x"]], [values["z"], values["y"]], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    return from_proto(model, name="residual")


@pytest.fixture(scope="module", params=[11, 17])
def mixer(request: pytest.FixtureRequest) -> Mixer:
    graph = residual(request.param)
    return Mixer(float_form(graph), quantise(graph, "int8", Calibration.random(graph, 2, 0)))


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(open_session(model).run(None, feed))


def test_everything_in_int8_is_the_qdq_graph_to_the_bit(mixer: Mixer) -> None:
    feed = random_inputs(mixer.floating, 0)
    everything = mixer.mix([node.name for node in mixer.floating.nodes()]).graph
    for found, wanted in zip(run(everything.proto(), feed), run(mixer.quantised.proto(), feed), strict=True):
        assert np.array_equal(found, wanted)


def test_nothing_in_int8_is_the_float_graph_to_the_bit(mixer: Mixer) -> None:
    feed = random_inputs(mixer.floating, 0)
    for found, wanted in zip(run(mixer.mix([]).graph.proto(), feed), run(mixer.floating.proto(), feed), strict=True):
        assert np.array_equal(found, wanted)


def test_borders_are_converted_on_the_int8_side(mixer: Mixer) -> None:
    assert set(mixer.bound) == {"relu"}
    mixture = mixer.mix(["conv2"])
    kinds = {node.name: node.op_type for node in mixture.graph.nodes()}
    assert kinds["relu"] == "Relu"
    mine = sorted(kinds[name] for name, owners in mixture.owners.items() if owners == ("conv2",))
    # r and w2 (and the bias that folding may have made) come in coded; the result is coded and given back in float.
    assert mine.count("QuantizeLinear") == 2
    assert "Conv" in mine
    inside = [name for name, owners in mixture.owners.items() if owners == ("conv2",)]
    part = extract(mixture.graph, inside)
    assert [spec.dtype for spec in (*part.inputs(), *part.outputs())] == ["float32", "float32"]
    assert [spec.name for spec in part.inputs()] == ["r"]
    assert [spec.name for spec in part.outputs()] == ["c"]


def test_between_int8_nodes_the_tensor_passes_coded(mixer: Mixer) -> None:
    mixture = mixer.mix(["conv1", "relu", "conv2"])
    first = [name for name, owners in mixture.owners.items() if set(owners) <= {"conv1", "relu"}]
    given = {spec.name: spec.dtype for spec in extract(mixture.graph, first).outputs()}
    assert sorted(given.values()) == ["float32", "uint8"]  # the addition reads floats, the convolution codes


def test_the_error_grows_with_what_is_int8(mixer: Mixer) -> None:
    feed = random_inputs(mixer.floating, 0)
    names = [spec.name for spec in mixer.floating.outputs()]
    reference = dict(zip(names, run(mixer.floating.proto(), feed), strict=True))
    everything = [node.name for node in mixer.floating.nodes()]
    one, every = mixer.errors([["conv2"], everything], feed, reference)
    assert one["z"].sqnr_db is not None
    assert every["z"].sqnr_db is not None
    assert one["z"].sqnr_db > every["z"].sqnr_db > 20


def test_what_int8_joins_is_not_parted(mixer: Mixer) -> None:
    with pytest.raises(GraphError, match="'relu' is part of 'conv1' in int8"):
        mixer.mix(["conv1"])
    with pytest.raises(GraphError, match="no node 'conv9'"):
        mixer.mix(["conv9"])


def test_forms_of_two_graphs_do_not_mix() -> None:
    graph = residual()
    other = extract(graph, ["conv1", "norm", "relu", "conv2"])
    with pytest.raises(GraphError, match="differ at"):
        Mixer(float_form(graph), quantise(other, "int8", Calibration.random(other, 1, 0)))
