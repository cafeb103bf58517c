"""Tensors between GPU kernels as textures: which, why not the others, that the code has them, and that it is right."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import (
    Action,
    Artefact,
    CompilerError,
    Limits,
    compile_segment,
    get_compiler,
    in_child,
    reference_session,
)
from compilers.tvm import opencl
from compilers.tvm.gpu_code import Program, Step, Value
from graphs import Graph, from_proto, random_inputs
from partition import Segment, load_device
from partition.tile import GpuTile, build_refusal

if TYPE_CHECKING:
    from pathlib import Path

    from partition import Device

TVM = get_compiler("tvm")
HOST_GPU, ADRENO = load_device("host_gpu"), load_device("sm8550")
LIMITS = Limits(time_s=300)

pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, ADRENO, "gpu"), reason="TVM does not work here")


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).normal(0, 0.2, shape).astype(np.float32)


def residual() -> Graph:
    """A stem of 3 channels, a depthwise block with a residual, a pool, and a classifier of 10."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], name="stem", strides=[2, 2], pads=[1] * 4),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Conv", ["b", "w1"], ["c"], name="depthwise", group=16, pads=[1] * 4),
        node("Conv", ["c", "w2"], ["d"], name="pointwise"),
        node("Add", ["d", "b"], ["e"], name="add"),
        node("MaxPool", ["e"], ["f"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["f"], ["g"], name="mean"),
        node("Flatten", ["g"], ["h"], name="flat"),
        node("MatMul", ["h", "w3"], ["y"], name="product"),
    ]
    weights = {"w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "w2": (16, 16, 1, 1), "w3": (16, 10)}
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 18, 18])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight(*shape), name) for name, shape in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def segment(graph: Graph, precision: str = "fp32", device: Device = ADRENO, textures: str = "1") -> Segment:
    return Segment(
        graph=graph, device=device, processor="gpu", compiler="tvm", precision=precision,
        options=(("textures", textures),),
    )  # fmt: skip


def target() -> Any:
    from compilers.tvm.targets import target_of

    return target_of(ADRENO, "gpu")


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    """The fused functions that have a tile, by the node in them."""
    from compilers.tvm import frontend
    from compilers.tvm.nodes import function_of_nodes

    module, found = frontend.fused(frontend.import_graph(residual().proto()), target())
    return {node: found[name] for node, name in function_of_nodes(residual(), module, found).items()}


def on_the_host(func: Any) -> np.ndarray[Any, Any]:
    """Run the threads of a scheduled kernel one after the other, its textures as plain memory."""
    import tvm
    import tvm_ffi

    from compilers.tvm.sweep import arguments_of

    kinds = tvm.tirx.ForKind

    def serial(loop: Any) -> Any:
        if loop.kind != kinds.THREAD_BINDING:
            return loop
        return tvm.tirx.For(loop.loop_var, loop.min, loop.extent, kinds.SERIAL, loop.body)

    plain = tvm_ffi.structural_map(func, [(tvm.tirx.For, serial)])
    library = tvm.tirx.build(tvm.IRModule({"main": plain.with_attr("global_symbol", "main")}), target="llvm")
    arguments = arguments_of(func)
    library["main"](*arguments)
    result: np.ndarray[Any, Any] = arguments[-1].numpy()
    return result.ravel()


@given(shape=st.lists(st.integers(1, 6), max_size=4), channels=st.integers(1, 5), data=st.data())
def test_an_image_holds_each_element_where_the_layout_says(
    shape: list[int], channels: int, data: st.DataObject
) -> None:
    from compilers.tvm.textures import Layout

    whole = (*shape, 4 * channels)
    layout = Layout.of(whole, "float16", target())
    array = np.arange(math.prod(whole)).reshape(whole)
    at = tuple(data.draw(st.integers(0, extent - 1)) for extent in whole)
    assert array.reshape(layout.image)[tuple(map(int, layout.place(*at)))] == array[at]


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((1, 56, 56, 64), (1, 56, 56 * 16, 4)),  # rows of the picture
        ((3, 3, 512, 512), (9, 512, 128, 4)),  # rows of 512 * 512 / 4 texels would be too long
        ((24, 64), (1, 24, 16, 4)),
        ((64,), (1, 1, 16, 4)),
    ],
)
def test_the_image_of_a_shape(shape: tuple[int, ...], image: tuple[int, ...]) -> None:
    from compilers.tvm.textures import Layout

    assert Layout.of(shape, "float32", target()).image == image


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((1, 8, 8, 6), "float32", "its last axis of 6 is no multiple of 4"),
        ((), "float32", "its last axis of 1 is no multiple of 4"),
        ((1, 8), "int8", "TVM writes texels of float32 and float16, not of int8"),
        ((32768, 16), "float16", r"32768x16 is larger than an image may be \(16384 texels\)"),
        ((64, 64, 8, 8), "float16", None),
        ((64, 64, 8, 65536), "float16", r"larger than an image may be"),
    ],
)
def test_what_no_image_can_hold(shape: tuple[int, ...], dtype: str, reason: str | None) -> None:
    from compilers.tvm.blocks import UnscheduledError
    from compilers.tvm.textures import Layout

    if reason is None:
        assert Layout.of(shape, dtype, target()).image == (64, 64, 8 * 2, 4)
        return
    with pytest.raises(UnscheduledError, match=reason):
        Layout.of(shape, dtype, target())


