"""The published tables with their consistency checks: `python -m experiments.published [R1 ...]`.

Exit code: 0 printed, 2 for an unknown table or objective. A figure that does not add up is a finding, not a failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.published.checks import Check, Implied
    from experiments.published.tables import Table


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and print the tables asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.published", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="TABLE", help="R1 to R16 (default: all)")
    parser.add_argument("--objectives", default="", metavar="X,Y", help="columns that span the frontier")
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON object")
    options = parser.parse_args(argv)
    from experiments.published.checks import checks, implied_frontiers
    from experiments.published.tables import load_table, table_names

    objectives = tuple(filter(None, options.objectives.split(",")))
    found = {}
    try:
        for name in options.names or table_names():
            table = load_table(name)
            found[table.name] = (table, checks(table), implied_frontiers(table, objectives))
    except KeyError as error:
        print(f"error: {error.args[0]}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({name: _plain(*parts) for name, parts in found.items()}, indent=1))
        return 0
    print("Published by two field reports, not verified, and not ours.")
    for table, made, frontiers in found.values():
        _print(table, made, frontiers)
    return 0


def _plain(table: Table, made: Sequence[Check], frontiers: Sequence[Implied]) -> dict[str, object]:
    rows = [[None if value != value else value for value in row] for row in table.rows]  # noqa: PLR0124 - NaN
    return {
        **dataclasses.asdict(table),
        "rows": rows,
        "checks": [dataclasses.asdict(check) for check in made],
        "frontiers": [dataclasses.asdict(implied) for implied in frontiers],
    }


def _print(table: Table, made: Sequence[Check], frontiers: Sequence[Implied]) -> None:
    from experiments.published.checks import write_value

    print(f"\n{table.name}  {table.title} (report {table.report})")
    extra = tuple(name for name in table.minimise if name not in table.columns)
    cells = [(*table.columns, *(f"{name} (computed)" for name in extra))]
    for i, row in enumerate(table.rows):
        values = [write_value(column, value) for column, value in zip(table.columns, row, strict=True)]
        cells.append((*values, *(write_value(name, table.column(name)[i]) for name in extra)))
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for cell in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)).rstrip())
    for check in made:
        print(f"  {'agrees' if check.holds else 'DIFFERS'}: {check.text}")
    for implied in frontiers:
        rest = ", ".join(f"{name} (by {by})" for name, by in implied.dominated_by.items()) or "none"
        print(f"  frontier by {' and '.join(implied.objectives)}: {', '.join(implied.on)}; dominated: {rest}")


if __name__ == "__main__":
    raise SystemExit(main())
