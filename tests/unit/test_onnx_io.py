"""Reading, checking, binding, shaping and writing ONNX files, and every kind of bad file."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import GraphError, from_proto, load, save
from graphs.graph import DTYPES
from graphs.onnx_io import _SMALLEST_EXTERNAL_BYTES

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
info = helper.make_tensor_value_info

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from graphs import Graph


def make(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
    *,
    opset: int = 17,
    ir: int = 8,
    functions: Iterable[onnx.FunctionProto] = (),
    domains: Iterable[str] = (),
    **extra: Any,
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers), **extra)
    return helper.make_model(graph, opset_imports=imports, ir_version=ir, functions=list(functions))


def weight(name: str, *shape: int, seed: int = 0) -> TensorProto:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def product(*, rows: int | str = 2, inner: int = 3) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return make([node], [info("x", FLOAT, [rows, inner])], [info("y", FLOAT, None)], [weight("w", 3, 400)])


def write(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def shapes(graph: Graph) -> dict[str, tuple[int, ...] | None]:
    return {name: spec.shape for name, spec in graph.tensors().items()}


# ---- what is taken


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21, onnx.defs.onnx_opset_version()])
def test_opsets_from_7_up_are_read(opset: int) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    graph = from_proto(make([relu], [info("x", FLOAT, [1])], [info("y", FLOAT, [1])], opset=opset, ir=3))
    assert graph.opset == opset


def test_initialisers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    model = product()
    model.ir_version = 3
    model.graph.input.append(info("w", FLOAT, [3, 400]))
    graph = load(write(model, tmp_path / "old.onnx"))
    assert [spec.name for spec in graph.inputs()] == ["x"]
    assert list(graph.initializers()) == ["w"]
    onnx.checker.check_model(graph.proto(), full_check=True)


def test_typed_and_raw_initialisers_are_the_same() -> None:
    raw, typed = product(), product()
    tensor = typed.graph.initializer[0]
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(helper.make_tensor("w", FLOAT, values.shape, values.ravel()))
    assert not tensor.HasField("raw_data")
    assert from_proto(raw) == from_proto(typed)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "bfloat16", "float8_e4m3fn", "int8", "bool", "string"])
def test_constants_of_every_width_keep_their_values(dtype: str, tmp_path: Path) -> None:
    number = next(key for key, name in DTYPES.items() if name == dtype)
    values = [b"ab", b"", b"c"] if dtype == "string" else [1, 0, 1]
    constant = helper.make_tensor("c", number, [3], values)
    node = helper.make_node("Identity", ["c"], ["y"])
    graph = from_proto(make([node], [], [info("y", number, [3])], [constant], opset=21, ir=10))
    save(graph, tmp_path / "c.onnx")
    again = load(tmp_path / "c.onnx")
    assert again == graph
    expected = ["ab", "", "c"] if dtype == "string" else [1, 0, 1]
    assert again.constant("c").astype(object if dtype == "string" else np.float32).tolist() == expected


def test_sparse_initialisers_become_dense() -> None:
    values = helper.make_tensor("w", FLOAT, [2], [5.0, 7.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("at", INT64, [2, 2], [0, 1, 2, 0]), [3, 2])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = make([node], [info("x", FLOAT, [1, 3])], [info("y", FLOAT, None)])
    model.graph.sparse_initializer.append(sparse)
    graph = from_proto(model)
    assert graph.constant("w").tolist() == [[0, 5], [0, 0], [7, 0]]
    assert graph.nodes()[0].weight_bytes == 24


def test_constant_nodes_become_constants() -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], value=weight("anything", 4)),
        helper.make_node("Constant", [], ["n"], value_ints=[2, 2]),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Reshape", ["a", "n"], ["y"]),
    ]
    graph = from_proto(make(nodes, [info("x", FLOAT, [4])], [info("y", FLOAT, None)]))
    assert [node.op_type for node in graph.nodes()] == ["Add", "Reshape"]
    assert list(graph.initializers()) == ["c", "n"]
    assert shapes(graph)["y"] == (2, 2)


def test_unnamed_nodes_get_stable_unique_names() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="Relu_c"),
        helper.make_node("Relu", ["b"], ["c"]),
    ]
    one = from_proto(make(nodes, [info("x", FLOAT, [1])], [info("c", FLOAT, [1])]))
    assert [node.name for node in one.nodes()] == ["Relu_a", "Relu_c", "Relu_c_2"]
    assert from_proto(one.proto()) == one


def test_unsorted_nodes_are_sorted_and_sorted_ones_stay() -> None:
    nodes = [helper.make_node("Relu", ["b"], ["y"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node("Relu", ["x"], ["a"])]
    graph = from_proto(make(nodes, [info("x", FLOAT, [1])], [info("y", FLOAT, [1])]))
    assert [node.outputs[0] for node in graph.nodes()] == ["a", "b", "y"]


def branch(name: str, op_type: str, captured: str) -> onnx.GraphProto:
    node = helper.make_node(op_type, [captured], [f"{name}_out"])
    return helper.make_graph([node], name, [], [info(f"{name}_out", FLOAT, None)])


def conditional(**kwargs: Any) -> onnx.ModelProto:
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch("t", "Relu", "a"),
                         else_branch=branch("e", "Exp", "a")),
        helper.make_node("Neg", ["x"], ["a"], name="early"),
    ]  # fmt: skip
    inputs = [info("x", FLOAT, [2, 2]), info("c", TensorProto.BOOL, [])]
    return make(nodes, inputs, [info("y", FLOAT, None)], **kwargs)


def test_captured_values_order_the_nodes() -> None:
    graph = from_proto(conditional())
    assert [node.name for node in graph.nodes()] == ["early", "choice"]
    assert graph.nodes()[1].captured == ("a",)
    assert shapes(graph)["y"] == (2, 2)


def test_model_local_functions_are_read_and_counted() -> None:
    body = [helper.make_node("MatMul", ["p", "q"], ["r"]), helper.make_node("Relu", ["r"], ["s"])]
    function = helper.make_function("mine", "Dense", ["p", "q"], ["s"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("Dense", ["x", "w"], ["y"], domain="mine")
    model = make([call], [info("x", FLOAT, [2, 3])], [info("y", FLOAT, None)], [weight("w", 3, 400)],
                 functions=[function], domains=["mine"])  # fmt: skip
    graph = from_proto(model)
    node = graph.nodes()[0]
    assert shapes(graph)["y"] == (2, 400)
    assert (node.macs, node.elementwise, node.weight_bytes) == (2400, 800, 4800)


# ---- shapes


def test_symbols_are_bound_by_name_and_by_place() -> None:
    model = product(rows="batch")
    assert shapes(from_proto(model, bind={"batch": 7}))["y"] == (7, 400)
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert shapes(from_proto(model, bind={"x.0": 7}))["y"] == (7, 400)


def test_what_exporters_write_for_any_size_is_bound_by_place() -> None:
    for blank in ("?", -1):
        model = product(rows=blank)
        model.graph.input.append(info("other", FLOAT, [blank]))
        graph = from_proto(model, bind={"x.0": 7, "other.0": 2})
        assert shapes(graph) == {"x": (7, 3), "other": (2,), "y": (7, 400)}


def test_stale_shapes_of_the_file_do_not_survive_binding() -> None:
    model = product(rows="batch")
    model.graph.output[0].CopyFrom(info("y", FLOAT, [1, 400]))
    assert from_proto(model, bind={"batch": 3}).outputs()[0].shape == (3, 400)


def test_shape_arithmetic_is_folded() -> None:
    """A chain that onnx's own data propagation does not follow: scale the size in float, round, and back."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "half"], ["h"]),
        helper.make_node("Floor", ["h"], ["r"]),
        helper.make_node("Cast", ["r"], ["n"], to=INT64),
        helper.make_node("ConstantOfShape", ["n"], ["y"]),
    ]
    half = helper.make_tensor("half", FLOAT, [2], [0.5, 0.5])
    graph = from_proto(make(nodes, [info("x", FLOAT, [5, 8])], [info("y", FLOAT, None)], [half]))
    assert shapes(graph)["y"] == (2, 4)
    assert [node.op_type for node in graph.nodes()] == [node.op_type for node in nodes]


