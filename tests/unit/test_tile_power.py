"""R13: tiles with the least DRAM traffic near the fastest, and their energy within the figures' bounds."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import tiles_power
from experiments.tiles import main
from experiments.tiles_plan import Goal, buildable_tile
from experiments.tiles_power import changes, choose, coefficients, saved_j
from partition import load_device
from partition.tile import TileError, evaluate_gpu, gpu_machine, npu_machine, parse_operator, search_npu

if TYPE_CHECKING:
    from pathlib import Path

    from partition.tile import Layer, Machine

PRODUCT = parse_operator("matmul:m=512,c=512,k=2048")
GPU, NPU = gpu_machine(load_device("sm8650"), "fp16"), npu_machine(load_device("sa8255p"), "fp16")


def test_a_tenth_of_the_time_saves_a_sixth_of_the_traffic_of_a_product_on_an_adreno() -> None:
    choice = choose(PRODUCT, 1, GPU, 0.1)
    fast, frugal = choice.costs
    assert choice.differs
    assert 1.0 < frugal.latency_s / fast.latency_s <= 1.1
    assert frugal.dram_bytes / fast.dram_bytes == pytest.approx(0.84, abs=0.005)
    assert not choose(PRODUCT, 1, GPU, 0.0).differs


@pytest.mark.parametrize("machine", [GPU, NPU], ids=lambda m: m.name)
def test_the_quantities_and_the_device_files_figures_are_the_models_energy(machine: object) -> None:
    device, kind = (load_device("sm8650"), "gpu") if machine is GPU else (load_device("sa8255p"), "npu")
    choice = choose(PRODUCT, 1, machine, 0.2)  # type: ignore[arg-type]
    bounds, lacking = coefficients(device, kind, "fp16")
    assert not lacking
    for cost, quantities in zip(choice.costs, (choice.fastest_of, choice.frugal_of), strict=True):
        assert bounds[1] @ quantities == pytest.approx(cost.energy_j)
        assert quantities[1] == pytest.approx(cost.dram_bytes)
        assert quantities[3] == pytest.approx(cost.latency_s)


quantity = st.floats(0.1, 10.0)


@given(
    st.lists(st.tuples(quantity, quantity), min_size=4, max_size=4),
    st.lists(st.tuples(quantity, quantity, quantity).map(sorted), min_size=4, max_size=4),
    st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
)
def test_no_values_within_the_bounds_lie_outside_of_the_interval(
    pairs: list[tuple[float, float]], figures: list[list[float]], shares: list[float]
) -> None:
    fastest, frugal = np.array(pairs).T
    bounds = np.array(figures).T
    within = bounds[0] + np.array(shares) * (bounds[2] - bounds[0])
    before, after = within @ fastest, within @ frugal
    _, low_j, high_j = saved_j(fastest, frugal, bounds)
    assert low_j - 1e-9 <= after - before <= high_j + 1e-9
    energy, power = changes(fastest, frugal, bounds)
    assert energy.low - 1e-9 <= after / before - 1.0 <= energy.high + 1e-9
    assert energy.low <= energy.typical <= energy.high
    relative = (after / frugal[-1]) / (before / fastest[-1]) - 1.0
    assert power.low - 1e-9 <= relative <= power.high + 1e-9


def test_the_plan_is_made_of_the_frugal_tiles() -> None:
    fast, frugal = buildable_tile(PRODUCT, GPU, Goal()), buildable_tile(PRODUCT, GPU, Goal(slack_ratio=0.9))
    assert fast is not None
    assert frugal is not None
    moved = [evaluate_gpu(PRODUCT, GPU, tile).dram_bytes for tile in (fast, frugal)]
    assert moved[1] < moved[0]


def test_the_least_traffic_needs_a_bound_on_the_time() -> None:
    with pytest.raises(TileError, match="within a bound on the time"):
        search_npu(PRODUCT, NPU, objective="traffic")
    with pytest.raises(TileError, match="none takes at most"):
        search_npu(PRODUCT, NPU, objective="traffic", at_most_s=1e-12)


def test_the_fastest_tiles_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--op", "matmul:m=512,c=512,k=2048", "--slack", "0.1", "--out", str(tmp_path)]
    searched: list[str] = []
    search = tiles_power._search

    def noted(layer: Layer, machine: Machine, **how: Any) -> Any:
        searched.append(how["objective"])
        return search(layer, machine, **how)

    monkeypatch.setattr(tiles_power, "_search", noted)
    assert main(asked) == 0
    assert searched == ["traffic", "traffic"]
    assert main([*asked, "--objective", "energy"]) == 0
    assert searched[2:] == ["latency", "traffic"] * 2


def test_the_command_says_what_it_costs_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--op", "matmul:m=512,c=512,k=2048", "--slack", "0.1", "--out", str(tmp_path)]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "sm8650 gpu: 1 of 1 operators change; together latency +9.9%, DRAM traffic -16.0%" in out
    assert "sa8255p npu: the fastest tile of all 1 operators has the least traffic already" in out
    (path,) = tmp_path.glob("tiles-*/frugal.csv")
    with path.open(newline="") as file:
        lines = {line["processor"]: line for line in csv.DictReader(file)}
    low, typical, high = (float(lines["sm8650 gpu"][f"energy_change{end}_j"]) for end in ("_low", "", "_high"))
    assert low < typical < high
    assert math.isclose(float(lines["sa8255p npu"]["energy_change_j"]), 0.0, abs_tol=1e-12)


@pytest.mark.parametrize("text", ["-0.1", "1", "5%", "nan", "x"])
def test_a_slack_is_a_share(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["resnet18", f"--slack={text}"])
    assert stop.value.code == 2
    assert "a share of at least 0 and below 1" in capsys.readouterr().err
