"""Pictures that can be read: no text cut off or on another, and every series known without its colour."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pytest

from compilers import Estimate, Latency, Source
from experiments import knob_plot, picture, plot, store
from experiments.knob_sweep import Point
from experiments.ranking import rank
from partition import load_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

ROW = store.Row(
    key="k", status="ok", model="m", device="sa8255p", processor="npu", backend="snpe", precision="int8", options="",
    segments=1, cuts=(), plan_digest="d", latency_s=1e-3, latency_low_s=0.9e-3, latency_high_s=1.2e-3,
    latency_source="simulated", energy_j=6e-3, energy_low_j=1e-3, energy_high_j=9e-3,
)  # fmt: skip
LONG = "a title that has more words than the picture above which it stands has room for, as most devices' names do"


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Figure]:
    """Keep the figure that `save` would let go of."""
    kept: list[Any] = []
    monkeypatch.setattr(picture.pyplot(), "close", kept.append)
    return lambda: kept[-1]


def row(backend: str, latency_s: float) -> store.Row:
    return dataclasses.replace(
        ROW, backend=backend, key=backend, plan_digest=backend,
        latency_s=latency_s, latency_low_s=0.9 * latency_s, latency_high_s=1.2 * latency_s,
    )  # fmt: skip


def extents(figure: Figure) -> list[Any]:
    texts = [text for text in figure.texts if text.get_text()]
    return [part.get_window_extent() for part in (*texts, *figure.legends)]


@pytest.mark.parametrize("size", [3.0, 6.0, 12.0])
def test_a_title_takes_the_lines_that_it_needs(size: float, tmp_path: Path, saved: Callable[[], Figure]) -> None:
    figure, axis = picture.pyplot().subplots(figsize=(size, 4.0), layout="constrained")
    axis.plot([0, 1])
    figure.suptitle(LONG, fontsize=13)
    picture.save(figure, tmp_path / "long")
    title = saved().get_suptitle()
    assert " ".join(title.split()) == LONG
    assert ("\n" in title) == (size < 12.0)
    (box,) = extents(saved())
    assert box.width <= saved().bbox.width
    assert (tmp_path / "long.png").is_file()
    assert (tmp_path / "long.svg").is_file()


def test_what_is_wider_than_its_picture_makes_it_wider(tmp_path: Path, saved: Callable[[], Figure]) -> None:
    figure, axis = picture.pyplot().subplots(figsize=(2.0, 2.0), layout="constrained")
    axis.plot([0, 1], label=LONG)
    figure.legend(loc="outside lower center")
    picture.save(figure, tmp_path / "wide")
    (legend,) = saved().legends
    assert mpl.image.imread(tmp_path / "wide.png").shape[1] >= legend.get_window_extent().width * 150 / figure.dpi


def test_each_series_is_named_at_its_points_where_there_are_several(
    tmp_path: Path, saved: Callable[[], Figure]
) -> None:
    rows = [row("snpe", 1e-3), row("ort_qnn", 2e-3)]
    device = load_device("sa8255p")
    for shown, labels in ((rows, {"snpe int8", "ort_qnn int8"}), (rows[:1], {"int8"})):
        ranked = rank(shown, ("latency", "energy"))
        assert plot.draw_frontiers(ranked, [device], ("latency", "energy"), "m: latency", LONG, tmp_path / "frontier")
        assert {text.get_text() for text in saved().axes[0].texts} - {""} == labels
        for one, two in combinations(extents(saved()), 2):
            assert not one.overlaps(two)


def test_values_that_are_nearly_alike_have_ticks_that_differ(tmp_path: Path, saved: Callable[[], Figure]) -> None:
    rows = [dataclasses.replace(row("snpe", 1e-3), artefact_bytes=1_000_000 + more) for more in (0, 900)]
    rows[1] = dataclasses.replace(rows[1], backend="tvm", latency_s=1.1e-3)
    ranked = rank(rows, ("latency", "size"))
    plot.draw_frontiers(ranked, [load_device("sa8255p")], ("latency", "size"), "m", LONG, tmp_path / "sizes")
    axis = saved().axes[0]
    low, high = axis.get_ylim()
    texts = [label.get_text() for label in axis.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(texts) >= 3
    assert len(set(texts)) == len(texts)


def test_nothing_spilled_is_no_fraction_of_a_byte(tmp_path: Path, saved: Callable[[], Figure]) -> None:
    latency = Latency(typical_s=1e-3, low_s=0.9e-3, high_s=1.1e-3, source=Source.SIMULATED)
    estimate = Estimate(latency=latency, spill_bytes=0)
    point = Point(model="m", setting=(("vtcm_mb", "4"),), estimate=estimate, reason="")
    assert knob_plot.draw_knobs([point], [("vtcm_mb", ("4",))], LONG, tmp_path / "knobs")
    assert [label.get_text() for label in saved().axes[1].get_yticklabels()] == ["0 B", "1 B"]
