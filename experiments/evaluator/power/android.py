"""Phones over adb: the on-device power monitor's counters per rail (Pixel 6 and later), and the battery."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, ClassVar, Final

from experiments.evaluator.power.sensor import Sensor, SensorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMEOUT_S: Final = 10.0
_ODPM: Final = "/sys/bus/iio/devices/iio:device*/energy_value"
_BATTERY: Final = "/sys/class/power_supply/battery"
_ODPM_LINE: Final = re.compile(r"(?:CH\d+)?\(T=(?P<ms>\d+)\)\[(?P<rail>[^\]]+)\]\s*,\s*(?P<uws>\d+)")


def adb_shell(command: str) -> str:
    """Run a command on the one phone that adb sees.

    Raises:
        SensorError: there is no adb or no phone, or the command fails; adb's own words are in the message.
    """
    adb = shutil.which("adb")
    if adb is None:
        raise SensorError("adb is not installed: apt install adb, and enable USB debugging on the phone")
    try:
        done = subprocess.run([adb, "shell", command], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SensorError(f"adb did not answer within {_TIMEOUT_S:g} s: is the phone unlocked and trusted?") from error
    if done.returncode:
        raise SensorError(f"adb: {(done.stderr or done.stdout).strip().splitlines()[-1:] or ['no reason given']}")
    return done.stdout


class _Phone(Sensor):
    """What is read by commands to a phone: it can be read, or the attempt says why not."""

    here: ClassVar[bool] = False

    def __init__(self, shell: Callable[[str], str] = adb_shell) -> None:
        self._shell = shell

    def why_not(self) -> str | None:
        """Say what is missing."""
        try:
            self.read()
        except SensorError as error:
            return str(error)
        return None


class Odpm(_Phone):
    """Energy per rail in uWs from the on-device power monitor of Pixel phones."""

    name: ClassVar[str] = "android_odpm"
    counts: ClassVar[bool] = True
    period_s: ClassVar[float] = 0.25

    def read(self) -> Mapping[str, float]:
        """Return joules by rail, for example "S10M_VDD_TPU"."""
        text = self._shell(f"cat {_ODPM} 2>&1")
        if "Permission denied" in text:
            raise SensorError(f"no permission to read {_ODPM}: adb root, on a userdebug build")
        rails = {match["rail"]: int(match["uws"]) * 1e-6 for match in _ODPM_LINE.finditer(text)}
        if not rails:
            raise SensorError("the phone has no on-device power monitor (Pixel 6 and later have)")
        return rails


class Battery(_Phone):
    """What the battery gives: current times voltage of the whole phone, a coarse and slow figure."""

    name: ClassVar[str] = "android_battery"
    counts: ClassVar[bool] = False
    period_s: ClassVar[float] = 1.0

    def read(self) -> Mapping[str, float]:
        """Return watts of the rail "battery"; vendors differ in the sign of the current, so its size is taken."""
        command = f"cat {_BATTERY}/status {_BATTERY}/current_now {_BATTERY}/voltage_now 2>&1"
        lines = self._shell(command).split("\n")
        if any("Permission denied" in line for line in lines):
            raise SensorError(f"no permission to read {_BATTERY}: some vendors deny it to the shell user; adb root")
        try:
            status, microamperes, microvolts = lines[0].strip(), float(lines[1]), float(lines[2])
        except (IndexError, ValueError) as error:
            raise SensorError(f"{_BATTERY} gives no current and voltage: {' '.join(lines)[:80]!r}") from error
        if status in {"Charging", "Full"}:
            raise SensorError(f"the phone is {status.lower()} over the cable; use adb over Wi-Fi and unplug it")
        return {"battery": abs(microamperes) * 1e-6 * microvolts * 1e-6}
