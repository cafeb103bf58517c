"""GPU artefacts by TVM: schedules that compute right, facts counted by hand, estimates, tiles of a plan, PoCL."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import (
    Action,
    Artefact,
    CompilerError,
    Limits,
    Source,
    compile_segment,
    get_compiler,
    in_child,
    reference_session,
)
from compilers.tvm import nvrtc, opencl
from compilers.tvm.gpu_code import Program
from graphs import Calibration, Graph, from_proto, quantise, random_inputs
from partition import Device, Segment, Tile, load_device
from partition.tile import GpuTile, build_refusal

if TYPE_CHECKING:
    from pathlib import Path

TVM = get_compiler("tvm")
HOST, HOST_GPU, ADRENO = (load_device(name) for name in ("host", "host_gpu", "sm8550"))
LIMITS = Limits(time_s=300)

pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).normal(0, 0.1, shape).astype(np.float32)


def model(nodes: list[onnx.NodeProto], shape: list[int], **weights: np.ndarray[Any, Any]) -> Graph:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def block() -> Graph:
    """Strided and pointwise convolutions, depthwise with an epilogue that reads its sum twice, pools, a product."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], name="stem", strides=[2, 2], pads=[1] * 4),
        node("HardSwish", ["a"], ["b"], name="swish"),
        node("Conv", ["b", "w1", "b0"], ["c"], name="depthwise", group=16, pads=[1] * 4),
        node("Conv", ["c", "w2"], ["d"], name="pointwise"),
        node("Add", ["d", "b"], ["e"], name="add"),
        node("MaxPool", ["e"], ["f"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["f", "w3"], ["g"], name="halving", strides=[2, 2]),
        node("GlobalAveragePool", ["g"], ["h"], name="mean"),
        node("Flatten", ["h"], ["i"], name="flat"),
        node("MatMul", ["i", "w4"], ["y"], name="product"),
    ]
    return model(
        nodes, [1, 3, 18, 18], w0=weight(16, 3, 3, 3), b0=weight(16), w1=weight(16, 1, 3, 3),
        w2=weight(16, 16, 1, 1), w3=weight(24, 16, 1, 1), w4=weight(24, 10),
    )  # fmt: skip


