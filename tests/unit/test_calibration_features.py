"""Simulations on disk: found again, whatever ended the run before, and no failure kept that may pass."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compilers import CompilerError, Limits, PassingError
from experiments.arguments import UserError
from experiments.calibration import features
from experiments.calibration.collect import simulations
from experiments.calibration.error import CalibrationError
from experiments.calibration.features import REFERENCES, FeatureStore, Simulation, read_simulations, simulate
from experiments.calibration.subjects import Subject
from experiments.calibration.table import Measurement, npu_facts
from graphs import Graph, from_proto
from partition import load_device

if TYPE_CHECKING:
    from pathlib import Path

    from partition import Segment

ONE = Simulation(
    key="k1", model="net", precision="fp16", compiler="snpe", chip="sa8255p",
    simulated_s=1e-3, dram_bytes=7, macs=9,
)  # fmt: skip
REFUSED = dataclasses.replace(ONE, key="k2", simulated_s=None, dram_bytes=None, refusal='no "Erf", nor\tcommas')


def test_simulations_are_found_again(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "new" / "s.csv")
    store.add(ONE)
    FeatureStore(store.path).add(REFUSED)
    assert read_simulations(store.path) == (ONE, REFUSED)
    assert FeatureStore(store.path).get("k2") == REFUSED


@given(kept=st.integers(0, 300))
def test_a_line_that_a_run_did_not_finish_is_made_anew(tmp_path_factory: pytest.TempPathFactory, kept: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "s.csv"
    for one in (ONE, REFUSED):
        FeatureStore(path).add(one)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    known = [one for one in (ONE, REFUSED) if FeatureStore(path).get(one.key)]
    assert len(known) == max(whole[:kept].count(b"\n") - 1, 0)
    for one in (ONE, REFUSED):
        FeatureStore(path).add(one)
    assert set(read_simulations(path)) == {ONE, REFUSED}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    FeatureStore(path).add(ONE)
    path.write_bytes(path.read_bytes() + b"k2,net\n")
    with pytest.raises(UserError, match="line 3 has 2 cells where the header has 13"):
        FeatureStore(path)


@pytest.mark.parametrize(("error", "asked"), [(CompilerError("no Relu"), 1), (PassingError("was stopped"), 2)])
def test_what_may_pass_is_told_and_asked_again(
    error: CompilerError, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def refuse(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise error

    monkeypatch.setattr(features, "compile_segment", refuse)
    monkeypatch.setattr(features, "REFERENCES", ("sa8255p",))
    for _ in range(2):
        store = FeatureStore(tmp_path / "s.csv")
        found = simulate(subject(), {"fp16": relu}, {"snpe": [8]}, store, tmp_path, Limits())
        assert [one.refusal for one in found] == [error.reason]
    assert calls == asked


def test_a_file_with_all_columns_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    FeatureStore(path).add(ONE)
    os.utime(path, (1.0, 1.0))
    assert FeatureStore(path).get(ONE.key) == ONE
    assert path.stat().st_mtime == 1.0  # else a line that another process adds meanwhile is lost


def test_an_older_file_has_8_mb_and_takes_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(
        "key,model,precision,compiler,chip,simulated_s,dram_bytes,macs,uncosted,refusal\n"
        "k1,net,fp16,snpe,sa8255p,0.001,7,9,0,\n"
    )
    small = dataclasses.replace(ONE, key="k3", vtcm_mb=2, low_s=9e-4, high_s=2e-3)
    FeatureStore(path).add(small)
    assert read_simulations(path) == (ONE, small)
    assert ONE.vtcm_mb == 8
    path.write_text(path.read_text().replace("vtcm_mb", "vtcm"))
    with pytest.raises(CalibrationError, match="is no file of simulations"):
        read_simulations(path)


def test_references_are_simulated_with_the_memory_of_the_measured_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(segment: Segment, *_: object) -> None:
        asked.append((segment.compiler, segment.device.name, dict(segment.options)["vtcm_mb"]))
        raise CompilerError("not here")

    monkeypatch.setattr(features, "compile_segment", refuse)
    rows = [
        Measurement(
            model="net",
            precision="fp16",
            device=device,
            compiler=compiler,
            latency_s=1.0,
            **npu_facts(load_device(device)),
        )
        for device, compiler in (("qcs6490", "ort_qnn"), ("sm8650", "ort_qnn"), ("sm8750", "snpe"))
    ]
    found = list(simulations([subject()], rows, tmp_path, 60.0, lambda _: None))
    assert [(s.compiler, s.chip, str(s.vtcm_mb)) for s in found] == asked
    sizes = [("ort_qnn", "2"), ("ort_qnn", "8"), ("snpe", "8")]
    assert asked == [(compiler, chip, size) for compiler, size in sizes for chip in REFERENCES]
    assert len({s.key for s in found}) == len(found)
    asked.clear()
    stored = [dataclasses.replace(ONE, model="other", vtcm_mb=8)]  # no model of this precision has 2 MB there
    list(simulations([subject()], rows, tmp_path / "again", 60.0, lambda _: None, stored))
    assert {size for _, _, size in asked} == {"8"}


def subject() -> Subject:
    return Subject(model="net", load=relu)


def relu() -> Graph:
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [next(ends)], [next(ends)])
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
