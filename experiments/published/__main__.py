"""The published tables, or one of your own, with their consistency checks: `python -m experiments.published [R1 ...]`.

Exit code: 0 printed, 2 for an unknown or unusable table or objective.
A figure that does not add up is a finding, not a failure.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.arguments import UserError, command, exit_code

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from experiments.published.checks import Check, Implied
    from experiments.published.tables import Table

_REPORTS: Final = ("A", "B")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and print the tables asked for."""
    parser = command(
        "experiments.published",
        __doc__.split("\n", 1)[0],
        "R1 --objectives latency_s,energy_j",
        "own.csv",
    )
    parser.add_argument(
        "names", nargs="*", metavar="TABLE", help="R1 to R16 (default: all), or a CSV file of yours: the first column"
        " names the row, the others are numbers in SI units, such as backend,latency_s,power_w,gops_per_w,macs",
    )  # fmt: skip
    parser.add_argument("--objectives", default="", metavar="X,Y", help="columns that span the frontier")
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON object")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from experiments.published.checks import checks, implied_frontiers
    from experiments.published.tables import load_table, read_table, table_names

    objectives = tuple(dict.fromkeys(filter(None, options.objectives.split(","))))
    if len(objectives) == 1:
        raise UserError("a frontier needs two objectives or more, for example --objectives latency_s,energy_j")
    found = {}
    try:
        for name in options.names or table_names():
            table = read_table(Path(name)) if name.endswith(".csv") else load_table(name)
            key = name if table.name in found else table.name
            found[key] = (table, checks(table), implied_frontiers(table, objectives))
    except KeyError as error:
        raise UserError(error.args[0]) from error
    if options.json:
        print(json.dumps({name: _plain(*parts) for name, parts in found.items()}, indent=1))
        return 0
    if any(table.report in _REPORTS for table, _, _ in found.values()):
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

    print(f"\n{table.name}  {table.title} ({_source(table)})")
    extra = tuple(name for name in table.minimise if name not in table.columns)
    cells = [(*table.columns, *(f"{name} (computed)" for name in extra))]
    for i, row in enumerate(table.rows):
        values = [write_value(column, value) for column, value in zip(table.columns, row, strict=True)]
        cells.append((*values, *(write_value(name, table.column(name)[i]) for name in extra)))
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for cell in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)).rstrip())
    if table.facts:
        stated = ", ".join(f"{name} {_fact(name, value)}" for name, value in table.facts.items())
        print(f"  stated beside it: {stated}")
    for check in made:
        print(f"  {'agrees' if check.holds else 'DIFFERS'}: {check.text}")
    for implied in frontiers:
        rest = ", ".join(f"{name} (by {by})" for name, by in implied.dominated_by.items()) or "none"
        print(f"  frontier by {' and '.join(implied.objectives)}: {', '.join(implied.on)}; dominated: {rest}")


def _source(table: Table) -> str:
    return f"report {table.report}" if table.report in _REPORTS else table.report


def _fact(name: str, value: float | list[float]) -> str:
    from experiments.published.checks import write_value

    unit = name.removesuffix("_low").removesuffix("_high").removesuffix("_worst").removesuffix("_spread")
    values = value if isinstance(value, list) else [value]
    return " / ".join(write_value(unit, float(one)) for one in values)


if __name__ == "__main__":
    raise SystemExit(main())
