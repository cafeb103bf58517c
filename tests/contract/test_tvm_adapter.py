"""The TVM adapter on the real wheel: numerics, schedules, cache, fallbacks, refusals."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compilers.tvm as adapter
from compilers import Action, Artefact, CompilerError, Limits, compile_segment, get_compiler, in_child
from compilers.ort_session import reference_session
from graphs import Graph, compare, from_proto, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

HOST = load_device("host")
TVM = get_compiler("tvm")
LIMITS = Limits(time_s=300)

pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).normal(0, 0.1, shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    shape: list[int],
    *,
    domain: str = "",
    **weights: np.ndarray[Any, Any],
) -> Graph:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def mobile_block() -> Graph:
    """Convolution, depthwise, squeeze-excite with HardSigmoid, HardSwish, Clip, residual, classifier."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], strides=[2, 2], pads=[1] * 4),
        node("HardSwish", ["a"], ["b"]),
        node("Conv", ["b", "w1", "b0"], ["c"], group=16, pads=[1] * 4),
        node("Clip", ["c", "zero", "six"], ["d"]),
        node("GlobalAveragePool", ["d"], ["e"]),
        node("Conv", ["e", "w2"], ["f"]),
        node("HardSigmoid", ["f"], ["g"], alpha=1 / 6, beta=0.5),
        node("Mul", ["d", "g"], ["h"]),
        node("Add", ["h", "b"], ["i"]),
        node("MaxPool", ["i"], ["j"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ReduceMean", ["j"], ["k"], axes=[2, 3], keepdims=0),
        node("Gemm", ["k", "w3"], ["y"], transB=1),
    ]
    return model(
        nodes,
        [1, 3, 32, 32],
        w0=weight(16, 3, 3, 3),
        b0=weight(16),
        w1=weight(16, 1, 3, 3),
        w2=weight(16, 16, 1, 1),
        w3=weight(10, 16),
        zero=np.array(0, np.float32),
        six=np.array(6, np.float32),
    )


def quantised_convolution() -> Graph:
    """x -> Q/DQ -> Conv with int8 weights per channel and int32 bias -> Q/DQ -> y."""
    node = helper.make_node
    random = np.random.default_rng(5)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
        node("Conv", ["xd", "wd", "bd"], ["c"], pads=[1] * 4),
        node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]
    scales = np.linspace(0.01, 0.02, 16, dtype=np.float32)
    return model(
        nodes,
        [1, 8, 14, 14],
        s=np.array(0.03, np.float32),
        z=np.array(128, np.uint8),
        w=random.integers(-127, 127, (16, 8, 3, 3)).astype(np.int8),
        ws=scales,
        wz=np.zeros(16, np.int8),
        b=random.integers(-500, 500, 16).astype(np.int32),
        bs=scales * np.float32(0.03),
        bz=np.zeros(16, np.int32),
    )


def segment(graph: Graph, precision: str = "fp32", **options: str) -> Segment:
    return Segment(
        graph=graph,
        device=HOST,
        processor="cpu",
        compiler="tvm",
        precision=precision,
        options=tuple(options.items()),
    )


def error_of(graph: Graph, artefact: Artefact) -> float:
    feed = random_inputs(graph, 3)
    with TVM.load(artefact) as session:
        outputs = session.run(feed)
    errors = compare(reference_session(graph).run(feed), outputs)
    return max(error.relative_max if error.relative_max is not None else np.inf for error in errors.values())


def functions_of(artefact: Artefact) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((artefact.directory / "functions.json").read_text())
    return rows


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_mobile_block_is_scheduled_stays_channels_last_and_is_right(tmp_path: Path, cache: Path) -> None:
    graph = mobile_block()
    artefact = compile_segment(segment(graph), tmp_path / "cold", LIMITS)
    assert error_of(graph, artefact) < 1e-5
    rows = functions_of(artefact)
    assert {row["build"] for row in rows} == {"tiled", "flat"}
    assert sum("transpose" in row["function"] for row in rows) <= 2  # in and out, none between
    assert artefact.fact("mcpu")
    assert TVM.placement(artefact).counts() == {"cpu": 12}
    entries = sorted(cache.rglob("*.json"))
    assert len(entries) == len(rows)

    again = compile_segment(segment(graph), tmp_path / "warm", LIMITS)
    assert functions_of(again) == rows
    assert sorted(cache.rglob("*.json")) == entries


