"""Q/DQ graphs through the TVM adapter: integer arithmetic, against numpy's integers and ONNX Runtime's kernels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, Limits, compile_segment, get_compiler
from graphs import from_proto
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from graphs import Graph

Array = np.ndarray[Any, Any]

TVM = get_compiler("tvm")
HOST = load_device("host")
pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("EDGEFRONTIER_CACHE")
    os.environ["EDGEFRONTIER_CACHE"] = str(tmp_path_factory.mktemp("tiles"))
    yield
    os.environ.pop("EDGEFRONTIER_CACHE")
    if before is not None:
        os.environ["EDGEFRONTIER_CACHE"] = before


class Net:
    """Builds a Q/DQ graph; `pair` quantises and dequantises a tensor, `weights` dequantises a constant."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"n{name}", **attrs))
        return name

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def pair(self, x: str, scale: float, zero: int, dtype: Any = np.uint8) -> str:
        parameters = self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, dtype))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *parameters), *parameters)

    def weights(self, steps: Array, scale: Array | float, axis: int = 0) -> str:
        scale = np.asarray(scale, np.float32)
        zero = np.zeros(scale.shape, steps.dtype)
        parameters = self.constant(scale), self.constant(zero)
        return self.node("DequantizeLinear", self.constant(steps), *parameters, axis=axis)

    def graph(self, output: str, *shapes: list[int]) -> Graph:
        (last,) = (node for node in self.nodes if output in node.output)
        last.output[0] = "y"
        model = helper.make_model(
            helper.make_graph(
                self.nodes,
                "net",
                [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, s) for i, s in enumerate(shapes)],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=9,
        )
        return from_proto(model)


def segment_of(graph: Graph) -> Segment:
    return Segment(graph=graph, device=HOST, processor="cpu", compiler="tvm", precision="int8")


def by_tvm(graph: Graph, feed: dict[str, Array], *, threads: int = 1) -> tuple[Array, int]:
    """Return the output and the number of multiply-adds in integers."""
    import tvm
    from tvm import relax

    from compilers.tvm import pipeline, runtime

    runtime.use_threads(threads)
    built = pipeline.build(segment_of(graph), TVM.version(), threads=threads, candidates=2)
    machine = relax.VirtualMachine(built.executable, tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(feed[s.name]) for s in graph.inputs())).numpy(), built.integer_macs


def by_ort(graph: Graph, feed: dict[str, Array]) -> Array:
    session = ort.InferenceSession(graph.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, feed)[0]
    return result


def random_feed(graph: Graph, spread: float = 2.0) -> dict[str, Array]:
    random = np.random.default_rng(11)
    return {s.name: (random.normal(0, spread, s.shape)).astype(np.float32) for s in graph.inputs()}


def quantised(x: Array, scale: float, zero: int, dtype: Any = np.uint8) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / np.float32(scale)) + zero, limits.min, limits.max).astype(np.int64)


