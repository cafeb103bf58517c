"""Run a workload trace on a simulated device, in simulated time: control steps outside, requests inside.

Within a control step the clock and the air temperature are constant; requests are served one after the other in
the order they arrive. The power of a step heats the chain as its mean, and the chain is stepped exactly.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING

import numpy as np

from experiments.evaluator.dynamics.clock import Clocks
from experiments.evaluator.dynamics.result import Result
from experiments.evaluator.dynamics.values import Machine, Surroundings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from experiments.evaluator.dynamics.traces import Trace

_STEPS_PER_TIME_CONSTANT = 5


def simulate(
    machine: Machine,
    trace: Trace,
    *,
    horizon_s: float,
    step_s: float | None = None,
    surroundings: Surroundings | None = None,
    seed: int = 0,
) -> Result:
    """Simulate `horizon_s` seconds and return latencies, temperatures, power and the energy balance.

    `step_s` is the control period; without one it is a fifth of the shortest thermal time constant, at most
    0.1 s up to an hour and 1 s beyond.

    Raises:
        ValueError: a horizon or step that is not above 0, or a step too long for the heat path.
    """
    step_s = _checked_step(machine, horizon_s, step_s)
    steps = max(1, round(horizon_s / step_s))
    server = _Server(machine, trace, np.random.default_rng(seed))
    return _run(machine, server, surroundings or Surroundings(), steps, step_s, trace.title)


def _checked_step(machine: Machine, horizon_s: float, step_s: float | None) -> float:
    if not 0 < horizon_s < np.inf:
        raise ValueError(f"the time to simulate must be above 0 s, got {horizon_s:g}")
    longest = machine.chain.time_constants_s()[0] / _STEPS_PER_TIME_CONSTANT
    if step_s is None:
        return min(longest, 0.1 if horizon_s <= 3600 else 1.0, horizon_s)
    if not 0 < step_s <= longest:
        raise ValueError(f"the control step must be above 0 and at most {longest:.3g} s for this heat path")
    return step_s


def _run(
    machine: Machine, server: _Server, surroundings: Surroundings, steps: int, step_s: float, title: str
) -> Result:
    chain, nodes = machine.chain, len(machine.chain.names)
    # Lists beat arrays of three: this loop turns a quarter of a million times for three simulated days.
    matrix: list[list[float]] = chain.stepper(step_s).tolist()
    clocks = Clocks(machine, surroundings.derating_k())
    begins = np.arange(steps, dtype=np.float64) * step_s
    ambient, supply = _over_time(surroundings.ambient_c, begins), _over_time(surroundings.supply, begins)
    start_c = surroundings.start_c if surroundings.start_c is not None else (float(ambient[0]),) * nodes
    temperatures, path, held, powers, busy_ratios = list(start_c), [], [], [], []
    energy_j = lost_j = busy_ratio = 0.0
    step_of, serve = clocks.step, server.serve
    for begin, ambient_c, supply_ratio in zip(begins.tolist(), ambient.tolist(), supply.tolist(), strict=True):
        step = step_of(begin, temperatures, busy_ratio)
        scale = supply_ratio * supply_ratio
        power = step.compute_scale * scale, step.static_w * scale
        spent_j, busy_s = serve(begin, begin + step_s, step.slowdown, power)
        busy_ratio = busy_s / step_s
        power_w = spent_j / step_s + machine.rest_w
        state = [*temperatures, power_w, ambient_c]
        *temperatures, heat_j = [sum(map(mul, row, state)) for row in matrix]
        energy_j += power_w * step_s
        lost_j += heat_j
        path.append(temperatures)
        held.append(step)
        powers.append(power_w)
        busy_ratios.append(busy_ratio)
    stored_j = float(np.dot(chain.capacities_j_per_k, np.subtract(temperatures, start_c)))
    return Result(
        title=title,
        node_names=chain.names,
        step_s=step_s,
        latency_s=np.array(server.latencies),
        finish_s=np.array(server.finishes),
        unfinished=server.unfinished(steps * step_s),
        time_s=begins + step_s,
        temperatures_c=np.array(path),
        clock_ratio=np.array([step.clock_ratio for step in held]),
        power_w=np.array(powers),
        busy_ratio=np.array(busy_ratios),
        throttled=np.array([step.throttled for step in held]),
        ambient_c=ambient,
        wakes=server.wakes,
        waking_s=server.waking_s,
        asleep_s=server.asleep_s,
        energy_j=energy_j,
        lost_j=lost_j,
        stored_j=stored_j,
    )


def _over_time(series: tuple[tuple[float, float], ...], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Read a piecewise linear series at the given times."""
    when, what = np.array(series, dtype=np.float64).T
    read: NDArray[np.float64] = np.interp(times, when, what)
    return read


