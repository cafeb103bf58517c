"""Functions that reduce rows, and those by polynomials: through the TVM adapter's schedules, against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, get_compiler
from graphs import Graph, from_proto
from partition import load_device

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not get_compiler("tvm").available(Action.COMPILE, load_device("host"), "cpu"), reason="TVM does not work here"
)


def one_node(op: str, shape: list[int], constants: dict[str, Array], **attrs: Any) -> Graph:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, ["x", *constants], ["y"], **attrs)],
            op,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    return from_proto(model)


def constants_of(op: str, columns: int) -> dict[str, Array]:
    if op == "LayerNormalization":
        return {"s": np.linspace(1, 2, columns, dtype=np.float32), "b": np.ones(columns, np.float32)}
    return {"axes": np.array([-1], np.int64)} if op.startswith("Reduce") else {}


def function_of(graph: Graph) -> Any:
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.targets import host_target

    module = frontend.fuse(frontend.import_graph(graph.proto()), host_target())
    (function,) = (f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    return function


def run(function: Any, inputs: list[Array], *, threads: int) -> Array:
    """Run a function as scheduled; no schedule is an error."""
    import tvm

    from compilers.tvm import runtime
    from compilers.tvm.schedule import analyse, schedule
    from compilers.tvm.targets import host_target

    runtime.use_threads(threads)
    target = host_target()
    assert analyse(function) is None
    scheduled = schedule(function, None, threads=threads)
    starts_from_infinity = "-inf" in scheduled.script()
    assert ("T.vectorized" in scheduled.script()) != starts_from_infinity or inputs[0].shape[-1] % 4
    kernel = tvm.tirx.build(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), target=target)["main"]
    output = tvm.runtime.tensor(np.zeros([int(n) for n in function.params[-1].shape], np.float32))
    kernel(*(tvm.runtime.tensor(value) for value in inputs), output)
    return output.numpy()


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x: Array) -> Array:
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * np.linspace(1, 2, x.shape[-1]) + 1


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


CASES = {
    "Softmax": softmax,
    "LayerNormalization": layer_norm,
    "ReduceMean": lambda x: x.mean(-1, keepdims=True),
    "ReduceMax": lambda x: x.max(-1, keepdims=True),
    "Erf": np.vectorize(math.erf),
    "Tanh": np.tanh,
    "Gelu": gelu,
}


@pytest.mark.parametrize("columns", [64, 40, 33])
@pytest.mark.parametrize("op", CASES)
def test_rows_are_reduced_and_polynomials_are_near(op: str, columns: int) -> None:
    shape = [2, 5, columns]
    constants = constants_of(op, columns)
    x = np.random.default_rng(columns).normal(0, 3, shape).astype(np.float32)
    x[0, 0, :3] = 50, -50, 0
    weights = [value for value in constants.values() if value.dtype == np.float32]
    got = run(function_of(one_node(op, shape, constants)), [x, *weights], threads=2 if columns == 40 else 1)
    expected = CASES[op](x.astype(np.float64))
    assert np.abs(got - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_product_of_matrices_is_not_taken_for_rows() -> None:
    from compilers.tvm import by_rows

    assert not by_rows.fits(function_of(one_node("MatMul", [4, 8], {"w": np.ones((8, 8), np.float32)})))