def test_the_profile_gives_each_node_to_the_kernel_that_computes_it(tmp_path: Path, cache: Path) -> None:
    graph = mobile_block()
    artefact = compile_segment(segment(graph), tmp_path, LIMITS)
    kernels = in_child(TVM.profile, artefact, random_inputs(graph, 0), 3, limits=LIMITS)
    assert {node for kernel in kernels for node in kernel.nodes} == {n.name for n in graph.nodes()}
    assert ("Conv_f", "HardSigmoid_g", "Mul_h", "Add_i") in [kernel.nodes for kernel in kernels]
    assert all(kernel.time_s > 0 for kernel in kernels)


def test_calls_of_one_function_are_told_apart() -> None:
    """Two equal convolutions share a function; the order of its calls tells whose it is."""
    from compilers.tvm import frontend
    from compilers.tvm.targets import host_target

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="bend"),
        node("Conv", ["b", "w1"], ["c"], name="second"),
        node("Relu", ["c"], ["y"], name="end"),
    ]
    graph = model(nodes, [1, 8, 6, 6], w0=weight(8, 8, 1, 1), w1=weight(8, 8, 1, 1))
    module = frontend.fuse(frontend.import_graph(graph.proto()), host_target())
    calls = frontend.nodes_of(module)
    assert [["first", "bend"], ["second", "end"]] in calls.values()
    assert {name: len(each) for name, each in calls.items()} == dict(frontend.count_calls(module))


def test_two_threads_compute_the_same(tmp_path: Path, cache: Path) -> None:
    graph = mobile_block()
    artefact = compile_segment(segment(graph, threads="2", sweep="1"), tmp_path, LIMITS)
    assert artefact.fact("threads") == "2"
    assert error_of(graph, artefact) < 1e-5


def test_threads_are_those_asked_for_with_no_variable_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    # In a process of its own: TVM asks once, when its first parallel kernel runs.
    assert in_child(threads_given, (2, 1), limits=LIMITS) == [2, 1]


def threads_given(asked: tuple[int, ...]) -> list[int]:
    import tvm

    from compilers.tvm import runtime

    given = []
    for threads in asked:
        runtime.use_threads(threads)
        given.append(int(tvm.get_global_func("runtime.NumThreads")()))
    return given


def test_a_child_that_only_runs_imports_no_compiler(tmp_path: Path, cache: Path) -> None:
    graph = mobile_block()
    artefact = compile_segment(segment(graph, sweep="1"), tmp_path, LIMITS)
    feed = random_inputs(graph, 0)
    outputs, alone = in_child(run_alone, artefact, feed, limits=LIMITS)
    assert alone
    with TVM.load(artefact) as session:
        whole = session.run(feed)
    for name, values in outputs.items():
        np.testing.assert_array_equal(values, whole[name])


def test_a_child_that_only_runs_can_sort(tmp_path: Path, cache: Path) -> None:
    """TVM calls a library for it, which neither its runtime alone nor its compiler without GPUs loads."""
    nodes = [helper.make_node("TopK", ["x", "k"], ["v", "i"]), helper.make_node("Neg", ["v"], ["y"])]
    graph = model(nodes, [3, 40], k=np.array([5], np.int64))
    artefact = compile_segment(segment(graph, sweep="1"), tmp_path, LIMITS)
    feed = random_inputs(graph, 0)
    outputs, alone = in_child(run_alone, artefact, feed, limits=LIMITS)
    assert alone
    (values,) = outputs.values()
    np.testing.assert_array_equal(-values, np.sort(feed["x"], axis=1)[:, :-6:-1])


def run_alone(artefact: Artefact, feed: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], bool]:
    with TVM.load(artefact) as session:
        outputs = session.run(feed)
    import tvm

    return outputs, tvm.base._RUNTIME_ONLY and not hasattr(tvm, "relax")


def test_an_output_of_another_type_is_wrong_code() -> None:
    from compilers.tvm.check import _check_types

    _check_types({"y": np.zeros(3, np.float32)}, {"y": np.ones(3, np.float32)})
    with pytest.raises(CompilerError, match=r"output 'y' as float32 of \(3,\), which is bool of \(3,\)"):
        _check_types({"y": np.zeros(3, bool)}, {"y": np.zeros(3, np.float32)})


def test_int8_is_computed_in_integers_and_says_how_much(tmp_path: Path, cache: Path) -> None:
    graph = quantised_convolution()
    artefact = compile_segment(segment(graph, "int8"), tmp_path, LIMITS)
    assert artefact.fact("int8_macs_ratio") == "1"
    assert error_of(graph, artefact) < 0.01  # a step of the output's scale is 1/128 of its range
    # The Q/DQ pair joins the convolution as its epilogue.
    assert any("conv2d" in row["function"] and "round" in row["function"] for row in functions_of(artefact))


