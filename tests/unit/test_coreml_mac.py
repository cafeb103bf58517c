"""The thin layer for a Mac, held against objects as coremltools 9.0 gives them there."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from compilers import CompilerError, Placement, get_compiler
from compilers.coreml import mac
from compilers.coreml.lower import Port
from compilers.coreml.package import read_package
from compilers.coreml.vendor import coremltools
from experiments.evaluator import is_measured
from graphs import from_proto, zoo
from partition import Plan, Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

MAC_DEVICE = """
title = "MacBook"
os = "macos"
[sources]
none = "none"
[processors.npu]
title = "Neural Engine"
[processors.npu.ids.coreml]
chip = "m4_pro"
"""


@pytest.mark.parametrize(
    ("brand", "chip"), [("Apple M4 Pro\n", "m4_pro"), ("Apple M1", "m1"), ("Intel(R)", "intel(r)")]
)
def test_chip_of(brand: str, chip: str) -> None:
    assert mac.chip_of(brand) == chip


def test_only_the_mac_that_the_device_describes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "macbook.toml").write_text(MAC_DEVICE)
    device = load_device(str(tmp_path / "macbook.toml"))
    assert not mac.is_this_mac(device, "npu"), "this is Linux"
    monkeypatch.setattr(sys, "platform", "darwin")
    done = SimpleNamespace(stdout="Apple M4 Pro\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert mac.is_this_mac(device, "npu")
    assert not mac.is_this_mac(load_device("a17_pro"), "npu")
    done.stdout = "Apple M1\n"
    assert not mac.is_this_mac(device, "npu")


def test_what_is_for_this_mac_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is for the machine's own processors, on a Mac too: one plan at a time."""
    graph = zoo.build("squeezenet1_1")

    def measured(device: str, compiler: str, *processors: str) -> bool:
        segments = tuple(
            Segment(graph=graph, device=load_device(device), processor=p, compiler=compiler, precision="fp16")
            for p in processors
        )
        return is_measured(Plan.of(graph, segments))

    assert measured("host", "ort_cpu", "cpu")
    assert not measured("m4", "coreml", "npu"), "this is Linux"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="Apple M4\n"))
    assert measured("m4", "coreml", "npu")
    assert measured("m4", "coreml", "cpu", "gpu")
    assert not measured("m4", "coreai", "npu"), "its runtime here is for Linux"
    assert not measured("a17_pro", "coreml", "npu")


def test_a_package_for_this_mac_is_planned_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for a target whose plan names devices, with Core ML's plan as the placement."""
    from compilers.coreml import adapter

    asked: list[str] = []

    def ask_plan(package: Path, unit: str, _scratch: Path) -> Placement:
        asked.extend((package.name, unit))
        operations = read_package(package).operations
        units = {o.outputs[0].name: "npu" for o in operations if o.type == "relu"}
        return Placement(units=units)

    monkeypatch.setattr(mac, "is_this_mac", lambda *_: True)
    monkeypatch.setattr(adapter.mac, "ask_plan", ask_plan)
    graph = from_proto(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 18]> g (float[1, 4] x) => (float[1, 4] y) { y = Relu (x) }'
        )
    )
    segment = Segment(graph=graph, device=load_device("m4"), processor="npu", compiler="coreml", precision="fp16")
    artefact = get_compiler("coreml").compile(segment, tmp_path)
    assert asked == ["model.mlpackage", "CPU_AND_NE"]
    assert artefact.fact("target") == "iOS18"
    assert artefact.fact("runs_on") == "this Mac, CPU_AND_NE"
    assert get_compiler("coreml").placement(artefact).units == {graph.nodes()[0].name: "npu"}


# -- a session ---------------------------------------------------------------------------------------------------


