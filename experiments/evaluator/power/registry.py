"""Every sensor kind, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.evaluator.power.accelerators import Apple, Nvml
from experiments.evaluator.power.android import Battery, Odpm
from experiments.evaluator.power.sysfs import Hwmon, Ina3221, Rapl

if TYPE_CHECKING:
    from experiments.evaluator.power.sensor import Sensor


def all_sensors() -> tuple[Sensor, ...]:
    """Return one of each kind, whether it can be used here or not."""
    return (Rapl(), Nvml(), Ina3221(), Hwmon(), Odpm(), Battery(), Apple())
