"""The proof that follows each conversion: it passes what is right and refuses what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers.adapter import CompilerError
from compilers.coreml.check import check_package, count_operations, prove, relative_error
from compilers.coreml.lower import lower
from compilers.coreml.write import write_package
from graphs import Graph, from_proto

if TYPE_CHECKING:
    from pathlib import Path

    from compilers.coreml.session import EmulatedSession

Array = np.ndarray[Any, Any]


def product(weight: Array) -> Graph:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="m"), helper.make_node("Tanh", ["m"], ["y"], name="t")]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4))],
        [numpy_helper.from_array(weight, "w")],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def packaged(graph: Graph, folder: Path) -> EmulatedSession:
    path = folder / "model.mlpackage"
    write_package(lower(graph.proto(), "iOS17"), path, target="iOS17", compute="fp32")
    return check_package(path)


def test_a_right_package_is_proven_and_a_wrong_one_refused(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    session = packaged(product(weight), tmp_path)
    error = prove(session, product(weight), exact=True)
    assert error is not None
    assert error < 1e-6
    assert count_operations(session.program) == 3, "the product, tanh, and the identity that names the output"
    scaled = product(weight * np.float32(1.5))
    with pytest.raises(CompilerError, match="differs from its graph by"):
        prove(session, scaled, exact=True)
    rounded = prove(session, scaled, exact=False)
    assert rounded is not None
    assert rounded > 1e-3


def test_a_feed_that_the_reference_cannot_run_leaves_it_unproven(tmp_path: Path) -> None:
    table = np.ones((1, 4), np.float32)
    node = helper.make_node("Gather", ["w", "i"], ["y"], name="gather")
    graph = helper.make_graph(
        [node],
        "table",
        [helper.make_tensor_value_info("i", TensorProto.INT64, (64,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (64, 4))],
        [numpy_helper.from_array(table, "w")],
    )
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert prove(packaged(model, tmp_path), model, exact=True) is None


def test_relative_error() -> None:
    wanted = {"y": np.array([3.0, 4.0, np.inf]), "i": np.array([1])}
    assert relative_error({"y": np.array([3.0, 4.5, np.inf]), "i": np.array([2])}, wanted) == pytest.approx(0.1)
    assert relative_error({"y": np.array([3.0, 4.0, 1.0])}, {"y": wanted["y"]}) == np.inf
    assert np.isnan(relative_error({"y": np.array([np.nan])}, {"y": np.array([1.0])}))
