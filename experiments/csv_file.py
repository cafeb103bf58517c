"""Read a CSV file that somebody else made, as spreadsheets write them, or say what it has that cannot be read."""

from __future__ import annotations

import csv
import itertools
from typing import TYPE_CHECKING

from experiments.arguments import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Line = tuple[int, dict[str, str]]


def read_csv(path: Path, *, needed: Sequence[str] = (), least: int = 1) -> tuple[tuple[str, ...], list[Line]]:
    """Return the names of the columns, and each row as column to cell with the line on which it begins.

    Cells have no blanks at their ends. Empty rows, and columns at the end without a name, are left out.

    Raises:
        UserError: it is no CSV file in UTF-8 with commas, lacks a `needed` column or has one twice, has fewer than
            `least` rows, or a row of another length.
    """
    rows = list(_rows(path))
    if not rows:
        raise UserError(f"{path} is empty; it needs a line of column names and one line for each row")
    header = _without_empty_end(rows[0][1])
    twice = next((name for name in header if header.count(name) > 1), None)
    if "" in header or twice is not None:
        raise UserError(f"{path} " + ("has a column without a name" if not twice else f"names a column twice: {twice}"))
    missing = [name for name in needed if name not in header]
    if missing:
        all_needed = "" if len(missing) == len(needed) else f" (needed: {', '.join(needed)})"
        raise UserError(f"{path} has no column {', '.join(missing)}{all_needed}")
    if len(rows) <= least:
        raise UserError(f"{path} has no rows; it needs a line of column names and one line for each row")
    return header, [(place, _row(f"{path}, line {place}", header, cells)) for place, cells in rows[1:]]


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row that has any, with the line on which it begins."""
    place = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin a file with a mark
            first = file.readline()
            _see_separator(path, first)
            reader = csv.reader(itertools.chain([first] if first else [], file), strict=True)  # a pipe has no way back
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield place, cells
                place = reader.line_num + 1
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8; from a spreadsheet, save it as 'CSV UTF-8'") from error
    except csv.Error as error:
        raise UserError(f"{path}, line {place} is no row of a CSV file: {error}") from error


def _see_separator(path: Path, first: str) -> None:
    """Refuse what spreadsheets write where the comma is the decimal one: its numbers would have commas, too."""
    found = next((name for mark, name in ((";", "semicolons"), ("\t", "tabs")) if mark in first), None)
    if found and "," not in first:
        raise UserError(f"{path} has {found} between its columns; save it with commas, and numbers with points (1.5)")


def _without_empty_end(cells: Sequence[str]) -> tuple[str, ...]:
    count = max(i for i, cell in enumerate(cells, 1) if cell)
    return tuple(cells[:count])


def _row(where: str, header: tuple[str, ...], cells: list[str]) -> dict[str, str]:
    count = max(len(header), len(_without_empty_end(cells)))
    if len(cells) < len(header) or count > len(header):
        raise UserError(f"{where} has {min(len(cells), count)} cells where the header has {len(header)}")
    return dict(zip(header, cells, strict=False))
