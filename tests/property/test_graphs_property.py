"""Laws of graphs: cuts compose to the whole, digests see all that matters, files round-trip, damage is a GraphError."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphs import Graph, GraphError, extract, from_proto, load, random_inputs, save, unused_inputs

FLOAT = TensorProto.FLOAT
info = helper.make_tensor_value_info

UNARY, BINARY = ("Relu", "Neg", "Sigmoid", "Exp", "Softmax"), ("Add", "Mul", "MatMul", "Max")


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a DAG of 4 x 4 tensors: shared and unused tensors, shared weights, an If that captures, odd orders."""
    tensors = ["x0", "x1"]
    nodes = []
    for index in range(draw(st.integers(1, 8))):
        nodes.append(draw(node(tensors, f"t{index}")))
        tensors.append(f"t{index}")
    read = {name for one in nodes for name in _reads(one)}
    ends = [name for name in tensors[2:] if name not in read]
    ends += [name for name in tensors[2:] if name in read and draw(st.booleans())]
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    weights = [numpy_helper.from_array(rng.normal(0, 0.5, (4, 4)).astype(np.float32), f"w{i}") for i in range(2)]
    graph = helper.make_graph(
        draw(st.permutations(nodes)),
        "random",
        [info(name, FLOAT, ["n", 4]) for name in ("x0", "x1")] + [info("c", TensorProto.BOOL, [])],
        [info(name, FLOAT, None) for name in ends],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _reads(one: onnx.NodeProto) -> set[str]:
    return set(one.input).union(*(set(inner.input) for a in one.attribute for inner in a.g.node))


@st.composite
def node(draw: st.DrawFn, tensors: list[str], result: str) -> onnx.NodeProto:
    operands = st.sampled_from([*tensors, "w0", "w1"])
    kind = draw(st.sampled_from(["unary", "binary", "clip", "if"]))
    name = draw(st.sampled_from(["", f"node {result}"]))
    if kind == "unary":
        return helper.make_node(draw(st.sampled_from(UNARY)), [draw(operands)], [result], name=name)
    if kind == "binary":
        return helper.make_node(draw(st.sampled_from(BINARY)), [draw(operands), draw(operands)], [result], name=name)
    if kind == "clip":
        return helper.make_node("Clip", [draw(operands), "", ""], [result], name=name)
    branches = [
        helper.make_graph(
            [helper.make_node("Add", [draw(operands), draw(operands)], [f"{result}_{side}"])],
            side,
            [],
            [info(f"{result}_{side}", FLOAT, None)],
        )
        for side in ("then", "else")
    ]
    return helper.make_node("If", ["c"], [result], name=name, then_branch=branches[0], else_branch=branches[1])


def build(model: onnx.ModelProto) -> Graph:
    return from_proto(model, bind={"n": 4})


def run(graph: Graph, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    content = graph.proto().SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in graph.outputs()]
    return dict(zip(names, session.run(names, {s.name: tensors[s.name] for s in graph.inputs()}), strict=True))


@settings(max_examples=60, deadline=None)
@given(models(), st.data())
def test_front_and_back_compute_what_the_whole_does(model: onnx.ModelProto, data: st.DataObject) -> None:
    graph = build(model)
    names = [node.name for node in graph.nodes()]
    cut = data.draw(st.integers(0, len(names)))
    tensors = random_inputs(graph, 0)
    whole = run(graph, tensors)
    for part in (names[:cut], names[cut:]):
        if part:
            piece = extract(graph, data.draw(st.permutations(part)))
            onnx.checker.check_model(piece.proto(), full_check=True)
            assert not unused_inputs(piece)
            tensors |= run(piece, tensors)
    for name, values in whole.items():
        assert np.array_equal(values, tensors[name], equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(models(), st.data())
def test_any_part_runs_or_is_refused(model: onnx.ModelProto, data: st.DataObject) -> None:
    """What is refused has a path that leaves and comes back, and only that."""
    graph = build(model)
    part = data.draw(st.sets(st.sampled_from([node.name for node in graph.nodes()]), min_size=1))
    try:
        piece = extract(graph, part)
    except GraphError:
        assert leaves_and_returns(graph, part)
        return
    assert not leaves_and_returns(graph, part)
    feed = {spec.name: np.ones(spec.shape, spec.dtype) for spec in piece.inputs()}
    assert run(piece, feed).keys() == {spec.name for spec in piece.outputs()}
    assert build_again(piece) == piece


def build_again(graph: Graph) -> Graph:
    return from_proto(graph.proto())


def leaves_and_returns(graph: Graph, part: set[str]) -> bool:
    """Decide convexity the slow way: reachability between all pairs of nodes."""
    nodes = graph.nodes()
    feeds = {a.name: {b.name for b in nodes if set(a.outputs) & set(b.reads)} for a in nodes}
    reach = {name: set(after) for name, after in feeds.items()}
    for _ in nodes:
        for after in reach.values():
            after.update(*(reach[name] for name in list(after)))
    outside = {node.name for node in nodes} - part
    return any(reach[name] & part and any(name in reach[inner] for inner in part) for name in outside)


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(0, 1), st.integers(0, 16 * 32 - 1))
def test_digest_sees_every_bit_of_a_used_weight(model: onnx.ModelProto, which: int, bit: int) -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    raw = bytearray(changed.graph.initializer[which].raw_data)
    raw[bit // 8] ^= 1 << bit % 8
    changed.graph.initializer[which].raw_data = bytes(raw)
    assert build(changed).digest != build(model).digest
    assert build(model).digest == build(model).digest


@settings(max_examples=60, deadline=None)
@given(models(), st.text(max_size=8), st.integers(1, 5))
def test_digest_ignores_stories_and_sees_bindings(model: onnx.ModelProto, story: str, size: int) -> None:
    told = onnx.ModelProto()
    told.CopyFrom(model)
    told.producer_name = told.doc_string = told.graph.doc_string = told.graph.name = story
    for one in told.graph.node:
        one.doc_string = story
    assert build(told).digest == build(model).digest
    try:
        other = from_proto(model, bind={"n": size})
    except GraphError:  # a drawn product of two inputs needs n = 4
        return
    assert (other == build(model)) == (size == 4)


@settings(max_examples=40, deadline=None)
@given(models(), st.booleans())
def test_files_round_trip(model: onnx.ModelProto, apart: bool) -> None:
    graph = build(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if apart:
            held = Path(folder) / "held.onnx"
            onnx.save(graph.proto(), str(held), save_as_external_data=True, location="held.bin", size_threshold=0)
            assert load(held) == graph
            save(load(held), path)
        else:
            save(graph, path)
        again = load(path)
        assert again == graph
        assert again.nodes() == graph.nodes()
        assert again.tensors() == graph.tensors()
        assert again.name == "model"


def real_file() -> bytes:
    """Return a file with a bit of everything: weights, branches, quantisation, shape operands."""
    rng = np.random.default_rng(0)

    def tensor(name: str, values: np.ndarray) -> TensorProto:
        return numpy_helper.from_array(values, name)

    then = helper.make_graph([helper.make_node("Relu", ["f"], ["p"])], "t", [], [info("p", FLOAT, None)])
    other = helper.make_graph([helper.make_node("Exp", ["f"], ["q"])], "e", [], [info("q", FLOAT, None)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Gemm", ["r", "dense"], ["f"], transB=1),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("QuantizeLinear", ["y", "scale", "zero"], ["z"]),
        helper.make_node("DequantizeLinear", ["z", "scale", "zero"], ["out"]),
        helper.make_node("Einsum", ["out", "out"], ["e"], equation="ij,kj->ik"),
    ]
    constants = [
        tensor("w", rng.normal(size=(4, 3, 3, 3)).astype(np.float32)),
        tensor("dense", rng.normal(size=(5, 16)).astype(np.float32)),
        tensor("shape", np.array([1, -1])),
        tensor("scale", np.array(0.1, np.float32)),
        tensor("zero", np.array(3, np.uint8)),
    ]
    inputs = [info("x", FLOAT, [1, 3, 8, 8]), info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [info("e", FLOAT, [1, 1])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


FILE = real_file()


def read(content: bytes) -> Graph | None:
    """Load bytes as a file; anything but a graph or a GraphError fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(content)
        try:
            return load(path)
        except GraphError as error:
            one_sentence = "\n" not in str(error)
    assert one_sentence
    return None


def test_the_undamaged_file_loads() -> None:
    assert read(FILE) is not None


FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(st.integers(0, len(FILE) - 1))
def test_truncated_files_give_a_graph_error(length: int) -> None:
    read(FILE[:length])


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(1, 255)), min_size=1, max_size=3))
@example([(250, 24)])  # a tensor's name got a line's end in it
def test_flipped_bits_give_a_graph_or_a_graph_error(flips: list[tuple[int, int]]) -> None:
    content = bytearray(FILE)
    for position, mask in flips:
        content[position] ^= mask
    read(bytes(content))


@FUZZ
@given(st.integers(0, len(FILE) - 1), st.binary(max_size=12), st.integers(0, 12))
def test_spliced_files_give_a_graph_or_a_graph_error(position: int, inserted: bytes, removed: int) -> None:
    read(FILE[:position] + inserted + FILE[position + removed :])


@FUZZ
@given(st.binary(max_size=64))
def test_any_bytes_give_a_graph_error(content: bytes) -> None:
    read(content)


NUMBERS = st.sampled_from([0, -1, 1, 2, 2**31, 2**63 - 1, -(2**63)])


@FUZZ
@given(st.data())
def test_wrong_numbers_in_a_well_formed_file_give_a_graph_or_a_graph_error(data: st.DataObject) -> None:
    """Flipped bits seldom reach these: dimensions, attributes and types that parse and mean nonsense."""
    model = onnx.ModelProto.FromString(FILE)
    for _ in range(data.draw(st.integers(1, 3))):
        attributes = [one for node in model.graph.node for one in node.attribute]
        shapes = [one.type.tensor_type.shape.dim for one in [*model.graph.input, *model.graph.output]]
        kind = data.draw(st.sampled_from(["attribute", "weight", "dtype", "input"]))
        number = data.draw(NUMBERS)
        if kind == "attribute":
            one = data.draw(st.sampled_from(attributes))
            one.i = number
            one.ints[:] = [number for _ in one.ints]
        elif kind == "input":
            dims = data.draw(st.sampled_from([dims for dims in shapes if dims]))
            data.draw(st.sampled_from(list(dims))).dim_value = number
        else:
            tensor = data.draw(st.sampled_from(list(model.graph.initializer)))
            if kind == "weight":
                tensor.dims[:] = [number for _ in tensor.dims]
            else:
                tensor.data_type = number % 2**31
    read(model.SerializeToString())