def segment(graph: Graph, precision: str = "fp16", device: Device = ADRENO, **more: Any) -> Segment:
    return Segment(graph=graph, device=device, processor="gpu", compiler="tvm", precision=precision, **more)


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    """The fused functions of the block that have a tile, by the node in them."""
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.nodes import function_of_nodes

    module = frontend.fuse(frontend.import_graph(block().proto()), opencl_target())
    found = {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    return {node: found[name] for node, name in function_of_nodes(block(), module, found).items()}


def opencl_target() -> Any:
    import tvm

    return tvm.target.Target(
        {"kind": "opencl", "keys": ["adreno", "opencl", "gpu"], "device": "adreno", "host": "llvm"}
    )


def on_the_host(func: Any) -> Any:
    """Run the threads of a scheduled kernel one after the other: the same loops, each bound one a plain one."""
    import tvm
    import tvm_ffi

    kinds = tvm.tirx.ForKind

    def serial(loop: Any) -> Any:
        if loop.kind != kinds.THREAD_BINDING:
            return loop
        return tvm.tirx.For(loop.loop_var, loop.min, loop.extent, kinds.SERIAL, loop.body)

    return tvm_ffi.structural_map(func, [(tvm.tirx.For, serial)])


def outputs(func: Any) -> np.ndarray[Any, Any]:
    import tvm

    from compilers.tvm.sweep import arguments_of

    library = tvm.tirx.build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")
    arguments = arguments_of(func)
    library["main"](*arguments)
    result: np.ndarray[Any, Any] = arguments[-1].numpy()
    return result


def build(asked: Segment) -> Any:
    """Build in this process, where TVM is loaded already; what needs no child is tested without one."""
    from compilers.tvm import gpu

    return gpu.build(asked)


NODES = ("stem", "depthwise", "pointwise", "pool", "halving", "mean", "product")


def test_every_reduction_is_found_under_its_node(functions: dict[str, Any]) -> None:
    assert set(functions) == set(NODES)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_is_not_refused_computes_the_same(functions: dict[str, Any], data: st.DataObject) -> None:
    from compilers.tvm.gpu_schedule import analyse_gpu, schedule_gpu

    func = functions[data.draw(st.sampled_from(NODES))]
    nest = analyse_gpu(func)
    assert nest is not None
    layer = nest.layer("case")
    powers = st.sampled_from([1, 2, 4, 8])
    tile = GpuTile(
        block_x=data.draw(powers), block_y=data.draw(powers), thread_x=data.draw(st.integers(1, 4)),
        thread_k=data.draw(powers), k_tile=data.draw(st.sampled_from([1, 2, 3, 4, 8, 16])),
        staged=data.draw(st.booleans()), vector=data.draw(powers), unroll=data.draw(st.sampled_from([1, 2, 3, 4])),
    )  # fmt: skip
    if build_refusal(layer, tile) is None:
        scheduled = on_the_host(schedule_gpu(func, tile))
        np.testing.assert_allclose(outputs(scheduled), outputs(func), rtol=2e-5, atol=1e-6)
    else:
        with pytest.raises(Exception, match=build_refusal(layer, tile)):
            schedule_gpu(func, tile)


def quantised() -> Graph:
    return quantise(block(), "int8", Calibration.random(block(), 2, 0))


@pytest.fixture(scope="module")
def integer_functions() -> dict[str, Any]:
    """The fused functions of the quantised block that sum products of bytes, by the start of their names."""
    from compilers.tvm import frontend

    _, found = frontend.fused(frontend.import_graph(quantised().proto()), opencl_target())
    starts = ("fused_dot_conv2d_", "fused_dot_conv2d1", "fused_dot_conv2d2", "fused_dot_matmul", "fused_depthwise")
    return {start: next(func for name, func in found.items() if name.startswith(start)) for start in starts}


def integer_tile(start: str, *, staged: bool) -> GpuTile:
    """A tile that leaves an edge: 81 or 4 positions in blocks of 8."""
    steps = {"fused_dot_conv2d1": 4, "fused_dot_conv2d2": 4, "fused_dot_matmul": 2}.get(start, 1)
    return GpuTile(
        block_x=4, block_y=2, thread_x=2, thread_k=4, k_tile=steps, staged=staged, vector=4, unroll=steps
    )  # fmt: skip


STAGED = [("fused_dot_conv2d_", True), ("fused_dot_conv2d1", True), ("fused_dot_conv2d2", False),
          ("fused_dot_matmul", False), ("fused_depthwise", False)]  # fmt: skip


@pytest.mark.parametrize(("start", "staged"), STAGED)
def test_bytes_are_multiplied_as_they_are(integer_functions: dict[str, Any], start: str, staged: bool) -> None:
    from compilers.tvm.gpu_schedule import analyse_gpu, schedule_gpu

    func = integer_functions[start]
    nest = analyse_gpu(func)
    assert nest is not None
    # Words of four input channels, filled up: 3 become one, 16 four and 24 six.
    words = {"fused_dot_conv2d_": 9, "fused_dot_conv2d1": 4, "fused_dot_conv2d2": 4, "fused_dot_matmul": 6}
    assert nest.reduction == words.get(start, 9)
    scheduled = on_the_host(schedule_gpu(func, integer_tile(start, staged=staged)))
    np.testing.assert_array_equal(outputs(scheduled), outputs(func))


def kernels_of(func: Any) -> tuple[str, Any]:
    """Return the source and the launches of a scheduled function."""
    import tvm

    from compilers.tvm.gpu_facts import Split

    split = Split()
    with tvm.transform.PassContext(opt_level=3, instruments=[split]):
        built = tvm.tirx.build(tvm.IRModule({"f": func.with_attr("global_symbol", "f")}), target=opencl_target())
    return built.imports[0].inspect_source(), split.code()["f"]


def test_facts_of_a_product_by_hand() -> None:
    from compilers.tvm import frontend
    from compilers.tvm.gpu_schedule import schedule_gpu

    graph = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], [64, 32], w=weight(32, 128))
    func = frontend.fuse(frontend.import_graph(graph.proto()), opencl_target())["matmul"]
    tile = GpuTile(block_x=8, block_y=8, thread_x=4, thread_k=8, k_tile=16, staged=False, vector=4, unroll=4)
    _, code = kernels_of(schedule_gpu(func, tile))
    (launch,) = code.launches
    kernel = launch.kernel
    # 64 rows in blocks of 8 x 4, 128 channels in blocks of 8 x 8; channels are along x.
    assert (kernel.grid, kernel.block) == ((2, 2, 1), (8, 8, 1))
    assert kernel.flops == 2 * 4 * 8 * 32
    assert kernel.local_bytes == 4 * (4 * 8 + 4 * 4 + 8)  # sums, 4 rows by 4 steps of data, and weights
    assert (kernel.shared_bytes, kernel.barriers) == (0, 0)
    assert dict(kernel.arguments) == {"x_ptr": 64 * 32 * 4, "B_ptr": 32 * 128 * 4, "matmul_ptr": 64 * 128 * 4}
    data, weights, out = (next(a for a in kernel.accesses if a.buffer == f"{n}_ptr") for n in ("x", "B", "matmul"))
    assert (data.vector, data.per_thread, data.strides_bytes) == (4, 4 * 32 // 4, (0, 4 * 32 * 4))
    assert (weights.vector, weights.per_thread, weights.strides_bytes) == (4, 2 * 32, (8 * 4, 0))
    assert (out.store, out.per_thread, out.strides_bytes) == (True, 4 * 2, (8 * 4, 4 * 128 * 4))

    staged = GpuTile(block_x=8, block_y=8, thread_x=4, thread_k=8, k_tile=16, staged=True, vector=4, unroll=4)
    (launch,) = kernels_of(schedule_gpu(func, staged))[1].launches
    kernel = launch.kernel
    assert kernel.shared_bytes == 4 * 16 * (32 + 64)
    assert kernel.barriers == 2 * 2  # two steps of 16
    loads = {a.buffer: a.per_thread * a.vector for a in kernel.accesses if not a.shared and not a.store}
    assert loads == {"x_ptr": 32 * 32 // 64, "B_ptr": 32 * 64 // 64}


def test_what_a_statement_says_twice_counts_once() -> None:
    from compilers.tvm import frontend
    from compilers.tvm.gpu_flat import schedule_rest

    graph = model([helper.make_node("HardSwish", ["x"], ["y"])], [4, 64])
    (func,) = (f for f in frontend.fuse(frontend.import_graph(graph.proto()), opencl_target()).functions.values()
               if hasattr(f, "params") and "s_tir" in f.attrs)  # fmt: skip
    scheduled, rule = schedule_rest(func, opencl_target())
    assert rule == "flat"
    (launch,) = kernels_of(scheduled)[1].launches
    # x * clip(x / 6 + 0.5): x is written twice, and read once, four elements at a time.
    assert [(a.store, a.vector, a.per_thread) for a in launch.kernel.accesses] == [(False, 4, 1), (True, 4, 1)]
    assert launch.kernel.flops == 4 * 5  # times, plus, two bounds, times


def flat_function(nodes: list[onnx.NodeProto], shape: list[int], outputs: list[str]) -> Any:
    """Return the only function of a graph as it is scheduled without a tile, and as it was."""
    from compilers.tvm import frontend
    from compilers.tvm.gpu_flat import schedule_rest

    graph = model(nodes, shape, halves=np.array([4, 4])).proto()
    graph.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs)
    _, functions = frontend.fused(frontend.import_graph(graph), opencl_target())
    (func,) = functions.values()
    scheduled, rule = schedule_rest(func, opencl_target())
    assert rule == "flat"
    return scheduled, func


def test_every_result_of_a_function_has_a_kernel() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Split", ["a", "halves"], ["y", "z"], axis=1)]
    scheduled, func = flat_function(nodes, [4, 8], ["z"])
    _, code = kernels_of(scheduled)
    written = {a.buffer for launch in code.launches for a in launch.kernel.accesses if a.store}
    assert len(written) == len(code.launches) == 2
    np.testing.assert_array_equal(outputs(on_the_host(scheduled)), outputs(func))


def test_results_that_tvm_calls_alike_are_written_to_memory_of_their_own() -> None:
    """A split that is fused with nothing: both kernels wrote one buffer, and the other held what was there before."""
    from compilers.tvm import gpu

    weights = np.ones((16, 8, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("Split", ["a"], ["b", "c"], name="split", axis=1),
        helper.make_node("Conv", ["b", "v"], ["d"], name="left", pads=[1] * 4),
        helper.make_node("Conv", ["c", "v"], ["e"], name="right", pads=[1] * 4),
        helper.make_node("Add", ["d", "e"], ["y"], name="sum"),
    ]
    built = gpu.build(segment(model(nodes, [1, 8, 8, 8], w=weights, v=weights[:8])))
    (split,) = (function for function in built.functions if function.name == "split")
    written = [launch.owner_of(a.buffer) for launch in split.code.launches for a in launch.kernel.accesses if a.store]
    assert len(set(split.code.parameters)) == 3
    assert sorted(written) == sorted(split.code.parameters[1:])


def test_what_is_left_to_the_host_is_refused() -> None:
    from compilers.tvm.gpu_flat import flatten
    from compilers.tvm.schedule import Parts

    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Split", ["a", "halves"], ["y", "z"], axis=1)]
    _, func = flat_function(nodes, [4, 8], ["z"])
    parts = Parts.of(func)
    for block in parts.before:
        parts.sch.compute_inline(block)
    flatten(parts.sch, parts.after[-1])
    with pytest.raises(CompilerError, match=r"TVM leaves the host to compute T_split.*, in the GPU's memory"):
        kernels_of(parts.sch.mod["main"])


@pytest.mark.parametrize(("channels", "parts", "vector"), [(8, 3, 4), (6, 3, 2), (3, 4, 1)])
def test_a_concatenation_reads_vectors_where_its_parts_are_whole_vectors(
    channels: int, parts: int, vector: int
) -> None:
    node = helper.make_node("Concat", ["x"] * parts, ["y"], axis=1)
    scheduled, func = flat_function([node], [4, channels], [])
    (launch,) = kernels_of(scheduled)[1].launches
    assert {a.vector for a in launch.kernel.accesses if not a.store} == {vector}
    np.testing.assert_array_equal(outputs(on_the_host(scheduled)), outputs(func))


def kernels_json(artefact: Artefact) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((artefact.directory / "kernels.json").read_text())
    return rows


def test_an_artefact_has_tiles_kernels_facts_and_an_estimate(tmp_path: Path) -> None:
    artefact = compile_segment(segment(block()), tmp_path, LIMITS)
    rows = kernels_json(artefact)
    assert {row["rule"] for row in rows} == {"tile", "flat"}  # nothing falls to one output for each block
    assert "__kernel" in (artefact.directory / "kernels.cl").read_text()
    estimate = TVM.estimate(artefact)
    assert estimate.latency.source is Source.MODELLED
    assert estimate.latency.low_s < estimate.latency.typical_s < estimate.latency.high_s
    assert "held out, they are off by" in estimate.note
    kernels = [(row["calls"], kernel) for row in rows for kernel in row["kernels"]]
    assert all(kernel["modelled"]["latency_s"] > kernel["modelled"]["launch"] > 0 for _, kernel in kernels)
    assert int(artefact.fact("launches")) == sum(calls for calls, _ in kernels)
    assert TVM.placement(artefact).counts() == {"gpu": 10}
    with pytest.raises(CompilerError, match="cannot run"):
        TVM.load(artefact)


def test_a_laptop_gpu_is_estimated_too(tmp_path: Path) -> None:
    laptop, phone = (compile_segment(segment(block(), device=load_device(name)), tmp_path / name, LIMITS)
                     for name in ("x_elite", "sm8550"))  # fmt: skip
    # Twice the clock and 6/5 of the phone's units a cycle.
    assert 0 < float(laptop.fact("busy_s")) < float(phone.fact("busy_s"))
    assert TVM.estimate(laptop).latency.source is Source.MODELLED
    assert laptop.files[0] == "model.tar"  # for Windows


def test_what_a_gpu_cannot_do_is_said(tmp_path: Path) -> None:
    artefact = TVM.made(segment(block(), "fp32"), tmp_path, files=("kernels.cl",), delivered=())
    with pytest.raises(CompilerError, match=r"no fit to measured rows in fp32 .* those there are: fp16"):
        TVM.estimate(artefact)
    with pytest.raises(CompilerError, match="holds no QuantizeLinear"):
        TVM.compile(segment(block(), "int8"), tmp_path)
    assert "no figures of its GPU" in (TVM.why_not(Action.ESTIMATE, load_device("sa8255p"), "gpu") or "")
    assert "to which a model could be fitted" in (TVM.why_not(Action.ESTIMATE, load_device("sm8650"), "gpu") or "")
    assert "do not run on this machine" in (TVM.why_not(Action.RUN, ADRENO, "gpu") or "")
    assert TVM.why_not(Action.RUN, HOST_GPU, "gpu") == opencl.why_not()


@pytest.mark.parametrize(
    ("kind", "name", "word"), [("metal", "kernels.metal", "kernel void"), ("cuda", "kernels.cu", "__global__")]
)
def test_other_languages(tmp_path: Path, kind: str, name: str, word: str) -> None:
    from compilers.tvm import gpu

    files = gpu.export(build(segment(block(), "fp32", other_device(tmp_path, kind))), tmp_path)
    assert word in (tmp_path / name).read_text()
    assert files[1] == name
    assert (tmp_path / files[0]).stat().st_size > 0


def other_device(folder: Path, kind: str) -> Device:
    """A device with a Metal or CUDA GPU, read from a file."""
    triple, cpu = {"metal": ("arm64-apple-ios", "apple-a17"), "cuda": ("aarch64-linux-gnu", "cortex-a78")}[kind]
    arch = '\narch = "sm_87"' if kind == "cuda" else ""
    text = f"""
title = "a device with a {kind} GPU"
os = "linux"
[processors.cpu]
title = "its CPU"
[processors.cpu.ids.tvm]
kind = "llvm"
mtriple = "{triple}"
mcpu = "{cpu}"
[processors.gpu]
title = "its GPU"
[processors.gpu.ids.tvm]
kind = "{kind}"{arch}
"""
    path = folder / f"{kind}.toml"
    path.write_text(text)
    return load_device(str(path))


def test_a_plan_decides_the_tile() -> None:
    tile = GpuTile(block_x=16, block_y=4, thread_x=2, thread_k=4, k_tile=8, staged=True, vector=4, unroll=2)
    asked = segment(block(), tiles=(Tile(node="pointwise", sizes=tile.sizes),))
    (function,) = (f for f in build(asked).functions if f.reason == "asked for by the plan")
    assert function.tile == tile
    assert function.code.launches[0].kernel.block == (4, 16, 1)


@pytest.mark.parametrize(
    ("node", "change", "reason"),
    [
        ("pointwise", {"k_tile": 5, "unroll": 1}, "k_tile 5 does not divide the 16"),
        ("swish", {}, "'swish', which is no reduction"),
        ("nowhere", {}, "no such node"),
        ("pointwise", {"columns": 4}, "none of this processor"),
        ("pointwise", {"vector": 0}, "vector is 0"),
    ],
)
def test_a_tile_that_cannot_be_built_is_refused(node: str, change: dict[str, int], reason: str) -> None:
    tile = GpuTile(block_x=16, block_y=4, thread_x=2, thread_k=4, k_tile=8, staged=False, vector=4, unroll=2)
    asked = segment(block(), tiles=(Tile(node=node, sizes=tuple({**dict(tile.sizes), **change}.items())),))
    with pytest.raises(CompilerError, match=reason):
        build(asked)


def test_the_host_takes_tiles_too_and_checks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "cache"))

    def asked(**sizes: int) -> Segment:
        tiles = (Tile(node="pointwise", sizes=tuple(sizes.items())),)
        return Segment(
            graph=block(), device=HOST, processor="cpu", compiler="tvm", precision="fp32",
            options=(("sweep", "1"),), tiles=tiles,
        )  # fmt: skip

    artefact = compile_segment(asked(channels=8, columns=3, lanes=4), tmp_path, LIMITS)
    rows = json.loads((artefact.directory / "functions.json").read_text())
    (row,) = (row for row in rows if row["reason"] == "asked for by the plan")
    assert (row["config"]["channels"], row["config"]["columns"], row["config"]["lanes"]) == (8, 3, 4)
    assert float(artefact.fact("relative_error")) < 1e-5
    with pytest.raises(CompilerError, match="columns must divide the 9"):
        compile_segment(asked(channels=8, columns=4, lanes=4), tmp_path, LIMITS)