def test_a_value_is_a_texture_where_all_that_touch_it_take_one() -> None:
    from compilers.tvm.textures import spread_refusals

    def step(function: str, *names: str) -> Step:
        return Step(function=function, arguments=tuple(Value(name=n, shape=(4,), dtype="float32") for n in names))

    # f is called twice: once with b, which h refuses, and once with d, which nothing does.
    steps = (step("stem", "x", "a"), step("f", "a", "b"), step("h", "b", "c"), step("f", "c", "d"), step("g", "d", "y"))
    value = {name: Value(name=name, shape=(4,), dtype="float32") for name in ("x", "y")}
    program = Program(inputs=(value["x"],), outputs=(value["y"],), steps=steps)
    end = "it is an input or an output of the graph"
    assert spread_refusals(program, {}) == {("stem", 0): end, ("g", 1): end}
    found = spread_refusals(program, {("h", 0): "it is odd"})
    assert found[("h", 0)] == "it is odd"
    assert found[("f", 1)] == found[("g", 0)] == "shared with h: it is odd"
    assert ("f", 0) not in found
    assert ("stem", 1) not in found


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_kernel_with_textures_computes_the_same(functions: dict[str, Any], data: st.DataObject) -> None:
    from compilers.tvm.gpu_schedule import analyse_gpu, schedule_gpu
    from compilers.tvm.textures import layouts_of, with_textures

    func = functions[data.draw(st.sampled_from(["stem", "depthwise", "pointwise", "pool", "mean"]))]
    nest = analyse_gpu(func)
    assert nest is not None
    powers = st.sampled_from([1, 2, 4, 8])
    tile = GpuTile(
        block_x=data.draw(powers), block_y=data.draw(powers), thread_x=data.draw(st.integers(1, 4)),
        thread_k=data.draw(st.sampled_from([4, 8])), k_tile=data.draw(st.sampled_from([1, 3, 4, 8])),
        staged=data.draw(st.booleans()), vector=4, unroll=data.draw(st.sampled_from([1, 2, 4])),
    )  # fmt: skip
    if build_refusal(nest.layer("case"), tile) is not None:
        return
    scheduled = schedule_gpu(func, tile)
    layouts, _ = layouts_of(scheduled, target())
    some = {at: layouts[at] for at in data.draw(st.sets(st.sampled_from(sorted(layouts)), min_size=1))}
    np.testing.assert_allclose(on_the_host(with_textures(scheduled, some)), on_the_host(func), rtol=2e-5, atol=1e-6)


def test_narrow_vectors_write_no_texture(functions: dict[str, Any]) -> None:
    from compilers.tvm.gpu_schedule import schedule_gpu
    from compilers.tvm.textures import tried

    tile = GpuTile(
        block_x=4, block_y=4, thread_x=1, thread_k=2, k_tile=2, staged=False, vector=2, unroll=2
    )  # fmt: skip
    reasons = tried("f", schedule_gpu(functions["pointwise"], tile), target())
    assert set(reasons) == {0, 1, 2, 3}
    assert reasons[0] == reasons[1] == "it reads 2 of a texel's 4 elements"
    assert "it does not write" in reasons[3]


def test_a_vector_that_lies_in_two_texels_is_none() -> None:
    from compilers.tvm import frontend
    from compilers.tvm.gpu_flat import schedule_rest
    from compilers.tvm.textures import layouts_of, tried, with_textures

    node = helper.make_node("Pad", ["x", "ends"], ["y"])
    data, padded = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, size]) for name, size in (("x", 8), ("y", 12))
    )
    ends = numpy_helper.from_array(np.array([0, 2, 0, 2]), "ends")
    graph = helper.make_graph([node], "pad", [data], [padded], [ends])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (func,) = frontend.fused(frontend.import_graph(model), target())[1].values()
    scheduled, rule = schedule_rest(func, target())
    assert rule == "flat"
    assert set(tried("pad", scheduled, target())) == {
        0
    }  # the padded is written in texels, what is padded is not read so
    layouts, _ = layouts_of(scheduled, target())
    written = with_textures(scheduled, {1: layouts[1]})
    np.testing.assert_array_equal(on_the_host(written), on_the_host(func))


