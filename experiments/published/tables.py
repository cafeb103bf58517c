"""Read the published tables."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.arguments import UserError
from experiments.csv_file import read_csv

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE: Final = Path(__file__).parent / "tables.toml"

# What the end of a column's name says about it; the longer ends first, as "_per_s" is no time.
_LARGER_IS_BETTER: Final = ("_per_w", "_per_s")
_SMALLER_IS_BETTER: Final = ("_s", "_w", "_j")


_OTHER_UNITS: Final = {
    "ms": "s", "us": "s", "ns": "s", "mw": "w", "kw": "w", "mj": "j", "uj": "j", "khz": "hz", "mhz": "hz", "ghz": "hz",
    "kb": "bytes", "mb": "bytes", "gb": "bytes", "kib": "bytes", "mib": "bytes", "gib": "bytes",
    "percent": "ratio", "f": "c",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One published table: rows of `columns`, the first of which names the row, and single figures beside it."""

    name: str
    report: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    facts: Mapping[str, Any]
    minimise: tuple[str, ...] = ()
    maximise: tuple[str, ...] = ()

    def column(self, name: str) -> tuple[Any, ...]:
        """Return one column, top down; "energy_j" is latency times power where the table has both and not it.

        Raises:
            KeyError: there is no such column; the message lists those there are.
        """
        if name == "energy_j" and name not in self.columns and {"latency_s", "power_w"} <= set(self.columns):
            return tuple(t * w for t, w in zip(self.column("latency_s"), self.column("power_w"), strict=True))
        if name not in self.columns:
            raise KeyError(f"{self.name} has no column {name!r}; it has {', '.join(self.columns)}")
        place = self.columns.index(name)
        return tuple(row[place] for row in self.rows)

    def row(self, key: str | float) -> dict[str, Any]:
        """Return the row of that key as column to value.

        Raises:
            KeyError: there is none; the message lists the keys.
        """
        for row in self.rows:
            if row[0] == key:
                return dict(zip(self.columns, row, strict=True))
        raise KeyError(f"{self.name} has no row {key!r}; it has {', '.join(str(row[0]) for row in self.rows)}")

    def fact(self, name: str) -> float:
        """Return a single figure of the table."""
        return float(self.facts[name])


def table_names() -> tuple[str, ...]:
    """List the tables in the order of the report."""
    return tuple(_read())


def load_table(name: str) -> Table:
    """Return the table of that name.

    Raises:
        KeyError: there is none; the message names the nearest.
    """
    entries = _read()
    if name.upper() not in entries:
        close = difflib.get_close_matches(name.upper(), entries, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise KeyError(f"there is no published table {name!r}{hint} (known: {', '.join(entries)})")
    entry = entries[name.upper()]
    return Table(
        name=name.upper(),
        report=entry["report"],
        title=entry["title"],
        columns=tuple(entry["columns"]),
        rows=tuple(tuple(row) for row in entry["rows"]),
        facts=entry.get("facts", {}),
        minimise=tuple(entry.get("minimise", ())),
        maximise=tuple(entry.get("maximise", ())),
    )


def read_table(path: Path) -> Table:
    """Read somebody's figures from a CSV file: the first column names the row, the others are numbers in SI units.

    Objectives are the columns whose names end in a unit of time, power or energy, or in one of "per watt" or
    "per second", which larger is better for; the energy is one where latency and power are.

    Raises:
        UserError: the file cannot be read, has no rows or no number where one is needed, or names a row twice.
    """
    columns, lines = read_csv(path)
    _see_units(path, columns)
    rows = tuple(_row(f"{path}, line {place}", cells) for place, cells in lines)
    keys = [row[0] for row in rows]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if len(columns) < 2 or twice is not None:
        what = f"has the row {twice!r} twice" if twice is not None else "needs two columns, as backend,latency_s"
        raise UserError(f"{path} {what}")
    better = tuple(name for name in columns[1:] if name.endswith(_LARGER_IS_BETTER))
    worse = tuple(name for name in columns[1:] if name.endswith(_SMALLER_IS_BETTER) and name not in better)
    computed = ("energy_j",) if {"latency_s", "power_w"} <= set(worse) and "energy_j" not in worse else ()
    return Table(
        name=path.stem, report=str(path), title="given, not verified", columns=columns, rows=rows, facts={},
        minimise=(*worse, *computed), maximise=better,
    )  # fmt: skip


def _see_units(path: Path, columns: tuple[str, ...]) -> None:
    """Refuse a column in another unit, which no check would find and whose numbers would be taken for SI ones."""
    for name in columns:
        start, _, unit = name.lower().rpartition("_")
        if start and unit in _OTHER_UNITS:
            better = f"{start}_{_OTHER_UNITS[unit]}"
            raise UserError(f"the column {name!r} of {path} is not in SI units: call it {better} and give it in that")


def _row(where: str, cells: Mapping[str, str]) -> tuple[Any, ...]:
    (_, key), *others = cells.items()
    return key, *(_positive(f"{where}: {name}", cell) for name, cell in others)


def _positive(where: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{where} is {cell!r} where a number above 0 is needed")
    return value


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
