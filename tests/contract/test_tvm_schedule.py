"""What a schedule does besides its tile (weights in its order, shares for threads), and the clock of the sweep."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, get_compiler
from graphs import Calibration, Graph, from_proto, quantise
from partition import load_device

if TYPE_CHECKING:
    from compilers.tvm.tiles import TileConfig

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not get_compiler("tvm").available(Action.COMPILE, load_device("host"), "cpu"), reason="TVM does not work here"
)


def product(*, constant: bool) -> Graph:
    """Return `[6, 24] x [24, 64]`, whose second operand is a weight or an input."""
    weights = np.random.default_rng(0).normal(0, 1, (24, 64)).astype(np.float32)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 24])]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [24, 64]))
    return _graph([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs, {"w": weights} if constant else {})


def convolution(rows: int = 6) -> Graph:
    weights = np.random.default_rng(0).normal(0, 1, (64, 24, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    return _graph([node], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 24, rows, 6])], {"w": weights})


def _graph(nodes: list[Any], inputs: list[Any], constants: dict[str, Array]) -> Graph:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initialisers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "weights", inputs, [output], initialisers)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def reducing(graph: Graph) -> Any:
    """Return the one function of a graph that has a reduction with weights."""
    from compilers.tvm import frontend
    from compilers.tvm.schedule import analyse
    from compilers.tvm.targets import host_target

    _, functions = frontend.fused(frontend.import_graph(graph.proto()), host_target())
    (func,) = (func for func in functions.values() if (nest := analyse(func)) and nest.shared)
    return func


def tile(channels: int, lanes: int = 16) -> TileConfig:
    from compilers.tvm.tiles import TileConfig

    return TileConfig(channels=channels, columns=2, lanes=lanes)


def result(func: Any, scheduled: Any) -> Array:
    from compilers.tvm.sweep import arguments_of, build_each
    from compilers.tvm.targets import host_target

    arguments = arguments_of(func, scheduled)
    ((_, kernel),) = build_each({"main": scheduled}, host_target())
    kernel(*arguments)
    output: Array = arguments[-1].numpy()
    return output


def shapes(func: Any) -> list[tuple[int, ...]]:
    return [tuple(int(extent) for extent in buffer.shape) for buffer in func.params]


@pytest.mark.parametrize(
    ("graph", "laid_out"), [(product(constant=True), (2, 24, 32)), (convolution(), (2, 3, 3, 24, 32))]
)
def test_weights_lie_in_blocks_of_the_tiles_channels(graph: Graph, laid_out: tuple[int, ...]) -> None:
    from compilers.tvm.schedule import schedule

    func = reducing(graph)
    scheduled = schedule(func, tile(32), threads=1)
    assert shapes(scheduled)[1] == laid_out
    # The sums are taken in the same order, and only where the weights are read from differs.
    np.testing.assert_array_equal(result(func, scheduled), result(func, schedule(func, tile(64), threads=1)))
    np.testing.assert_allclose(result(func, scheduled), result(func, func), rtol=1e-4, atol=1e-4)


def test_bytes_that_an_instruction_reads_together_stay_together() -> None:
    from compilers.tvm.dot import dot_of
    from compilers.tvm.schedule import schedule
    from compilers.tvm.targets import host_target

    dot = dot_of(host_target())
    if dot is None:
        pytest.skip("this CPU has no dot product of bytes")
    graph = product(constant=True)
    func = reducing(quantise(graph, "int8", Calibration.random(graph)))
    scheduled = schedule(func, tile(32, dot.lanes[0]), threads=1)
    assert shapes(scheduled)[1] == (2, 6, 32, 4)
    np.testing.assert_array_equal(result(func, scheduled), result(func, func))


def test_what_is_given_at_run_time_is_read_as_it_lies() -> None:
    from compilers.tvm.schedule import schedule

    func = reducing(product(constant=False))
    assert shapes(schedule(func, tile(32), threads=1)) == shapes(func)


def test_one_tile_across_all_channels_needs_no_other_layout() -> None:
    from compilers.tvm.schedule import schedule

    func = reducing(product(constant=True))
    assert shapes(schedule(func, tile(64), threads=1)) == shapes(func)


@pytest.mark.parametrize(("rows", "threads", "shares"), [(6, 2, 6), (6, 3, 6), (7, 2, 21), (7, 7, 7), (6, 1, 0)])
def test_threads_share_rows_where_that_is_even_else_tiles(rows: int, threads: int, shares: int) -> None:
    from compilers.tvm import runtime
    from compilers.tvm.schedule import schedule

    runtime.use_threads(threads)
    func = reducing(convolution(rows))
    scheduled = schedule(func, tile(64), threads=threads)
    *_, nest = [0, *(int(found) for found in re.findall(r"T\.parallel\(T?\.?(?:int64\()?(\d+)", scheduled.script()))]
    assert nest == shares
    np.testing.assert_array_equal(result(func, scheduled), result(func, schedule(func, tile(64), threads=1)))


def test_time_that_others_take_the_cpu_for_is_not_a_kernels() -> None:
    from compilers.tvm.sweep import timed_s

    def kernel(steps: int, waits_s: float) -> None:
        time.sleep(waits_s)
        sum(range(steps))

    quick_s, slow_s = timed_s([lambda: kernel(20_000, 0.01), lambda: kernel(200_000, 0)])
    assert quick_s < min(slow_s, 0.01)


def test_one_run_that_the_clock_calls_short_is_no_time_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from compilers.tvm import sweep

    durations = [4.0, 4.0, 4.0, 2.6, *[4.0] * 20]
    ticks = iter([tick for duration in durations for tick in (0.0, duration)])
    monkeypatch.setattr("compilers.tvm.sweep.time.thread_time", lambda: next(ticks))
    monkeypatch.setattr(sweep, "_MEASURE_S", 30.0)
    assert sweep.timed_s([lambda: None]) == [4.0]


@pytest.mark.parametrize(
    ("times", "counts"),
    [([[1.0, 0.9], [1.0, 1.1], [1.0, 1.05]], [1.0, 1.05]), ([[1.0, 2.0], [1.0, 0.5], [1.0, 0.5]], [1.0, 2.0])],
)
def test_close_kernels_are_timed_with_tensors_in_other_places(
    times: list[list[float]], counts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm

    from compilers.tvm import sweep

    places, rest = set(), iter(times)

    def timed_s(calls: list[functools.partial[Any]]) -> list[float]:
        places.update(call.args[0].data_ptr() for call in calls)
        return next(rest)

    monkeypatch.setattr(sweep, "timed_s", timed_s)
    one, other = (functools.partial(lambda tensor: tensor, tvm.runtime.tensor(np.arange(4.0))) for _ in range(2))
    assert list(sweep._compared_s(one, other)) == counts
    assert len(places) == 2 * (3 - len(list(rest)))


@pytest.mark.parametrize("triple", ["here", "aarch64-linux-android"])
def test_functions_begin_on_a_line_of_the_cache_in_whatever_library(triple: str) -> None:
    """Else what lies before a kernel decides how its loops lie, and the sweep times another than the model has."""
    import tvm

    from compilers.tvm.targets import host_target, target_of

    func = reducing(convolution()).with_attr("global_symbol", "one")
    module = tvm.IRModule({"one": func, "two": func.with_attr("global_symbol", "two")})
    ids = {"kind": "llvm", "mtriple": triple, "mcpu": "cortex-a78"}
    target = host_target() if triple == "here" else target_of(_device(ids), "cpu")
    lines = tvm.tirx.build(module, target=target).inspect_source("asm").splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith(("one:", "two:", "one_", "two_"))]
    assert len(starts) >= 2
    assert all(any("align\t6" in line for line in lines[at - 4 : at]) for at in starts)


def _device(ids: dict[str, str]) -> Any:
    device = load_device("host")
    cpu = dataclasses.replace(device.processor("cpu"), ids={"tvm": ids})
    return dataclasses.replace(device, processors=(cpu,))


@given(st.data())
def test_a_layout_finds_the_element_where_it_puts_it(data: st.DataObject) -> None:
    from compilers.tvm.weights import Layout

    blocks, block = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    shape[axis] = blocks * block
    layout = Layout(0, axis, block, data.draw(st.integers(1, len(shape))))
    array = np.arange(np.prod(shape)).reshape(shape)
    laid = layout.of(array)
    assert laid.shape[0] == blocks
    assert laid.shape[layout.to] == block
    for at in np.ndindex(*shape):
        assert laid[tuple(layout.place(*at))] == array[at]


def test_calls_pass_the_weights_as_the_functions_read_them() -> None:
    """One constant that two functions with other tiles read is laid out for each; the module stays as it was."""
    import tvm
    from tvm import relax

    from compilers.tvm import frontend, library
    from compilers.tvm.schedule import schedule
    from compilers.tvm.targets import host_target

    weights = np.random.default_rng(0).normal(0, 1, (64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    graph = _graph(nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])], {"w": weights})
    target = host_target()
    module, functions = frontend.fused(frontend.import_graph(graph.proto()), target)
    before = module.script()
    sizes = iter((16, 32))
    scheduled = {name: schedule(func, tile(next(sizes)), threads=1) for name, func in functions.items()}
    executable = library.assemble(module, scheduled, {}, target, target)
    x = np.random.default_rng(1).normal(0, 1, (4, 64)).astype(np.float32)
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, np.maximum(x @ weights, 0) @ weights, rtol=1e-3, atol=1e-3)
    assert module.script() == before


@pytest.mark.parametrize("safe", [False, True])
def test_a_function_with_several_results_is_called_beside_laid_out_weights(safe: bool) -> None:
    import tvm
    from tvm import relax

    from compilers.tvm import frontend, library
    from compilers.tvm.schedule import schedule
    from compilers.tvm.targets import host_target, reference_target

    weights = np.random.default_rng(0).normal(0, 1, (24, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Split", ["a", "sizes"], ["b", "c"], axis=1),
        helper.make_node("MatMul", ["c", "b"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 24])]
    graph = _graph(nodes, inputs, {"w": weights, "sizes": np.array([60, 4], np.int64)})
    target = host_target()
    module, functions = frontend.fused(frontend.import_graph(graph.proto()), target)
    assert "split" in functions
    scheduled = {"matmul": schedule(functions["matmul"], tile(32), threads=1)}
    apart = {"split": functions["split"]} if safe else {}
    executable = library.assemble(module, scheduled, apart, target, reference_target(target))
    x = np.random.default_rng(1).normal(0, 1, (4, 24)).astype(np.float32)
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    left, right = np.split(x @ weights, [60], axis=1)
    np.testing.assert_allclose(got, right @ left, rtol=1e-3, atol=1e-3)


def test_rounding_to_bytes_is_vectorised_by_tvm_not_left_to_llvm() -> None:
    import tvm

    from compilers.tvm.schedule import schedule
    from compilers.tvm.targets import host_target

    graph = product(constant=True)
    scheduled = schedule(reducing(quantise(graph, "int8", Calibration.random(graph))), tile(32), threads=1)
    module = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    code = tvm.tirx.build(module, target=host_target()).inspect_source("ll")
    rounded = {line.split("@llvm.nearbyint")[1][:2] for line in code.splitlines() if "@llvm.nearbyint" in line}
    assert rounded == {".v"}  # of vectors alone
