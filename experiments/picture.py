"""How every picture is drawn and written: without a display, the same file for the same rows, labels apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from experiments.labels import untangle

if TYPE_CHECKING:
    from pathlib import Path

# Okabe and Ito's colours, which stay apart for colour-blind readers.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def pyplot() -> Any:  # noqa: ANN401 - the module, which is imported late
    """Return pyplot, set up to draw files that are the same every time."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "edgefrontier"
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, stem: Path) -> None:  # noqa: ANN401 - a Figure, whose module is not imported here
    """Lay the labels of points out, write `stem`.png and `stem`.svg, and let the figure go."""
    untangle(figure)
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix), dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
    pyplot().close(figure)
