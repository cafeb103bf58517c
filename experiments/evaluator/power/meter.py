"""Which sensor meters a processor of this machine, as a value that can be sent to a child process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from experiments.evaluator.power.registry import all_sensors
from experiments.evaluator.power.sensor import SensorError, measure_energy

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.evaluator.power.window import MeasuredEnergy


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """A sensor by name, and those of its rails that together feed the processor."""

    sensor: str
    rails: tuple[str, ...]

    @property
    def title(self) -> str:
        """The sensor and its rails, for people."""
        return f"{self.sensor} {' + '.join(self.rails)}"

    def measure(self, call: Callable[[], object]) -> MeasuredEnergy:
        """Measure the energy of one call.

        Raises:
            SensorError: the sensor cannot be read.
            WindowError: its samples do not support an answer.
        """
        sensor = next(sensor for sensor in all_sensors() if sensor.name == self.sensor)
        return measure_energy(sensor, self.rails, call)


def find_meter(kind: str) -> Meter | str:
    """Return the first sensor that meters a processor of that kind on this machine, or why there is none.

    The reason is that of the first sensor; `python -m experiments.doctor` gives them all.
    """
    reasons = []
    for sensor in (sensor for sensor in all_sensors() if sensor.here):
        reason = sensor.why_not()
        try:
            rails = () if reason else sensor.rails_of(kind, sensor.read())
        except SensorError as error:  # it went away since it was asked
            reason, rails = str(error), ()
        if rails:
            return Meter(sensor=sensor.name, rails=rails)
        reasons.append(f"{sensor.name}: {reason or f'no rail is the {kind} alone'}")
    return reasons[0]
