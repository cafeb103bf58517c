"""Read the published tables."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE: Final = Path(__file__).parent / "tables.toml"


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
        """Return one column, top down; "energy_j" is latency times power where the table has both.

        Raises:
            KeyError: there is no such column; the message lists those there are.
        """
        if name == "energy_j" and {"latency_s", "power_w"} <= set(self.columns):
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


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
