"""The clock of a simulated processor: DVFS policy, trips with hysteresis, power cap, drift and replay."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.evaluator.dynamics.values import Drift, Machine, TripPoint

_TARGET_BUSY_RATIO: Final = 0.8  # as Linux's schedutil, which asks for 1.25 times the capacity in use


@dataclasses.dataclass(slots=True)
class Setting:
    """What holds during one control step: how much slower than the fastest point, its supply, and whether held back."""

    slowdown: float
    supply_ratio: float
    clock_ratio: float
    throttled: bool


@dataclasses.dataclass(slots=True)
class Step:
    """What holds for a request during one control step, over all of its processors.

    `slowdown` of its compute time; `compute_scale` of its compute energy; `static_w` while it is served.
    """

    slowdown: float
    compute_scale: float
    static_w: float
    clock_ratio: float
    throttled: bool


class Clocks:
    """The clocks of all processors of a machine; each one's governor is told how busy it was itself."""

    def __init__(self, machine: Machine, derating_k: float) -> None:
        machines = machine.alone()
        self._costs = [alone.cost for alone in machines]
        self._clocks = [Clock(alone, derating_k) for alone in machines]
        whole = machine.whole_cost()
        self._compute_s, self._compute_j = whole.compute_s, whole.compute_j
        self._shares = [cost.latency_s() / whole.latency_s() for cost in self._costs]

    def step(self, now_s: float, temperatures: Sequence[float], busy_ratio: float) -> Step:
        """Return what holds for the step that starts at `now_s`, after one that was busy for that share."""
        if len(self._clocks) == 1:
            setting = self._clocks[0].setting(now_s, temperatures, busy_ratio)
            scale = setting.supply_ratio**2
            static_w = self._costs[0].static_w * scale
            return Step(setting.slowdown, scale, static_w, setting.clock_ratio, setting.throttled)
        # A processor whose share of a full queue is small is not busy for the rest: it is waiting for the others.
        settings = [
            clock.setting(now_s, temperatures, busy_ratio * share)
            for clock, share in zip(self._clocks, self._shares, strict=True)
        ]
        return self._together(settings)

    def _together(self, settings: Sequence[Setting]) -> Step:
        pairs = list(zip(self._costs, settings, strict=True))
        times = [cost.fixed_s + cost.compute_s * setting.slowdown for cost, setting in pairs]
        self._shares = [time / sum(times) for time in times]
        compute_s = sum(cost.compute_s * setting.slowdown for cost, setting in pairs)
        slowdown = compute_s / self._compute_s if self._compute_s else 1.0
        compute_j = sum(cost.compute_j * setting.supply_ratio**2 for cost, setting in pairs)
        return Step(
            slowdown=slowdown,
            compute_scale=compute_j / self._compute_j if self._compute_j else 1.0,
            static_w=sum(
                share * cost.static_w * setting.supply_ratio**2
                for share, (cost, setting) in zip(self._shares, pairs, strict=True)
            ),
            clock_ratio=1.0 / slowdown,
            throttled=any(setting.throttled for setting in settings),
        )


