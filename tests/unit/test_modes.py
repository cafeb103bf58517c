from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from experiments import latency_job
from experiments.evaluator.measure import Samples
from experiments.evaluator.modes import PAGE_BYTES, aligned, burst, dispatch, duel, profile, sustained

if TYPE_CHECKING:
    from collections.abc import Callable


class Device:
    """Case T11(a): 80 ms cold, nine calls of 4 ms, then 1 ms, and 3.5 ms after a pause of half a second."""

    def __init__(self) -> None:
        self.now, self.calls, self.idle = 0.0, 0, False

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.idle = seconds >= 0.5

    def call(self) -> None:
        self.calls += 1
        took = 0.080 if self.calls == 1 else 0.004 if self.calls <= 10 else 0.0035 if self.idle else 0.001
        self.idle = False
        self.now += took


def test_t11a_cold_steady_and_after_idle_are_three_figures() -> None:
    device = Device()
    found = profile(device.call, clock=device.clock, sleep=device.sleep, pauses=1)
    assert found.samples.cold_s == pytest.approx(0.080)
    assert found.samples.latency().typical_s == pytest.approx(0.001)
    assert found.after_idle_s == pytest.approx((0.0035,))
    assert found.cold_ratio == pytest.approx(80.0)
    assert found.after_idle_ratio == pytest.approx(3.5)


class Noisy:
    """A machine whose speed drifts for everybody, with two models on it."""

    def __init__(self, seed: int = 0) -> None:
        self.now, self.rng = 0.0, np.random.default_rng(seed)

    def clock(self) -> float:
        return self.now

    def model(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds * (1.0 + 0.5 * min(self.now, 1.0)) * (1.0 + 0.03 * self.rng.standard_normal())

        return call


def test_in_turns_a_drift_hits_both_and_the_ratio_stays() -> None:
    machine = Noisy()
    found = duel(machine.model(0.01), machine.model(0.012), clock=machine.clock)
    assert found.verdict == "first"
    assert found.ratio.low < 1.2 < found.ratio.high
    assert found.ratio.typical == pytest.approx(1.2, rel=0.1)


def test_equal_calls_are_a_tie_in_nearly_all_duels() -> None:
    ties = 0
    for seed in range(20):
        machine = Noisy(seed)
        ties += duel(machine.model(0.01), machine.model(0.01), clock=machine.clock, seed=seed).verdict == "tie"
    assert ties >= 19


def test_dispatch_is_net_of_the_clock_and_shows_the_worst() -> None:
    state = {"now": 0.0, "calls": 0}

    def clock() -> float:
        state["now"] += 1e-6  # reading the clock takes a microsecond
        return state["now"]

    def call() -> None:
        state["calls"] += 1
        state["now"] += 18.3e-6 + (5e-6 if state["calls"] == 500 else 0.0)

    found = dispatch(call, clock=clock)
    assert found.mean_s == pytest.approx(18.3e-6, rel=1e-3)
    assert found.worst_jitter_s == pytest.approx(5e-6, rel=1e-2)
    assert found.median_s == pytest.approx(18.3e-6, rel=1e-3)
    assert found.p99_s == pytest.approx(18.3e-6, rel=1e-3)
    assert len(found.samples_s) == found.calls
    assert max(found.samples_s) - found.mean_s == pytest.approx(found.worst_jitter_s)
    with pytest.raises(ValueError, match="at least 20"):
        dispatch(call, calls=3)


def test_a_long_run_shows_how_much_slower_it_gets() -> None:
    machine = Noisy()
    found = sustained(machine.model(0.01), duration_s=2.0, window_s=0.1, clock=machine.clock)
    assert found.slowdown > 1.2
    assert len(burst(machine.model(0.01), calls=7, clock=machine.clock)) == 7
    with pytest.raises(ValueError, match="two windows"):
        sustained(machine.model(0.01), duration_s=1.0, window_s=1.0)


@pytest.mark.parametrize("offset", [0, 64, 4])
def test_buffers_lie_where_they_are_asked_to(offset: int) -> None:
    array = np.arange(1000, dtype=np.float32).reshape(10, 100)
    copy = aligned(array, offset_bytes=offset)
    assert copy.ctypes.data % PAGE_BYTES == offset
    assert np.array_equal(copy, array)
    assert copy.flags.c_contiguous
    with pytest.raises(ValueError, match="multiple of 4"):
        aligned(array, offset_bytes=3)


def test_samples_that_hang_together_are_worth_less_and_it_is_said() -> None:
    steps = np.cumsum(np.random.default_rng(0).standard_normal(100)) * 1e-6 + 1e-3
    warnings = Samples(cold_s=1.0, steady_s=tuple(steps), calls_per_sample=1).warnings()
    assert any("neighbouring samples are alike: 100 of them are worth" in warning for warning in warnings)


def test_a_run_shorter_than_a_call_has_that_call() -> None:
    ticks = iter(range(100))
    found = sustained(lambda: None, duration_s=1e-9, window_s=5e-11, clock=lambda: float(next(ticks)))
    assert found.medians_s == (1.0,)
    assert found.slowdown == 1.0
    assert "not known: the run is too short for more than one call of 1.00 s" in latency_job._sustained(found)
