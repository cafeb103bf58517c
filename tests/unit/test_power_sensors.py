from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from experiments.doctor import main as doctor
from experiments.evaluator.power.accelerators import Apple, Nvml
from experiments.evaluator.power.android import Battery, Odpm
from experiments.evaluator.power.sensor import Protocol, Recorder, Sensor, SensorError, measure_energy
from experiments.evaluator.power.sysfs import Hwmon, Ina3221, Rapl
from experiments.evaluator.power.window import Samples, WindowError, add_rails, energy_per_inference

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Case T11(b): 2 s idle at 2 W, 5 s load at 6 W, 1 s of 100 inferences at 4 W, 2 s idle.
EDGES, WATTS = np.array([2.0, 7.0, 8.0, 10.0]), np.array([2.0, 6.0, 4.0, 2.0])


def t11b(rate_hz: float) -> Samples:
    times = (np.arange(int(10 * rate_hz)) + 0.5) / rate_hz
    return Samples(times_s=tuple(times), watts=tuple(WATTS[np.searchsorted(EDGES, times)]))


def test_t11b_the_load_is_no_part_of_the_window() -> None:
    energy = energy_per_inference(t11b(100.0), window=(7.0, 8.0), idle=(0.0, 2.0), inferences=100)
    assert energy.gross_j == pytest.approx(0.040)
    assert energy.net_j == pytest.approx(0.020)
    assert energy.samples == 100
    assert energy.uncertainty_j < 0.001


def test_t11b_a_sampler_of_one_hertz_is_refused() -> None:
    with pytest.raises(WindowError, match=r"one sample in the measuring window.*every 1 s, so run for at least 10 s"):
        energy_per_inference(t11b(1.0), window=(7.0, 8.0), idle=(0.0, 2.0), inferences=100)


def counter(wraps: float | None = None, step_s: float = 0.01, renewed_s: float = 0.01) -> Samples:
    times = np.arange(0.0, 10.0, step_s)
    fine = np.arange(0.0, 10.0 + 1e-9, 0.001)
    total = np.concatenate([[0.0], np.cumsum(WATTS[np.searchsorted(EDGES, fine[:-1] + 5e-4)] * 0.001)])
    joules = np.interp(np.floor(times / renewed_s + 1e-9) * renewed_s, fine, total)
    if wraps is not None:
        joules = joules % wraps
    return Samples(times_s=tuple(times), joules=tuple(joules), wraps_at_j=wraps)


@pytest.mark.parametrize("samples", [counter(), counter(wraps=7.0), counter(renewed_s=0.05)])
def test_a_counter_gives_the_same_also_when_it_wraps_or_stands_still(samples: Samples) -> None:
    energy = energy_per_inference(samples, window=(7.0, 8.0), idle=(0.2, 2.0), inferences=100)
    assert energy.gross_j == pytest.approx(0.040, abs=max(energy.uncertainty_j, 1e-6))
    assert energy.net_j == pytest.approx(0.020, abs=max(energy.uncertainty_j, 1e-6))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (Samples(times_s=(0.0, 1.0, 2.0), joules=(0.0, 2.0, 1.0)), "ran backwards at reading 3"),
        (Samples(times_s=(0.0, 1.0, 2.0), joules=(0.0, 9.0, 1.0), wraps_at_j=5.0), "fell by more than its range"),
        (
            Samples(times_s=(0.0, 1.0, 2.0), joules=(7.0, 9.0, 8.0), wraps_at_j=262143.0),
            "backwards at reading 3, from 9",
        ),
        (Samples(times_s=(0.0, 1.0, 2.0), joules=(3.0, 3.0, 3.0)), "did not move"),
        (Samples(times_s=(0.0, 1.0, 2.0), watts=(1.0, float("nan"), 1.0)), "reading 2 is not a number"),
        (Samples(times_s=(0.0, 2.0, 1.0), watts=(1.0, 1.0, 1.0)), "reading 3 is not later"),
        (Samples(times_s=(0.0,), watts=(1.0,)), "two are the least"),
        (Samples(times_s=()), "two are the least"),
    ],
)
def test_samples_that_support_nothing_are_refused(samples: Samples, message: str) -> None:
    with pytest.raises(WindowError, match=message):
        energy_per_inference(samples, window=(0.0, 2.0), idle=(0.0, 1.0), inferences=1)


