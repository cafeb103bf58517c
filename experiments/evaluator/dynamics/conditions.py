"""What a simulated device is put through besides its requests: air, supply, altitude, clock policy, cap, no sleep."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from experiments.evaluator.dynamics.values import Machine, Surroundings, TripPoint

if TYPE_CHECKING:
    Series = tuple[tuple[float, float], ...]

_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
_CAP_HYSTERESIS_K: Final = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cap:
    """While the die is above `above_c`, the processor draws at most `at_most_w` (R17)."""

    at_most_w: float
    above_c: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Air temperature in degC, which swings between its two ends once a day, and supply ratio, once an hour (R18).

    Both begin at the lower end. With `awake` the processor idles instead of falling asleep (R16).
    """

    ambient_c: tuple[float, float] = (25.0, 25.0)
    supply: tuple[float, float] = (1.0, 1.0)
    altitude_m: float = 0.0
    policy: str = "performance"
    cap: Cap | None = None
    awake: bool = False

    def surroundings(self, horizon_s: float) -> Surroundings:
        """Return air and supply over that time."""
        return Surroundings(
            ambient_c=swing(*self.ambient_c, _DAY_S, horizon_s),
            supply=swing(*self.supply, _HOUR_S, horizon_s),
            altitude_m=self.altitude_m,
        )

    def applied(self, machine: Machine) -> Machine:
        """Return the machine with this policy and cap, and with this sleep."""
        trips = machine.trips
        if self.cap is not None:
            limit = TripPoint(node=0, at_c=self.cap.above_c, hysteresis_k=_CAP_HYSTERESIS_K, cap_w=self.cap.at_most_w)
            trips = (*trips, limit)
        sleep = dataclasses.replace(machine.sleep, dwell_s=math.inf) if self.awake else machine.sleep
        return dataclasses.replace(machine, policy=self.policy, trips=trips, sleep=sleep)

    def text(self) -> str:
        """Say what is not as usual, the air in any case."""
        parts = [f"{_range(self.ambient_c)} degC"]
        if self.altitude_m:
            parts.append(f"{self.altitude_m:g} m")
        if self.supply != (1.0, 1.0):
            parts.append(f"supply {_range(self.supply)}")
        if self.policy != "performance":
            parts.append(f"clock {self.policy}")
        if self.cap is not None:
            parts.append(f"at most {self.cap.at_most_w:g} W above {self.cap.above_c:g} degC")
        if self.awake:
            parts.append("kept awake")
        return ", ".join(parts)


def swing(low: float, high: float, period_s: float, horizon_s: float) -> Series:
    """Return (second, value) of a cosine that begins at its lower end; one value where the ends are one."""
    if low == high:
        return ((0.0, low),)
    middle, reach = (low + high) / 2, (high - low) / 2
    steps = math.ceil(horizon_s / period_s * 24) + 1
    times = (step * period_s / 24 for step in range(steps + 1))
    return tuple((t, middle - reach * math.cos(2 * math.pi * t / period_s)) for t in times)


def _range(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
