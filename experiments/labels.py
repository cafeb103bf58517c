"""Labels that do not write over each other: each goes to the free place nearest its point, always the same one."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_AWAY: Final = (5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 65.0, 80.0, 100.0, 125.0, 155.0, 190.0, 230.0)  # points from it
_WAYS: Final = 16
_LED: Final = 12.0  # points from which a line leads back to the marker
_MARKER: Final = 4.0  # half the size of a marker, in points
_GAP: Final = 1.0
_STEP: Final = 3.0  # between the samples of a line, in points
# What a place costs, in points of distance: text on text or on a marker never pays while there is a free place.
_ON_TEXT, _OUTSIDE, _ON_MARKER, _LED_OVER_TEXT, _ON_LINE = 1e5, 1e5, 1e3, 100.0, 4.0


@dataclasses.dataclass(slots=True)
class _Ink:
    """What a label should not cover, in points: boxes (left, bottom, right, top), markers, and samples of lines."""

    boxes: list[Array]
    markers: Array
    lines: Array


def untangle(figure: Figure) -> None:
    """Move the annotations of data points apart, and lead those that went far back to their points.

    Call it when everything else is drawn: places depend on the layout, which labels do not move from here on.
    """
    notes: dict[Axes, list[Any]] = {axis: [n for n in axis.texts if _names_a_point(n)] for axis in figure.axes}
    for note in (note for found in notes.values() for note in found):
        note.set_in_layout(False)
    figure.draw_without_rendering()
    for axis, found in notes.items():
        if found:
            _untangle(axis, found)


def _names_a_point(note: Any) -> bool:  # noqa: ANN401 - matplotlib's texts of any kind
    return bool(note.get_text()) and getattr(note, "xycoords", None) == "data" and note.get_visible()


def _untangle(axis: Axes, notes: Sequence[Annotation]) -> None:
    points = 72.0 / axis.get_figure().dpi  # type: ignore[union-attr]  # the axes are in a figure
    frame = _box(axis.get_window_extent(), points)
    ink = _ink(axis, points)
    anchors = {note: axis.transData.transform(note.xy) * points for note in notes}
    for note in sorted(notes, key=lambda n: (*anchors[n], n.get_text())):
        left, bottom, right, top = _box(note.get_window_extent(), points)
        size, anchor = np.array([right - left, top - bottom]), anchors[note]
        costs = [(_cost(*place, size, anchor, frame, ink), *place) for place in _places(size)]
        _, away, corner = min(costs, key=lambda cost: cost[0])
        note.set(position=tuple(corner), ha="left", va="bottom")
        box = np.concatenate([anchor + corner, anchor + corner + size])
        ink.boxes.append(box)
        if away > _LED:
            end = _end(anchor, box)
            ink.lines = np.concatenate([ink.lines, _samples(np.array([anchor, end]))])
            _lead(axis, note, end - anchor)


def _end(anchor: Array, box: Array) -> Array:
    """Return where a line from the point meets its label: half to the middle, so that it is no bar of an interval."""
    nearest = np.clip(anchor, box[:2], box[2:])
    return np.array([(nearest[0] + box[[0, 2]].mean()) / 2, nearest[1]])


def _lead(axis: Axes, note: Annotation, offset: Array) -> None:
    line = {"arrowstyle": "-", "lw": 0.5, "color": "#777777", "shrinkA": 0.0, "shrinkB": _MARKER}
    axis.annotate(
        "", note.xy, xytext=tuple(offset), textcoords="offset points", arrowprops=line, zorder=2.5
    ).set_in_layout(False)


def _places(size: Array) -> Iterator[tuple[float, Array]]:
    """Yield (distance, lower left corner) of the places around a point at the origin, the right upper side first."""
    for away in _AWAY:
        for way in range(_WAYS):
            angle = np.pi / 8 + way * 2 * np.pi / _WAYS
            direction = np.array([np.cos(angle), np.sin(angle)])
            # The side of the box that faces the point is what is that far away.
            centre = away * direction + np.clip(1.5 * direction, -1, 1) * size / 2
            yield away, centre - size / 2


def _cost(away: float, corner: Array, size: Array, anchor: Array, frame: Array, ink: _Ink) -> float:
    box = np.concatenate([anchor + corner, anchor + corner + size])
    grown = box + _GAP * np.array([-1, -1, 1, 1])
    outside = np.maximum(frame[:2] - box[:2], 0).sum() + np.maximum(box[2:] - frame[2:], 0).sum()
    texts = sum(_overlap(grown, other) for other in ink.boxes)
    near = box + _MARKER * np.array([-1, -1, 1, 1])
    cost = away + _ON_TEXT * texts + _OUTSIDE * float(outside)
    cost += _ON_MARKER * _inside(ink.markers, near) + _ON_LINE * _inside(ink.lines, grown)
    if away > _LED:
        leader = _samples(np.array([anchor, _end(anchor, box)]))
        cost += _LED_OVER_TEXT * sum(_inside(leader, other) > 0 for other in ink.boxes)
    return cost


def _overlap(one: Array, two: Array) -> float:
    """Return the area that two boxes share."""
    sides = np.minimum(one[2:], two[2:]) - np.maximum(one[:2], two[:2])
    return float(np.prod(np.maximum(sides, 0)))


def _inside(points: Array, box: Array) -> int:
    return int(((points > box[:2]) & (points < box[2:])).all(axis=1).sum())


def _box(extent: Bbox, points: float) -> Array:
    return np.array([extent.x0, extent.y0, extent.x1, extent.y1]) * points


def _ink(axis: Axes, points: float) -> _Ink:
    """Collect what is drawn: markers of lines and scatters, lines and error bars, and the legend."""
    from matplotlib.collections import LineCollection

    markers, lines = [np.empty((0, 2))], [np.empty((0, 2))]
    for line in axis.lines:
        path = line.get_path().vertices
        drawn = line.get_transform().transform(np.asarray(path, float)) * points
        if line.get_marker() not in {"None", "none", " ", "", None, "|", "_"}:
            markers.append(drawn)
        if line.get_linestyle() not in {"None", "none", " ", ""}:
            lines.append(_samples(drawn))
    for collection in axis.collections:
        if isinstance(collection, LineCollection):
            to_pixels = collection.get_transform()
            lines += [_samples(to_pixels.transform(np.asarray(s)) * points) for s in collection.get_segments()]
        else:
            offsets = np.asarray(collection.get_offsets(), float)
            markers.append(collection.get_offset_transform().transform(offsets) * points)
    legend = axis.get_legend()
    boxes = [] if legend is None else [_box(legend.get_window_extent(), points)]
    inside = [_finite(np.concatenate(found)) for found in (markers, lines)]
    return _Ink(boxes=boxes, markers=inside[0], lines=inside[1])


def _finite(found: Array) -> Array:
    return found[np.isfinite(found).all(axis=1)]


def _samples(vertices: Array) -> Array:
    """Return points along a line, dense enough that no label fits between two of them."""
    vertices = np.clip(_finite(vertices), -1e4, 1e4)  # what lies far outside the picture needs no sample
    if len(vertices) < 2:
        return np.empty((0, 2))
    pieces = [np.linspace(start, end, int(np.hypot(*(end - start)) / _STEP) + 2) for start, end in pairwise(vertices)]
    return np.concatenate(pieces)
