"""Studies on figures, logs and models of one's own."""

from __future__ import annotations

import csv
import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.evaluator.dynamics.compare import crossing
from experiments.evaluator.dynamics.threshold import Criterion, Log, ThresholdError, threshold_of_log
from experiments.published import load_table
from experiments.published.__main__ import main as published
from experiments.scenarios import power_states
from experiments.scenarios.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path


def ramp(threshold_c: float, below: float, above: float, seed: int = 0) -> Log:
    """Ramp by 0.5 K/min, a request a second; above the threshold the clock is dithered between steps of 2 %."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(0.0, 40 * 120.0)
    temperature_c = 45.0 + time_s / 120.0
    slow = 1.0 + below * (np.minimum(temperature_c, threshold_c) - 45.0)
    wanted = 1.0 / (1.0 + above * np.maximum(temperature_c - threshold_c, 0.0) / slow)
    step = np.floor(np.log(wanted) / np.log(0.98))
    low, high = 0.98 ** (step + 1), 0.98**step
    share = (1 / wanted - 1 / high) / (1 / low - 1 / high)
    clock = np.where(rng.random(len(time_s)) < share, low, high)
    latency_s = 0.02 * slow / clock * (1.0 + 1e-3 * rng.standard_normal(len(time_s)))
    return Log(time_s=time_s, temperature_c=temperature_c, clock_hz=1.2e9 * clock, latency_s=latency_s)


def write_log(path: Path, log: Log, unit_hz: float = 1.0) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time_s", "temperature_c", "clock_hz", "latency_s", "remark"])
        columns = (log.time_s, log.temperature_c, log.clock_hz / unit_hz, log.latency_s)
        writer.writerows([*map(repr, map(float, row)), ""] for row in zip(*columns, strict=True))
    return str(path)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(threshold_c=st.floats(60.0, 78.0), below=st.floats(0.0, 4e-3), above=st.floats(1e-2, 3e-2))
def test_the_threshold_of_a_recorded_ramp_is_the_one_it_was_made_with(
    threshold_c: float, below: float, above: float
) -> None:
    found = threshold_of_log(ramp(threshold_c, below, above), Criterion())
    assert found.break_c == pytest.approx(threshold_c, abs=0.5)
    assert found.below_per_k == pytest.approx(below, abs=2e-4)
    assert found.onset_c > threshold_c


@pytest.mark.parametrize("latency_s", [0.5, 0.1])
def test_latencies_without_any_deviation_do_not_meet_a_multiple_of_it(latency_s: float) -> None:
    log = dataclasses.replace(ramp(70.0, 0.0, 1.5e-2), latency_s=np.full(40 * 120, latency_s))
    with pytest.raises(ThresholdError, match="all the same"):
        threshold_of_log(log, Criterion())


def test_r10_takes_recorded_logs_and_says_when_they_are_too_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_log(tmp_path / f"{i}.csv", ramp(70.0 + i, 2e-3, 1.5e-2, i)) for i in range(3)]
    assert main(["R10", *(part for path in paths for part in ("--table", path)), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["R10"]
    assert figures["runs"] == 3
    assert figures["break_c"] == pytest.approx(71.0, abs=0.5)
    assert main(["R10", "--table", paths[0], "--set", "frequency_fall_ratio=0.05"]) == 0
    out = capsys.readouterr().out
    assert "the clock 5% down" in out
    assert "the procedure takes 3 runs" in out


def test_r9_meets_a_grid_of_ones_own_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid.csv"
    cells = {(clock, load): 2e-3 + 8e6 / clock * (1 + (load / 10.0) ** 2) for clock in (1e9, 4e8) for load in (8, 1, 2)}
    rows = [",".join([f"{clock}", *(repr(cells[clock, load]) for load in (8, 1, 2))]) for clock in (1e9, 4e8)]
    path.write_text("\n".join(["clock_hz,load_8_s,load_1_s,load_2_s", *rows]))
    assert main(["R9", "--table", str(path), "--out", str(tmp_path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["R9"]
    assert figures["clock_hz"] == [4e8, 1e9]
    assert figures["load"] == [1.0, 2.0, 8.0]
    assert figures["worst_error_ratio"] < 0.01
    with (tmp_path / "r9_heat_map.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6
    assert float(lines[0]["stated_s"]) == cells[4e8, 1]
    assert (tmp_path / "r9_heat_map.png").stat().st_size > 1000


def test_a_grid_against_the_law_is_described_without_negative_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "up.csv"
    path.write_text("clock_hz,load_1_s,load_2_s,load_4_s\n5e8,5,5,5\n1e9,6,7,8\n")
    assert main(["R9", "--table", str(path)]) == 0
    out = capsys.readouterr().out
    assert "law: 5.63 s + 0 Mcycles" in out
    assert out.count("DIFFERS") == 3


def test_r12_streams_a_model_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["R12", "--model", "squeezenet1_1", "--set", "frame_s=2ms", "--set", "slow_dma_bytes_per_s=1e8", "--json"]
    assert main(asked) == 0
    figures = json.loads(capsys.readouterr().out)["R12"]
    slow, fast = figures["INT5 channel-wise, squeezenet1_1, slow"], figures["INT5 channel-wise, squeezenet1_1, fast"]
    assert slow["copy_s"] == pytest.approx(28 * fast["copy_s"])
    assert slow["copies"] == 0
    assert fast["copies"] == int(2e-3 / fast["copy_s"])


def test_r4_and_r14_take_rows_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = tmp_path / "bound.csv"
    bound.write_text("case,bytes,passes,bandwidth_bytes_per_s,compute_s\na,1e6,2,1e9,1e-3\nb,1e6,1,1e9,4e-3\n")
    assert main(["R4", "--table", str(bound)]) == 0
    out = capsys.readouterr().out
    assert "a: 1.00 MB x 2 passes / 1.00 GB/s = 2.00 ms against 1.00 ms of compute: memory is the limit, by 2.0" in out
    assert "b: 1.00 MB x 1 passes / 1.00 GB/s = 1.00 ms against 4.00 ms of compute: compute is the limit, by 4.0" in out
    slow_cpu = tmp_path / "cpu.csv"
    slow_cpu.write_text("processor,latency_s,useful_ratio\ncpu,1.6,0.85\nnpu,1.5,0.6\n")
    assert main(["R14", "--table", str(slow_cpu)]) == 0
    out = capsys.readouterr().out
    assert "the same one wins at every rate" in out
    assert "(given: below 60%)" in out
    assert "above 0.0044 requests/s" in power_states._won((0.00444, True))  # of a slow machine


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", ["R9"], "is empty"),
        ("clock_hz,load_1_s\n1e9,1\n", ["R9"], "no grid of latency over clock and load"),
        ("clock_hz,load_1_s,load_2_s,load_4_s\n500,1,2,3\n900,1,2,3\n", ["R9"], "were those MHz"),
        ("clock_hz,load_1_s,load_2_s,load_4_s\n5e8,1,x,3\n9e8,1,2,3\n", ["R9"], "line 2: load_2_s is 'x'"),
        ("clock_hz,load_1_s,load_2_s,load_4_s\n5e8,1,-2,3\n9e8,1,2,3\n", ["R9"], "a number above 0 is needed"),
        ("clock_hz,load_1_s,load_2_s,load_4_s\n5e8,1,2,3\n5e8,1,2,3\n", ["R9"], "has a clock or a load twice"),
        ("time_s,temperature_c,clock_hz,latency_s\n1,2,3\n", ["R10"], "line 2 has 3 cells"),
        ("time_s,temperature_c,clock_hz\n1,2,3\n", ["R10"], "no column latency_s"),
        ("time_s,temperature_c,clock_hz,latency_s\n1,60,1e9,1\n2,61,1e9,1\n", ["R10"], "ramp slower"),
        ("time_s,temperature_c,clock_hz,latency_s\n2,60,1e9,1\n1,61,1e9,1\n", ["R10"], "its times do not rise"),
        ("temperature_c,path_s,violation_ratio\n85,1e-9,1.2\n95,2e-9,0.5\n", ["R11"], "above 0 and below 1"),
        ("temperature_c,path_s,violation_ratio\n95,1e-9,0.1\n85,2e-9,0.5\n", ["R11"], "temperature_c must rise"),
        ("weights,bits,block\nint4,0,32\n", ["R12"], "bits is '0'"),
        ("weights,bits\nint4,4\n", ["R12"], "no column block"),
        ("processor,latency_s,useful_ratio\nnpu,1.5,0.6\n", ["R14"], "no row 'cpu'"),
        ("processor,latency_s,useful_ratio\nnpu,0.7,0.6\ncpu,1,0.8\n", ["R14"], "less than their parts"),
        ("step,latency_s,power_w,temperature_c\na,1.5,1,90\nb,0.6,1,80\n", ["R16"], "less than the NPU's own"),
        ("a,b\n1,2\n", ["R17"], "experiments.sustained MODEL"),
        ("a,b\n1,2\n", ["R9", "R10"], "are for one study"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text)
    assert main([*arguments, "--table", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["R12", "--set", "frame=1"], "did you mean frame_s"),
        (["R12", "--set", "frame_s=0ms"], "frame_s is above 0 (these may be 0: dwell_s"),
        (["R16", "--set", "batch=0"], "batch is above 0"),
        (["R10", "--table", "none.csv"], "cannot read none.csv"),
        (["R10", "--set", "runs=2"], "recorded logs only"),
        (["R11", "--set", "spread_violation_ratio=2"], "is a share, below 1"),
        (["R11", "--set", "spread_violation_ratio=0.9"], "outside the table"),
        (["R4", "--model", "resnet18"], "R12 does"),
        (["R16", "--set", "batch=0.4"], "batch is a whole number, and not 0.4"),
        (["R16", "--set", "batch=2000000"], "takes too long to fill"),
        (["R16", "--set", "largest_gap_s=1e9"], "takes too long to fill"),
        (["R12", "--bind", "batch=2"], "of a --model"),
        (["--bind", "batch=2"], "of a --model"),
        (["R12", "--model", "none.onnx"], "is not a file"),
    ],
)
def test_what_a_study_does_not_take_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@given(where=st.floats(0.1, 0.9), above=st.booleans())
def test_a_crossing_is_found_to_a_thousandth_of_the_range(where: float, above: bool) -> None:
    found = crossing(lambda at: (at > where) == above, 0.0, 1.0)
    assert found is not None
    assert found[0] == pytest.approx(where, abs=1e-3)
    assert found[1] == above
    assert crossing(lambda _: above, 0.0, 1.0) is None


@pytest.mark.parametrize("name", ["R1", "R9", "R14"])
def test_a_file_of_ones_own_is_not_taken_for_the_published_table_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / f"{name}.csv"
    path.write_text("backend,latency_s,power_w,energy_j\na,1e-2,2,2e-2\nb,2e-2,1,3e-2\n")
    assert published([str(path)]) == 0
    assert "DIFFERS: b: power x latency" in capsys.readouterr().out
    assert load_table(name).report in {"A", "B"}


@pytest.mark.parametrize("figure", ["wake_s=0ms", "wake_j_low=0", "largest_gap_s=0"])
def test_what_takes_no_time_or_energy_may_be_0(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["R16", "--set", figure]) == 0
    assert not {"nan", "inf"} & set(capsys.readouterr().out.replace(",", " ").split())
