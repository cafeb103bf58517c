"""Laws of the tile search: the bound never hides the best, and the frontier is what brute force finds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partition import load_device
from partition.tile import Layer, TileError, balanced_space, convolution, npu_machine, rows_fetched, search_npu
from partition.tile.frontier import Front, undominated

MACHINES = {precision: npu_machine(load_device("sa8255p"), precision) for precision in ("fp16", "int8")}


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 3)]))
    channels = draw(st.sampled_from([3, 16, 32, 64, 96]))
    groups = draw(st.sampled_from([1, channels]))
    size = draw(st.tuples(st.integers(5, 40), st.integers(5, 40)))
    return convolution(
        "layer",
        shape=(1, channels, *size),
        k=channels if groups > 1 else draw(st.sampled_from([8, 32, 64])),
        groups=groups,
        kernel=kernel,
        stride=draw(st.sampled_from([(1, 1), (2, 2)])),
        pads=(kernel[0] // 2, kernel[1] // 2, kernel[0] // 2, kernel[1] // 2),
    )


@settings(max_examples=40, deadline=None)
@given(layers(), st.sampled_from(sorted(MACHINES)), st.sampled_from(["latency", "energy"]), st.integers(13, 22))
def test_the_bound_hides_no_better_tile(layer: Layer, precision: str, objective: str, budget: int) -> None:
    machine = dataclasses.replace(MACHINES[precision], budget_bytes=float(1 << budget))
    space = balanced_space(layer, machine)
    try:
        every = search_npu(layer, machine, space, objective=objective, exhaustive_limit=1 << 60)
    except TileError:
        with pytest.raises(TileError):
            search_npu(layer, machine, space, objective=objective, exhaustive_limit=0)
        return
    bounded = search_npu(layer, machine, space, objective=objective, exhaustive_limit=0)
    field = "latency_s" if objective == "latency" else "energy_j"
    assert getattr(bounded.cost, field) == pytest.approx(getattr(every.cost, field), rel=1e-12)
    assert every.cost.on_chip_bytes <= machine.budget_bytes


@settings(max_examples=30, deadline=None)
@given(layers(), st.sampled_from(sorted(MACHINES)), st.integers(15, 20), st.floats(0.0, 0.5))
def test_the_least_traffic_keeps_to_its_time_and_the_bound_hides_no_better(
    layer: Layer, precision: str, budget: int, slack: float
) -> None:
    machine = dataclasses.replace(MACHINES[precision], budget_bytes=float(1 << budget))
    space = balanced_space(layer, machine)
    try:
        fastest = search_npu(layer, machine, space)
    except TileError:
        assume(False)
    at_most_s = (1.0 + slack) * fastest.cost.latency_s
    found = [
        search_npu(layer, machine, space, objective="traffic", at_most_s=at_most_s, exhaustive_limit=limit)
        for limit in (0, 1 << 60)
    ]
    assert found[0].cost.dram_bytes == pytest.approx(found[1].cost.dram_bytes, rel=1e-12)
    assert found[0].cost.latency_s == pytest.approx(found[1].cost.latency_s, rel=1e-12)
    assert found[0].cost.latency_s <= at_most_s * (1.0 + 1e-8)
    assert found[0].cost.dram_bytes <= fastest.cost.dram_bytes


@given(layers(), st.integers(1, 40))
def test_bands_fetch_the_rows_that_their_outputs_need(layer: Layer, rows: int) -> None:
    assume(rows <= layer.y)
    total = 0
    for first in range(0, layer.y, rows):
        outputs = range(first, min(first + rows, layer.y))
        low = outputs[0] * layer.stride[0] - layer.pads[0]
        high = outputs[-1] * layer.stride[0] - layer.pads[0] + layer.kernel[0]
        total += len([row for row in range(low, high) if 0 <= row < layer.in_y])
    assert rows_fetched(layer, rows) == total


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=60), st.integers(1, 7))
def test_the_front_keeps_what_nothing_beats(points: list[tuple[int, int, int]], columns: int) -> None:
    costs = np.array(points, dtype=float)
    best = {
        point
        for point in points
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points)
    }
    assert {tuple(map(int, costs[i])) for i in undominated(costs)} == best
    front = Front()
    for start in range(0, len(points), columns):
        block = costs[start : start + columns]
        front.add((block[None, :, 0], block[None, :, 1], block[None, :, 2]), np.ones((1, len(block)), bool), start)
    kept = list(front.picks())
    assert {tuple(map(int, cost)) for cost, _, _ in kept} == best
    assert len(kept) == len(best)
    assert all(tuple(costs[start + column]) == cost for cost, (_, column), start in kept)
