"""The studies by name."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Final

from experiments.scenarios.study import Study

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Study", "draw", "study", "study_names"]

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


def study_names() -> tuple[str, ...]:
    """List the studies."""
    return tuple(_STUDIES)


def study(name: str, seed: int = 0) -> Study:
    """Run the study of that name.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    key = name.upper()
    if key not in _STUDIES:
        close = difflib.get_close_matches(key, _STUDIES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise KeyError(f"there is no study {name!r}{hint} (known: {', '.join(_STUDIES)})")
    module = importlib.import_module(f"experiments.scenarios.{_STUDIES[key]}")
    made = getattr(module, key.lower())(seed)
    assert isinstance(made, Study)
    return made


def draw(name: str, folder: Path, seed: int = 0) -> Path | None:
    """Draw the picture of a study, if it has one, and return its path without the suffix."""
    from experiments.scenarios import pictures

    return pictures.draw(name, folder, seed)
