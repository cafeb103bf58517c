"""Graph, Node and TensorSpec as values: identity, immutability, what they list."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphs
from graphs import GraphError, TensorSpec, from_proto, random_inputs


def model(*, weight: float = 1.0, doc: str = "", axis: int = 1, batch: int | str = 2) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product", doc_string=doc),
        helper.make_node("Softmax", ["a"], ["y"], name="soft", axis=axis),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.full((3, 4), weight, np.float32), "w")],
        doc_string=doc,
    )
    return helper.make_model(graph, producer_name=doc or "test", opset_imports=[helper.make_opsetid("", 17)])


def test_import_is_cheap_and_loads_no_heavy_package() -> None:
    code = (
        "import sys, graphs\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'google.protobuf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_no_module_takes_the_name_of_what_the_front_door_offers() -> None:
    """Importing a module binds its name in the package, over a function of that name."""
    modules = {module.name for module in pkgutil.iter_modules(graphs.__path__)}
    assert modules & set(graphs.__all__) == {"zoo"}  # which is offered as a module


def test_front_door_names_what_it_lacks() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = graphs.nothing


def test_nodes_tensors_and_constants_are_listed() -> None:
    graph = from_proto(model())
    assert [node.name for node in graph.nodes()] == ["product", "soft"]
    assert graph.inputs() == (TensorSpec(name="x", shape=(2, 3), dtype="float32"),)
    assert graph.outputs() == (TensorSpec(name="y", shape=(2, 4), dtype="float32"),)
    assert list(graph.tensors()) == ["x", "a", "y"]
    assert graph.initializers() == {"w": TensorSpec(name="w", shape=(3, 4), dtype="float32")}
    assert graph.name == "small"
    assert (graph.opset, graph.base_dir) == (17, None)
    assert (graph.macs, graph.weight_bytes, graph.parameters) == (24, 48, 12)
    assert graph.uncosted_nodes() == {}


def test_constant_values_cannot_be_changed() -> None:
    graph = from_proto(model())
    with pytest.raises(ValueError, match="read-only"):
        graph.constant("w")[0, 0] = 7
    with pytest.raises(GraphError, match="no constant 'v'"):
        graph.constant("v")


def test_proto_is_a_copy_with_shapes() -> None:
    graph = from_proto(model())
    copy = graph.proto()
    onnx.checker.check_model(copy, full_check=True)
    assert [info.name for info in copy.graph.value_info] == ["a"]
    del copy.graph.node[:]
    assert len(graph.proto().graph.node) == 2


def test_the_given_proto_is_neither_kept_nor_changed() -> None:
    given = model(batch="N")
    before = given.SerializeToString()
    graph = from_proto(given, bind={"N": 5})
    assert given.SerializeToString() == before
    digest = graph.digest
    given.graph.node[1].attribute[0].i = 0
    assert from_proto(given, bind={"N": 5}).digest != digest
    assert graph.proto().graph.node[1].attribute[0].i == 1


def test_documentation_and_producer_are_not_identity() -> None:
    assert from_proto(model(doc="a long story")) == from_proto(model())
    assert hash(from_proto(model(doc="a long story"))) == hash(from_proto(model()))


@pytest.mark.parametrize("change", [{"weight": 1.0000001}, {"axis": 0}, {"batch": 3}])
def test_weights_attributes_and_shapes_are_identity(change: dict[str, Any]) -> None:
    assert from_proto(model(**change)) != from_proto(model())


def test_binding_is_identity() -> None:
    one, two = (from_proto(model(batch="N"), bind={"N": size}) for size in (1, 2))
    assert one != two
    assert two == from_proto(model())


def test_graph_differs_from_other_things() -> None:
    assert from_proto(model()) != "small"
    assert repr(from_proto(model())) == "<Graph small: 2 nodes>"


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((2, 3), "float32", 24),
        ((), "float16", 2),
        ((3,), "int4", 2),
        ((5,), "uint2", 2),
        ((3,), "float6_e2m3fn", 3),
        ((0, 7), "float64", 0),
        ((2,), "string", None),
        (None, "float32", None),
    ],
)
def test_sizes_are_packed(shape: tuple[int, ...] | None, dtype: str, size: int | None) -> None:
    assert TensorSpec(name="t", shape=shape, dtype=dtype).size_bytes == size


def inputs_model(**dtypes: int) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, dtype, [4, 5]) for name, dtype in dtypes.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in dtypes]
    outs = [helper.make_tensor_value_info(f"{name}_out", dtype, [4, 5]) for name, dtype in dtypes.items()]
    return helper.make_model(helper.make_graph(nodes, "g", infos, outs), opset_imports=[helper.make_opsetid("", 21)])


def test_random_inputs_have_the_right_dtypes_and_ranges() -> None:
    graph = from_proto(
        inputs_model(
            f=TensorProto.FLOAT,
            h=TensorProto.FLOAT16,
            b16=TensorProto.BFLOAT16,
            i=TensorProto.INT64,
            u=TensorProto.UINT8,
            i4=TensorProto.INT4,
            b=TensorProto.BOOL,
            s=TensorProto.STRING,
        )
    )
    feed = random_inputs(graph, 0)
    assert {name: value.dtype.name for name, value in feed.items()} == {
        "f": "float32", "h": "float16", "b16": "bfloat16", "i": "int64", "u": "uint8", "i4": "int4", "b": "bool",
        "s": "object",
    }  # fmt: skip
    assert all(value.shape == (4, 5) for value in feed.values())
    assert set(feed["i"].ravel()) == {0, 1}
    assert 0 <= feed["u"].min() <= feed["u"].max() < 128
    assert feed["f"].std() == pytest.approx(1, abs=0.5)


def test_random_inputs_are_seeded() -> None:
    graph = from_proto(inputs_model(f=TensorProto.FLOAT))
    assert np.array_equal(random_inputs(graph, 1)["f"], random_inputs(graph, 1)["f"])
    assert not np.array_equal(random_inputs(graph, 1)["f"], random_inputs(graph, 2)["f"])
