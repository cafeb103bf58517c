from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from compilers import Source
from experiments.evaluator.measure import SAMPLES, Samples, measure
from experiments.evaluator.noise import trimmed

if TYPE_CHECKING:
    from collections.abc import Iterable


class FakeClock:
    """A clock that each call to `work` moves on by the next duration."""

    def __init__(self, durations: Iterable[float]) -> None:
        self.now = 100.0
        self.durations = iter(durations)

    def __call__(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += next(self.durations)


def test_the_cold_call_is_apart_and_the_median_is_the_steady_state() -> None:
    # The start of case T11(a): 80 ms once, then settling, then 1 ms.
    clock = FakeClock([0.080, 0.004, *[0.001] * 100])
    samples = measure(clock.work, clock=clock)
    assert samples.cold_s == pytest.approx(0.080)
    assert len(samples.steady_s) == SAMPLES
    assert samples.latency().typical_s == pytest.approx(0.001)
    assert samples.latency().source is Source.MEASURED


def test_the_budget_ends_a_slow_measurement_and_says_so() -> None:
    clock = FakeClock([1.0] * 200)
    samples = measure(clock.work, budget_s=20.0, clock=clock)
    assert len(samples.steady_s) == 20
    assert any("only 20 of 100" in warning for warning in samples.warnings())


def test_a_call_below_the_clock_is_timed_in_groups() -> None:
    clock = FakeClock([1e-6] * 30_000)
    samples = measure(clock.work, clock=clock)
    assert samples.calls_per_sample == 200
    assert samples.latency().typical_s == pytest.approx(1e-6, rel=1e-3)


def test_outliers_do_not_move_the_median_but_drift_is_told() -> None:
    samples = Samples(cold_s=1.0, steady_s=(*[1.0] * 50, *[1.5] * 50), calls_per_sample=1)
    assert any("drifted by +50%" in warning for warning in samples.warnings())


def test_trimming_drops_five_per_cent_at_each_end() -> None:
    assert trimmed(tuple(float(i) for i in range(100))) == tuple(float(i) for i in range(5, 95))


def test_medians_of_fresh_processes_bound_the_latency_and_a_spread_above_5_percent_is_said() -> None:
    one = Samples(cold_s=1.0, steady_s=(1.0,) * 100, calls_per_sample=1)
    assert one.spread_ratio is None
    assert one.medians_s == (1.0,)
    close = dataclasses.replace(one, others_s=(1.02, 1.04))
    assert close.spread_ratio == pytest.approx(0.04 / 1.02)
    assert close.latency().typical_s == pytest.approx(1.02)
    assert (close.latency().low_s, close.latency().high_s) == pytest.approx((1.0, 1.04))
    assert not close.warnings()
    (note,) = dataclasses.replace(one, others_s=(1.2,)).warnings()
    assert note == "the median does not repeat: 2 fresh processes spread by 18% (more than 5%)"