def with_a_gap(after_w: float, *, counts: bool) -> Samples:
    """Idle at 2 W until 2 s, 2 W for 1 s more, then `after_w` with no reading until 12 s."""
    times = [*np.arange(31) / 10, 12.0]
    watts = np.array([2.0] * 31 + [after_w])
    joules = np.cumsum(watts * np.diff(times, prepend=0.0))
    return Samples(times_s=tuple(times), **({"joules": tuple(joules)} if counts else {"watts": tuple(watts)}))


def test_a_counter_that_missed_readings_still_knows_the_joules_between_them() -> None:
    energy = energy_per_inference(with_a_gap(6.0, counts=True), window=(2.0, 12.0), idle=(0.0, 2.0), inferences=1)
    assert energy.gross_j == pytest.approx(2.0 + 9 * 6.0)  # the mean of its eleven steps would be 23.6
    assert energy.net_j == pytest.approx(9 * 4.0)


@pytest.mark.parametrize("kept", [(0.0, 5.0), (9.0, 12.0)], ids=["the clock is early", "late"])
def test_a_window_that_the_samples_do_not_reach_over_is_refused(kept: tuple[float, float]) -> None:
    times = np.arange(0.05, 14.0, 0.1)
    chosen = times[(times < 2.0) | ((times > kept[0]) & (times < kept[1]))]
    samples = Samples(times_s=tuple(chosen), watts=tuple(np.where(chosen < 2.0, 2.0, 6.0)))
    with pytest.raises(WindowError, match=r"no sample in 7\.\d+ s of the measuring window of 10 s"):
        energy_per_inference(samples, window=(2.0, 12.0), idle=(0.0, 2.0), inferences=1)


def test_a_sampler_that_was_away_in_the_window_is_refused() -> None:
    with pytest.raises(WindowError, match="no sample in 9 s of the measuring window of 10 s: readings are missing"):
        energy_per_inference(with_a_gap(6.0, counts=False), window=(2.0, 12.0), idle=(0.0, 2.0), inferences=1)


def test_a_rail_cannot_take_less_than_nothing() -> None:
    t11 = t11b(100.0)
    turned = Samples(times_s=t11.times_s, watts=tuple(-watts for watts in t11.watts or ()))
    with pytest.raises(WindowError, match="-4 W in the measuring window: the sensor counts the other direction"):
        energy_per_inference(turned, window=(7.0, 8.0), idle=(0.0, 2.0), inferences=100)


def test_an_empty_window_and_no_inference_are_refused() -> None:
    with pytest.raises(WindowError, match="is empty"):
        energy_per_inference(t11b(100.0), window=(8.0, 8.0), idle=(0.0, 2.0), inferences=1)
    with pytest.raises(WindowError, match="no inference"):
        energy_per_inference(t11b(100.0), window=(7.0, 8.0), idle=(0.0, 2.0), inferences=0)


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def rapl_tree(root: Path) -> None:
    zone, dram = "class/powercap/intel-rapl:0", "class/powercap/intel-rapl:0:2"
    for folder, name, energy in ((zone, "package-0", 5_000_000), (dram, "dram", 250_000)):
        write(root, {f"{folder}/name": name, f"{folder}/energy_uj": energy,
                     f"{folder}/max_energy_range_uj": 262_143_328_850})  # fmt: skip


def test_rapl_reads_zones_and_their_range(tmp_path: Path) -> None:
    rapl_tree(tmp_path)
    rapl = Rapl(tmp_path)
    assert rapl.why_not() is None
    assert rapl.read() == pytest.approx({"package-0": 5.0, "package-0/dram": 0.25})
    assert rapl.wraps_at_j("package-0") == pytest.approx(262143.3, rel=1e-6)


def test_rapl_says_what_is_missing(tmp_path: Path) -> None:
    assert "modprobe" in str(Rapl(tmp_path).why_not())


