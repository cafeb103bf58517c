"""The studies by name."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Final

from experiments.arguments import UserError
from experiments.published import load_table
from experiments.scenarios.given import Given, own_grid, own_rows, with_facts
from experiments.scenarios.study import Study

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from experiments.published import Table
    from graphs import Graph

__all__ = ["Study", "draw", "given_for", "study", "study_names"]

_STUDIES: Final = {
    "R4": "tiles",
    "R5": "tiles",
    "R6": "tiles",
    "R9": "clock",
    "R10": "clock",
    "R11": "memory",
    "R12": "memory",
    "R14": "power_states",
    "R16": "power_states",
    "R17": "endurance",
    "R18": "endurance",
    "T11C": "endurance",
}
# The tables that a study reads, of which the rows of the first may be one's own, and what else it takes.
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "R4": ("R4",), "R9": ("R9",), "R10": ("R10",), "R11": ("R11",), "R12": ("R12",), "R14": ("R14", "R16"),
    "R16": ("R16", "R14"),
}  # fmt: skip
_CRITERION: Final = ("frequency_fall_ratio", "deviation_factor", "runs")
_COUNTS: Final = ("runs", "batch")
# Of R14 and R16: a processor that sleeps or wakes at once, or for nothing, and requests without a gap.
_MAY_BE_0: Final = (
    "dwell_s", "dwell_spread_s", "wake_s", "wake_spread_s", "save_s", "save_worst_s", "wake_j_low", "wake_j_high",
    "graph_reload_low_s", "graph_reload_high_s", "weights_share_ratio", "largest_gap_s",
)  # fmt: skip
_ELSEWHERE: Final = {
    "R5": "experiments.tiles MODEL --gpu D --npu D",
    "R6": "experiments.tiles MODEL --npu YOUR.toml",
    "R17": "experiments.sustained MODEL --device D --thermal-cap 10@80 --altitude 2000",
    "R18": "experiments.sustained MODEL --device D --trace batches:1,16@3/s --ambient 25:45 --supply 0.9:1.1",
    "T11C": "experiments.sustained MODEL --device D",
}


def study_names() -> tuple[str, ...]:
    """List the studies."""
    return tuple(_STUDIES)


def study(name: str, seed: int = 0, given: Given | None = None) -> Study:
    """Run the study of that name, on the published figures or on those given.

    Raises:
        KeyError: there is none; the message lists those there are.
        UserError: the study cannot be made from what is given.
    """
    key = _key(name)
    module = importlib.import_module(f"experiments.scenarios.{_STUDIES[key]}")
    made = getattr(module, key.lower())(given or Given(tables={}, seed=seed))
    assert isinstance(made, Study)
    return made


def given_for(name: str, seed: int, files: Sequence[Path], settings: Mapping[str, float], graph: Graph | None) -> Given:
    """Return what the study of that name is made from, with one's own files, figures and model.

    Raises:
        KeyError: there is no such study.
        UserError: the study takes no such thing, or a file or a figure cannot be used; the message says what it takes.
    """
    key = _key(name)
    if not (files or settings or graph is not None):
        return Given(tables={}, seed=seed)
    names = _TABLES.get(key, ())
    if not names:
        raise UserError(f"{key} takes no figures of your own; for your model: python -m {_ELSEWHERE[key]}")
    if graph is not None and key != "R12":
        raise UserError(f"{key} takes no --model; R12 does")
    tables = [load_table(other) for other in names]
    _see_known(key, tables, settings)
    if key == "R10":
        if not files:
            raise UserError("R10 takes --set for recorded logs only; give a --table for each")
        return Given(tables={"R10": with_facts(tables[0], settings)}, seed=seed, logs=tuple(files))
    if len(files) > 1:
        raise UserError(f"{key} takes one --table; R10 takes a log of each run")
    if files:
        tables[0] = own_grid(files[0], tables[0]) if key == "R9" else own_rows(files[0], tables[0])
    return Given(tables={table.name: with_facts(table, settings) for table in tables}, seed=seed, graph=graph)


def _see_known(key: str, tables: Sequence[Table], settings: Mapping[str, float]) -> None:
    """Refuse what no table of the study has, a share of 1 or more, a part of a run, and 0 where it means nothing."""
    numbers = (fact for table in tables for fact, value in table.facts.items() if isinstance(value, int | float))
    known = [fact for fact in numbers if key != "R10" or fact in _CRITERION]
    for setting, value in settings.items():
        if setting not in known:
            close = difflib.get_close_matches(setting, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UserError(f"{key} has no figure {setting!r}{hint} (known: {', '.join(known) or 'none'})")
        if setting.endswith("_ratio") and value >= 1.0:
            raise UserError(f"{setting} is a share, below 1, and not {value:g}")
        if value == 0 and setting not in _MAY_BE_0:
            raise UserError(f"{setting} is above 0 (these may be 0: {', '.join(_MAY_BE_0)})")
        if setting in _COUNTS and not value.is_integer():
            raise UserError(f"{setting} is a whole number, and not {value:g}")


def _key(name: str) -> str:
    key = name.upper()
    if key not in _STUDIES:
        close = difflib.get_close_matches(key, _STUDIES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise KeyError(f"there is no study {name!r}{hint} (known: {', '.join(_STUDIES)})")
    return key


def draw(name: str, folder: Path, given: Given) -> Path | None:
    """Draw the picture of a study, if it has one, and return its path without the suffix."""
    from experiments.scenarios import pictures

    return pictures.draw(name, folder, given)
