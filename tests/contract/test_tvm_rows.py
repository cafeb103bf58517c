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
    assert "T.vectorized" in scheduled.script() or inputs[0].shape[-1] % 4
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


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_an_extreme_of_infinities_is_infinite(op: str) -> None:
    x = np.random.default_rng(0).normal(0, 3, [4, 64]).astype(np.float32)
    x[1], x[2], x[3, 5] = -np.inf, np.inf, -np.inf
    got = run(function_of(one_node(op, [4, 64], constants_of(op, 64))), [x], threads=1)
    np.testing.assert_array_equal(got, getattr(x, op.removeprefix("Reduce").lower())(-1, keepdims=True))


def test_rows_before_an_axis_of_one_element_are_rows() -> None:
    x = np.random.default_rng(0).normal(0, 3, [2, 3, 64, 1]).astype(np.float32)
    got = run(function_of(one_node("Softmax", [2, 3, 64, 1], {}, axis=2)), [x], threads=1)
    np.testing.assert_allclose(got, softmax(x[..., 0])[..., None], atol=1e-6)


def test_what_a_statement_has_twice_is_computed_once_and_in_its_place() -> None:
    import tvm
    import tvm_ffi
    from tvm import te, tirx

    from compilers.tvm.shared import shared

    x, y = (te.placeholder((8,), "float32", name=name) for name in "xy")
    before = te.compute((8,), lambda i: x[i] * 3, name="before")
    inner = te.compute((8,), lambda i: (before[i] + 1) * (before[i] + 1) + tirx.floor(before[i] + 1), name="inner")
    guarded = te.compute((8,), lambda i: tirx.if_then_else(i > 0, y[i - 1] * y[i - 1], 0.0), name="guarded")
    k = te.reduce_axis((0, 8))
    total = te.compute((8,), lambda i: te.sum((x[k] - y[i]) * (x[k] - y[i]), axis=k), name="total")
    last = te.compute((8,), lambda i: inner[i] + guarded[i] + total[i], name="last")
    func = te.create_prim_func([x, y, last])
    written = shared(func)
    bound: list[Any] = []
    tvm_ffi.structural_walk(written, [(tirx.Let, bound.append)])
    assert len(bound) == 1  # `before + 1`, not what stands behind a condition or in a sum
    assert "before" in str(bound[0].value)
    arrays = [np.linspace(-2, 3, 8, dtype=np.float32), np.linspace(0, 1, 8, dtype=np.float32)]
    results = []
    for each in (func, written):
        output = tvm.runtime.tensor(np.zeros(8, np.float32))
        module = tvm.IRModule({"main": each.with_attr("global_symbol", "main")})
        tvm.tirx.build(module, target="llvm")["main"](*map(tvm.runtime.tensor, arrays), output)
        results.append(output.numpy())
    np.testing.assert_array_equal(*results)
