"""The result as text: a table of the candidates that count, then what failed and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.console import plain_table
from experiments.units import counted, interval, joules, seconds, significant, size, watts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from experiments.ranking import Ranked
    from experiments.store import Row

_WIDE_COLUMNS: Final = 150
_EXTRA: Final = ("power", "memory")
_MARKS: Final = {"frontier": "*", "tie": "~", "dominated": "", "unranked": "-"}
_UNRANKED: Final = {"misplaced": ", partly elsewhere", "uncalibrated": ", not calibrated"}


def print_result(ranked: Sequence[Ranked], objectives: Sequence[str], console: Console) -> None:
    """Print costs by device and backend, then the failures; a narrow window gets no intervals and no remarks.

    Power and peak memory have a column where they are among the objectives.
    """
    done = sorted((r for r in ranked if r.row.status != "failed"), key=_order)
    if done:
        wide = console.width >= _WIDE_COLUMNS
        extra = [objective for objective in _EXTRA if objective in objectives]
        console.print(_wide_table(done, extra) if wide else _narrow_table(done, extra))
        console.print("* on the frontier of its series   ~ cannot be told from it   - not ranked", style="dim")
        if not wide:
            console.print("intervals, sizes and remarks are in frontier.csv, or here in a wider window", style="dim")
    _print_failures([r.row for r in ranked if r.row.status == "failed"], console)


def _wide_table(done: Sequence[Ranked], extra: Sequence[str]) -> Table:
    table = plain_table()
    for heading in ("", "device", "processor", "backend", "precision", "latency", "source"):
        table.add_column(heading, no_wrap=heading != "latency")
    metered = any(entry.row.energy_source == "measured" for entry in done)
    for heading in (
        "energy (modelled unless metered)" if metered else "energy (modelled)",
        *extra,
        "size",
        "output error",
        "remark",
    ):
        table.add_column(heading)
    for entry in done:
        table.add_row(*_cells(entry, extra))
    return table


def _narrow_table(done: Sequence[Ranked], extra: Sequence[str]) -> Table:
    headings = ("", "where", "backend", "precision", "latency", "source", "energy", *extra, "error")
    table = plain_table(*headings, overflow="fold")
    for entry in done:
        row = entry.row
        error = row.error_verdict or "-" if row.sqnr_db is None else f"{significant(row.sqnr_db)} dB"
        table.add_row(
            _MARKS[entry.standing],
            f"{row.device}/{row.processor}",
            row.backend,
            _variant(row),
            seconds(row.latency_s),
            source_text(row),
            _energy(row, joules(row.energy_j)),
            *_extra_cells(row, extra),
            error,
        )
    return table


def _order(entry: Ranked) -> tuple[str, str, str, float]:
    row = entry.row
    return row.device, row.processor, row.backend, row.latency_s or 0.0


def _cells(entry: Ranked, extra: Sequence[str]) -> tuple[str, ...]:
    row = entry.row
    return (
        _MARKS[entry.standing],
        row.device,
        row.processor,
        row.backend,
        _variant(row),
        interval(seconds(row.latency_s), seconds(row.latency_low_s), seconds(row.latency_high_s)),
        source_text(row),
        _energy(row, interval(joules(row.energy_j), joules(row.energy_low_j), joules(row.energy_high_j))),
        *_extra_cells(row, extra),
        size(row.artefact_bytes),
        error_text(row),
        _remark(row),
    )


def source_text(row: Row) -> str:
    """Say where a latency comes from, and in a word why it is not ranked."""
    return (row.latency_source or "") + _UNRANKED.get(row.status, "")


def _extra_cells(row: Row, extra: Sequence[str]) -> list[str]:
    low_w, high_w = row.power_bounds_w or (row.power_w, row.power_w)
    power = interval(watts(row.power_w), watts(low_w), watts(high_w))
    written = {"power": power, "memory": size(row.peak_memory_bytes)}
    return [written[objective] for objective in extra]


def _energy(row: Row, text: str) -> str:
    return f"{text} metered, {joules(row.energy_net_j)} above idle" if row.energy_source == "measured" else text


def _variant(row: Row) -> str:
    return " ".join(filter(None, [row.precision, row.options]))


def error_text(row: Row) -> str:
    """Say how the outputs compare with the reference."""
    if row.error_verdict is None:
        return row.runs_on or "-"
    if row.cosine is None:  # integers, an all-zero side, or names and shapes that differ
        largest = "" if row.relative_max is None else f", at most {significant(row.relative_max)} of the peak"
        return f"{row.error_verdict}{largest}"
    sqnr = "exact" if row.sqnr_db is None else f"{significant(row.sqnr_db)} dB"
    return f"cos {row.cosine:.5f}, {sqnr}"


def _remark(row: Row) -> str:
    parts = [row.reason] if row.reason else []
    if row.cuts:
        parts.append(f"cut at {', '.join(row.cuts)}")
    return "; ".join([*parts, *row.notes])


def _print_failures(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    console.print(f"\n{counted(len(rows), 'candidate')} came to nothing:", style="bold")
    for row in rows:
        about = f"{row.backend} {row.device}/{row.processor} {_variant(row)}"
        console.print(f"  {about} ({row.failed_action}): {row.reason}")
