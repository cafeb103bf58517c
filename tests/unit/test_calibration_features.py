"""Simulations on disk: found again, whatever ended the run before, and no failure kept that may pass."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compilers import CompilerError, Limits, PassingError
from experiments.calibration import features
from experiments.calibration.error import CalibrationError
from experiments.calibration.features import FeatureStore, Simulation, read_simulations, simulate
from experiments.calibration.subjects import Subject
from graphs import Graph, from_proto

if TYPE_CHECKING:
    from pathlib import Path

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
    with pytest.raises(CalibrationError, match="line 3 is no simulation: it is cut short"):
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
        found = simulate(subject(), {"fp16": relu}, ["snpe"], store, tmp_path, Limits())
        assert [one.refusal for one in found] == [error.reason]
    assert calls == asked


def subject() -> Subject:
    return Subject(model="net", load=relu)


def relu() -> Graph:
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [next(ends)], [next(ends)])
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