def test_rapl_names_the_fix_for_a_file_it_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rapl_tree(tmp_path)
    from pathlib import Path as RealPath

    read_text = RealPath.read_text

    def denied(self: RealPath, *args: Any, **options: Any) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(self, *args, **options)

    monkeypatch.setattr(RealPath, "read_text", denied)
    assert "sudo chmod -R a+r" in str(Rapl(tmp_path).why_not())
    with pytest.raises(SensorError, match="cannot be read any more"):
        Rapl(tmp_path).read()


def test_ina3221_multiplies_volts_and_amperes(tmp_path: Path) -> None:
    folder = "bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
    write(tmp_path, {f"{folder}/in1_label": "VDD_GPU_SOC", f"{folder}/in1_input": 19_000,
                     f"{folder}/curr1_input": 500, f"{folder}/in7_label": "sum of shunts"})  # fmt: skip
    assert Ina3221(tmp_path).why_not() is None
    assert Ina3221(tmp_path).read() == pytest.approx({"VDD_GPU_SOC": 9.5})
    assert "not a Jetson" in str(Ina3221(tmp_path / "none").why_not())


def test_hwmon_takes_the_average_before_the_moment(tmp_path: Path) -> None:
    write(tmp_path, {"class/hwmon/hwmon1/name": "amdgpu", "class/hwmon/hwmon1/power1_average": 15_000_000,
                     "class/hwmon/hwmon1/power1_label": "PPT", "class/hwmon/hwmon1/power1_input": 99_000_000,
                     "class/hwmon/hwmon2/name": "k10temp"})  # fmt: skip
    assert Hwmon(tmp_path).read() == pytest.approx({"amdgpu/PPT": 15.0})
    assert "reports power" in str(Hwmon(tmp_path / "none").why_not())


class FakeNvml(types.SimpleNamespace):
    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return int(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, _handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA H200"

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: int) -> int:  # noqa: N802
        return 12_500


def test_nvml_reads_millijoules_and_says_what_fails() -> None:
    assert Nvml(FakeNvml(broken=False, gpus=1)).read() == {"gpu0 NVIDIA H200": 12.5}
    assert "Driver Not Loaded" in str(Nvml(FakeNvml(broken=True, gpus=0)).why_not())
    assert "no GPU" in str(Nvml(FakeNvml(broken=False, gpus=0)).why_not())


def test_apple_reads_the_counters_that_the_chip_has() -> None:
    metrics = types.SimpleNamespace(cpu_total_mj=1500, gpu_mj=20, ane_mj=None, dram_mj=300)
    sensor = Apple(types.SimpleNamespace(get_cumulative_energy=lambda: metrics))
    assert sensor.why_not() is None
    assert sensor.read() == pytest.approx({"cpu": 1.5, "gpu": 0.02, "dram": 0.3})


# As `cat /sys/bus/iio/devices/iio:device0/energy_value` prints it on a Pixel 6 (s2mpg12-odpm).
ODPM = "t=1234567\nCH0(T=1234567)[S10M_VDD_TPU], 1250000\nCH1(T=1234567)[VSYS_PWR_MODEM], 3000000\n"


def test_odpm_reads_rails_and_denials() -> None:
    assert Odpm(lambda _: ODPM).read() == pytest.approx({"S10M_VDD_TPU": 1.25, "VSYS_PWR_MODEM": 3.0})
    assert "adb root" in str(Odpm(lambda _: "cat: energy_value: Permission denied").why_not())
    assert "Pixel 6" in str(Odpm(lambda _: "cat: No such file or directory").why_not())


def test_the_battery_is_read_and_refused_on_the_cable() -> None:
    assert Battery(lambda _: "Discharging\n-500000\n4000000\n").read() == pytest.approx({"battery": 2.0})
    assert "Wi-Fi" in str(Battery(lambda _: "Charging\n500000\n4000000\n").why_not())
    assert "adb root" in str(Battery(lambda _: "Discharging\ncat: current_now: Permission denied\n").why_not())
    assert "no current and voltage" in str(Battery(lambda _: "cat: No such file\n").why_not())


class Steady(Sensor):
    name, counts, period_s = "steady", False, 0.001

    def __init__(self, fails_after: int | None = None) -> None:
        self.reads, self.fails_after = 0, fails_after

    def why_not(self) -> str | None:
        return None

    def read(self) -> dict[str, float]:
        self.reads += 1
        if self.fails_after is not None and self.reads > self.fails_after:
            raise SensorError("gone")
        return {"all": 3.0}