def same_size_or_not(*, rows: int) -> onnx.ModelProto:
    """Squeeze the last axis of a Relu if there is one value on it, as PyTorch's squeeze(-1) is exported."""
    squeezed = helper.make_node("Squeeze", ["a", "last"], ["then_out"])
    then_branch = helper.make_graph([squeezed], "then", [], [info("then_out", FLOAT, None)])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "last"], ["n"]),
        helper.make_node("Equal", ["n", "one"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then_branch, else_branch=branch("else", "Exp", "a")),
    ]
    numbers = [helper.make_tensor("last", INT64, [1], [-1]), helper.make_tensor("one", INT64, [1], [1])]
    return make(nodes, [info("x", FLOAT, [4, rows])], [info("y", FLOAT, None)], numbers)


@pytest.mark.parametrize(("rows", "shape", "elementwise"), [(1, (4,), 0), (2, (4, 2), 8)])
def test_a_branch_that_shapes_decide_gives_the_shape_and_the_work(
    rows: int, shape: tuple[int, ...], elementwise: int
) -> None:
    graph = from_proto(same_size_or_not(rows=rows))
    assert graph.outputs()[0].shape == shape
    assert graph.nodes()[-1].elementwise == elementwise
    assert len(graph.proto().graph.node[-1].attribute) == 2  # the model itself keeps both branches
    assert graph.uncosted_nodes() == {}


