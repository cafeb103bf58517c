"""Labels of near points: none on another, none on a marker, all inside, the same each time."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.labels import untangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

mpl.use("Agg")


def drawn(points: list[tuple[float, float]], names: list[str], *, log: bool) -> tuple[Figure, Axes]:
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.2, 5.6), layout="constrained")
    for (x, y), name in zip(points, names, strict=True):
        axis.errorbar(x, y, xerr=[[x * 0.05], [x * 0.1]], yerr=y * 0.1, fmt="o", ms=7)
        axis.annotate(name, (x, y), xytext=(6, 5), textcoords="offset points", fontsize=7)
    axis.step(*zip(*sorted(points), strict=True), where="post")
    if log:
        axis.set(xscale="log", yscale="log")
    untangle(figure)
    figure.canvas.draw()
    plt.close(figure)
    return figure, axis


def texts(axis: Axes) -> list[object]:
    return [note for note in axis.texts if note.get_text()]


def check(figure: Figure, axis: Axes, points: list[tuple[float, float]]) -> None:
    boxes = [note.get_window_extent() for note in texts(axis)]  # type: ignore[attr-defined]
    frame = axis.get_window_extent()
    for one, two in combinations(boxes, 2):
        assert not one.padded(-0.5).overlaps(two.padded(-0.5))
    for box in boxes:
        assert frame.padded(1).contains(box.x0, box.y0)
        assert frame.padded(1).contains(box.x1, box.y1)
    markers = axis.transData.transform(points)
    covered = sum(bool(box.contains(*marker)) for box in boxes for marker in markers)
    assert covered == 0


coordinates = st.floats(1.0, 30.0)


@given(st.lists(st.tuples(coordinates, coordinates), min_size=2, max_size=25, unique=True), st.booleans())
@settings(deadline=None, max_examples=15)
def test_no_label_lies_on_another_one_or_on_a_marker(points: list[tuple[float, float]], log: bool) -> None:
    names = [f"int8 compressed {number}" for number in range(len(points))]
    check(*drawn(points, names, log=log), points)


@pytest.mark.parametrize("log", [False, True])
def test_a_crowd_of_25_with_long_names_is_told_apart(log: bool) -> None:
    rng = np.random.default_rng(3)
    points = [(float(x), float(y)) for x, y in 10 + rng.normal(0, 0.4, (25, 2))] + [(1.0, 1.0), (30.0, 30.0)]
    names = [f"int8 palettised 4 bit per grouped channel ({n})" for n in range(len(points))]
    figure, axis = drawn(points, names, log=log)
    check(figure, axis, points)
    leaders = [note for note in axis.texts if not note.get_text()]
    assert leaders  # what had to go far is led back


def test_a_label_with_room_stays_at_its_point_and_the_picture_is_the_same_each_time() -> None:
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, 1.5)]
    places = []
    for _ in range(2):
        _, axis = drawn(points, ["a", "b", "c"], log=False)
        assert not [note for note in axis.texts if not note.get_text()]
        places.append([note.get_position() for note in texts(axis)])  # type: ignore[attr-defined]
    assert places[0] == places[1]
