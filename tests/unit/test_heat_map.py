"""R9 for a model of one's own: latency over clock and load."""

from __future__ import annotations

import csv
import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import store
from experiments.evaluator.dynamics import Cap, Conditions
from experiments.evaluator.dynamics.assemble import DynamicsError, assemble
from experiments.heat_map import Cell, map_cells, parse_loads
from experiments.sustained import main
from partition import load_device

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = load_device("sm8650")
PARTS = {"compute": 1e-4, "memory": 5e-5, "static": 2e-4}


def row(latency_s: float, **changes: object) -> store.Row:
    made = store.Row(
        key="k", status="ok", model="own", device="sm8650", processor="npu", backend="ort_qnn", precision="int8",
        options="", segments=1, cuts=(), plan_digest="p", latency_s=latency_s, latency_low_s=0.8 * latency_s,
        latency_high_s=2 * latency_s, latency_source="modelled", energy_j=sum(PARTS.values()), energy_low_j=1e-4,
        energy_high_j=1e-3, energy_parts_j=PARTS, dram_bytes=10_000,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def cells(latency_s: float, loads: str, conditions: Conditions | None = None) -> list[list[Cell]]:
    rows = [row(latency_s), row(0.8 * latency_s), row(2 * latency_s)]
    return map_cells(DEVICE, rows, parse_loads(loads), conditions or Conditions(), 0)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-3, 1e-1), st.integers(2, 64))
def test_a_faster_clock_is_never_slower_and_requests_wait_for_those_before_them(latency_s: float, count: int) -> None:
    table = cells(latency_s, f"1,{count}")
    means = [[cell.mean_s or 0.0 for cell in line] for line in table]
    assert [line[0] for line in means] == sorted((line[0] for line in means), reverse=True)
    for line, of in zip(means, table, strict=True):
        assert line[1] == pytest.approx(count * line[0])
        assert of[0].low_s is not None
        assert of[0].high_s is not None
        assert of[0].low_s < line[0] < of[0].high_s
    assert means[-1][0] == pytest.approx(latency_s)
    ratios = [cell.clock_ratio for cell, _ in table]
    assert means[0][0] / means[-1][0] < ratios[-1] / ratios[0]  # dispatch and DRAM time do not follow the clock


def test_a_rate_brings_queues_and_waking_up_and_may_be_too_much() -> None:
    once, rare, busy, beyond = cells(1e-2, "1,0.5/s,80/s,2000/s")[-1]
    assert once.mean_s == pytest.approx(1e-2)
    assert rare.mean_s is not None
    assert rare.mean_s > 1e-2 + 2e-3  # the assumed wake-up
    assert busy.mean_s is not None
    assert busy.mean_s > 1.5e-2
    assert busy.high_s is None  # at twice the latency, 80 requests/s are too many
    assert beyond.mean_s is None
    assert rare.power_w < busy.power_w


def test_a_clock_that_the_trips_would_not_let_be_is_marked() -> None:
    hungry = row(1e-2, energy_parts_j={"compute": 0.15, "memory": 0.0, "static": 0.0}, energy_j=0.15)

    def hot(conditions: Conditions) -> list[bool]:
        return [line[0].too_hot for line in map_cells(DEVICE, [hungry], parse_loads("1"), conditions, 0)]

    assert hot(Conditions())[-1]
    assert hot(Conditions()) == sorted(hot(Conditions()))
    assert not any(hot(Conditions(ambient_c=(-200.0, -200.0))))
    cap = Conditions(ambient_c=(-100.0, -100.0), cap=Cap(at_most_w=1e-3, above_c=-90.0))
    assert all(hot(cap))


def test_a_split_plan_has_no_one_clock() -> None:
    split = row(
        2e-3, processor="cpu+npu", segments=2, segment_processors=("cpu", "npu"), segment_latency_s=(1e-3, 1e-3),
        segment_energy_parts_j=(PARTS, PARTS),
    )  # fmt: skip
    assert assemble(DEVICE, split).machine.others
    with pytest.raises(DynamicsError, match="a clock each"):
        map_cells(DEVICE, [split], parse_loads("1"), Conditions(), 0)


def test_the_command_draws_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    store.append_row(folder, row(1e-3))
    store.append_row(folder, row(5e-4, key="l", plan_digest="q", backend="snpe"))
    asked = [str(folder), "--device", "sm8650", "--minutes", "1", "--heat-map", "1,16,5/s"]
    assert main(asked) == 0
    assert "wrote heat_map.png, heat_map.svg, heat_map.csv, sustained.png" in capsys.readouterr().out
    (path,) = folder.glob("sustained/*/heat_map.csv")
    assert path.with_suffix(".png").stat().st_size > 1000
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["candidate"] for line in lines} == {"snpe npu int8"}
    points = DEVICE.processor("npu").operating_points
    assert [float(line["clock_hz"]) for line in lines[::3]] == [p.clock_hz.value for p in reversed(points)]
    assert [line["load"] for line in lines[:3]] == ["1", "16", "5/s"]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "0/s", "-2/s", "inf/s", "/s", ",", "4@2", "1e-9/s"])
def test_a_load_is_a_count_or_a_rate(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["own.onnx", "--device", "sm8650", f"--heat-map={text}"])
    assert stop.value.code == 2
    assert "argument --heat-map: expected" in capsys.readouterr().err