class RecordedModel:
    """What an MLModel on a Mac shows of itself."""

    def predict(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert feed["x_0"].dtype == np.int32, "int64 crosses as int32"
        return {"y_0": feed["x_0"].astype(np.float32) * 2}


def test_session_maps_names_and_types() -> None:
    inputs = [Port(name="x/0", mil_name="x_0", dtype="int64", shape=(2,))]
    outputs = [Port(name="y/0", mil_name="y_0", dtype="float32", shape=(2,))]
    session = mac.MacSession(RecordedModel(), inputs, outputs)
    assert session.on_device
    got = session.run({"x/0": np.array([1, 2])})
    np.testing.assert_array_equal(got["y/0"], [2, 4])


def test_loading_off_the_mac_is_a_named_refusal(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"cannot load absent\.mlpackage on CPU_AND_NE"):
        mac.open_session(tmp_path / "absent.mlpackage", "CPU_AND_NE")
    with pytest.raises(CompilerError, match=r"cannot plan absent\.mlpackage"):
        mac.ask_plan(tmp_path / "absent.mlpackage", "CPU_AND_NE", tmp_path)


def test_names_of_coremltools_that_the_layer_uses_exist() -> None:
    ct = coremltools()
    from coremltools.models import compute_device, compute_plan

    assert all(hasattr(ct.ComputeUnit, unit) for unit in mac.UNITS.values())
    assert all(hasattr(compute_device, name) for name in mac._KINDS)
    plan = compute_plan.MLComputePlan
    for name in ("load_from_path", "model_structure", "get_compute_device_usage_for_mlprogram_operation"):
        assert hasattr(plan, name)
    fields = {f.name for f in dataclasses.fields(compute_plan.MLModelStructureProgramOperation)}
    assert {"operator_name", "outputs", "blocks"} <= fields
    assert {"preferred_compute_device", "supported_compute_devices"} == {
        f.name for f in dataclasses.fields(compute_plan.MLComputePlanDeviceUsage)
    }


# -- a plan ------------------------------------------------------------------------------------------------------


def device(kind: str) -> Any:
    """An object whose class has the name that coremltools gives the device."""
    return type(kind, (), {})()


CPU, GPU, NPU = (device(f"ML{k}ComputeDevice") for k in ("CPU", "GPU", "NeuralEngine"))


class RecordedPlan:
    """An MLComputePlan of conv -> gather -> softmax with constants, which have no device."""

    def __init__(self) -> None:
        def operation(name: str, kind: str, *blocks: Any) -> Any:
            return SimpleNamespace(operator_name=kind, outputs=[SimpleNamespace(name=name)], blocks=list(blocks))

        inner = SimpleNamespace(operations=[operation("s", "ios16.softmax")])
        operations = [
            operation("w", "const"),
            operation("c", "ios17.conv"),
            operation("g", "ios17.gather"),
            operation("loop", "const", inner),
        ]
        block = SimpleNamespace(operations=operations)
        functions = {"main": SimpleNamespace(block=block)}
        self.model_structure = SimpleNamespace(program=SimpleNamespace(functions=functions))
        self.usage = {"c": (NPU, [CPU, GPU, NPU]), "g": (CPU, [CPU, GPU]), "s": (CPU, [CPU, NPU])}

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        if operation.outputs[0].name not in self.usage:
            return None
        preferred, supported = self.usage[operation.outputs[0].name]
        return SimpleNamespace(preferred_compute_device=preferred, supported_compute_devices=supported)


def test_plan_is_read_with_reasons() -> None:
    plan = mac.read_compute_plan(RecordedPlan(), asked="npu")
    assert dict(plan.units) == {"c": "npu", "g": "cpu", "s": "cpu"}
    assert plan.reasons == {"g": "Core ML prefers cpu", "s": "Core ML prefers cpu; npu can do it"}


def test_plan_without_devices_is_refused() -> None:
    plan = RecordedPlan()
    plan.usage = {}
    with pytest.raises(CompilerError, match="compile for target iOS18"):
        mac.read_compute_plan(plan, asked="npu")


def test_a_node_is_on_the_engine_only_as_a_whole(tmp_path: Path) -> None:
    plan = mac.read_compute_plan(RecordedPlan(), asked="npu")
    placement = mac.by_node(plan, {"c": "attention", "s": "attention", "g": "embed"}, "npu")
    assert placement.units == {"attention": "cpu", "embed": "cpu"}
    assert placement.reasons["attention"] == "s: Core ML prefers cpu; npu can do it"
    mac.write_plan(placement, tmp_path / "placement.json")
    assert mac.read_plan(tmp_path / "placement.json") == placement
    (tmp_path / "placement.json").write_text("[]")
    with pytest.raises(CompilerError, match="is damaged"):
        mac.read_plan(tmp_path / "placement.json")


def test_placement_is_not_known_before_a_mac_planned(tmp_path: Path) -> None:
    from compilers import Artefact

    artefact = Artefact(
        compiler="coreml",
        compiler_version="",
        segment_digest="",
        device="a17_pro",
        processor="npu",
        precision="fp16",
        directory=tmp_path,
        files=("model.mlpackage",),
        size_bytes=0,
        compile_s=0,
        facts=(("lint", "predicted, not observed: 0 of 3"),),
    )
    with pytest.raises(CompilerError, match=r"decides on the device .* predicted, not observed"):
        get_compiler("coreml").placement(artefact)
    mac.write_plan(Placement(units={"a": "npu"}), tmp_path / "placement.json")
    assert get_compiler("coreml").placement(artefact).units == {"a": "npu"}