class Clock:
    """Decides the setting of each control step from the temperatures at its start."""

    def __init__(self, machine: Machine, derating_k: float) -> None:
        self._points = machine.points
        self._trips = [(trip, trip.at_c - derating_k, self._depth(trip, machine)) for trip in machine.trips]
        self._hot = [False] * len(machine.trips)
        self._stepped = [0] * len(machine.trips)
        self._steps_again_s = [0.0] * len(machine.trips)
        self._before_c = [float("-inf")] * len(machine.trips)
        self._wanted = 0
        self._on_demand = machine.policy == "ondemand"
        self._drift, self._derating_k = machine.drift, derating_k
        self._owed = 0.0
        self._schedule, self._slot = machine.schedule, 0
        self._settings = [
            Setting(1.0 / p.clock_ratio, p.supply_ratio, p.clock_ratio, throttled=False) for p in machine.points
        ]
        self._held = [dataclasses.replace(setting, throttled=True) for setting in self._settings]

    def setting(self, now_s: float, temperatures: Sequence[float], busy_ratio: float) -> Setting:
        """Return the setting for the step that starts at `now_s`, after a step that was busy for that share."""
        if self._schedule:
            return self._replayed(now_s)
        limit = self._limit(now_s, temperatures)
        if self._on_demand:
            self._follow(busy_ratio)
        index = max(limit, self._wanted)
        if self._drift is not None:
            return self._drifted(self._drift, float(temperatures[0]), index)
        return self._held[index] if index > self._wanted else self._settings[index]

    def _limit(self, now_s: float, temperatures: Sequence[float]) -> int:
        """Return the fastest point that the trips allow: the deepest cut of those that are hot."""
        deepest = 0
        for i, (trip, at_c, depth) in enumerate(self._trips):
            temperature = temperatures[trip.node]
            hot = temperature > at_c or (self._hot[i] and temperature > at_c - trip.hysteresis_k)
            self._hot[i] = hot
            if depth is None:
                # As Linux's step-wise governor: what is hot and cools already needs no further step.
                rising, self._before_c[i] = temperature >= self._before_c[i], temperature
                self._step(i, now_s, too_hot=temperature > at_c and rising, hot=hot)
                depth = self._stepped[i]  # noqa: PLW2901 - the depth of a trip that steps is where it has got to
            elif not hot:
                continue
            deepest = max(deepest, depth)
        return deepest

    def _step(self, i: int, now_s: float, *, too_hot: bool, hot: bool) -> None:
        """Go one point down while it is too hot, and one up when it is cool, no faster than the trip's rhythm."""
        if now_s < self._steps_again_s[i] or (hot and not too_hot):
            return
        moved = min(self._stepped[i] + 1, len(self._points) - 1) if too_hot else max(self._stepped[i] - 1, 0)
        if moved != self._stepped[i]:
            self._stepped[i] = moved
            self._steps_again_s[i] = now_s + self._trips[i][0].step_s

    def _follow(self, busy_ratio: float) -> None:
        """Choose the slowest point that would have kept the last step's work below the target share."""
        need = busy_ratio * self._points[self._wanted].clock_ratio / _TARGET_BUSY_RATIO
        if busy_ratio >= 1.0:
            need = 1.0  # the work was cut off by the end of the step: how much there is cannot be told
        self._wanted = max((i for i, p in enumerate(self._points) if p.clock_ratio >= min(need, 1.0)), default=0)

    def _replayed(self, now_s: float) -> Setting:
        while self._slot + 1 < len(self._schedule) and self._schedule[self._slot + 1][0] <= now_s + 1e-9:
            self._slot += 1
        ratio = self._schedule[self._slot][1]
        return Setting(1.0 / ratio, 1.0, ratio, throttled=ratio < 1.0)

    def _drifted(self, drift: Drift, die_c: float, index: int) -> Setting:
        """Slow the circuit below the threshold; above it, dither the clock so that its mean is the one asked for."""
        threshold_c = drift.threshold_c - self._derating_k
        slow = 1.0 + drift.below_per_k * max(0.0, min(die_c, threshold_c) - drift.reference_c)
        points = self._points
        if die_c > threshold_c:
            asked = points[index].clock_ratio / (1.0 + drift.above_per_k * (die_c - threshold_c) / slow)
            while index + 1 < len(points) and points[index + 1].clock_ratio >= asked:
                index += 1
            if index + 1 < len(points):
                # Shares of slow-down, not of clock, add up to the mean latency.
                fast, low = 1.0 / points[index].clock_ratio, 1.0 / points[index + 1].clock_ratio
                self._owed += (1.0 / asked - fast) / (low - fast)
                if self._owed >= 1.0:
                    self._owed -= 1.0
                    index += 1
        point = points[index]
        return Setting(slow / point.clock_ratio, point.supply_ratio, point.clock_ratio, throttled=index > 0)

    @staticmethod
    def _depth(trip: TripPoint, machine: Machine) -> int | None:
        """Return the point that a hot trip holds the clock to; None for one that steps down."""
        points, last = machine.points, len(machine.points) - 1
        if trip.clock_ratio is not None:
            ratio = trip.clock_ratio
            return next((i for i, p in enumerate(points) if p.clock_ratio <= ratio + 1e-9), last)
        if trip.cap_w is not None:
            cap_w = trip.cap_w - machine.rest_w
            fits = (i for i, p in enumerate(points) if machine.cost.power_w(p.clock_ratio, p.supply_ratio) <= cap_w)
            return next(fits, last)
        return None
