from __future__ import annotations

import numpy as np
import pytest

from experiments.frontier import certainly_dominated, frontier, hypervolume

# R1's four backends (ms, mW): latency and energy per inference, latency and power.
LATENCY_MS = np.array([18.3, 14.7, 12.1, 16.9])
POWER_MW = np.array([942.0, 886.0, 1024.0, 763.0])


def test_by_energy_snpe_dominates_the_published_table() -> None:
    energy_mj = LATENCY_MS * POWER_MW / 1e3
    assert energy_mj[2] == pytest.approx(12.39, abs=0.01)
    assert frontier(np.c_[LATENCY_MS, energy_mj]).tolist() == [False, False, True, False]


def test_by_power_three_of_the_published_backends_are_on_the_frontier() -> None:
    assert frontier(np.c_[LATENCY_MS, POWER_MW]).tolist() == [False, True, True, True]


def test_equal_points_are_all_kept() -> None:
    assert frontier(np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]])).tolist() == [True, True, False]


def test_no_points_no_frontier() -> None:
    assert frontier(np.zeros((0, 2))).tolist() == []


def test_an_infinite_cost_does_not_take_a_point_off_the_frontier() -> None:
    inf = np.inf
    assert frontier(np.array([[1.0, inf], [2.0, 3.0]])).tolist() == [True, True]
    assert frontier(np.array([[1.0, inf]])).tolist() == [True]
    assert frontier(np.array([[inf, 1.0], [1.0, inf], [inf, inf]])).tolist() == [True, True, False]


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        frontier(np.array([[1.0, np.nan]]))


def test_overlapping_intervals_are_no_certain_dominance() -> None:
    low = np.array([[1.0, 1.0], [1.5, 1.5], [9.0, 9.0]])
    high = np.array([[2.0, 2.0], [2.5, 2.5], [9.5, 9.5]])
    assert certainly_dominated(low, high).tolist() == [False, False, True]


def test_hypervolume_of_two_steps() -> None:
    assert hypervolume(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0])) == pytest.approx(3.0)


def test_hypervolume_of_a_cube_and_a_slab() -> None:
    points = np.array([[0.0, 0.0, 0.5], [0.5, 0.5, 0.0]])
    assert hypervolume(points, np.ones(3)) == pytest.approx(0.5 + 0.25 * 0.5)


def test_hypervolume_refuses_four_objectives() -> None:
    with pytest.raises(ValueError, match="two or three"):
        hypervolume(np.ones((1, 4)), np.ones(4))


@pytest.mark.parametrize("reference", [[2.0, np.nan], [2.0], [2.0, 2.0, 2.0], 2.0])
def test_hypervolume_refuses_a_reference_that_is_no_point(reference: object) -> None:
    with pytest.raises(ValueError, match="one number for each of 2 objectives"):
        hypervolume(np.ones((1, 2)), np.asarray(reference))


def test_ends_of_different_points_are_refused() -> None:
    with pytest.raises(ValueError, match="a high end for each low end"):
        certainly_dominated(np.ones((1, 2)), np.ones((2, 2)))
