from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from experiments.arguments import UserError
from experiments.evaluator.dynamics import (
    Cost,
    Drift,
    Machine,
    Part,
    Point,
    RcChain,
    Sleep,
    Surroundings,
    Trace,
    TraceError,
    TripPoint,
    parse_trace,
    periodic,
    poisson,
    simulate,
)
from experiments.evaluator.dynamics.compare import compare_runs
from experiments.evaluator.dynamics.threshold import ThresholdError, find_threshold

ONE = RcChain(names=("die",), capacities_j_per_k=(2.0,), resistances_k_per_w=(5.0,))
THREE = RcChain(
    names=("die", "package", "skin"), capacities_j_per_k=(1.25, 30.0, 100.0), resistances_k_per_w=(6.0, 4.0, 5.4)
)
CLOSED = Trace(title="closed", arrivals_s=None)
LADDER = tuple(Point(clock_ratio=c, supply_ratio=v) for c, v in ((1.0, 1.0), (0.8, 0.9), (0.6, 0.8)))


def test_one_lump_follows_its_analytic_step_response() -> None:
    machine = Machine(cost=Cost(compute_s=1.0, compute_j=3.0), chain=ONE)
    result = simulate(machine, CLOSED, horizon_s=60.0)
    exact = 25.0 + 15.0 * (1.0 - np.exp(-result.time_s / 10.0))
    assert result.temperatures_c[:, 0] == pytest.approx(exact, rel=1e-9)


def test_three_lumps_settle_where_the_resistances_say() -> None:
    machine = Machine(cost=Cost(compute_s=1.0, compute_j=4.0), chain=THREE)
    result = simulate(machine, CLOSED, horizon_s=3 * 3600.0)
    # 4 W through all that lies between a lump and the air: 15.4, 9.4 and 5.4 K/W.
    assert result.temperatures_c[-1] == pytest.approx([86.6, 62.6, 46.6], rel=1e-4)
    assert result.balance_error_ratio < 1e-9


def test_a_million_inferences_take_less_than_two_seconds() -> None:
    machine = Machine(cost=Cost(compute_s=4e-4, fixed_s=1e-4, compute_j=1e-3), chain=THREE, points=LADDER)
    trace = periodic(1000.0, 1000.0)
    begin = time.process_time()
    result = simulate(machine, trace, horizon_s=1000.0)
    assert result.requests >= 999_000
    assert time.process_time() - begin < 2.0


def test_a_queue_behaves_as_queueing_theory_says() -> None:
    # M/D/1 at 50 % load: the mean response is s (1 + rho / (2 (1 - rho))) = 1.5 s.
    machine = Machine(cost=Cost(compute_s=0.01), chain=ONE)
    result = simulate(machine, poisson(50.0, 4000.0, 3), horizon_s=4000.0)
    assert result.mean_s() == pytest.approx(0.015, rel=0.02)


def test_an_inference_longer_than_a_step_runs_at_each_steps_clock() -> None:
    schedule = ((0.0, 1.0), (1.0, 0.5))
    machine = Machine(cost=Cost(compute_s=2.0, fixed_s=0.0), chain=ONE, schedule=schedule)
    result = simulate(machine, Trace(title="one", arrivals_s=np.array([0.0])), horizon_s=5.0)
    assert result.latency_s == pytest.approx([3.0])  # one second of work at full clock, one at half


def test_a_sleeping_processor_wakes_with_latency_and_energy() -> None:
    sleep = Sleep(idle_w=0.1, sleep_w=0.01, dwell_s=1.0, wake_s=0.2, restore_s=0.1, cold_s=0.05, wake_j=4.0)
    machine = Machine(cost=Cost(compute_s=0.1), chain=ONE, sleep=sleep)
    trace = Trace(title="three", arrivals_s=np.array([0.5, 0.7, 5.0]))
    result = simulate(machine, trace, horizon_s=10.0)
    assert result.latency_s == pytest.approx([0.1, 0.1, 0.45])
    assert result.wakes == 1
    awake_s = 0.5 + 0.1 + 1.0 + 1.0  # before, between, and the dwell after each of the last two
    asleep_s = 5.0 - 1.8 + 10.0 - 6.45
    assert result.asleep_s == pytest.approx(asleep_s)
    assert result.energy_j == pytest.approx(4.0 + 0.1 * awake_s + 0.01 * asleep_s)


