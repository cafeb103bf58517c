from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from experiments.latency import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> str:
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "matmul.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def test_one_backend_in_all_states(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([model, "--idle", "0.02", "--sustained", "0.2", "--out", str(tmp_path / "out"), "--offset", "64"]) == 0
    out = capsys.readouterr().out
    for state in ("compile", "load", "cold", "steady", "after idle", "burst of 20", "sustained", "energy"):
        assert f"\n{state}" in f"\n{out}"
    stored = json.loads((tmp_path / "out" / "latency-matmul-ort_cpu-fp32.json").read_text())
    assert stored["offset_bytes"] == 64
    assert len(stored["profile"]["samples"]["steady_s"]) >= 10
    assert stored["energy"] is not None or stored["no_energy"]


def test_a_backend_against_itself(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([model, "--against", "ort_cpu", "--out", str(tmp_path / "out")]) == 0
    assert "60 pairs in random order" in capsys.readouterr().out


def test_where_the_time_goes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([model, "--kernels", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"100\.0%\s+\S+ [num]s\s+MatMul\s+MatMul_y", out)
    assert "1 kernels of ort_cpu" in out


def test_dispatch_is_a_measurement_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dispatch", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "1000 calls" in out
    assert re.search(
        r"median \S+ [um]s, p99 \S+ [um]s; mean \S+ [um]s \(deviation \S+ [num]s\), worst jitter \S+ [um]s", out
    )
    stored = json.loads((tmp_path / "out" / "dispatch-ort_cpu.json").read_text())
    assert len(stored["samples_s"]) == 1000
    for arguments in ([], ["resnet18", "--dispatch"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 2, "neither a file nor a zoo model"),
        (["MODEL", "--offset", "3"], 2, "multiple of 4"),
        (["MODEL", "--backend", "ort_gpu"], 2, "ort_gpu"),
        (["MODEL", "--bind", "batch=2"], 2, "no dimension 'batch' to bind"),
        (["MODEL", "--precision", "fp16"], 1, "ort_cpu has no fp16"),
    ],
)
def test_what_cannot_be_is_told(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    asked = [model if argument == "MODEL" else argument for argument in arguments]
    assert main([*asked, "--out", str(tmp_path / "out")]) == code
    assert message in capsys.readouterr().err
