"""What a device is put through besides its requests, and how the command line says it."""

from __future__ import annotations

import argparse
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.arguments import celsius, ends, positive_number
from experiments.evaluator.dynamics import (
    Cap,
    Conditions,
    Cost,
    Machine,
    Point,
    RcChain,
    Sleep,
    Trace,
    TraceError,
    parse_trace,
    poisson,
    simulate,
    swing,
)

CHAIN = RcChain(names=("die",), capacities_j_per_k=(10.0,), resistances_k_per_w=(5.0,))
LADDER = tuple(Point(clock_ratio=c, supply_ratio=c) for c in (1.0, 0.8, 0.6, 0.4))
HOT = Machine(cost=Cost(compute_s=0.01, compute_j=0.15), chain=CHAIN, points=LADDER)  # 15 W: 75 K above the air
CLOSED = Trace(title="closed", arrivals_s=None)


def test_a_cap_holds_the_power_while_it_is_hot_and_sooner_where_the_air_is_thin() -> None:
    low, high = Conditions(cap=Cap(at_most_w=10.0, above_c=80.0)), Conditions(
        cap=Cap(at_most_w=10.0, above_c=80.0), altitude_m=2000.0
    )  # fmt: skip
    free = simulate(HOT, CLOSED, horizon_s=600.0)
    assert free.temperatures_c.max() == pytest.approx(100.0, abs=0.5)
    for conditions, trip_c in ((low, 80.0), (high, 70.0)):
        around = conditions.surroundings(600.0)
        held = simulate(conditions.applied(HOT), CLOSED, horizon_s=600.0, surroundings=around)
        assert held.power_w[held.throttled].max() <= 10.0
        assert held.temperatures_c.max() == pytest.approx(trip_c, abs=0.5)


def test_kept_awake_it_never_wakes() -> None:
    sleepy = Machine(cost=Cost(compute_s=0.01), chain=CHAIN, sleep=Sleep(dwell_s=0.1, wake_s=0.2, idle_w=1.0))
    trace = poisson(1.0, 60.0, 0)
    asleep, awake = (
        simulate(conditions.applied(sleepy), trace, horizon_s=60.0)
        for conditions in (Conditions(), Conditions(awake=True))
    )
    assert asleep.wakes > 10
    assert awake.wakes == 0
    assert awake.energy_j > asleep.energy_j


@given(st.floats(-40.0, 60.0), st.floats(0.0, 60.0), st.floats(10.0, 1e6), st.floats(1.0, 3e5))
def test_a_swing_begins_low_and_stays_between_its_ends(low: float, reach: float, period_s: float, end_s: float) -> None:
    times, values = np.array(swing(low, low + reach, period_s, end_s)).T
    assert values[0] == pytest.approx(low)
    assert (values >= low - 1e-9).all()
    assert (values <= low + reach + 1e-9).all()
    assert len(times) == 1 or times[-1] >= end_s


def test_a_whole_swing_reaches_its_upper_end() -> None:
    assert max(value for _, value in swing(25.0, 45.0, 3600.0, 3600.0)) == pytest.approx(45.0)


def test_conditions_say_what_is_unusual() -> None:
    assert Conditions().text() == "25 degC"
    everything = Conditions(
        ambient_c=(25.0, 45.0), supply=(0.9, 1.1), altitude_m=2000.0, policy="ondemand",
        cap=Cap(at_most_w=10.0, above_c=80.0), awake=True,
    )  # fmt: skip
    assert everything.text() == (
        "25 to 45 degC, 2000 m, supply 0.9 to 1.1, clock ondemand, at most 10 W above 80 degC, kept awake"
    )


def test_ends_are_one_value_or_two_in_order() -> None:
    assert ends(celsius)("25") == (25.0, 25.0)
    assert ends(celsius)("-5:45") == (-5.0, 45.0)
    for text in ("45:25", "25:", ":25", "25:45:60", "nan:1"):
        with pytest.raises(argparse.ArgumentTypeError):
            ends(celsius)(text)
    with pytest.raises(argparse.ArgumentTypeError):
        ends(positive_number)("0:1")


def test_batches_bring_their_inferences_in_turn() -> None:
    trace = parse_trace("batches:1,16@3/s", 2.0, 0)
    assert trace.works is not None
    assert trace.works.tolist() == [1, 16, 1, 16, 1, 16]
    machine = Machine(cost=Cost(compute_s=0.01), chain=CHAIN)
    latencies = simulate(machine, trace, horizon_s=2.0).latency_s
    assert latencies.tolist() == pytest.approx([0.01, 0.16] * 3)
    for text in ("batches:0,1@3/s", "batches:1,16", "batches:@3/s", "batches:1.5@3/s", "batches:1@0/s"):
        with pytest.raises(TraceError):
            parse_trace(text, 2.0, 0)
    assert math.isclose(float(trace.works.sum()), 51.0)