def test_tile_which_the_wheel_miscompiles_unscheduled_is_right(tmp_path: Path, cache: Path) -> None:
    repeats = np.array([7, 6, 4, 2], np.int64)
    graph = model([helper.make_node("Tile", ["x", "r"], ["y"])], [2, 3, 4, 5], r=repeats)
    assert error_of(graph, compile_segment(segment(graph), tmp_path, LIMITS)) == 0.0


def test_several_reductions_are_left_as_they_are_and_listed(tmp_path: Path, cache: Path) -> None:
    graph = model([helper.make_node("Softmax", ["x"], ["y"], axis=1)], [4, 33, 5])
    artefact = compile_segment(segment(graph), tmp_path, LIMITS)
    assert error_of(graph, artefact) < 1e-5
    (row,) = functions_of(artefact)
    assert (row["build"], row["reason"]) == ("plain", "it has 2 reductions")
    assert artefact.fact("functions_unscheduled") == row["function"]


def test_a_function_that_only_the_baseline_compiles_right_is_linked_from_there(tmp_path: Path, cache: Path) -> None:
    from compilers.tvm import frontend
    from compilers.tvm.cache import Decision, TileCache
    from compilers.tvm.sweep import structure_key
    from compilers.tvm.targets import host_target

    graph = mobile_block()
    compile_segment(segment(graph), tmp_path / "first", LIMITS)
    folder = next(cache.rglob("*.json")).parent
    module = frontend.fuse(frontend.import_graph(graph.proto()), host_target())
    broken = next(gv for gv in module.functions if gv.name_hint.startswith("fused_conv2d"))
    TileCache(folder).put(
        structure_key(module[broken]), Decision(build="safe", reason="wrong code", miscompiled=("plain",))
    )
    artefact = compile_segment(segment(graph, sweep="2"), tmp_path / "second", LIMITS)
    assert artefact.fact("functions_safe") == broken.name_hint
    assert artefact.fact("functions_miscompiled") == broken.name_hint
    assert error_of(graph, artefact) < 1e-5


def test_a_wrong_kernel_is_not_kept(cache: Path) -> None:
    from compilers.tvm.sweep import values_agree

    expected = np.linspace(-5, 5, 1000, dtype=np.float32)
    assert values_agree(expected, expected * np.float32(1 + 1e-6), rounds=False)
    assert not values_agree(expected, np.roll(expected, 1), rounds=False)
    assert not values_agree(expected, np.where(expected > 4, np.float32(np.nan), expected), rounds=False)
    one_step = expected.round()
    one_step[500] += 1
    assert not values_agree(expected.round(), one_step, rounds=False)
    assert not values_agree(expected.round(), -expected.round(), rounds=True)


def test_scheduling_leaves_the_function_alone() -> None:
    import tvm
    import tvm_ffi

    from compilers.tvm import frontend
    from compilers.tvm.schedule import analyse, schedule
    from compilers.tvm.targets import host_target, registers_of
    from compilers.tvm.tiles import candidates

    target = host_target()
    module = frontend.fuse(frontend.import_graph(mobile_block().proto()), target)
    for func in (f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)):
        before = tvm_ffi.structural_hash(func)
        nest = analyse(func)
        for tile in candidates(nest, registers_of(target), 3) if nest else (None,):
            schedule(func, tile, threads=2)
        assert tvm_ffi.structural_hash(func) == before


def test_without_a_linker_the_code_is_compiled_when_it_is_loaded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = mobile_block()
    artefact = compile_segment(segment(graph), tmp_path, LIMITS)
    assert artefact.files[:2] == ("model.vm", "code0.ll")
    assert error_of(graph, artefact) < 1e-5


