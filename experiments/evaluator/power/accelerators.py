"""NVIDIA's GPUs through NVML, and Apple's chips through zeus: packages of the extra `energy`."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.evaluator.power.sensor import Sensor, SensorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Nvml(Sensor):
    """Millijoules since the driver was loaded, per GPU (Volta and later)."""

    name: ClassVar[str] = "nvml"
    counts: ClassVar[bool] = True
    # The driver renews the counter every 20 to 100 ms; standstills between are merged.
    period_s: ClassVar[float] = 0.01

    def __init__(self, library: Any = None) -> None:  # noqa: ANN401 - the module pynvml, or a fake of it
        self._given = library
        self._handles: dict[str, Any] = {}

    def why_not(self) -> str | None:
        """Say what is missing."""
        if self._given is None and importlib.util.find_spec("pynvml") is None:
            return "pynvml is not installed: pip install nvidia-ml-py (or edgefrontier[energy])"
        try:
            self._open()
            self.read()
        except SensorError as error:
            return str(error)
        return None

    def read(self) -> Mapping[str, float]:
        """Return joules by GPU, for example "gpu0 NVIDIA H200"."""
        library = self._open()
        try:
            return {
                rail: library.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3
                for rail, handle in self._handles.items()
            }
        except library.NVMLError as error:
            raise SensorError(f"NVML gives no energy: {error}") from error

    def rails_of(self, kind: str, rails: Iterable[str]) -> tuple[str, ...]:
        """Take the GPU when there is one only: which of several runs a model is not known here."""
        rails = tuple(rails)
        return rails if kind == "gpu" and len(rails) == 1 else ()

    def _open(self) -> Any:  # noqa: ANN401
        library = self._given if self._given is not None else importlib.import_module("pynvml")
        if self._handles:
            return library
        try:
            library.nvmlInit()
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                title = library.nvmlDeviceGetName(handle)
                title = title.decode() if isinstance(title, bytes) else title
                self._handles[f"gpu{index} {title}"] = handle
        except library.NVMLError as error:
            raise SensorError(f"NVML does not answer ({error}): is there an NVIDIA GPU and its driver?") from error
        if not self._handles:
            raise SensorError("NVML answers, but there is no GPU")
        return library


class Apple(Sensor):
    """Millijoules of CPU, GPU, ANE and DRAM of an Apple chip, without root, by `zeus-apple-silicon`."""

    name: ClassVar[str] = "apple"
    counts: ClassVar[bool] = True
    period_s: ClassVar[float] = 0.1
    _fields: ClassVar[Mapping[str, str]] = {
        "cpu": "cpu_total_mj",
        "gpu": "gpu_mj",
        "npu": "ane_mj",
        "dram": "dram_mj",
    }

    def __init__(self, monitor: Any = None) -> None:  # noqa: ANN401 - AppleEnergyMonitor, or a fake of it
        self._monitor = monitor

    def why_not(self) -> str | None:
        """Say what is missing."""
        if self._monitor is not None:
            return None
        if sys.platform != "darwin":
            return "this is not macOS"
        if importlib.util.find_spec("zeus_apple_silicon") is None:
            return "zeus-apple-silicon is not installed: pip install edgefrontier[energy]"
        return None

    def read(self) -> Mapping[str, float]:
        """Return joules by subsystem that the chip counts."""
        if self._monitor is None:
            self._monitor = importlib.import_module("zeus_apple_silicon").AppleEnergyMonitor()
        try:
            metrics = self._monitor.get_cumulative_energy()
        except RuntimeError as error:
            raise SensorError(f"IOReport does not answer: {error}") from error
        values = {rail: getattr(metrics, field, None) for rail, field in self._fields.items()}
        known = {rail: value * 1e-3 for rail, value in values.items() if value is not None}
        if not known:
            raise SensorError("the chip gives none of the counters that are known here")
        return known

    def rails_of(self, kind: str, rails: Iterable[str]) -> tuple[str, ...]:
        """Take the processor and the DRAM."""
        rails = tuple(rails)
        return tuple(rail for rail in rails if rail in {kind, "dram"}) if kind in rails else ()