def test_a_backend_that_takes_no_tiles_says_so(tmp_path: Path) -> None:
    asked = Segment(
        graph=block(), device=HOST, processor="cpu", compiler="ort_cpu", precision="fp32",
        tiles=(Tile(node="pointwise", sizes=(("channels", 8),)),),
    )  # fmt: skip
    with pytest.raises(CompilerError, match="ort_cpu chooses tile sizes by itself"):
        compile_segment(asked, tmp_path, LIMITS)


def test_the_calls_of_a_graph_are_told_so_that_others_can_make_them() -> None:
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.program import program_of

    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="relu"),
        node("Split", ["a", "halves"], ["b", "c"], name="split", axis=1),
        node("Conv", ["b", "w"], ["d"], name="conv"),
        node("Flatten", ["d"], ["e"], name="flat"),
        node("MatMul", ["e", "v"], ["f"], name="product"),
        node("Concat", ["c", "d"], ["g"], name="join", axis=1),
        node("Softmax", ["f"], ["y"], name="softmax"),
    ]
    graph = model(nodes, [1, 8, 4, 4], halves=np.array([4, 4]), w=weight(6, 4, 1, 1), v=weight(96, 5))
    proto = graph.proto()
    proto.graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, None))
    module, functions = frontend.fused(frontend.import_graph(proto), opencl_target())
    shapes = {name for name, func in functions.items() if tvm.relax.analysis.has_reshape_pattern(func)}
    program, constants = program_of(module, functions.keys() - shapes)
    assert len(program.steps) < sum(frontend.count_calls(module).values()), "the change of shape is no call"
    assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program

    feed = {"x": np.random.default_rng(0).normal(size=(1, 8, 4, 4)).astype(np.float32)}
    memory = {value.name: feed["x"] for value in program.inputs} | constants
    for step in program.steps:
        named = functions[step.function].with_attr("global_symbol", "main")
        library = tvm.tirx.build(tvm.IRModule({"main": named}), target="llvm")
        tensors = [
            tvm.runtime.tensor(memory.get(v.name, np.empty(v.shape, v.dtype)).reshape(v.shape)) for v in step.arguments
        ]
        library["main"](*tensors)
        memory |= {v.name: tensor.numpy() for v, tensor in zip(step.arguments, tensors, strict=True)}
    expected = reference_session(from_proto(proto)).run(feed)
    for name, value in zip(("y", "g"), program.outputs, strict=True):
        np.testing.assert_allclose(memory[value.name].reshape(value.shape), expected[name], rtol=1e-5, atol=1e-6)