class _Server:
    """Serves requests one at a time, across control steps; remembers the part of one that a step cut off."""

    def __init__(self, machine: Machine, trace: Trace, rng: np.random.Generator) -> None:
        self._cost, self._sleep = machine.whole_cost(), machine.sleep
        self._closed = trace.arrivals_s is None
        self._arrivals = [] if trace.arrivals_s is None else trace.arrivals_s.tolist()
        self._works = self._with_jitter(machine, trace, rng)
        noise = machine.sleep.wake_s + machine.sleep.wake_spread_s * rng.standard_normal(4096)
        after_wake_s = machine.sleep.restore_s + machine.sleep.cold_s
        self._wake_overheads: list[float] = (np.maximum(noise, 0.0) + after_wake_s).tolist()
        self._asleep_after_s = machine.sleep.dwell_s + machine.sleep.save_s
        self._next = 0
        self._free = 0.0
        self._left: tuple[float, float, float, float] | None = None  # began, overhead, fixed, compute
        self.latencies: list[float] = []
        self.finishes: list[float] = []
        self.wakes = 0
        self.waking_s = self.asleep_s = 0.0

    @staticmethod
    def _with_jitter(machine: Machine, trace: Trace, rng: np.random.Generator) -> list[float]:
        """Return the work of each request; a short cycle of factors for a closed trace, whose length is not known."""
        count = 65_536 if trace.arrivals_s is None else len(trace.arrivals_s)
        works = np.ones(count) if trace.works is None else trace.works
        if machine.jitter_ratio:
            works = works * np.maximum(0.1, 1.0 + machine.jitter_ratio * rng.standard_normal(count))
        return [float(work) for work in works] if trace.arrivals_s is None else works.tolist()

    def unfinished(self, end_s: float) -> int:
        """Count the requests that have come and are not answered."""
        if self._closed:
            return int(self._left is not None)
        return int(np.searchsorted(self._arrivals, end_s, side="right")) - len(self.latencies)

    def serve(  # noqa: C901, PLR0912, PLR0915 - one flat loop: a call per request would halve the speed
        self, begin: float, end: float, slowdown: float, power: tuple[float, float]
    ) -> tuple[float, float]:
        """Serve from `begin` to `end` at a constant clock; return the joules spent and the seconds busy.

        `power` is what scales the compute energy, and the static power in W.
        """
        cost, sleep = self._cost, self._sleep
        fixed_s, compute_s, dwell = cost.fixed_s, cost.compute_s, sleep.dwell_s
        arrivals, works, closed, total = self._arrivals, self._works, self._closed, len(self._works)
        latencies, finishes = self.latencies, self.finishes
        i, free, left = self._next, self._free, self._left
        cursor, working, waking, awake, asleep = begin, 0.0, 0.0, 0.0, 0.0
        fixed_done = compute_done = 0.0
        wakes_before = self.wakes
        while True:
            if left is None:
                if closed:
                    came = start = cursor
                    work = works[i % total]
                else:
                    if i == total:
                        break
                    came = arrivals[i]
                    start = max(came, free)
                    if start >= end:
                        break
                    work = works[i]
                overhead = 0.0
                if start > cursor:
                    if start - free <= dwell:
                        awake += start - cursor
                    else:
                        part = free + dwell - cursor
                        if part > 0.0:
                            awake += part
                            asleep += start - cursor - part
                        else:
                            asleep += start - cursor
                        overhead = self._wake(start, free)
                    cursor = start
                elif start - free > dwell:  # it came exactly as a control step began
                    overhead = self._wake(start, free)
                fixed, compute = fixed_s * work, compute_s * work
            else:
                came, overhead, fixed, compute = left
            finish = cursor + overhead + fixed + compute * slowdown
            if finish > end:
                left = self._cut(came, overhead, fixed, compute, (end - cursor, slowdown))
                waking += overhead - left[1]
                working += end - cursor - (overhead - left[1])
                fixed_done += fixed - left[2]
                compute_done += compute - left[3]
                cursor = end
                break
            waking += overhead
            working += finish - cursor - overhead
            fixed_done += fixed
            compute_done += compute
            latencies.append(finish - came)
            finishes.append(finish)
            cursor = free = finish
            left = None
            i += 1
        if cursor < end:
            part = min(max(free + dwell - cursor, 0.0), end - cursor)
            awake += part
            asleep += end - cursor - part
        self._next, self._free, self._left = i, free, left
        self.waking_s += waking
        self.asleep_s += asleep
        compute_scale, static_w = power
        spent_j = (
            self._work_j(compute_done, fixed_done, compute_scale)
            + static_w * working
            + sleep.idle_w * awake
            + sleep.sleep_w * asleep
            + sleep.wake_j * (self.wakes - wakes_before)
        )
        return spent_j, working + waking

    def _wake(self, start: float, free: float) -> float:
        """Return what a request that finds the processor asleep, or falling asleep, waits before its work begins."""
        overhead = self._wake_overheads[self.wakes % len(self._wake_overheads)]
        self.wakes += 1
        still_saving = free + self._asleep_after_s - start
        return overhead + still_saving if still_saving > 0.0 else overhead

    @staticmethod
    def _cut(
        came: float, overhead: float, fixed: float, compute: float, step: tuple[float, float]
    ) -> tuple[float, float, float, float]:
        """Return what is left of a request after `step` (seconds, slow-down): overhead goes first, then both parts."""
        room, slowdown = step
        if room <= overhead:
            return came, overhead - room, fixed, compute
        done = (room - overhead) / (fixed + compute * slowdown)
        return came, 0.0, fixed * (1.0 - done), compute * (1.0 - done)

    def _work_j(self, compute_done: float, fixed_done: float, scale: float) -> float:
        """Return the energy of the work done: a part without duration rides on the other one."""
        cost = self._cost
        compute_share = compute_done / cost.compute_s if cost.compute_s else fixed_done / cost.fixed_s
        fixed_share = fixed_done / cost.fixed_s if cost.fixed_s else compute_share
        return cost.compute_j * scale * compute_share + cost.memory_j * fixed_share
