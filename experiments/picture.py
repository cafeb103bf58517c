"""How every picture is drawn and written: without a display, the same file for the same rows, labels apart."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING, Any, Final

from experiments.files import writing
from experiments.labels import untangle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Okabe and Ito's colours, which stay apart for colour-blind readers.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DARK: Final = 0.5  # of the colour scale, from which black text cannot be read
_TITLE_SHARE: Final = 0.95  # characters differ in width, so a line may come out longer than the mean


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """One heat map: a value (NaN: grey) and a text per cell, rows from the top down."""

    title: str
    values: Sequence[Sequence[float]]
    texts: Sequence[Sequence[str]]
    rows: Sequence[str]
    columns: Sequence[str]


def draw_grids(grids: Sequence[Grid], across: str, stem: Path, title: str = "") -> None:
    """Draw heat maps beside each other, each with colours of its own; `across` is what the columns are."""
    width = sum(max(2.0 + 1.2 * len(grid.columns), 0.085 * len(grid.title)) for grid in grids)
    height = 1.8 + 0.7 * max(len(grid.rows) for grid in grids)
    figure, axes = pyplot().subplots(1, len(grids), figsize=(width, height), layout="constrained", squeeze=False)
    for axis, grid in zip(axes[0], grids, strict=True):
        image = axis.imshow(grid.values, cmap="cividis_r", aspect="auto")
        axis.set_facecolor("#dddddd")
        for i, (values, texts) in enumerate(zip(grid.values, grid.texts, strict=True)):
            for j, (value, text) in enumerate(zip(values, texts, strict=True)):
                dark = value == value and image.norm(value) > _DARK  # noqa: PLR0124 - NaN
                axis.text(j, i, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
        axis.set_xticks(range(len(grid.columns)), grid.columns)
        axis.set_yticks(range(len(grid.rows)), grid.rows)
        axis.set_xlabel(across)
        axis.set_title(grid.title, fontsize=11)
    if title:
        figure.suptitle(title, fontsize=12)
    save(figure, stem)


def pyplot() -> Any:  # noqa: ANN401 - the module, which is imported late
    """Return pyplot, set up to draw files that are the same every time."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "edgefrontier"
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, stem: Path) -> None:  # noqa: ANN401 - a Figure, whose module is not imported here
    """Lay titles and the labels of points out, write `stem`.png and `stem`.svg, and let the figure go.

    What does not fit, a legend wider than its panel for instance, makes the picture larger: nothing is cut off.
    """
    _wrap_title(figure)
    untangle(figure)
    for suffix in (".png", ".svg"):
        metadata = {"Date": None} if suffix == ".svg" else None
        with writing(stem.with_suffix(suffix)) as scratch:
            figure.savefig(scratch, dpi=150, metadata=metadata, bbox_inches="tight")
    pyplot().close(figure)


def _wrap_title(figure: Any) -> None:  # noqa: ANN401 - a Figure
    """Write the title above all panels in as many lines as the picture's width asks for."""
    title = figure.get_suptitle()
    if not title:
        return
    text = next(text for text in figure.texts if text.get_text() == title)
    longest = max(title.split("\n"), key=len)
    room = figure.bbox.width / text.get_window_extent().width
    if room < 1.0:
        width = max(int(_TITLE_SHARE * room * len(longest)), 1)
        text.set_text("\n".join(part for line in title.split("\n") for part in textwrap.wrap(line, width)))