def on_this_machine(artefact: Artefact, feed: dict[str, Any]) -> Any:
    """Called in a child: what the session of an artefact computes, and the time of its kernels."""
    with TVM.load(artefact) as session:
        return session.run(feed), TVM.profile(artefact, feed, 2)


@pytest.mark.skipif(opencl.why_not() is not None, reason="needs the extra opencl")
def test_a_graph_runs_on_the_opencl_device_that_is_here(tmp_path: Path) -> None:
    artefact = compile_segment(segment(block(), "fp32", HOST_GPU), tmp_path, LIMITS)
    assert float(artefact.fact("relative_error")) < 1e-5
    units = TVM.placement(artefact)
    if "says it is a cpu" in artefact.fact("runs_on"):  # PoCL: it runs, and not on a GPU
        assert units.counts() == {"cpu": 10}
        assert "driver" in units.reasons["stem"]
        product = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [4, 8], w=weight(8, 4))
        with pytest.raises(CompilerError, match=r"has no float16 \(cl_khr_fp16\); ask for fp32"):
            compile_segment(segment(product, "fp16", HOST_GPU), tmp_path, LIMITS)
    feed = random_inputs(block(), 3)
    outputs, kernels = in_child(on_this_machine, artefact, feed, limits=LIMITS)
    np.testing.assert_allclose(outputs["y"], reference_session(block()).run(feed)["y"], rtol=1e-4, atol=1e-6)
    assert {node for kernel in kernels for node in kernel.nodes} == {node.name for node in block().nodes()}
    assert all(kernel.time_s > 0 for kernel in kernels)
    moved = dataclasses.replace(artefact, facts=(*artefact.facts, ("runs_on", "another GPU (OpenCL, driver 1)")))
    with pytest.raises(CompilerError, match=r"checked on another GPU .*, and now .* answers; delete"):
        in_child(on_this_machine, moved, feed, limits=LIMITS)


