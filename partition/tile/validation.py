"""How far the tile models are from what they were held against: `devices/calibration/tiles.json`.

`python -m benchmarks.tiles errors` and `gpu` write the file with `--write`. An error belongs to the figures that it was
found with: a machine whose figures differ, if only in one, has none.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import TYPE_CHECKING, Final

from partition.calibration import CALIBRATION_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from partition.tile.cost import Machine

VALIDATION_FILE: Final = CALIBRATION_DIR / "tiles.json"
_SCHEMA: Final = 1
# What the samples are: operators compiled by themselves, or graphs.
OPERATORS: Final = "single operators"
MODELS: Final = "whole models"
_PAIRS: Final = ("fitted", "kinds")
# No part of the time of a tile of given size: the name, the energies, and what an option or a benchmark overrides.
_OTHER: Final = frozenset(
    {"name", "mac_j", "dram_j_per_byte", "on_chip_j_per_byte", "active_w", "budget_bytes", "dram_element_bytes"}
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Absolute relative errors of modelled latencies on samples that took no part in the fit.

    `figures` is the digest of the machine that was modelled and `processor` what it was held against: another one
    than the machine's own where that has no truth. `held_out` is `OPERATORS` or `MODELS`. `fitted` are figures fitted
    to that processor, beyond those of the machine; `kinds` are the median errors of kinds of operators.
    """

    figures: str
    processor: str
    precision: str
    truth: str
    held_out: str
    samples: int
    error_median: float
    error_p90: float
    rank_correlation: float
    fitted: tuple[tuple[str, float], ...] = ()
    kinds: tuple[tuple[str, float], ...] = ()

    def kind_median(self, kind: str) -> float | None:
        """Return the median error of that kind of operator, None where no sample is of it."""
        return dict(self.kinds).get(kind)


def digest(machine: Machine) -> str:
    """Return a digest of all figures that a latency depends on."""
    figures = {name: value for name, value in dataclasses.asdict(machine).items() if name not in _OTHER}
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]


def validations(machine: Machine) -> tuple[Validation, ...]:
    """Return what is known of the errors of this machine's latencies, nothing if its figures were never tested."""
    figures = digest(machine)
    return tuple(entry for entry in read_validations(VALIDATION_FILE) if entry.figures == figures)


@functools.cache
def read_validations(path: Path) -> tuple[Validation, ...]:
    """Read the file that `write_validations` wrote; none if there is none."""
    if not path.is_file():
        return ()
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["schema"] == _SCHEMA, f"{path} has schema {table['schema']}, not {_SCHEMA}"
    return tuple(
        Validation(**entry | {name: tuple(entry[name].items()) for name in _PAIRS}) for entry in table["validations"]
    )


def write_validations(entries: Iterable[Validation], path: Path = VALIDATION_FILE) -> None:
    """Put the entries into the file, each in place of the one of the same processor, precision and kind of sample."""
    every = (*read_validations(path), *entries)
    kept = {(entry.processor, entry.precision, entry.held_out): entry for entry in every}
    rows = [
        dataclasses.asdict(entry) | {name: dict(getattr(entry, name)) for name in _PAIRS}
        for _, entry in sorted(kept.items())
    ]
    path.write_text(json.dumps({"schema": _SCHEMA, "validations": rows}, indent=1) + "\n", encoding="utf-8")
    read_validations.cache_clear()
