from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from experiments.published import load_table
from experiments.scenarios.__main__ import main
from experiments.scenarios.catalogue import study, study_names
from experiments.scenarios.endurance import endurance, t11c_runs
from experiments.scenarios.memory import temperature_of, violations_at, weight_bytes
from experiments.scenarios.power_states import wake_up

if TYPE_CHECKING:
    from pathlib import Path


def test_r4_memory_is_the_limit_until_the_bus_is_ten_times_as_wide() -> None:
    figures = study("R4").figures["weights read three times"]
    assert isinstance(figures, dict)
    assert figures["latency_s"] == pytest.approx(2.88e-3)
    assert figures["once_s"] == pytest.approx(192e6 / 200e9)
    assert figures["balanced_bytes_per_s"] == pytest.approx(3 * 192e6 / 0.3e-3)


@pytest.mark.parametrize("kernel", ["GEMM", "Conv2D"])
def test_r5_the_gpus_tile_loses_within_the_published_range(kernel: str) -> None:
    figures, row = study("R5").figures, load_table("R5").row(kernel)
    found = figures[kernel]
    assert isinstance(found, dict)
    assert found["own_flops_per_s"] == pytest.approx(row["own_tile_flops_per_s"], rel=0.2)
    assert found["carried_flops_per_s"] == pytest.approx(row["gpu_tile_flops_per_s"], rel=0.25)
    assert 0.28 <= found["loss_ratio"] <= 0.51
    assert figures["conflict_ratio"] == pytest.approx(0.37, abs=0.02)


def test_r6_each_stall_comes_where_its_cause_is() -> None:
    figures = study("R6").figures
    assert (figures["conflict_s"], figures["fifo_s"]) == pytest.approx((12.7e-6, 89.3e-6))
    assert figures["coherence_s"] == pytest.approx(82e-9)
    assert figures["coherence_spread_s"] == pytest.approx((12**2 + 27**2 + 3**2) ** 0.5 * 1e-9)


def test_r9_the_heat_map_is_met_within_five_per_cent() -> None:
    assert study("R9").figures["worst_error_ratio"] < 0.05  # type: ignore[operator]


@pytest.mark.parametrize("device", ["A100", "H100"])
def test_r10_threshold_and_slopes_come_back_from_the_trace(device: str) -> None:
    found, row = study("R10").figures[device], load_table("R10").row(device)
    assert isinstance(found, dict)
    assert found["break_c"] == pytest.approx(row["threshold_c"], abs=0.3)
    assert found["below_per_k"] == pytest.approx(row["below_per_k"], rel=0.05)
    assert found["above_per_k"] == pytest.approx(row["above_per_k"], rel=0.05)
    assert row["threshold_c"] < found["onset_c"] < row["threshold_c"] + 3.0


def test_r10_the_chain_ends_in_a_latency_step() -> None:
    chain = study("R10").figures["chain"]
    assert isinstance(chain, dict)
    # 1 ms does not follow the clock and 9 ms do: 10 ms become 1 + 9 / 0.6 = 16 ms.
    assert chain["after_s"] / chain["before_s"] == pytest.approx(1.6, rel=0.01)


def test_r11_interpolates_and_does_not_extrapolate() -> None:
    table = load_table("R11")
    assert violations_at(table, 102.0) == pytest.approx(0.124)
    assert 0.007 < violations_at(table, 90.0) < 0.124
    assert temperature_of(table, violations_at(table, 97.0)) == pytest.approx(97.0)
    with pytest.raises(ValueError, match="outside the published range"):
        violations_at(table, 120.0)


def test_r12_only_the_fast_dma_meets_the_frame_with_all_weights() -> None:
    figures = study("R12").figures
    copies = {key: value["copies"] for key, value in figures.items() if isinstance(value, dict)}
    assert copies["INT4 block-wise, encoder and decoder, slow"] == 0
    assert copies["INT4 block-wise, encoder and decoder, fast"] == 2
    assert copies["INT5 channel-wise, encoder and decoder, fast"] == 1
    assert weight_bytes(32, 4, 32) == 18.0


def test_r14_waking_up_is_what_the_npu_loses_by() -> None:
    parts = wake_up()
    whole = parts.work_s + parts.wake_s + parts.graph_s + parts.weights_s + parts.cold_s
    assert whole == pytest.approx(1.5)
    figures = study("R14").figures
    assert 0.6 < figures["break_even_per_s"] < 1.0  # type: ignore[operator]
    latency = figures["latency_s"]
    assert isinstance(latency, dict)
    assert latency["0.05"]["npu"] == pytest.approx(1.5, rel=0.03)
    assert latency["0.05"]["cpu"] == pytest.approx(0.82, rel=0.03)


def test_r16_every_remedy_but_the_clock_helps_and_batching_saves_energy() -> None:
    figures = study("R16").figures
    assert isinstance(figures["as found"], dict)
    found = figures["as found"]
    assert found["power_w"] == pytest.approx(14.8, rel=0.01)
    # Asleep, the clock has risen by the time that the work begins.
    assert figures["as found, clock on demand"]["mean_s"] == pytest.approx(found["mean_s"], rel=1e-3)  # type: ignore[index]
    slow, fast = figures["keep awake, clock on demand"], figures["keep awake, and the minimum clock raised"]
    assert fast["mean_s"] < 0.99 * slow["mean_s"]  # type: ignore[index]
    for name in (
        "keep awake, clock on demand",
        "precision: int4 weights",
        "layer-wise loading (restore while working)",
    ):
        assert figures[name]["mean_s"] < 0.9 * found["mean_s"]  # type: ignore[index]
    batch = figures["batch of 4, gaps of 200 ms at most"]
    assert batch["power_w"] < found["power_w"] - 1.0  # type: ignore[index]


def test_r17_the_cap_holds_power_and_altitude_lowers_it() -> None:
    figures = study("R17").figures
    low, high = figures["25 degC, 0 m"], figures["25 degC, 2000 m"]
    assert isinstance(low, dict)
    assert isinstance(high, dict)
    assert low["capped_w"] <= 10.0
    assert low["peak_c"] < 81.0
    assert high["peak_c"] < 71.0


def test_r18_three_days_take_less_than_ten_seconds() -> None:
    begin = time.process_time()
    result = endurance()
    assert time.process_time() - begin < 10.0
    assert result.horizon_s == pytest.approx(72 * 3600)
    assert result.balance_error_ratio < 1e-6


def test_t11c_burst_and_sustained_have_different_winners() -> None:
    figures = study("T11c").figures
    assert (figures["burst_winner"], figures["sustained_winner"]) == ("A", "B")
    assert figures["crossover_s"] == pytest.approx(180.0)
    means = {name: run.mean_s() for name, run in t11c_runs().items()}
    assert means == pytest.approx({"A": 0.337, "B": 0.217}, abs=0.0005)


def test_the_command_prints_draws_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["T11C", "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["T11C"]["burst_winner"] == "A"
    assert (tmp_path / "t11c_burst_sustained.svg").stat().st_size > 1000
    assert main(["R99"]) == 2
    assert "there is no study 'R99'" in capsys.readouterr().err
    assert set(study_names()) >= {"R9", "R10", "R11", "R12", "R14", "R16", "R17", "R18", "T11C"}