@pytest.mark.skipif(nvrtc.why_not() is not None, reason="needs the extra cuda")
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_cuda_source_becomes_ptx_of_every_kernel(tmp_path: Path, precision: str) -> None:
    from compilers.tvm import gpu

    graph = quantised() if precision == "int8" else block()
    built = build(segment(graph, precision, other_device(tmp_path, "cuda")))
    assert gpu.export_ptx(built, tmp_path) == (("kernels.ptx",), "NVRTC compiles the source for sm_87")
    text = (tmp_path / "kernels.ptx").read_text()
    assert ("dp4a.u32.s32" in text) == (precision == "int8")
    assert ".extern .func" not in text  # nothing that a driver could not resolve
    kernels = [launch.kernel.name for function in built.functions for launch in function.code.launches]
    for arch in ("sm_75", "sm_90"):
        text = nvrtc.ptx(built.source(), arch)
        assert f".target {arch}" in text
        assert all(f".entry {name}(" in text for name in kernels)
    with pytest.raises(CompilerError, match=r"compiles for no 'sm_30'; it knows .*sm_87"):
        nvrtc.ptx("", "sm_30")
    with pytest.raises(CompilerError, match="NVRTC refuses the kernels for sm_87: "):
        nvrtc.ptx("no C++", "sm_87")