def test_a_request_that_comes_while_the_context_is_saved_waits_for_its_end() -> None:
    sleep = Sleep(dwell_s=1.0, save_s=0.5, wake_s=0.2)
    machine = Machine(cost=Cost(compute_s=0.1), chain=ONE, sleep=sleep)
    result = simulate(machine, Trace(title="two", arrivals_s=np.array([0.0, 1.2])), horizon_s=5.0)
    assert result.latency_s[1] == pytest.approx((1.6 - 1.2) + 0.2 + 0.1)


def test_a_trip_steps_the_clock_down_and_lets_it_back_below_the_hysteresis() -> None:
    trip = TripPoint(node=0, at_c=35.0, hysteresis_k=2.0)
    machine = Machine(cost=Cost(compute_s=0.01, compute_j=0.03), chain=ONE, points=LADDER, trips=(trip,))
    result = simulate(machine, CLOSED, horizon_s=120.0)
    late = result.temperatures_c[result.time_s > 30, 0]
    assert 32.0 < late.min() < late.max() < 35.5
    assert {1.0, 0.8} <= set(result.clock_ratio) <= {1.0, 0.8, 0.6}
    assert 0 < result.throttled_ratio < 1


def test_altitude_lowers_the_trip_by_five_kelvin_per_thousand_metres() -> None:
    trip = TripPoint(node=0, at_c=39.0, hysteresis_k=2.0)
    machine = Machine(cost=Cost(compute_s=0.01, compute_j=0.03), chain=ONE, points=LADDER, trips=(trip,))
    result = simulate(machine, CLOSED, horizon_s=120.0, surroundings=Surroundings(altitude_m=1000.0))
    assert result.temperatures_c[:, 0].max() == pytest.approx(34.0, abs=0.3)


def test_the_supply_scales_power_by_its_square() -> None:
    machine = Machine(cost=Cost(compute_s=0.01, compute_j=0.03), chain=ONE)
    high = simulate(machine, CLOSED, horizon_s=10.0, surroundings=Surroundings(supply=((0.0, 1.1),)))
    assert high.power_w[0] == pytest.approx(3.0 * 1.21)


def test_on_demand_takes_the_slowest_clock_that_keeps_up() -> None:
    machine = Machine(cost=Cost(compute_s=0.01), chain=ONE, points=LADDER, policy="ondemand")
    light = simulate(machine, periodic(10.0, 60.0), horizon_s=60.0)
    heavy = simulate(machine, periodic(90.0, 60.0), horizon_s=60.0)
    assert np.median(light.clock_ratio) == 0.6
    assert np.median(heavy.clock_ratio) == 1.0


def test_the_same_seed_gives_the_same_run_and_another_one_does_not() -> None:
    machine = Machine(cost=Cost(compute_s=0.01), chain=ONE, jitter_ratio=0.05)
    runs = [simulate(machine, poisson(20.0, 60.0, s), horizon_s=60.0, seed=s).latency_s for s in (1, 1, 2)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_a_device_that_cannot_keep_up_leaves_requests_unanswered() -> None:
    machine = Machine(cost=Cost(compute_s=0.2), chain=ONE)
    result = simulate(machine, periodic(10.0, 60.0), horizon_s=60.0)
    assert result.unfinished == pytest.approx(300, abs=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poisson:5", None),
        ("poisson:-1/s", "above 0"),
        ("poisson:x/s", "cannot read"),
        ("burst:0@1s", "cannot read"),
        ("uniform:3/s", "unknown trace"),
        ("poisson:1e9/s", "requests"),
    ],
)
def test_a_trace_is_read_or_refused_with_the_reason(text: str, message: str | None) -> None:
    if message is None:
        assert parse_trace(text, 60.0, 0).title == "poisson:5"
        return
    with pytest.raises(TraceError, match=message):
        parse_trace(text, 60.0, 0)