# TVM takes the loop apart, and each turn fills the texel with one element: when a new version does not, this says so.
def test_tvm_itself_writes_one_element_to_a_whole_texel() -> None:
    import tvm
    from tvm.script import tirx

    from compilers.tvm.gpu_facts import Split
    from compilers.tvm.textures import PIPELINE

    @tirx.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def copy(
        a: tirx.Buffer((1, 1, 8, 4), "float32"),  # type: ignore[valid-type]
        b: tirx.Buffer((1, 1, 8, 4), "float32", scope="global.texture"),  # type: ignore[valid-type]
    ) -> None:
        for i in tirx.thread_binding(8, thread="threadIdx.x"):
            for j in tirx.vectorized(4):
                with tirx.sblock("copy"):
                    x, e = tirx.axis.remap("SS", [i, j])
                    b[0, 0, x, e] = a[0, 0, x, e]

    split = Split()
    with tvm.transform.PassContext(opt_level=3, instruments=[split]):
        module = tvm.IRModule({"copy": copy.with_attr("global_symbol", "copy")})
        built = tvm.tirx.build(module, target=target(), pipeline=PIPELINE)
    source = built.imports[0].inspect_source()
    assert "float4 v_ = a_ptr[(((convert_int(get_local_id(0))) * 4) + j_s)];" in source
    with pytest.raises(NotImplementedError, match="TVM writes 1 of a texel's 4 elements to b_ptr"):
        split.code()


def test_an_artefact_says_what_is_a_texture_and_why_the_rest_is_not(tmp_path: Path) -> None:
    artefact = compile_segment(segment(residual(), "fp16"), tmp_path, LIMITS)
    rows = json.loads((artefact.directory / "kernels.json").read_text())
    textures = [(row["function"], a) for row in rows for k in row["kernels"] for a in k["accesses"] if a["texture"]]
    assert {a["vector"] for _, a in textures} == {4}
    assert {a["element_bytes"] for _, a in textures} >= {2}
    parameters = sum(len(row["parameters"]) for row in rows)
    buffers = [reason for row in rows for reason in row["buffers"].values()]
    assert artefact.fact("textures") == f"{parameters - len(buffers)} of {parameters} parameters of functions"
    assert all(buffers)
    assert "its last axis of 3 is no multiple of 4" in buffers  # the stem's data and weights
    assert any("elements" in reason or "another view" in reason for reason in buffers)
    stem = next(row for row in rows if "stem" in row["nodes"][0])
    assert set(stem["buffers"].values()) == {"its last axis of 3 is no multiple of 4"}

    source = (artefact.directory / "kernels.cl").read_text()
    for kind, half, single in (
        ("writes", " write_imageh(", " write_imagef("),
        ("reads", "(READ_IMAGEH(", "(READ_IMAGEF("),
    ):
        assert source.count(half) > 0
        assert source.count(half) + source.count(single) == int(artefact.fact(f"texture_{kind}"))
    assert not any("modelled" in kernel for row in rows for kernel in row["kernels"])
    with pytest.raises(CompilerError, match="no estimate of kernels that read textures"):
        TVM.estimate(artefact)


def test_code_without_the_images_is_refused() -> None:
    from compilers.tvm.gpu import build
    from compilers.tvm.gpu_code import check_textures

    built = build(segment(residual()), textures=True)
    source = built.source()
    assert dict(check_textures(source, built.functions))["textures"].startswith("1")
    for was, reason in (("READ_IMAGEF(", "read"), ("write_imagef(", "write")):
        with pytest.raises(CompilerError, match=rf"TVM's code of .* does not {reason} .* as an image"):
            check_textures(source.replace(was, "something("), built.functions)


def test_what_has_no_textures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="option textures must be 0 or 1, not 'yes'"):
        TVM.compile(segment(residual(), textures="yes"), tmp_path)
    metal = dataclasses.replace(
        ADRENO,
        processors=tuple(
            dataclasses.replace(p, ids={"tvm": {"kind": "metal"}}) if p.name == "gpu" else p for p in ADRENO.processors
        ),
    )
    with pytest.raises(CompilerError, match="TVM writes them in OpenCL only, and this GPU's kernels are metal"):
        TVM.compile(segment(residual(), device=metal), tmp_path)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 5]) for name in "xy"]
    odd = from_proto(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), ir_version=9))
    with pytest.raises(CompilerError, match="no tensor of this graph can be one: its last axis of 5 is no multiple"):
        TVM.compile(segment(odd), tmp_path)


def test_a_sweep_tries_textures_where_they_are_measured() -> None:
    assert [dict(way.options) for way in TVM.variants("fp32", HOST_GPU, "gpu")] == [{}, {"textures": "1"}]
    assert len(TVM.variants("fp16", ADRENO, "gpu")) == 1


def on_this_machine(artefact: Artefact, feed: dict[str, Any]) -> Any:
    with TVM.load(artefact) as session:
        return session.run(feed), TVM.profile(artefact, feed, 1)


@pytest.mark.skipif(opencl.why_not() is not None, reason="needs the extra opencl")
def test_a_graph_with_textures_runs_right_under_opencl(tmp_path: Path) -> None:
    artefact = compile_segment(segment(residual(), device=HOST_GPU), tmp_path, LIMITS)
    assert int(artefact.fact("texture_writes")) > 0
    assert float(artefact.fact("relative_error")) < 1e-5
    feed = random_inputs(residual(), 3)
    outputs, kernels = in_child(on_this_machine, artefact, feed, limits=LIMITS)
    np.testing.assert_allclose(outputs["y"], reference_session(residual()).run(feed)["y"], rtol=1e-4, atol=1e-6)
    assert {node for kernel in kernels for node in kernel.nodes} >= {"stem", "depthwise", "add", "pool"}
