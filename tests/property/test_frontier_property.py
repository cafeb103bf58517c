from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from experiments.frontier import certainly_dominated, frontier, hypervolume

Points = NDArray[np.float64]


def points(objectives: int) -> st.SearchStrategy[Points]:
    sizes = st.integers(0, 30)
    values = st.sampled_from([*map(float, range(13)), np.inf])  # few values, so that ties and equal rows are common
    strategy: Any = sizes.flatmap(lambda n: arrays(float, (n, objectives), elements=values))
    return strategy


def dominates(a: Points, b: Points) -> bool:
    return bool((a <= b).all() and (a < b).any())


@given(points(2) | points(3))
def test_a_point_is_on_the_frontier_exactly_when_nothing_dominates_it(rows: Points) -> None:
    truth = [not any(dominates(other, row) for other in rows) for row in rows]
    assert frontier(rows).tolist() == truth


@given(points(2) | points(3))
def test_exact_intervals_make_certain_dominance_dominance(rows: Points) -> None:
    assert (certainly_dominated(rows, rows) == ~frontier(rows)).all()


@given(points(2) | points(3))
def test_dominated_points_add_no_hypervolume(rows: Points) -> None:
    reference = np.full(rows.shape[1], 13.0)
    assert np.isclose(hypervolume(rows, reference), hypervolume(rows[frontier(rows)], reference))


@given(points(2))
def test_hypervolume_counts_the_unit_cells_below_the_frontier(rows: Points) -> None:
    cells = sum(bool((rows <= (x, y)).all(axis=1).any()) for x in range(13) for y in range(13))
    assert np.isclose(hypervolume(rows, np.array([13.0, 13.0])), cells)