def test_a_trace_file_out_of_order_names_the_request(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "trace.csv"
    path.write_text("arrival_s\n0.1\n0.3\n0.2\n")
    with pytest.raises(TraceError, match="out of order at request 3"):
        parse_trace(str(path), 60.0, 0)
    path.write_text("arrival_s\n0.1\nnan\n")
    with pytest.raises(TraceError, match="no number"):
        parse_trace(str(path), 60.0, 0)
    path.write_text("arrival_s\n0.1\n\n1;5\n")
    with pytest.raises(TraceError, match="line 4: arrival_s is '1;5' where a number is needed"):
        parse_trace(str(path), 60.0, 0)
    path.write_text("when\n0.1\n")
    with pytest.raises(UserError, match="no column arrival_s"):
        parse_trace(str(path), 60.0, 0)


@pytest.mark.parametrize("bad", [{"horizon_s": 0.0}, {"horizon_s": 60.0, "step_s": 10.0}, {"horizon_s": float("nan")}])
def test_times_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        simulate(Machine(cost=Cost(compute_s=0.1), chain=ONE), CLOSED, **bad)  # type: ignore[arg-type]


def test_impossible_machines_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Cost(compute_s=0.1, compute_j=-1.0)
    with pytest.raises(ValueError, match="fastest first"):
        Machine(cost=Cost(compute_s=0.1), chain=ONE, points=LADDER[::-1])
    with pytest.raises(ValueError, match="heat path does not have"):
        Machine(cost=Cost(compute_s=0.1), chain=ONE, trips=(TripPoint(node=1, at_c=80.0),))
    with pytest.raises(ValueError, match="above 0"):
        RcChain(names=("die",), capacities_j_per_k=(0.0,), resistances_k_per_w=(1.0,))


def test_a_ramp_without_throttling_is_said_to_have_none() -> None:
    machine = Machine(cost=Cost(compute_s=0.5), chain=ONE, jitter_ratio=1e-3)
    around = Surroundings(ambient_c=((0.0, 60.0), (1200.0, 70.0)))
    result = simulate(machine, periodic(1.0, 1200.0), horizon_s=1200.0, surroundings=around)
    with pytest.raises(ThresholdError, match=r"no throttling up to 69\.8"):
        find_threshold(result, 30.0)


def test_drift_below_the_threshold_is_the_slope_asked_for() -> None:
    drift = Drift(threshold_c=90.0, below_per_k=0.002, above_per_k=0.02)
    machine = Machine(cost=Cost(compute_s=0.1), chain=ONE, drift=drift)
    around = Surroundings(ambient_c=((0.0, 80.0),), start_c=(80.0,))
    result = simulate(machine, periodic(1.0, 10.0), horizon_s=10.0, surroundings=around)
    assert result.latency_s == pytest.approx(0.1 * 1.04)


def test_two_equal_runs_have_no_crossover() -> None:
    machine = Machine(cost=Cost(compute_s=0.1), chain=ONE)
    run = simulate(machine, CLOSED, horizon_s=300.0)
    slow = simulate(dataclasses.replace(machine, cost=Cost(compute_s=0.2)), CLOSED, horizon_s=300.0)
    standing = compare_runs({"fast": run, "slow": slow})
    assert standing.burst_winner == standing.sustained_winner == "fast"
    assert standing.crossover_s is None


def test_each_processor_of_a_plan_follows_its_own_governor() -> None:
    """A request spends 90 % on a CPU with one clock and 10 % on an NPU that may slow down: only the NPU does."""
    cpu, npu = Cost(compute_s=0.09, compute_j=0.9, static_w=1.0), Cost(compute_s=0.01, compute_j=0.1, static_w=2.0)
    machine = Machine(cost=cpu, chain=THREE, others=(Part(cost=npu, points=LADDER),), policy="ondemand")
    result = simulate(machine, Trace(title="closed", arrivals_s=None), horizon_s=60.0)
    slow = LADDER[-1]
    assert result.latency_s[-1] == pytest.approx(0.09 + 0.01 / slow.clock_ratio)
    work_j = 0.9 + 0.1 * slow.supply_ratio**2 + 0.09 * 1.0 + 0.01 / slow.clock_ratio * 2.0 * slow.supply_ratio**2
    assert float(result.power_w[-10:].mean()) == pytest.approx(work_j / result.latency_s[-1], rel=1e-6)
    assert result.balance_error_ratio < 1e-6


def test_heat_holds_back_only_the_processor_that_has_slower_points() -> None:
    trip = TripPoint(node=0, at_c=26.0, clock_ratio=LADDER[-1].clock_ratio)
    parts = (
        Part(cost=Cost(compute_s=0.01, compute_j=0.3), points=LADDER),
        Part(cost=Cost(compute_s=0.0, fixed_s=0.02)),
    )
    machine = Machine(cost=Cost(compute_s=0.01, compute_j=0.1), chain=ONE, trips=(trip,), others=parts)
    result = simulate(machine, Trace(title="closed", arrivals_s=None), horizon_s=30.0)
    assert result.latency_s[0] == pytest.approx(0.04)
    assert result.latency_s.max() == pytest.approx(0.03 + 0.01 / LADDER[-1].clock_ratio)
    assert 0 < result.throttled_ratio < 1
