"""MetaSchedule behind the option `tune`: few trials, on a small graph."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, Artefact, Limits, compile_segment, get_compiler
from compilers.ort_session import reference_session
from graphs import Graph, compare, from_proto, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

HOST = load_device("host")
TVM = get_compiler("tvm")
pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")


def small_graph() -> Graph:
    """Return a product and a cumulative sum, of which the sweep schedules the first."""
    weights = np.random.default_rng(1).normal(0, 0.1, (96, 80)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("CumSum", ["a", "axis"], ["y"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [40, 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(1, np.int64), "axis")],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def compiled(graph: Graph, folder: Path, **options: str) -> Artefact:
    segment = Segment(
        graph=graph, device=HOST, processor="cpu", compiler="tvm", precision="fp32", options=tuple(options.items())
    )
    return compile_segment(segment, folder, Limits(time_s=300))


def decisions(artefact: Artefact) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((artefact.directory / "functions.json").read_text())
    return rows


def test_tuned_functions_are_right_and_their_records_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "cache"))
    graph = small_graph()
    tuned = compiled(graph, tmp_path / "tuned", tune="20")
    records = sorted((tmp_path / "cache").rglob("database_tuning_record.json"))
    # The product has tiles, which are the first 16 of its 20 schedules; of the sum there is one only.
    assert sorted(len(path.read_text().splitlines()) for path in records) == [1, 4]
    feed = random_inputs(graph, 1)
    with TVM.load(tuned) as session:
        (error,) = compare(reference_session(graph).run(feed), session.run(feed)).values()
    assert error.relative_max is not None
    assert error.relative_max < 1e-5

    before = [path.stat().st_mtime_ns for path in records]
    again = compiled(graph, tmp_path / "again", tune="20")
    assert decisions(again) == decisions(tuned)
    assert [path.stat().st_mtime_ns for path in records] == before
    assert tuned.fact("functions_tuned") == again.fact("functions_tuned")


def test_a_tuned_function_replaces_one_that_is_clearly_slower(tmp_path: Path) -> None:
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.cache import Decision, TileCache
    from compilers.tvm.sweep import Sweep, structure_key
    from compilers.tvm.targets import host_target
    from compilers.tvm.tune import Tuner

    target = host_target()
    module = frontend.fuse(frontend.import_graph(small_graph().proto()), target)
    functions = {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    name = next(name for name in functions if "matmul" in name)
    sweep = Sweep(target=target, threads=1, candidates=1, cache=TileCache(tmp_path / "tiles"))
    tuner = Tuner(sweep=sweep, trials=6, cache=TileCache(tmp_path / "tuned"))
    slow = {name: Decision(build="plain", time_s=1.0, reason="not scheduled, for this test")}
    found = tuner.improve({name: functions[name]}, slow, {name: 1})
    assert found[name].build == "tuned"
    assert found[name].time_s is not None
    assert structure_key(tuner.tuned(functions, found)[name]) != structure_key(functions[name])
    # The intrinsics of GPUs, which take 15 s of CPU to import, were not.
    assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules


def test_a_sweep_of_ways_tunes_on_this_machine_only() -> None:
    assert [dict(way.options) for way in TVM.variants("fp32", HOST, "cpu")] == [{}, {"tune": "16"}]
    assert len(TVM.variants("fp32", load_device("sa8255p"), "cpu")) == 1


def test_loading_the_adapter_imports_no_tuner() -> None:
    import subprocess

    code = "import compilers.tvm, compilers.tvm.pipeline, sys; print('compilers.tvm.tune' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