def test_shape_arithmetic_inside_bodies_is_folded() -> None:
    inner = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "two"], ["d"]),
        helper.make_node("Cast", ["d"], ["n"], to=INT64),
        helper.make_node("Expand", ["v", "n"], ["then_out"]),
    ]
    then_branch = helper.make_graph(inner, "then", [], [info("then_out", FLOAT, None)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then_branch, else_branch=branch("else", "Exp", "w"))
    numbers = [helper.make_tensor("two", FLOAT, [], [2]), weight("v", 1, 1), weight("w", 6, 8)]
    graph = from_proto(make([node], [info("x", FLOAT, [3, 4]), info("c", TensorProto.BOOL, [])],
                            [info("y", FLOAT, None)], numbers))  # fmt: skip
    assert graph.outputs()[0].shape == (6, 8)


def test_a_declared_rank_is_kept_where_no_inference_reaches() -> None:
    node = helper.make_node("Odd", ["x"], ["y"], domain="com.microsoft")
    model = make([node], [info("x", FLOAT, [2, 3])], [info("y", FLOAT, ["some", 7])], domains=["com.microsoft"])
    graph = from_proto(model)
    assert graph.outputs()[0].shape is None
    assert len(graph.proto().graph.output[0].type.tensor_type.shape.dim) == 2


def test_contributed_operators_get_shapes_from_symbolic_inference() -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Relu", ["a"], ["y"])]
    graph = from_proto(make(nodes, [info("x", FLOAT, [2, 3])], [info("y", FLOAT, None)], domains=["com.microsoft"]))
    assert shapes(graph) == {"x": (2, 3), "a": (2, 3), "y": (2, 3)}


@pytest.mark.parametrize("op_type", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_operators_of_the_runtime_in_the_default_domain_are_read(op_type: str) -> None:
    """The transformer optimiser of onnxruntime writes them into models of older opsets."""
    nodes = [helper.make_node(op_type, ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = make(nodes, [info("x", FLOAT, [2, 4])], [info("y", FLOAT, None)], [weight("w", 4)], opset=13)
    graph = from_proto(model)
    assert shapes(graph) == {"x": (2, 4), "a": (2, 4), "y": (2, 4)}
    assert graph.uncosted_nodes() == {}
    assert graph.proto().graph.node[0].domain == ""


def test_declared_shapes_are_used_where_no_inference_reaches() -> None:
    nodes = [helper.make_node("Odd", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Relu", ["a"], ["y"])]
    model = make(nodes, [info("x", FLOAT, [2, 3])], [info("y", FLOAT, None)], domains=["com.microsoft"],
                 value_info=[info("a", FLOAT, [9])])  # fmt: skip
    assert shapes(from_proto(model)) == {"x": (2, 3), "a": (9,), "y": (9,)}


def test_data_dependent_shapes_stay_unknown_and_are_reported() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=FLOAT)]
    graph = from_proto(make(nodes, [info("x", FLOAT, [4])], [info("y", FLOAT, None)]))
    assert shapes(graph) == {"x": (4,), "n": None, "y": None}
    assert graph.nodes()[1].elementwise is None
    assert "the size of 'n'" in graph.uncosted_nodes()["Cast_y"]


# ---- external data


def external(folder: Path, name: str = "m") -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(product(), str(path), save_as_external_data=True, location=f"{name}.bin", size_threshold=0)
    return path


def test_external_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    graph = load(external(tmp_path))
    assert graph == from_proto(product())
    owner = graph.constant("w")
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner.obj, mmap.mmap)
    assert graph.base_dir == tmp_path
    assert graph.proto().graph.initializer[0].external_data


def test_external_models_are_saved_external_and_stand_alone(tmp_path: Path) -> None:
    graph = load(external(tmp_path))
    (tmp_path / "copy").mkdir()
    save(graph, tmp_path / "copy" / "m.onnx")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["m.onnx", "m.onnx.data"]
    (tmp_path / "m.bin").unlink()
    assert load(tmp_path / "copy" / "m.onnx") == graph
    stored = onnx.load(str(tmp_path / "copy" / "m.onnx"))
    onnx.checker.check_model(stored, full_check=True)
    assert np.array_equal(numpy_helper.to_array(stored.graph.initializer[0]), graph.constant("w"))


def test_saving_over_the_own_file_keeps_what_is_loaded(tmp_path: Path) -> None:
    path = external(tmp_path)
    first = load(path)
    save(first, path)
    again = load(path)
    save(again, path)
    assert again == first == load(path)


def test_external_tensors_inside_nodes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = make([helper.make_node("Constant", [], ["c"], value=weight("v", 400))], [], [info("c", FLOAT, [400])])
    onnx.save(model, str(path), save_as_external_data=True, location="m.bin", size_threshold=0, convert_attribute=True)
    assert load(path).constant("c").shape == (400,)


def test_large_models_are_saved_external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphs.onnx_io._LARGEST_INLINE_BYTES", 1000)
    graph = from_proto(product())
    save(graph, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 4800 > _SMALLEST_EXTERNAL_BYTES
    assert load(tmp_path / "m.onnx") == graph


@pytest.mark.parametrize("stated", [[2, 4], [2, None], [9, 9], None])
def test_an_output_that_no_node_makes_has_the_shape_of_what_it_is(stated: list[int | None] | None) -> None:
    x, k = helper.make_tensor_value_info("x", FLOAT, [2, 4]), numpy_helper.from_array(np.ones((3, 1), np.float32), "k")
    outputs = [helper.make_tensor_value_info(name, FLOAT, stated) for name in ("x", "k", "y")]
    outputs[2] = helper.make_tensor_value_info("y", FLOAT, [2, 4])
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = from_proto(make(nodes, [x], outputs, [k]))
    assert [spec.shape for spec in graph.outputs()] == [(2, 4), (3, 1), (2, 4)]
    assert [spec.shape for spec in graph.inputs()] == [(2, 4)]
    assert from_proto(graph.proto()) == graph


# ---- saving


def test_saved_files_are_plain_onnx(tmp_path: Path) -> None:
    graph = from_proto(product())
    save(graph, tmp_path / "m.onnx")
    stored = onnx.load(str(tmp_path / "m.onnx"))
    onnx.checker.check_model(stored, full_check=True)
    assert stored == graph.proto()
    (tmp_path / "other").touch()
    assert (tmp_path / "m.onnx").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    monkeypatch.setattr("graphs.onnx_io.write_model", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        save(from_proto(product()), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        save(from_proto(product()), tmp_path / "nowhere" / "m.onnx")


# ---- bad files


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.onnx"):
        with pytest.raises(GraphError, match="is not a file"):
            load(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip", b"<html></html>", b"\0" * 64, b"not a model at all"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(GraphError):
        load(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    content = product().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(GraphError, match=r"m\.onnx is cut off"):
        load(path)


def without(model: onnx.ModelProto, field: str) -> onnx.ModelProto:
    del getattr(model.graph, field)[:]
    return model


def renamed(model: onnx.ModelProto, **names: str) -> onnx.ModelProto:
    node = model.graph.node[0]
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    return model


def relus(*edges: tuple[str, str], names: tuple[str, ...] = ()) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [a], [b], name=name)
             for (a, b), name in zip(edges, names or [""] * len(edges), strict=True)]  # fmt: skip
    return make(nodes, [info("x", FLOAT, [1])], [info("y", FLOAT, [1])])


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.initializer.append(model.graph.initializer[0])
    return model


def with_weight(model: onnx.ModelProto, **fields: Any) -> onnx.ModelProto:
    tensor = model.graph.initializer[0]
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return model


def test_an_output_that_no_node_makes_has_the_type_of_the_input_or_the_constant() -> None:
    outputs = [info("y", FLOAT, [2, 2]), info("x", FLOAT, ["n", 2]), info("w", FLOAT, None)]
    constants = [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")]
    model = make([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", FLOAT, [2, 2])], outputs, constants)
    graph = from_proto(model)
    assert [spec.shape for spec in graph.outputs()] == [(2, 2)] * 3
    assert graph.inputs()[0].shape == (2, 2)
    onnx.checker.check_model(graph.proto(), full_check=True)


BAD = {
    "output twice": (
        lambda: make([helper.make_node("Relu", ["x"], ["y"])], [info("x", FLOAT, [1])], [info("y", FLOAT, [1])] * 2),
        "has the output 'y' twice: remove one",
    ),
    "no outputs": (lambda: without(product(), "output"), "has no outputs"),
    "unbound": (lambda: product(rows="batch"), "dimension\\(s\\) batch have no size.*`--bind batch=1`"),
    "dangling": (lambda: renamed(product(), w="v"), "reads 'v', which nothing makes"),
    "output unmade": (lambda: renamed(product(), y="z"), "output 'y' is made by no node"),
    "cycle": (lambda: relus(("y", "a"), ("a", "b"), ("b", "y")), "cycle: node 'a'.* -> node 'b'.* -> node 'y'.* -> "),
    "duplicate tensor": (lambda: relus(("x", "y"), ("x", "y")), "'y' is defined twice"),
    "duplicate node": (lambda: relus(("x", "a"), ("a", "y"), names=("n", "n")), "two nodes are named 'n'"),
    "duplicate initialiser": (lambda: doubled(product()), "two initialisers named 'w'"),
    "old opset": (lambda: make([], [], [info("y", FLOAT, [1])], opset=6), "opset 6, but 7 to"),
    "new opset": (lambda: make([], [], [info("y", FLOAT, [1])], opset=999), "opset 999, but 7 to"),
    "old ir": (lambda: make([], [], [info("y", FLOAT, [1])], ir=2), "IR version is 2"),
    "new ir": (lambda: make([], [], [info("y", FLOAT, [1])], ir=99), "IR version is 99"),
    "unknown domain": (
        lambda: make([helper.make_node("Foo", ["x"], ["y"], domain="acme")], [info("x", FLOAT, [1])],
                     [info("y", FLOAT, [1])], domains=["acme"]),
        "node 'y' \\(Foo\\) is of the unknown operator domain 'acme'",
    ),
    "domain not imported": (
        lambda: make([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], [info("x", FLOAT, [1])],
                     [info("y", FLOAT, [1])]),
        "'com.microsoft', which the model does not import",
    ),
    "unknown operator": (
        lambda: make([helper.make_node("Foo", ["x"], ["y"])], [info("x", FLOAT, [1])], [info("y", FLOAT, [1])]),
        "Foo",
    ),
    "wrong dtypes": (
        lambda: make([helper.make_node("Add", ["x", "i"], ["y"])],
                     [info("x", FLOAT, [1]), info("i", INT64, [1])], [info("y", FLOAT, [1])]),
        "contradict each other",
    ),
    "wrong shapes": (lambda: product(inner=5), "contradict each other: .*Incompatible dimensions"),
    "undefined dtype": (lambda: with_weight(product(), data_type=99), "'w' has no valid dtype"),
    "weight too small": (lambda: with_weight(product(), dims=[3, 401]), "'w' holds 4800 bytes .* need 4812"),
    "negative weight shape": (lambda: with_weight(product(), dims=[-3, -400]), "'w' has the impossible shape"),
    "zero input": (lambda: product(rows=0), "input 'x' has a zero dimension"),
    "negative input": (lambda: product(rows=-2), "input 'x' has a negative dimension"),
    "huge input": (
        lambda: make([helper.make_node("Relu", ["x"], ["y"])], [info("x", FLOAT, [2**40, 2**40])],
                     [info("y", FLOAT, None)]),
        "impossible shape",
    ),
    "input without shape": (
        lambda: make([helper.make_node("Relu", ["x"], ["y"])], [info("x", FLOAT, None)], [info("y", FLOAT, None)]),
        "input 'x' has no shape at all",
    ),
    "sequence input": (
        lambda: make([helper.make_node("SequenceLength", ["x"], ["y"])],
                     [helper.make_tensor_sequence_value_info("x", FLOAT, [1])], [info("y", INT64, [])]),
        "only models whose inputs are tensors",
    ),
    "empty model": (onnx.ModelProto, "has no graph"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_models_are_refused_with_one_sentence(case: Any, tmp_path: Path) -> None:
    build, message = BAD[case]
    path = tmp_path / "m.onnx"
    path.write_bytes(build().SerializeToString() or b"\x08\x08")
    for read in (lambda: load(path), lambda: from_proto(build())):
        with pytest.raises(GraphError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_bindings_that_do_not_exist_are_refused() -> None:
    model = product(rows="batch")
    with pytest.raises(GraphError, match="no dimension 'bach' to bind: its symbols are batch, did you mean 'batch'"):
        from_proto(model, bind={"bach": 1})
    with pytest.raises(GraphError, match="cannot be bound to 0"):
        from_proto(model, bind={"batch": 0})
    with pytest.raises(GraphError, match="it has no symbolic dimensions"):
        from_proto(product(), bind={"batch": 1})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("location", "../m.bin", "outside the model's folder"),
        ("location", "/etc/passwd", "outside the model's folder"),
        ("location", "C:\\m.bin", "outside the model's folder"),
        ("location", "a\\..\\..\\m.bin", "outside the model's folder"),
        ("location", "", "outside the model's folder"),
        ("location", "absent.bin", "absent.bin, which cannot be read"),
        ("length", "12", "needs 4800 bytes but its external data states 12"),
        ("offset", "4", "needs bytes 4 to 4804"),
        ("offset", "-4", "is no number"),
        ("offset", "9" * 30, "is no number"),
    ],
)
def test_external_data_that_cannot_be_trusted_is_refused(key: str, value: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = external(tmp_path / "inner")
    (tmp_path / "m.bin").write_bytes(b"\0" * 4800)
    model = onnx.load(str(path), load_external_data=False)
    entries = model.graph.initializer[0].external_data
    for entry in [entry for entry in entries if entry.key == key]:
        entries.remove(entry)
    entries.add(key=key, value=value)
    write(model, path)
    with pytest.raises(GraphError, match=message):
        load(path)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = external(tmp_path / "inner")
    (tmp_path / "inner" / "m.bin").rename(tmp_path / "m.bin")
    (tmp_path / "inner" / "m.bin").symlink_to(tmp_path / "m.bin")
    with pytest.raises(GraphError, match=r"a link to outside the model's folder .*cp -L"):
        load(path)


def cache(folder: Path) -> Path:
    """Lay a model out as Hugging Face's cache does: `snapshots/REVISION/NAME` is a link to `blobs/SHA256`."""
    for name in ("blobs", "snapshots/abc/onnx"):
        (folder / name).mkdir(parents=True)
    external(folder)
    for name in ("m.onnx", "m.bin"):
        (folder / name).rename(folder / "blobs" / f"sha-of-{name}")
        (folder / "snapshots/abc/onnx" / name).symlink_to(f"../../../blobs/sha-of-{name}")
    return folder / "snapshots/abc/onnx/m.onnx"


def test_a_model_in_a_cache_of_links_is_read(tmp_path: Path) -> None:
    graph = load(cache(tmp_path))
    assert graph == from_proto(product())
    save(graph, tmp_path / "copy.onnx")
    assert load(tmp_path / "copy.onnx") == graph


def test_a_linked_model_does_not_open_other_folders(tmp_path: Path) -> None:
    path = cache(tmp_path)
    (tmp_path / "secret").write_bytes(b"\0" * 4800)
    (path.parent / "m.bin").unlink()
    (path.parent / "m.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(GraphError, match="a link to outside"):
        load(path)


def test_external_data_without_a_folder_is_refused(tmp_path: Path) -> None:
    model = onnx.load(str(external(tmp_path)), load_external_data=False)
    with pytest.raises(GraphError, match="pass `base_dir`"):
        from_proto(model)
    assert from_proto(model, base_dir=tmp_path) == from_proto(product())
