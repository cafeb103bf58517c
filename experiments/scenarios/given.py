"""What a study is made from: the published tables, or figures, logs and a model of one's own in their place."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.arguments import UserError
from experiments.csv_file import read_csv
from experiments.evaluator.dynamics.threshold import Log
from experiments.published import Table, load_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from graphs import Graph


_LOAD: Final = re.compile(r"load_(\d+(?:\.\d+)?)_s")
_LAW_PARAMETERS: Final = 4
_CLOCKS_HZ: Final = (1e6, 1e11)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The tables that a study reads, its own first; `logs` are recorded runs, and `graph` a model of one's own."""

    tables: Mapping[str, Table]
    seed: int = 0
    logs: tuple[Path, ...] = ()
    graph: Graph | None = None

    def table(self, name: str) -> Table:
        """Return the table of that name, with one's own figures where there are any."""
        return self.tables.get(name) or load_table(name)


PUBLISHED: Final = Given(tables={})


def origin(table: Table) -> str:
    """Say of a table's rows that they are published, or one's own."""
    return "published" if table == dataclasses.replace(load_table(table.name), facts=table.facts) else "given"


def with_facts(table: Table, settings: Mapping[str, float]) -> Table:
    """Return the table with those of the settings that it has as single figures."""
    mine = {name: value for name, value in settings.items() if name in table.facts}
    return dataclasses.replace(table, facts={**table.facts, **mine}) if mine else table


def own_rows(path: Path, like: Table) -> Table:
    """Return the table `like` with the rows of a CSV file, whose columns are named like its own, in any order.

    A cell must be of the kind of the published ones: above 0 where they all are, a share where they are, empty where
    one of them is unknown. What was only stated beside the figures (`stated_`) may be missing.

    Raises:
        UserError: the file cannot be read, or a column or a cell is not what the study needs.
    """
    header, lines = read_csv(path, needed=[name for name in like.columns if not name.startswith("stated_")])
    rows = tuple(
        tuple(
            _cell(f"{path}, line {place}: {name}", line[name], like.column(name)) if name in header else math.nan
            for name in like.columns
        )
        for place, line in lines
    )
    return dataclasses.replace(like, report=str(path), title="given, not verified", rows=rows)


def own_grid(path: Path, like: Table) -> Table:
    """Return the table of latency over clock and load with the rows and loads of a CSV file, both in rising order.

    Raises:
        UserError: the file cannot be read, or it is no such grid of at least two clocks and loads.
    """
    header, lines = read_csv(path)
    loads = sorted((float(found[1]), name) for name in header if (found := _LOAD.fullmatch(name)))
    if "clock_hz" not in header or len(loads) < 2 or len(lines) < 2 or len(loads) * len(lines) <= _LAW_PARAMETERS:
        raise UserError(
            f"{path} is no grid of latency over clock and load: it needs the columns clock_hz,load_1_s,load_4_s,..., a"
            f" line for each clock, and more than {_LAW_PARAMETERS} cells over two clocks and two loads or more"
        )
    columns = ("clock_hz", *(name for _, name in loads))
    rows = sorted(
        tuple(number(f"{path}, line {place}: {name}", line[name], least=1.0, most=math.inf) for name in columns)
        for place, line in lines
    )
    clocks = [row[0] for row in rows]
    if len(set(clocks)) < len(clocks) or len({load for load, _ in loads}) < len(loads) or loads[0][0] <= 0:
        raise UserError(f"{path} has a clock or a load twice, or a load of 0")
    for clock_hz in clocks:
        see_clock(f"{path}: clock_hz", clock_hz)
    return dataclasses.replace(
        like, report=str(path), title="given, not verified", columns=columns, rows=tuple(rows), facts={}
    )


def read_log(path: Path) -> Log:
    """Return a recorded run: a line per request with `time_s,temperature_c,clock_hz,latency_s`, others being left out.

    Raises:
        UserError: the file cannot be read, or lacks a column or a number.
    """
    least = {"time_s": -1.0, "temperature_c": -1.0, "clock_hz": 1.0, "latency_s": 1.0}
    _, lines = read_csv(path, needed=tuple(least))
    columns = {
        name: np.array([
            number(f"{path}, line {place}: {name}", line[name], least=bound, most=math.inf) for place, line in lines
        ])
        for name, bound in least.items()
    }  # fmt: skip
    see_clock(f"{path}: the median of clock_hz", float(np.median(columns["clock_hz"])))
    return Log(**columns)


def see_clock(where: str, clock_hz: float) -> None:
    """Refuse a clock that is none of a processor: MHz in a column of Hz.

    Raises:
        UserError: it is below 1 MHz or above 100 GHz.
    """
    if not _CLOCKS_HZ[0] <= clock_hz <= _CLOCKS_HZ[1]:
        raise UserError(f"{where} is {clock_hz:g}, which is no clock of a processor in Hz; were those MHz or GHz?")


def _cell(where: str, text: str, published: tuple[Any, ...]) -> str | float:
    """Read a cell as what the published column holds."""
    if all(isinstance(value, str) for value in published):
        if not text:
            raise UserError(f"{where} is empty; it names the row")
        return text
    if not text and any(math.isnan(value) for value in published):
        return math.nan
    return number(where, text, least=min(published), most=max(published))


def number(where: str, text: str, *, least: float, most: float) -> float:
    """Read a number like those between `least` and `most`: above 0 where they are, and below 1 where shares are.

    Raises:
        UserError: it is none; the message says where and what is needed.
    """
    share = where.endswith("_ratio") and most < 1.0
    needed = ("a number" if least < 0 else "a number above 0" if least > 0 else "a number of at least 0") + (
        " and below 1" if share else ""
    )
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where} is {text!r} where {needed} is needed") from None
    fits = math.isfinite(value) and (value > 0 or least <= 0) and (value >= 0 or least < 0) and (value < 1 or not share)
    if not fits:
        raise UserError(f"{where} is {text!r} where {needed} is needed")
    return value
