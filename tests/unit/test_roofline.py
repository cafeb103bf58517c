"""What one inference moves to and from the DRAM, by hand."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from experiments.evaluator.roofline import moved_bytes, roofline
from graphs import Graph, from_proto
from partition import load_device

IDS, ROWS, WIDTH = 12, 2000, 32


def embedding(*, tied: bool) -> Graph:
    """12 of 2000 rows of 32 floats times a square matrix, or, `tied`, times the table itself."""
    table = np.ones((ROWS, WIDTH), np.float32)
    constants = {"table": table, "square": np.ones((WIDTH, WIDTH), np.float32)}
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"], name="look"),
             helper.make_node("Gemm", ["rows", "table" if tied else "square"], ["y"], name="fc", transB=1)]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [IDS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in constants.items() if not (tied and n == "square")],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def test_of_an_embeddings_table_what_is_looked_up_moves() -> None:
    ends, looked_up, square = IDS * 8 + IDS * WIDTH * 4, IDS * WIDTH * 4, WIDTH * WIDTH * 4
    assert moved_bytes(embedding(tied=False)) == ends + looked_up + square


def test_a_table_that_is_multiplied_too_moves_once_as_a_whole() -> None:
    assert moved_bytes(embedding(tied=True)) == IDS * 8 + IDS * ROWS * 4 + ROWS * WIDTH * 4


def test_the_estimate_tells_what_moves() -> None:
    device, graph = load_device("sm8650"), embedding(tied=False)
    assert roofline(graph, device, device.processor("cpu"), "fp32").dram_bytes == moved_bytes(graph)
