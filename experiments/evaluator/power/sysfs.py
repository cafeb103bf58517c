"""Sensors that are files under /sys: RAPL (powercap), Jetson's INA3221, and hwmon (amdgpu and others).

The variable EDGEFRONTIER_SYS names another place, for a container that has the host's /sys elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from experiments.evaluator.power.sensor import Sensor, SensorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PROCESSOR_DRIVERS = {"cpu": ("zenpower/", "fam15h_power/"), "gpu": ("amdgpu/",)}


def _sys() -> Path:
    return Path(os.environ.get("EDGEFRONTIER_SYS", "/sys"))


def governor() -> str | None:
    """Return what decides the clock of the first CPU ("performance", "powersave"), None where nobody tells."""
    try:
        return (_sys() / "devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="utf-8").strip()
    except OSError:
        return None


class Rapl(Sensor):
    """Intel's and AMD's running average power limit: energy of package, cores and DRAM, in uJ, wrapping."""

    name: ClassVar[str] = "rapl"
    counts: ClassVar[bool] = True
    period_s: ClassVar[float] = 0.01

    def __init__(self, sys: Path | None = None) -> None:
        self._root = (sys or _sys()) / "class" / "powercap"

    def why_not(self) -> str | None:
        """Say what is missing."""
        zones = self._zones()
        if not zones:
            return (
                f"no intel-rapl zone under {self._root}: a virtual machine hides it, or the kernel lacks"
                " intel_rapl_msr (modprobe intel_rapl_msr)"
            )
        try:
            next(iter(zones.values())).joinpath("energy_uj").read_text()
        except PermissionError:
            return (
                f"no permission to read {next(iter(zones.values()))}/energy_uj (root only since Linux 5.10):"
                " sudo chmod -R a+r /sys/class/powercap/intel-rapl, or run zeusd"
            )
        except OSError as error:
            return f"{next(iter(zones.values()))}/energy_uj cannot be read ({error.strerror})"
        return None

    def read(self) -> Mapping[str, float]:
        """Return joules by zone, for example "package-0" and "package-0/dram"."""
        return {rail: _number(zone / "energy_uj") * 1e-6 for rail, zone in self._zones().items()}

    def wraps_at_j(self, rail: str) -> float | None:
        """Return the range of the zone's counter.

        Raises:
            SensorError: the zone is gone.
        """
        zone = self._zones().get(rail)
        if zone is None:
            raise SensorError(f"zone {rail} under {self._root} is gone")
        return _number(zone / "max_energy_range_uj") * 1e-6

    def rails_of(self, kind: str, rails: Iterable[str]) -> tuple[str, ...]:
        """Take every package and its DRAM, which is counted apart; the cores' zone is inside the package's."""
        if kind != "cpu":
            return ()
        return tuple(rail for rail in rails if rail.startswith("package-") and rail.split("/")[1:] in ([], ["dram"]))

    def _zones(self) -> dict[str, Path]:
        """Map rail to folder; a zone inside another one carries the outer one's name before its own."""
        zones = {}
        for folder in sorted(self._root.glob("intel-rapl:*")):
            parent = folder.name.rsplit(":", 1)[0]
            name = _text(folder / "name") or folder.name
            outer = _text(self._root / parent / "name") if parent.count(":") else None
            zones[f"{outer}/{name}" if outer else name] = folder
        return zones


class Ina3221(Sensor):
    """The power monitor of Jetson boards: volts and amperes of up to three rails per chip."""

    name: ClassVar[str] = "ina3221"
    counts: ClassVar[bool] = False
    period_s: ClassVar[float] = 0.02

    def __init__(self, sys: Path | None = None) -> None:
        self._root = (sys or _sys()) / "bus" / "i2c" / "drivers"

    def why_not(self) -> str | None:
        """Say what is missing."""
        if not self._rails():
            return f"no INA3221 under {self._root}/ina3221*: this is not a Jetson, or its driver is not loaded"
        return _readable(next(iter(self._rails().values()))[0])

    def read(self) -> Mapping[str, float]:
        """Return watts by rail label, for example "VDD_GPU_SOC"."""
        return {
            label: _number(millivolts) * 1e-3 * _number(milliamperes) * 1e-3
            for label, (millivolts, milliamperes) in self._rails().items()
        }

    def rails_of(self, kind: str, rails: Iterable[str]) -> tuple[str, ...]:
        """Take the rail that is named after the processor, as VDD_CPU_CV; it may feed another one, too."""
        return tuple(rail for rail in rails if kind.upper() in rail.upper())[:1]

    def _rails(self) -> dict[str, tuple[Path, Path]]:
        rails = {}
        for label in sorted(self._root.glob("ina3221*/*/hwmon/hwmon*/in*_label")):
            channel = label.name.removeprefix("in").removesuffix("_label")
            current = label.with_name(f"curr{channel}_input")
            if current.exists():
                rails[_text(label) or channel] = (label.with_name(f"in{channel}_input"), current)
        return rails


class Hwmon(Sensor):
    """Power that a driver reports through hwmon in uW: amdgpu (package power on an APU), some server boards."""

    name: ClassVar[str] = "hwmon"
    counts: ClassVar[bool] = False
    period_s: ClassVar[float] = 0.05

    def __init__(self, sys: Path | None = None) -> None:
        self._root = (sys or _sys()) / "class" / "hwmon"

    def why_not(self) -> str | None:
        """Say what is missing."""
        rails = self._rails()
        if not rails:
            return f"no driver under {self._root} reports power (power1_average or power1_input)"
        return _readable(next(iter(rails.values())))

    def read(self) -> Mapping[str, float]:
        """Return watts by "driver/label"."""
        return {rail: _number(path) * 1e-6 for rail, path in self._rails().items()}

    def rails_of(self, kind: str, rails: Iterable[str]) -> tuple[str, ...]:
        """Take what a driver of that kind of processor reports; a GPU only when there is one."""
        own = tuple(rail for rail in rails if rail.startswith(_PROCESSOR_DRIVERS.get(kind, ("none/",))))
        return () if kind == "gpu" and len(own) > 1 else own

    def _rails(self) -> dict[str, Path]:
        rails: dict[str, Path] = {}
        for pattern in ("power*_average", "power*_input"):
            for path in sorted(self._root.glob(f"hwmon*/{pattern}")):
                driver = _text(path.parent / "name") or path.parent.name
                channel = path.name.split("_", maxsplit=1)[0]
                label = _text(path.parent / f"{channel}_label") or channel
                rails.setdefault(f"{driver}/{label}", path)
        return rails


def hottest_c() -> float | None:
    """Return the highest temperature in degC that a thermal zone of this machine tells now; None when none does."""
    readings = [_text(path) for path in _sys().glob("class/thermal/thermal_zone*/temp")]
    return max((int(text) * 1e-3 for text in readings if text and text.lstrip("-").isdigit()), default=None)


def _readable(path: Path) -> str | None:
    try:
        path.read_text()
    except PermissionError:
        return f"no permission to read {path}: run as root, or sudo chmod a+r {path}"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None  # a label is a nicety: the caller has a name without it


def _number(path: Path) -> float:
    try:
        return float(path.read_text())
    except (OSError, ValueError) as error:
        raise SensorError(f"{path} cannot be read any more ({error})") from error