@pytest.mark.skipif(opencl.why_not() is not None, reason="needs the extra opencl")
@pytest.mark.parametrize(
    ("node", "staged"), [("stem", True), ("depthwise", False), ("pointwise", True), ("product", True)]
)
def test_kernels_run_right_under_opencl(functions: dict[str, Any], node: str, staged: bool) -> None:
    from compilers.tvm.gpu_schedule import analyse_gpu, schedule_gpu
    from compilers.tvm.sweep import arguments_of

    func = functions[node]
    nest = analyse_gpu(func)
    assert nest is not None
    steps = {"stem": 3, "depthwise": 3}.get(node, 8)
    vector = 2 if node == "product" else 4
    tile = GpuTile(
        block_x=4, block_y=2, thread_x=2, thread_k=4, k_tile=steps, staged=staged, vector=vector, unroll=steps
    )  # fmt: skip
    source, code = kernels_of(schedule_gpu(func, tile))
    arrays = {name: tensor.numpy() for name, tensor in zip(code.parameters, arguments_of(func), strict=True)}
    after = in_child(opencl.run_function, source, code, arrays, limits=LIMITS)
    np.testing.assert_allclose(after[code.parameters[-1]], outputs(func), rtol=2e-5, atol=1e-6)


# The branch of a device that has the instruction, with another function in place of its `dot`.
STAND_IN = """
#define cl_khr_integer_dot_product 1
#define __opencl_c_integer_dot_product_input_4x8bit 1
int stand_in(uchar4 a, char4 b) { int4 c = convert_int4(a) * convert_int4(b); return c.x + c.y + c.z + c.w; }
#define dot stand_in
"""