def convolved(steps: Array, weights: Array, stride: int, pad: int, group: int) -> Array:
    """Convolve integers that are centred on zero, in 64 bits."""
    n, _, height, width = steps.shape
    outputs, depth, kernel, _ = weights.shape
    padded = np.pad(steps, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    shape = [(extent + 2 * pad - kernel) // stride + 1 for extent in (height, width)]
    out = np.zeros((n, outputs, *shape), np.int64)
    for o in range(outputs):
        first = o // (outputs // group) * depth
        for i, j in np.ndindex(*shape):
            window = padded[
                :, first : first + depth, i * stride : i * stride + kernel, j * stride : j * stride + kernel
            ]
            out[:, o, i, j] = (window * weights[o].astype(np.int64)).sum(axis=(1, 2, 3))
    return out


convolutions = st.fixed_dictionaries(
    {
        "inputs": st.sampled_from([3, 8, 20]),
        "outputs": st.sampled_from([4, 10, 24, 32]),
        "size": st.integers(3, 9),
        "kernel": st.sampled_from([1, 3]),
        "stride": st.integers(1, 2),
        "depthwise": st.booleans(),
        "per_channel": st.booleans(),
        "signed": st.booleans(),
        "zeros": st.tuples(st.integers(0, 255), st.integers(0, 255)),
        "seed": st.integers(0, 99),
    }
)


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=convolutions)
def test_a_convolution_is_the_sum_of_integer_products_scaled_once(case: dict[str, Any]) -> None:
    random = np.random.default_rng(case["seed"])
    depthwise, kernel, stride = case["depthwise"], case["kernel"], case["stride"]
    outputs = case["inputs"] if depthwise else case["outputs"]
    dtype, offset = (np.int8, 128) if case["signed"] else (np.uint8, 0)
    zeros = [zero - offset for zero in case["zeros"]]
    weights = random.integers(-128, 128, (outputs, 1 if depthwise else case["inputs"], kernel, kernel)).astype(np.int8)
    in_scale, out_scale = (np.float32(s) for s in random.uniform(0.01, 0.1, 2))
    scales = random.uniform(0.001, 0.01, outputs if case["per_channel"] else ()).astype(np.float32)
    bias = random.integers(-9999, 9999, outputs).astype(np.int32)
    net = Net()
    convolution = net.node(
        "Conv",
        net.pair("x0", in_scale, zeros[0], dtype),
        net.weights(weights, scales),
        net.weights(bias, scales * in_scale),
        strides=[stride] * 2,
        pads=[kernel // 2] * 4,
        group=case["inputs"] if depthwise else 1,
    )
    graph = net.graph(
        net.pair(convolution, out_scale, zeros[1], dtype), [1, case["inputs"], case["size"], case["size"]]
    )
    feed = random_feed(graph)

    steps = quantised(feed["x0"], in_scale, zeros[0], dtype) - zeros[0]
    total = convolved(steps, weights, stride, kernel // 2, case["inputs"] if depthwise else 1)
    total += bias.reshape(1, -1, 1, 1)
    factor = (np.float32(in_scale) * scales / np.float32(out_scale)).astype(np.float32).reshape(1, -1, 1, 1)
    limits = np.iinfo(dtype)
    expected = np.clip(np.rint(total.astype(np.float32) * factor) + zeros[1], limits.min, limits.max)
    got, macs = by_tvm(graph, feed)
    np.testing.assert_array_equal(np.rint(got / out_scale) + zeros[1], expected)
    assert macs == total.size * weights[0].size


def dense(net: Net, x: str, shape: tuple[int, int], *, op: str) -> str:
    random = np.random.default_rng(3)
    scales = np.linspace(0.002, 0.004, shape[1], dtype=np.float32)
    weights = random.integers(-127, 128, shape).astype(np.int8)
    if op == "MatMul":
        return net.node("MatMul", x, net.weights(weights, scales, axis=1))
    bias = net.weights(random.integers(-500, 500, shape[1]).astype(np.int32), scales * np.float32(0.05))
    return net.node("Gemm", x, net.weights(np.ascontiguousarray(weights.T), scales), bias, transB=1)


# Operators that move bytes, and their inputs of integers: a Slice without steps, and one without axes too.
MOVES: dict[str, tuple[list[int], ...]] = {
    "Flatten": (),
    "Slice": ([0, 2], [1, 9]),
    "Slice along axes": ([1], [9], [3]),
}


def pattern(name: str) -> tuple[Graph, float]:
    """Return a graph around one operator and the scale of its output."""
    net = Net()
    x = net.pair("x0", 0.05, 120)
    image, row = [1, 16, 6, 6], [3, 20]
    if name in ("Gemm", "MatMul"):
        return net.graph(net.pair(dense(net, x, (20, 12), op=name), 0.02, 100), row), 0.02
    if name == "GlobalAveragePool":
        return net.graph(net.pair(net.node(name, x), 0.01, 128), image), 0.01
    if name == "MaxPool":
        pooled = net.node(name, x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        return net.graph(net.pair(pooled, 0.05, 120), image), 0.05
    if name == "Relu":
        return net.graph(net.pair(net.node(name, x), 0.03, 0), image), 0.03
    if name in MOVES:
        borders = (net.constant(np.array(value, np.int64)) for value in MOVES[name])
        return net.graph(net.pair(net.node(name.split(maxsplit=1)[0], x, *borders), 0.05, 120), image), 0.05
    other = net.pair("x1", 0.05 if name == "Concat of one scale" else 0.03, 120)
    joined = net.node("Concat", x, other, axis=1) if name.startswith("Concat") else net.node(name, x, other)
    return net.graph(net.pair(joined, 0.05, 120), image, image), 0.05


EXACT = ("Gemm", "MatMul", "MaxPool", "Relu", *MOVES, "Concat of one scale")


@pytest.mark.parametrize("name", [*EXACT, "GlobalAveragePool", "Add", "Mul", "Concat"])
def test_an_operator_between_bytes_is_what_onnx_runtime_computes(name: str) -> None:
    graph, scale = pattern(name)
    feed = random_feed(graph)
    steps = (by_ort(graph, feed) / np.float32(scale)).round()
    got, macs = by_tvm(graph, feed)
    difference = np.abs((got / np.float32(scale)).round() - steps)
    # Elsewhere the order of float32 operations decides the values that lie half way between two steps.
    assert difference.max() <= (0 if name in EXACT else 1)
    assert np.count_nonzero(difference) <= 0.01 * difference.size
    assert len(np.unique(steps)) > 5
    assert (macs > 0) == (name in ("Gemm", "MatMul"))


def residual_block() -> Graph:
    """Three convolutions, a gate by HardSigmoid, a residual, a pool: what quantised mobile networks are made of."""
    random = np.random.default_rng(2)
    net = Net()
    x = net.pair("x0", 0.04, 128)

    def convolution(source: str, kernel: int, group: int, out_scale: float, in_scale: float) -> str:
        weights = random.integers(-127, 128, (16, 16 // group, kernel, kernel)).astype(np.int8)
        scales = random.uniform(0.001, 0.003, 16).astype(np.float32)
        bias = net.weights(random.integers(-300, 300, 16).astype(np.int32), scales * np.float32(in_scale))
        pads = [kernel // 2] * 4
        convolved = net.node("Conv", source, net.weights(weights, scales), bias, pads=pads, group=group)
        return net.pair(convolved, out_scale, 130)

    stem = convolution(x, 1, 1, 0.04, 0.04)
    wide = convolution(stem, 1, 1, 0.05, 0.04)
    gate = net.pair(net.node("HardSigmoid", wide, alpha=1 / 6, beta=0.5), 1 / 255, 0)
    swish = net.pair(net.node("Mul", wide, gate), 0.04, 20)
    deep = convolution(swish, 3, 16, 0.05, 0.04)
    summed = net.pair(net.node("Add", deep, stem), 0.06, 128)
    return net.graph(net.pair(net.node("GlobalAveragePool", summed), 0.02, 128), [1, 16, 8, 8])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_is_what_onnx_runtime_computes(threads: int) -> None:
    graph = residual_block()
    feed = random_feed(graph)
    got, macs = by_tvm(graph, feed, threads=threads)
    assert macs == graph.macs
    np.testing.assert_allclose(got, by_ort(graph, feed), atol=0.0201)  # one step of the output


def test_bytes_are_what_functions_hand_on() -> None:
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.targets import host_target

    module = frontend.fuse(frontend.import_graph(residual_block().proto()), host_target())
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    images = [p for f in functions for p in f.params if [int(extent) for extent in p.shape] == [1, 8, 8, 16]]
    assert len(images) > 4
    assert {str(image.dtype) for image in images} == {"uint8"}


def test_a_float_operator_between_keeps_the_rest_integer(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    net = Net()
    weights = net.weights(random.integers(-127, 128, (8, 8, 1, 1)).astype(np.int8), 0.01)
    integer = net.pair(net.node("Conv", net.pair("x0", 0.05, 128), weights), 0.05, 128)
    kernel = net.constant(random.normal(0, 0.1, (8, 8, 1, 1)).astype(np.float32))
    graph = net.graph(net.pair(net.node("Conv", integer, kernel), 0.05, 128), [1, 8, 4, 4])
    artefact = compile_segment(segment_of(graph), tmp_path, Limits(time_s=300))
    assert artefact.fact("int8_macs_ratio") == "0.5"


def test_odd_channels_through_a_block_are_what_onnx_runtime_computes() -> None:
    """Surplus channels go through a depthwise convolution and an addition; the next product reads them, a split not."""
    random = np.random.default_rng(6)
    net = Net()

    def convolution(x: str, shape: tuple[int, ...], group: int = 1) -> str:
        scales = random.uniform(0.001, 0.003, shape[0]).astype(np.float32)
        weights = net.weights(random.integers(-127, 128, shape).astype(np.int8), scales)
        bias = net.weights(random.integers(-300, 300, shape[0]).astype(np.int32), scales * np.float32(0.04))
        return net.pair(net.node("Conv", x, weights, bias, group=group, pads=[shape[-1] // 2] * 4), 0.04, 129)

    first = convolution(net.pair("x0", 0.04, 128), (58, 6, 1, 1))
    deep = convolution(first, (58, 1, 3, 3), 58)
    summed = net.pair(net.node("Add", first, deep), 0.04, 129)
    last = convolution(convolution(summed, (30, 58, 3, 3)), (10, 30, 1, 1))
    net.nodes.append(
        helper.make_node("Split", [last, net.constant(np.array([5, 5]))], ["left", "right"], name="halves", axis=1)
    )
    halves = [net.pair(half, 0.04, 129) for half in ("left", "right")]
    graph = net.graph(net.pair(net.node("Concat", *reversed(halves), axis=1), 0.04, 129), [1, 6, 7, 7])
    feed = random_feed(graph)
    got, macs = by_tvm(graph, feed)
    assert macs == graph.macs
    np.testing.assert_array_equal(got, by_ort(graph, feed))


def test_softmax_between_bytes_is_what_the_graph_says_and_not_onnx_runtimes_table() -> None:
    """ONNX Runtime fuses it from its extended level on into an operator that moves some values by one step."""
    net = Net()
    graph = net.graph(net.pair(net.node("Softmax", net.pair("x0", 0.05, 128), axis=-1), 1 / 255, 0), [4, 256])
    feed = random_feed(graph, 3.0)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = graph.proto().SerializeToString()
    (plain,) = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feed)
    got, _ = by_tvm(graph, feed)
    np.testing.assert_allclose(got, plain, atol=1e-6)
    assert np.abs(by_ort(graph, feed) - plain).max() <= 1 / 255 + 1e-6


def test_every_result_of_a_function_has_a_vector_loop() -> None:
    import tvm
    from tvm import te, topi

    from compilers.tvm.schedule import schedule

    x = te.placeholder((2, 24), "float32", name="x")
    halves = list(topi.split(topi.nn.relu(x), [16], axis=1))
    scheduled = schedule(te.create_prim_func([x, *halves]), None, threads=1)
    assert scheduled.script().count("T.vectorized") == 2
    built = tvm.tirx.build(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), target="llvm")
    values = np.random.default_rng(0).normal(size=(2, 24)).astype(np.float32)
    results = [tvm.runtime.tensor(np.zeros((2, n), np.float32)) for n in (16, 8)]
    built["main"](tvm.runtime.tensor(values), *results)
    np.testing.assert_array_equal(np.concatenate([r.numpy() for r in results], axis=1), np.maximum(values, 0))


def test_a_float_bias_is_added_as_a_float() -> None:
    net = Net()
    weights = net.weights(np.arange(-64, 64, dtype=np.int8).reshape(16, 8, 1, 1), np.full(16, 0.01, np.float32))
    bias = net.constant(np.linspace(-1, 1, 16, dtype=np.float32))
    convolution = net.node("Conv", net.pair("x0", 0.05, 128), weights, bias)
    graph = net.graph(net.pair(convolution, 0.05, 128), [1, 8, 4, 4])
    feed = random_feed(graph)
    got, macs = by_tvm(graph, feed)
    assert macs == 16 * 16 * 8
    np.testing.assert_allclose(got, by_ort(graph, feed), atol=0.0501)


def cross_target(triple: str, **options: Any) -> Any:
    import tvm

    return tvm.target.Target({"kind": "llvm", "mtriple": triple, **options})


@pytest.mark.parametrize(
    ("triple", "options", "instruction"),
    [
        ("x86_64-linux-gnu", {"mcpu": "znver4"}, "vpdpbusd"),
        ("x86_64-linux-gnu", {"mcpu": "alderlake"}, "vpdpbusd"),
        ("aarch64-linux-gnu", {"mcpu": "cortex-a78"}, "sdot"),
        ("aarch64-linux-gnu", {"mcpu": "cortex-a53"}, None),
        ("x86_64-linux-gnu", {"mcpu": "x86-64-v3"}, None),
    ],
)
def test_each_cpu_gets_its_dot_product(triple: str, options: dict[str, Any], instruction: str | None) -> None:
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.schedule import analyse, schedule
    from compilers.tvm.targets import registers_of
    from compilers.tvm.tiles import candidates

    net = Net()
    weights = net.weights(np.ones((32, 16, 3, 3), np.int8), 0.01)
    convolution = net.node("Conv", net.pair("x0", 0.05, 7), weights, pads=[1] * 4)
    graph = net.graph(net.pair(convolution, 0.05, 9), [1, 16, 8, 8])
    target = cross_target(triple, **options)
    module = frontend.fuse(frontend.import_graph(graph.proto()), target)
    function = next(f for gv, f in module.functions.items() if "conv2d" in gv.name_hint)
    nest = analyse(function)
    assert nest is not None
    scheduled = schedule(function, candidates(nest, registers_of(target), 1)[0], threads=1)
    built = tvm.tirx.build(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), target=target)
    code = built.inspect_source("asm")
    assert (instruction in code) if instruction else ("vpdpbusd" not in code and "sdot" not in code)


def test_a_byte_between_two_roundings_is_not_made() -> None:
    from compilers.tvm import frontend
    from compilers.tvm.schedule import analyse, schedule
    from compilers.tvm.targets import host_target, registers_of
    from compilers.tvm.tiles import candidates

    target = host_target()
    module = frontend.fuse(frontend.import_graph(residual_block().proto()), target)
    function = next(f for gv, f in module.functions.items() if "depthwise" in gv.name_hint)
    assert function.script().count('T.Cast("uint8"') == 2
    nest = analyse(function)
    assert nest is not None
    scheduled = schedule(function, candidates(nest, registers_of(target), 1)[0], threads=1).script()
    # What is written, and no other.
    assert scheduled.count('T.Cast("uint8"') == 1
    assert scheduled.count("nearbyint") > 1
