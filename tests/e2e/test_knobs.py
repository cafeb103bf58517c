"""`python -m experiments.knobs`: axes become options, effects are said, and a wrong knob is a reason, not a crash."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, Estimate, Latency, Source, get_compiler
from experiments import knobs
from experiments.knob_sweep import Point, effects
from graphs import from_proto, save
from partition import load_device

if TYPE_CHECKING:
    from pathlib import Path

needs_qnn = pytest.mark.skipif(
    not get_compiler("ort_qnn").available(Action.COMPILE, load_device("sa8255p"), "npu"),
    reason="the QNN wheel does not work here",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.random.default_rng(7).normal(0, 0.1, (32, 32, 3, 3)).astype(np.float32)
    shape = [1, 32, 64, 64]
    body = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="A", pads=[1] * 4)],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "conv.onnx"
    save(from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)), path)
    return path


@needs_qnn
def test_every_combination_is_simulated_and_drawn(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = ["--vary", "vtcm_mb=1,8,16", "--vary", "htp_performance_mode=burst,power_saver"]
    code = knobs.main([str(model), "--device", "sa8255p", "--precision", "fp16", *axes, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 0
    assert "htp_performance_mode (burst, power_saver) has no effect on the simulated time" in printed
    folder = tmp_path / "knobs" / "conv-sa8255p-fp16"
    assert (folder / "knobs.png").stat().st_size > 10_000
    with (folder / "knobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    sixteen = [row for row in rows if row["vtcm_mb"] == "16"]
    assert all(row["latency_s"] == "" and "8 MB of VTCM" in row["reason"] for row in sixteen)
    assert all(
        float(row["latency_s"]) > 0 and row["latency_source"] == "simulated" for row in rows if row not in sixteen
    )


def test_an_effect_is_the_ratio_when_one_axis_moves_alone() -> None:
    def point(vtcm: str, mode: str, time_s: float) -> Point:
        latency = Latency(typical_s=time_s, low_s=time_s, high_s=time_s, source=Source.SIMULATED)
        setting = (("vtcm_mb", vtcm), ("mode", mode))
        return Point(model="m", setting=setting, estimate=Estimate(latency=latency), reason="")

    points = [point("1", "a", 4.0), point("8", "a", 2.0), point("1", "b", 4.0), point("8", "b", 2.0)]
    axes = (("vtcm_mb", ("1", "8")), ("mode", ("a", "b")))
    assert list(effects(points, axes)) == [
        "m: vtcm_mb (1, 8) changes the simulated time by a factor of up to 2.00",
        "m: mode (a, b) has no effect on the simulated time",
    ]


@pytest.mark.parametrize("device", ["sm8650", "host", "nowhere"])
def test_a_device_without_simulation_is_refused(model: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert knobs.main([str(model), "--device", device]) == 2
    assert capsys.readouterr().err.startswith("error: ")