@pytest.mark.parametrize(
    ("options", "precision", "reason"),
    [
        ({}, "fp16", "float32 only"),
        ({}, "int8", "no QuantizeLinear"),
        ({"threads": "0"}, "fp32", "option threads"),
        ({"sweep": "many"}, "fp32", "option sweep"),
        ({"tune": "-1"}, "fp32", "option tune"),
        ({"speed": "1"}, "fp32", "no option speed"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, options: dict[str, str], precision: str, reason: str) -> None:
    with pytest.raises(CompilerError, match=reason):
        compile_segment(segment(mobile_block(), precision, **options), tmp_path, LIMITS)


def test_operators_that_nothing_replaces_are_named(tmp_path: Path) -> None:
    graph = model([helper.make_node("Det", ["x"], ["y"], name="det")], [2, 3, 3])
    assert TVM.unsupported(graph) == {"det": "TVM's ONNX importer has no usable Det"}
    with pytest.raises(CompilerError, match="has no usable Det"):
        compile_segment(segment(graph), tmp_path, LIMITS)


def test_an_operator_of_another_domain_is_not_taken_for_the_standard_one() -> None:
    node = helper.make_node("Inverse", ["x"], ["y"], name="act", domain="com.microsoft")
    graph = model([node], [3, 3], domain="com.microsoft")
    assert "com.microsoft::Inverse would be read as another operator" in TVM.unsupported(graph)["act"]


def test_the_list_of_what_the_importer_takes_is_its_own() -> None:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    from compilers.tvm.refusals import IMPORTED

    assert IMPORTED - _get_convert_map().keys() == {"ConvInteger"}  # ours


def test_what_the_importer_reads_wrong_is_replaced_and_the_rest_of_the_operator_is_not() -> None:
    from compilers.tvm.refusals import prepare

    node = helper.make_node
    weights = {"s": weight(4), "m": np.array(2, np.float32)}
    for right in (True, False):
        nodes = [
            node("Dropout", ["x"], ["a"] if right else ["a", "mask"], name="drop"),
            node("LayerNormalization", ["a", "s"], ["b"], name="norm"),
            node("Mod", ["b", "m"], ["y"], fmod=int(right), name="mod"),
        ]
        found = prepare(model(nodes, [3, 4], **weights))
        assert found.refused == {}
        assert set(found.owners.values()) == (set() if right else {"mod", "drop"})


def test_negative_shifts_are_refused() -> None:
    node = helper.make_node
    ints = [helper.make_tensor_value_info(name, TensorProto.INT32, [4]) for name in ("x", "by", "y")]
    shift = node("BitShift", ["x", "by"], ["y"], direction="LEFT", name="shift")
    opset = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    for counts in ([], [numpy_helper.from_array(np.arange(4, dtype=np.int32), "by")]):
        proto = helper.make_graph([shift], "case", ints[: 1 if counts else 2], ints[2:], counts)
        found = TVM.unsupported(from_proto(helper.make_model(proto, opset_imports=opset, ir_version=9)))
        assert set(found) == (set() if counts else {"shift"})


def test_an_integer_division_by_a_constant_is_tried_without_zeros(tmp_path: Path, cache: Path) -> None:
    """The constant is a parameter of the function that the sweep feeds with random numbers."""
    ints = [helper.make_tensor_value_info(name, TensorProto.INT32, [4, 8]) for name in ("x", "y")]
    by = numpy_helper.from_array(np.arange(1, 33, dtype=np.int32).reshape(4, 8), "by")
    graph = helper.make_graph([helper.make_node("Div", ["x", "by"], ["y"])], "case", ints[:1], ints[1:], [by])
    whole = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    feed = random_inputs(whole, 0)
    with TVM.load(compile_segment(segment(whole), tmp_path, LIMITS)) as session:
        np.testing.assert_array_equal(session.run(feed)["y"], reference_session(whole).run(feed)["y"])


def test_the_ffi_that_crashes_is_refused_with_the_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15.post2"}
    monkeypatch.setattr(adapter, "distribution_version", versions.__getitem__)
    reason = TVM.why_not(Action.COMPILE, HOST, "cpu")
    assert reason is not None
    assert "pip install --no-deps apache-tvm-ffi==0.1.14.post1" in reason


@pytest.mark.parametrize(
    ("device", "processor", "reason"),
    [
        ("sa8255p", "npu", r"add a table \[processors.npu.ids.tvm\]"),
        ("m4", "gpu", r"add a table \[processors.gpu.ids.tvm\]"),
        ("a17_pro", "cpu", "has no processor cpu; it has npu"),
    ],
)
def test_a_processor_without_a_target_is_not_promised(device: str, processor: str, reason: str) -> None:
    found = TVM.why_not(Action.COMPILE, load_device(device), processor)
    assert found is not None
    assert re.search(reason, found)


def test_what_constants_come_to_is_computed_when_the_graph_is_compiled() -> None:
    from compilers.tvm import frontend
    from compilers.tvm.targets import host_target

    node = helper.make_node
    nodes = [node("Sin", ["c"], ["s"]), node("Softmax", ["s"], ["t"]), node("Add", ["x", "t"], ["y"])]
    graph = model(nodes, [4, 8], c=weight(4, 8))
    _, functions = frontend.fused(frontend.import_graph(graph.proto()), host_target())
    assert list(functions) == ["add"]