def test_a_measurement_counts_its_inferences_and_is_net_of_idle() -> None:
    energy = measure_energy(Steady(), ["all"], lambda: None, protocol=Protocol(idle_s=0.1, busy_s=0.4))
    assert energy.net_j == pytest.approx(0.0, abs=1e-9)
    assert energy.gross_j * energy.inferences == pytest.approx(3.0 * energy.window_s)


def test_a_sensor_that_vanishes_is_told_with_the_number_of_readings() -> None:
    with pytest.raises(SensorError, match="vanished after 5 readings: gone"):
        measure_energy(Steady(5), ["all"], lambda: None, protocol=Protocol(idle_s=0.05, busy_s=0.05))
    with Recorder(Steady()) as recorder:
        pass
    with pytest.raises(SensorError, match="no rail 'gpu'"):
        recorder.samples("gpu")


def test_the_doctor_explains_every_sensor(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([]) in {0, 1}
    out = capsys.readouterr().out
    for name in ("rapl", "nvml", "ina3221", "hwmon", "android_odpm", "android_battery", "apple"):
        assert name in out


def test_the_doctor_lists_a_sensor_that_stops_answering_as_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Steady(0)
    monkeypatch.setattr("experiments.evaluator.power.registry.all_sensors", lambda: (silent,))
    assert silent.why_not() is None
    assert doctor([]) == 1
    assert "no   gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sensor", "kind", "rails", "expected"),
    [
        (Rapl(), "cpu", ("package-0", "package-0/core", "package-0/dram", "psys"), ("package-0", "package-0/dram")),
        (Rapl(), "cpu", ("package-0", "package-1", "package-1/uncore"), ("package-0", "package-1")),
        (Rapl(), "gpu", ("package-0",), ()),
        (Nvml(), "gpu", ("gpu0 NVIDIA H200",), ("gpu0 NVIDIA H200",)),
        (Nvml(), "gpu", ("gpu0 A", "gpu1 A"), ()),
        (Nvml(), "cpu", ("gpu0 A",), ()),
        (Ina3221(), "gpu", ("VDD_IN", "VDD_GPU_SOC", "VDD_CPU_CV"), ("VDD_GPU_SOC",)),
        (Ina3221(), "cpu", ("VDD_IN", "VDD_CPU_GPU_CV"), ("VDD_CPU_GPU_CV",)),
        (Hwmon(), "gpu", ("amdgpu/PPT", "power_meter/power1"), ("amdgpu/PPT",)),
        (Hwmon(), "cpu", ("amdgpu/PPT", "zenpower/SVI2_P_Core"), ("zenpower/SVI2_P_Core",)),
        (Hwmon(), "npu", ("amdgpu/PPT",), ()),
        (Apple(), "npu", ("cpu", "gpu", "npu", "dram"), ("npu", "dram")),
        (Apple(), "npu", ("cpu", "dram"), ()),
        (Battery(lambda _: ""), "cpu", ("battery",), ()),
    ],
)
def test_only_rails_that_feed_the_processor_meter_it(
    sensor: Sensor, kind: str, rails: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert sensor.rails_of(kind, rails) == expected


def test_rails_add_up_and_a_slow_sensor_gets_longer_windows() -> None:
    one = energy_per_inference(t11b(100.0), window=(7.0, 8.0), idle=(0.0, 2.0), inferences=100)
    both = add_rails([one, one])
    assert both.gross_j == pytest.approx(2 * one.gross_j)
    assert both.uncertainty_j == pytest.approx(2 * one.uncertainty_j)
    assert (both.samples, both.inferences) == (one.samples, one.inferences)
    with pytest.raises(WindowError, match="no rail"):
        add_rails([])
    assert Protocol(idle_s=1.0, busy_s=2.0, least_periods=15).windows_s(0.5) == (7.5, 7.5)
    assert Protocol(idle_s=1.0, busy_s=2.0, least_periods=15).windows_s(0.01) == (1.0, 2.0)
