from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.evaluator.dynamics import (
    Cost,
    Machine,
    Point,
    RcChain,
    Sleep,
    Surroundings,
    Trace,
    TripPoint,
    simulate,
)

positive = st.floats(0.1, 50.0)


@st.composite
def chains(draw: st.DrawFn) -> RcChain:
    n = draw(st.integers(1, 4))
    lists = [tuple(draw(st.lists(positive, min_size=n, max_size=n))) for _ in range(2)]
    return RcChain(names=tuple(f"n{i}" for i in range(n)), capacities_j_per_k=lists[0], resistances_k_per_w=lists[1])


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    cost = Cost(
        compute_s=draw(st.floats(1e-3, 3.0)), fixed_s=draw(st.floats(0.0, 1.0)), compute_j=draw(st.floats(0.0, 5.0)),
        memory_j=draw(st.floats(0.0, 1.0)), static_w=draw(st.floats(0.0, 2.0)),
    )  # fmt: skip
    sleep = Sleep(
        idle_w=draw(st.floats(0.0, 1.0)), sleep_w=draw(st.floats(0.0, 0.1)), dwell_s=draw(st.floats(0.0, 3.0)),
        save_s=draw(st.floats(0.0, 0.5)), wake_s=draw(st.floats(0.0, 1.0)), wake_j=draw(st.floats(0.0, 5.0)),
    )  # fmt: skip
    points = (Point(clock_ratio=1.0, supply_ratio=1.0), Point(clock_ratio=0.5, supply_ratio=0.8))
    trip = TripPoint(node=0, at_c=draw(st.floats(26.0, 60.0)))
    return Machine(
        cost=cost, chain=draw(chains()), points=points, trips=(trip,), sleep=sleep, policy=draw(
            st.sampled_from(["performance", "ondemand"])
        ),
    )  # fmt: skip


gaps = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=40)


@given(machines(), gaps, st.floats(0.8, 1.2), st.floats(-10.0, 45.0))
@settings(deadline=None, max_examples=60)
def test_energy_time_and_requests_add_up(machine: Machine, gaps: list[float], supply: float, ambient: float) -> None:
    arrivals = np.cumsum(gaps)
    around = Surroundings(supply=((0.0, supply),), ambient_c=((0.0, ambient), (100.0, 25.0)))
    result = simulate(machine, Trace(title="t", arrivals_s=arrivals), horizon_s=60.0, surroundings=around)
    assert result.balance_error_ratio < 1e-6
    assert result.requests + result.unfinished == (arrivals <= result.horizon_s).sum()
    assert (np.diff(result.finish_s) >= 0).all()
    fastest = machine.cost.latency_s()
    assert (result.latency_s >= fastest * (1 - 1e-9)).all()
    busy_s = float(result.busy_ratio.sum() * result.step_s)
    assert busy_s + result.asleep_s <= result.horizon_s * (1 + 1e-9)
    # Nothing is colder than the coldest of air and start.
    assert result.temperatures_c.min() >= min(ambient, 25.0) - 1e-6


@given(chains(), st.floats(0.0, 20.0), st.floats(0.01, 5.0))
def test_two_half_steps_are_one_step(chain: RcChain, power_w: float, step_s: float) -> None:
    n = len(chain.names)
    state = np.r_[np.linspace(20.0, 60.0, n), power_w, 25.0]
    whole = chain.stepper(step_s) @ state
    half = chain.stepper(step_s / 2)
    first = half @ state
    second = half @ np.r_[first[:n], power_w, 25.0]
    assert np.allclose(whole[:n], second[:n], rtol=1e-9)
    assert np.isclose(whole[n], first[n] + second[n], rtol=1e-6, atol=1e-7)
