from __future__ import annotations

import dataclasses

import pytest

from compilers import Latency, Source
from experiments.evaluator.energy import Energy, UnknownFigureError, add_energies, measured_energy, modelled_energy
from experiments.evaluator.power.window import MeasuredEnergy
from partition import Figure, load_device

LATENCY = Latency(typical_s=1e-3, low_s=0.9e-3, high_s=1.2e-3, source=Source.SIMULATED)


def figure(value: float, low: float, high: float) -> Figure:
    return Figure(value=value, low=low, high=high, tag="assumed", source="test")


def test_the_sum_is_power_times_time_plus_work_and_its_bounds_combine() -> None:
    device = load_device("sa8255p")
    npu = dataclasses.replace(
        device.processor("npu"),
        active_w=figure(2.0, 1.0, 4.0),
        energy_j_per_mac={"int8": figure(1e-12, 5e-13, 2e-12)},
    )
    device = dataclasses.replace(device, dram_j_per_byte=figure(5e-11, 4e-11, 6e-11))
    energy = modelled_energy(device, npu, "int8", latency=LATENCY, macs=10**9, dram_bytes=10**7)
    assert energy.parts_j["static"] == pytest.approx(2e-3)
    assert energy.parts_j["compute"] == pytest.approx(1e-3)
    assert energy.parts_j["memory"] == pytest.approx(5e-4)
    assert energy.total_j == pytest.approx(3.5e-3)
    assert energy.low_j == pytest.approx(1.0 * 0.9e-3 + 5e-4 + 4e-4)
    assert energy.high_j == pytest.approx(4.0 * 1.2e-3 + 2e-3 + 6e-4)
    assert add_energies((energy, energy)).total_j == pytest.approx(7e-3)


def test_a_missing_coefficient_is_named_not_taken_for_zero() -> None:
    device = load_device("a17_pro")
    with pytest.raises(UnknownFigureError, match=r"processors.npu.energy_j_per_mac.fp32"):
        modelled_energy(device, device.processor("npu"), "fp32", latency=LATENCY, macs=1, dram_bytes=1)


def test_a_meters_energy_is_idle_and_net_and_a_sum_is_measured_only_when_every_part_is() -> None:
    seen = MeasuredEnergy(
        gross_j=4e-3, net_j=1e-3, uncertainty_j=5e-4, idle_w=3.0, mean_w=4.0, samples=200, inferences=2000, window_s=2.0
    )
    energy = measured_energy("rapl package-0", seen)
    assert energy.parts_j == pytest.approx({"net": 1e-3, "idle": 3e-3})
    assert (energy.low_j, energy.total_j, energy.high_j) == pytest.approx((3.5e-3, 4e-3, 4.5e-3))
    assert add_energies((energy, energy)).source is Source.MEASURED
    assert add_energies((energy,)).metered == energy.metered
    modelled = Energy(parts_j={"static": 2e-3}, low_j=1e-3, high_j=3e-3, source=Source.MODELLED)
    both = add_energies((energy, modelled))
    assert both.source is Source.MODELLED
    assert both.parts_j == pytest.approx({"net": 1e-3, "idle": 3e-3, "static": 2e-3})