@pytest.mark.skipif(opencl.why_not() is not None, reason="needs the extra opencl")
@pytest.mark.parametrize(("start", "staged"), STAGED)
def test_integer_kernels_are_right_to_the_bit_under_opencl(
    integer_functions: dict[str, Any], start: str, staged: bool
) -> None:
    from compilers.tvm.gpu_schedule import schedule_gpu
    from compilers.tvm.sweep import arguments_of

    func = integer_functions[start]
    source, code = kernels_of(schedule_gpu(func, integer_tile(start, staged=staged), opencl_target()))
    assert (source.count("= edgefrontier_dot4_uint8(") > 1) == ("dot" in start)
    arrays = {name: tensor.numpy() for name, tensor in zip(code.parameters, arguments_of(func), strict=True)}
    for text in (source, STAND_IN + source) if start == "fused_dot_conv2d1" else (source,):
        after = in_child(opencl.run_function, text, code, arrays, limits=LIMITS)
        np.testing.assert_array_equal(after[code.parameters[-1]], outputs(func))


@pytest.mark.skipif(opencl.why_not() is not None, reason="needs the extra opencl")
def test_a_quantised_graph_gives_the_bytes_that_the_host_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "cache"))
    here = Segment(
        graph=quantised(), device=HOST, processor="cpu", compiler="tvm", precision="int8", options=(("sweep", "1"),)
    )  # fmt: skip
    artefacts = [compile_segment(each, tmp_path, LIMITS) for each in (here, segment(quantised(), "int8", HOST_GPU))]
    assert [artefact.fact("int8_macs_ratio") for artefact in artefacts] == ["1", "1"]
    for seed in (1, 2):
        feed = random_inputs(quantised(), seed)
        first, second = (in_child(only_outputs, artefact, feed, limits=LIMITS)["y"] for artefact in artefacts)
        np.testing.assert_array_equal(first, second)


def only_outputs(artefact: Artefact, feed: dict[str, Any]) -> Any:
    with TVM.load(artefact) as session:
        return session.run(feed)
