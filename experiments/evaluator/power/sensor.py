"""The protocol of a power sensor, and how one is read while something runs."""

from __future__ import annotations

import abc
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, ClassVar, Self

from experiments.evaluator.power.window import MeasuredEnergy, Samples, add_rails, energy_per_inference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class SensorError(RuntimeError):
    """A sensor that cannot be read; the message says why and what helps."""


class Sensor(abc.ABC):
    """One kind of meter. `counts` tells joules that add up from watts of the moment; `period_s` is its own rhythm.

    `here` is False for one that meters a device at the other end of a cable.
    """

    name: ClassVar[str]
    counts: ClassVar[bool]
    period_s: ClassVar[float]
    here: ClassVar[bool] = True

    @abc.abstractmethod
    def why_not(self) -> str | None:
        """Say why it cannot be used here and what would help; None when it can. Cheap, and never raises."""

    @abc.abstractmethod
    def read(self) -> Mapping[str, float]:
        """Return watts, or joules since some moment, by rail.

        Raises:
            SensorError: it cannot be read, or not any more.
        """

    def wraps_at_j(self, rail: str) -> float | None:  # noqa: ARG002 - most counters do not wrap
        """Return the joules at which the rail's counter starts again; None when it does not, or tells watts."""
        return None

    def rails_of(self, kind: str, rails: Iterable[str]) -> tuple[str, ...]:  # noqa: ARG002 - most meter no processor
        """Return those of the rails that together feed a processor of this machine of that kind (cpu, gpu, npu)."""
        return ()


class Recorder:
    """Reads a sensor in its own thread, at the sensor's rhythm, for as long as the block lasts."""

    def __init__(self, sensor: Sensor, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sensor, self._clock = sensor, clock
        self._times: list[float] = []
        self._readings: list[Mapping[str, float]] = []
        self._stop = threading.Event()
        self._failure: SensorError | None = None
        self._thread = threading.Thread(target=self._record, name=f"sensor {sensor.name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def failed(self) -> bool:
        """True once the sensor could not be read: going on would be for nothing."""
        return self._failure is not None

    def samples(self, rail: str) -> Samples:
        """Return what was read of one rail.

        Raises:
            SensorError: the sensor failed while it was read, or never had that rail.
        """
        if self._failure is not None:
            raise SensorError(f"{self._sensor.name} vanished after {len(self._times)} readings: {self._failure}")
        if not self._readings or rail not in self._readings[0]:
            have = ", ".join(self._readings[0]) if self._readings else "none"
            raise SensorError(f"{self._sensor.name} has no rail {rail!r} (it has {have})")
        values = tuple(reading[rail] for reading in self._readings)
        if self._sensor.counts:
            return Samples(times_s=tuple(self._times), joules=values, wraps_at_j=self._sensor.wraps_at_j(rail))
        return Samples(times_s=tuple(self._times), watts=values)

    def _record(self) -> None:
        while not self._stop.is_set():
            try:
                reading = self._sensor.read()
            except SensorError as error:
                self._failure = error
                return
            self._times.append(self._clock())
            self._readings.append(reading)
            self._stop.wait(self._sensor.period_s)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """How long to stay idle before the load, and for how long to run at least; a slow sensor gets longer windows."""

    idle_s: float = 1.0
    busy_s: float = 2.0
    least_periods: int = 15

    def windows_s(self, period_s: float) -> tuple[float, float]:
        """Return the idle and the busy seconds for a sensor of that rhythm."""
        return max(self.idle_s, self.least_periods * period_s), max(self.busy_s, self.least_periods * period_s)


def measure_energy(
    sensor: Sensor,
    rails: Sequence[str],
    call: Callable[[], object],
    *,
    protocol: Protocol | None = None,
) -> MeasuredEnergy:
    """Measure the energy of one `call`: one call as warm-up, then idle, then calls for the time asked for.

    The rails add up, their uncertainties too.

    Raises:
        SensorError: the sensor cannot be read.
        WindowError: its samples do not support an answer.
    """
    reason = sensor.why_not()
    if reason is not None:
        raise SensorError(f"{sensor.name}: {reason}")
    idle_s, busy_s = (protocol or Protocol()).windows_s(sensor.period_s)
    with Recorder(sensor) as recorder:
        call()  # loads what is loaded on first use, before the idle window
        time.sleep(sensor.period_s)
        idle_from = time.perf_counter()
        time.sleep(idle_s)
        begin = time.perf_counter()
        inferences = 0
        while time.perf_counter() - begin < busy_s and not recorder.failed:
            call()
            inferences += 1
        end = time.perf_counter()
        time.sleep(2 * sensor.period_s)
    return add_rails(
        [
            energy_per_inference(
                recorder.samples(rail), window=(begin, end), idle=(idle_from, begin), inferences=inferences
            )
            for rail in rails
        ]
    )
