"""Graphs in fewer operators: the same values by ONNX Runtime, under the names of the nodes that were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import reference_session
from compilers.adapter import CompilerError
from compilers.suite import Verdict, judge, tensor_cases
from graphs import Expanded, Graph, GraphError, View, expanded, from_proto, random_inputs
from graphs.expansion.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[int]],
    constants: dict[str, Array],
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
    domains: Sequence[str] = (),
) -> Graph:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def lacking(*op_types: str) -> Callable[[View], str | None]:
    return lambda node: f"no {node.op_type}" if node.op_type in op_types else None


def run(graph: Graph, feed: dict[str, Any]) -> dict[str, Any]:
    with reference_session(graph) as session:
        return session.run(feed)


def without(graph: Graph, *op_types: str) -> Expanded:
    """Expand, and check that the operators are gone and the values the same."""
    found = expanded(graph, lacking(*op_types))
    assert found.refused == {}
    assert not {node.op_type for node in found.graph.nodes()} & set(op_types)
    feed = random_inputs(graph, 0)
    expected, got = run(graph, feed), run(found.graph, feed)
    for name, value in expected.items():
        assert (got[name].shape, got[name].dtype) == (value.shape, value.dtype)
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)
    return found


# ---- what is known


def test_a_graph_with_nothing_to_do_is_returned_itself() -> None:
    graph = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {})
    assert expanded(graph, lacking()).graph is graph


def test_shape_arithmetic_becomes_a_constant_and_nothing_it_read_is_left() -> None:
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "first"], ["n"]),
        node("Concat", ["n", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"], name="kept"),
    ]
    graph = model(nodes, {"x": [4, 2, 3]}, {"first": np.array([0]), "rest": np.array([-1])})
    found = without(graph).graph
    assert [n.name for n in found.nodes()] == ["kept"]
    assert len(found.initializers()) == 1
    assert found.outputs()[0].shape == (4, 6)


def test_what_exporters_do_to_large_weights_is_done() -> None:
    """PyTorch writes the gates of an LSTM in another order with Slice and Concat."""
    weight = np.random.default_rng(0).standard_normal((1, 96, 40)).astype(np.float32)
    node = helper.make_node
    nodes = [
        node("Slice", ["w", "start", "end", "axis"], ["a"]),
        node("Slice", ["w", "zero", "start", "axis"], ["b"]),
        node("Concat", ["a", "b"], ["turned"], axis=1),
        node("MatMul", ["x", "turned"], ["y"]),
    ]
    numbers = {"zero": [0], "start": [24], "end": [96], "axis": [1]}
    graph = model(nodes, {"x": [1, 2, 96]}, {"w": weight, **{k: np.array(v) for k, v in numbers.items()}})
    found = without(graph).graph
    assert [n.op_type for n in found.nodes()] == ["MatMul"]
    np.testing.assert_array_equal(found.constant("turned"), np.concatenate([weight[:, 24:], weight[:, :24]], axis=1))


# ---- whole operators, against ONNX's own suite

# Named so in ONNX's suite: what has a rule here, and a few of what only has a definition.
SUITE = (
    "rnn", "gru", "lstm", "scan", "loop", "if", "qlinear", "onehot", "pow", "mod", "isinf", "eyelike",
    "reversesequence", "reduce_max", "reduce_min", "resize", "upsample", "spacetodepth", "convtranspose", "dft",
    "stft", "l1normalization", "l2normalization", "lpnorm", "dropout", "training_dropout", "celu",
    "layer_normalization_2d", "group_normalization", "attention_4d_gqa", "rotary", "swish", "nllloss_NC",
    "center_crop", "hann", "blackman", "hamming", "col2im",
    "cumprod", "tensorscatter", "deform_conv", "basic_deform_conv",
)  # fmt: skip
# ONNX Runtime, which runs the result here, differs from ONNX there.
DIFFERENT = {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}


def test_replaced_operators_of_the_suite_keep_their_values() -> None:
    """Every operator with a rule or a definition that is lacking is replaced or refused, and never changed."""
    basic = {"Add", "Cast", "Concat", "Gather", "MatMul", "Mul", "Reshape", "Slice", "Where", "Resize", "Pow", "Mod"}
    verdicts = dict.fromkeys(Verdict, 0)
    for case in tensor_cases():
        plain = all(array.dtype.kind in "fiub" for array in case.inputs)  # ONNX Runtime is fed no bfloat16
        if not plain or "expanded" in case.name or not case.name.removeprefix("test_").startswith(SUITE):
            continue
        kinds = {case.operator} - basic

        def instead(proto: onnx.ModelProto, inputs: Sequence[Array], kinds: set[str] = kinds) -> list[Array]:
            try:
                graph = from_proto(proto)
            except GraphError as error:
                raise CompilerError(str(error)) from error
            found = expanded(graph, lacking(*kinds))
            for reason in found.refused.values():
                raise CompilerError(reason)
            got = run(found.graph, dict(zip([spec.name for spec in graph.inputs()], inputs, strict=True)))
            return [np.asarray(got[spec.name]) for spec in graph.outputs()]

        outcome = judge(case, instead)
        verdicts[outcome.verdict] += 1
        assert outcome.verdict is not Verdict.WRONG or case.name in DIFFERENT, (case.name, outcome.reason)
    assert verdicts[Verdict.OK] >= 196


def test_every_rule_is_of_an_operator_that_exists() -> None:
    unknown = {op_type for domain, op_type in RULES if not domain and not onnx.defs.has(op_type)}
    assert unknown == {"SimplifiedLayerNormalization"}  # ONNX Runtime's own, which it writes without a domain


# ---- recurrent layers


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_recurrent_layers_are_their_steps(data: st.DataObject) -> None:
    kind, gates, default = data.draw(st.sampled_from([("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 1)]))
    steps, batch, features, hidden = (data.draw(st.integers(1, 4)) for _ in range(4))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    random = np.random.default_rng(data.draw(st.integers(0, 99)))

    def values(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    constants = {"w": values(count, gates * hidden, features), "r": values(count, gates * hidden, hidden)}
    names = ["x", "w", "r"]
    if data.draw(st.booleans()):
        constants["b"] = values(count, 2 * gates * hidden)
    names.append("b" if "b" in constants else "")
    names.append("")
    inputs = {"x": [steps, batch, features]}
    if data.draw(st.booleans()):
        inputs["h"] = [count, batch, hidden]
    names.append("h" if "h" in inputs else "")
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if kind == "LSTM" and data.draw(st.booleans()):
        constants["p"] = values(count, 3 * hidden)
        names += ["", "p"]
    if kind == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if data.draw(st.booleans()):
        attributes["activations"] = ["Sigmoid", "Relu", "Tanh"][:default] * count
    outputs = ["y", "last", "cell"][: 3 if kind == "LSTM" else 2]
    graph = model([helper.make_node(kind, names, outputs, name="layer", **attributes)], inputs, constants, outputs)
    found = without(graph, kind)
    assert set(found.owners.values()) == {"layer"}


@pytest.mark.parametrize("scale", [np.float32(0.02), np.linspace(0.01, 0.03, 12, dtype=np.float32)])
def test_a_recurrent_layer_takes_weights_that_are_dequantised(scale: Array) -> None:
    """Of the int8 forms of speech models: the weight is a constant of int8, and so known."""
    random = np.random.default_rng(0)
    constants = {
        name: random.integers(-127, 128, (1, 12, width)).astype(np.int8) for name, width in (("qw", 4), ("qr", 3))
    }
    constants |= {"scale": np.asarray(scale), "zero": np.zeros(np.shape(scale), np.int8)}
    nodes = [
        helper.make_node("DequantizeLinear", ["qw", "scale", "zero"], ["w"], name="dw", axis=1),
        helper.make_node("DequantizeLinear", ["qr", "scale", "zero"], ["r"], name="dr", axis=1),
        helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="layer", hidden_size=3),
    ]
    found = without(model(nodes, {"x": [5, 1, 4]}, constants), "LSTM")
    assert set(found.owners.values()) == {"layer"}


@pytest.mark.parametrize(
    ("shape", "attributes", "reason"),
    [
        ([200, 1, 2], {}, "200 steps"),
        ([2, 1, 2], {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "HardSigmoid"),
    ],
)
def test_a_recurrent_layer_that_is_not_unrolled_says_why(shape: list[int], attributes: Any, reason: str) -> None:
    constants = {"w": np.zeros((1, 8, 2), np.float32), "r": np.zeros((1, 8, 2), np.float32)}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="layer", hidden_size=2, **attributes)
    refused = expanded(model([node], {"x": shape}, constants), lacking("LSTM")).refused
    assert refused["layer"].startswith("no LSTM; ")
    assert reason in refused["layer"]


# ---- control flow


def branch(op_type: str, name: str) -> onnx.GraphProto:
    node = helper.make_node(op_type, ["x"], [name])
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])])


@pytest.mark.parametrize("known", [True, False])
def test_an_if_is_its_branch_or_a_choice_of_both(*, known: bool) -> None:
    node = helper.make_node
    choice = node("If", ["c"], ["y"], name="choice", then_branch=branch("Relu", "a"), else_branch=branch("Neg", "b"))
    if known:
        found = without(model([choice], {"x": [2, 3]}, {"c": np.array(True)}), "If")
        assert [n.op_type for n in found.graph.nodes()] == ["Relu"]
        return
    before = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"])]
    found = without(model([*before, choice], {"x": [2, 3]}, {"zero": np.array(0, np.float32)}), "If")
    assert {"Relu", "Neg", "Where"} <= {n.op_type for n in found.graph.nodes()}


def test_a_loop_with_a_known_count_is_its_steps() -> None:
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Add", ["carried", "one"], ["next"]),
            node("Identity", ["going"], ["still"]),
            node("Mul", ["next", "x"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [3]),
        ],
    )  # fmt: skip
    loop = node("Loop", ["count", "go", "x"], ["last", "y"], name="loop", body=body)
    constants = {"count": np.array(4), "go": np.array(True), "one": np.array(1, np.float32)}
    found = without(model([loop], {"x": [3]}, constants, ("last", "y")), "Loop")
    assert [n.op_type for n in found.graph.nodes()].count("Mul") == 4
    refused = expanded(model([loop], {"x": [3]}, {**constants, "count": np.array(999)}), lacking("Loop")).refused
    assert "999 steps" in refused["loop"]


# ---- functions and definitions


def test_a_function_of_the_model_is_inlined() -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="local", name="call")],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    whole = from_proto(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10))
    found = without(whole, "Twice")
    assert [n.op_type for n in found.graph.nodes()] == ["Add"]
    assert set(found.owners.values()) == {"call"}


def test_what_a_definition_needs_is_replaced_in_turn_and_belongs_to_the_first_node() -> None:
    graph = model([helper.make_node("Mish", ["x"], ["y"], name="mish")], {"x": [2, 8]}, {})
    found = without(graph, "Mish", "Softplus")
    assert set(found.owners.values()) == {"mish"}


def test_an_operator_without_rule_or_definition_is_refused_with_the_backends_reason() -> None:
    graph = model([helper.make_node("Det", ["x"], ["y"], name="det")], {"x": [2, 2]}, {})
    found = expanded(graph, lacking("Det"))
    assert found.refused == {"det": "no Det"}
    assert found.graph is graph


# ---- resizing


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_resize_is_gathers_and_products(data: st.DataObject) -> None:
    shape = [1, 2, data.draw(st.integers(2, 9)), data.draw(st.integers(2, 9))]
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    coordinates = data.draw(st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = data.draw(st.sampled_from(["floor", "round_prefer_ceil", "round_prefer_floor"]))
    if mode == "cubic":
        attributes["exclude_outside"] = data.draw(st.integers(0, 1))
    if mode != "nearest" and coordinates != "align_corners":
        attributes["antialias"] = data.draw(st.integers(0, 1))
    sizes = np.array([*shape[:2], data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))])
    graph = model([helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes)], {"x": shape}, {"s": sizes})
    without(graph, "Resize")


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_ceil", "round_prefer_floor"])
@pytest.mark.parametrize(("before", "after"), [(7, 1), (14, 1), (7, 2), (14, 19), (23, 14), (36, 21), (28, 8), (9, 21)])
def test_the_nearest_element_is_the_one_that_rounding_in_float32_gives(
    coordinates: str, nearest: str, before: int, after: int
) -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes)
    without(model([node], {"x": [1, before]}, {"s": np.array([1, after])}), "Resize")


# ---- operators of ONNX Runtime


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("Gelu", [], {}),
        ("BiasGelu", [[8]], {}),
        ("FastGelu", [[8]], {}),
        ("QuickGelu", [], {"alpha": 1.5}),
        ("SkipLayerNormalization", [[2, 3, 8], [8], [8], [8]], {"epsilon": 1e-3}),
        ("SkipSimplifiedLayerNormalization", [[2, 3, 8], [8]], {"epsilon": 1e-3}),
        ("FusedMatMul", [[2, 5, 8]], {"transB": 1, "alpha": 0.5}),
        ("FusedMatMul", [[2, 3, 5]], {"transA": 1}),
    ],
)
def test_operators_of_onnx_runtimes_optimiser(
    op_type: str, shapes: list[list[int]], attributes: dict[str, Any]
) -> None:
    random = np.random.default_rng(0)
    constants = {f"c{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    node = helper.make_node(op_type, ["x", *constants], ["y"], domain="com.microsoft", name="node", **attributes)
    found = without(model([node], {"x": [2, 3, 8]}, constants, domains=["com.microsoft"]), op_type)
    assert set(found.owners.values()) == {"node"}


def test_a_fused_convolution_is_its_parts() -> None:
    random = np.random.default_rng(0)
    constants = {"w": random.standard_normal((3, 2, 3, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    node = helper.make_node(
        "FusedConv", ["x", "w", "b"], ["y"], domain="com.microsoft", name="node", activation="Relu", pads=[1] * 4
    )
    found = without(model([node], {"x": [1, 2, 5, 5]}, constants, domains=["com.microsoft"]), "FusedConv")
    assert [n.op_type for n in found.graph.nodes()] == ["Conv", "Relu"]


# ---- quantised operators in ONNX Runtime's own form


def test_quantised_operators_become_pairs_around_float_ones() -> None:
    random = np.random.default_rng(0)
    node = helper.make_node
    microsoft = "com.microsoft"
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "s", "z", "b"], ["c"], name="conv", pads=[1] * 4),
        node("QLinearAdd", ["q", "s", "z", "c", "s", "z", "s", "z"], ["a"], domain=microsoft, name="add"),
        node("QLinearSigmoid", ["a", "s", "z", "s", "z"], ["g"], domain=microsoft, name="sigmoid"),
        node("DequantizeLinear", ["g", "s", "z"], ["y"]),
    ]
    constants = {
        "s": np.array(0.05, np.float32),
        "z": np.array(120, np.uint8),
        "w": random.integers(0, 255, (4, 4, 3, 3)).astype(np.uint8),
        "ws": np.array([0.01, 0.02, 0.01, 0.03], np.float32),
        "wz": np.full(4, 128, np.uint8),
        "b": random.integers(-99, 99, 4).astype(np.int32),
    }
    graph = model(nodes, {"x": [1, 4, 6, 6]}, constants, domains=[microsoft])
    found = without(graph, "QLinearConv", "QLinearAdd", "QLinearSigmoid")
    assert {n.op_type for n in found.graph.nodes()} == {"QuantizeLinear", "DequantizeLinear", "Conv", "Add", "Sigmoid"}
    weights = [
        found.graph.constant(name) for name, spec in found.graph.initializers().items() if spec.shape == (4, 4, 3, 3)
    ]
    assert [array.dtype for array in weights] == [np.int8]


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 3], "pads": [1, 0, 2, 1]}, {"dilations": [2, 1]}])
def test_columns_become_an_image_by_gathering(attributes: dict[str, list[int]]) -> None:
    image, block = (7, 8), (2, 3)
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0] * 4)
    counts = [
        (image[i] + pads[i] + pads[i + 2] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(2)
    ]
    constants = {"image": np.array(image, np.int64), "block": np.array(block, np.int64)}
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], **attributes)
    without(model([node], {"x": [2, 3 * 6, counts[0] * counts[1]]}, constants), "Col2Im")


def no_indices(node: View) -> str | None:
    return "no indices" if node.op_type == "MaxPool" and node.wants(1) else None


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_where_the_largest_elements_lie_is_looked_up(data: st.DataObject) -> None:
    """With equal elements in a window and without, first of them in ONNX's order; padding is nobody's."""
    rank, kernel = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    per_axis = st.lists(st.integers(1, kernel), min_size=rank, max_size=rank)
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * rank, "strides": data.draw(per_axis)}
    attributes["storage_order"], attributes["ceil_mode"] = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    padding = data.draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding == "pads":
        attributes["dilations"] = data.draw(per_axis)
        pads = st.lists(st.integers(0, kernel // 2), min_size=2 * rank, max_size=2 * rank)
        attributes["pads"] = data.draw(pads)
    else:
        attributes["auto_pad"] = padding
    shape = [2, 2, *data.draw(st.lists(st.integers(7, 9), min_size=rank, max_size=rank))]
    graph = model([helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)], {"x": shape}, {}, ["y"])
    body = graph.proto()
    body.graph.output.append(helper.make_tensor_value_info("i", TensorProto.INT64, None))
    graph = from_proto(body)
    found = expanded(graph, no_indices)
    if attributes["ceil_mode"] and found.refused:
        assert all("padding alone" in reason for reason in found.refused.values())
        return
    assert found.refused == {}
    steps = data.draw(st.sampled_from([2, 1000]))
    x = np.random.default_rng(0).integers(0, steps, shape).astype(np.float32)
    expected, got = run(graph, {"x": x}), run(found.graph, {"x": x})
    np.testing.assert_array_equal(got["y"], expected["y"])
    np.testing.assert_array_equal(got["i"], expected["i"])


def test_a_pool_without_indices_has_no_replacement() -> None:
    graph = model([helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2])], {"x": [1, 1, 4]}, {})
    assert expanded(graph, lacking("MaxPool")).refused == {graph.nodes()[0].name: "no MaxPool"}


@pytest.mark.parametrize(
    ("attributes", "out"),
    [
        ({"pads": [1, 0, 2, 1]}, (8, 8)),
        ({"strides": [2, 3], "dilations": [2, 1], "group": 2}, (2, 3)),
        ({"offset_group": 2, "pads": [2, 1, 2, 1], "dilations": [2, 2]}, (8, 7)),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_deformed_convolution_is_samples_and_a_product(
    attributes: dict[str, Any], out: tuple[int, int], *, masked: bool
) -> None:
    split, group = attributes.get("offset_group", 1), attributes.get("group", 1)
    weight = np.random.default_rng(1).standard_normal((6, 4 // group, 2, 3)).astype(np.float32)
    inputs = {"x": [2, 4, 6, 9], "o": [2, split * 12, *out], "m": [2, split * 6, *out]}
    names = ["x", "w", "o", "b", "m"] if masked else ["x", "w", "o"]
    node = helper.make_node("DeformConv", names, ["y"], kernel_shape=[2, 3], **attributes)
    constants = {"w": weight, "b": weight[:, 0, 0, 0]}
    used = {name: array for name, array in constants.items() if name in names}
    without(model([node], {k: v for k, v in inputs.items() if k in names}, used, opset=19), "DeformConv")
