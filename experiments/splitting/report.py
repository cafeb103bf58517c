"""The result as text and files: the frontier with its proof, the strategies with their gaps, prediction and truth."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from experiments import store
from experiments.console import plain_table
from experiments.mixing import decibels
from experiments.model import about
from experiments.split_costs import handed_over, is_int8, moved_bytes
from experiments.table import source_text
from experiments.units import counted, joules, ratio_db, seconds, significant, size, watts
from graphs import unused_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from experiments.splitting.request import Request
    from experiments.splitting.search import Found, Rival
    from experiments.splitting.sensitivity import Sensitivity
    from experiments.splitting.verify import Verified
    from partition.search import Piece, Solution

_SHOWN: Final = 20
_LONG: Final = 6


def announce(request: Request, console: Console) -> None:
    """Say what is searched, before it takes its time."""
    graph, problem = request.graph, request.problem
    console.print(about(graph))
    places = ", ".join(map(str, request.places))
    cuts = f"{len(problem.nodes)} nodes to cut between" if problem.members else f"{len(problem.nodes)} operators"
    console.print(f"{request.device.title}: places {places}; {request.options.mode}; {cuts}")
    refused = {node: reasons for node, reasons in problem.refusals.items() if reasons}
    if refused:
        node, reasons = next(iter(refused.items()))
        place, why = next(iter(reasons.items()))
        what = "1 node has a refusal:" if len(refused) == 1 else f"{len(refused)} nodes have refusals, for example"
        console.print(f"{what} {node} on {place}: {why}")
    unused = unused_inputs(graph)
    if unused:
        console.print(f"no node reads {', '.join(unused)}", style="yellow")
    for note in request.notes:
        console.print(note, style="yellow")


def print_found(request: Request, found: Found, console: Console) -> None:
    """Print the proof, then the frontier."""
    console.print(f"\n{proof(found)}", style="bold")
    table = _table("", "latency", "energy", *_extra_headings(found), "power", "moved", "segments")
    shown = found.solutions[:_SHOWN]
    for number, s in enumerate(shown, 1):
        extra = [seconds(s.period_s)] if found.solutions[0].period_s is not None else []
        extra += [size(s.memory_bytes)] if found.solutions[0].memory_bytes is not None else []
        extra += [ratio_db(decibels(s.error))] if found.solutions[0].error is not None else []
        moved = size(moved_bytes(request.operators, s.segments))
        power = watts(s.energy_j / s.latency_s if s.latency_s else None)
        cells = [str(number), seconds(s.latency_s), joules(s.energy_j), *extra, power, moved]
        table.add_row(*cells, describe(s.segments))
    console.print(table)
    if len(found.solutions) > len(shown):
        console.print(f"and {len(found.solutions) - len(shown)} more in plans.csv", style="dim")


def proof(found: Found) -> str:
    """Say in one or two sentences how far the frontier can be from the optimum, and of what."""
    plans = counted(len(found.solutions), "plan")
    exact = "exact" if found.gap_ratio == 0 else f"proved within {found.gap_ratio:.2%} in every objective"
    lines = [f"{plans}, {exact} in: {found.space} ({significant(found.seconds)} s)."]
    if found.lazy is None:
        effort = found.frontier.effort
        lines.append(f"Looked at {effort.states:,} states, {effort.arcs:,} arcs, {effort.labels:,} labels.")
    else:
        used, possible = found.lazy.oracle_calls, found.lazy.possible_calls
        share = f" ({used / possible:.1%})" if possible else ""
        lines.append(f"Compiled {used} of {possible} different segments{share} in {found.lazy.rounds} rounds.")
        if found.refused:
            lines.append(f"{len(found.refused)} were refused, for example {found.refused[0]}.")
        if found.lazy.bound_scale < 1:
            lines.append(
                f"A lower bound of the model proved too high: {found.lazy.bound_scale:.3g} of it was the cost. All"
                " were lowered by that; the proof assumes that none is too high again."
            )
    return " ".join(lines)


def _extra_headings(found: Found) -> list[str]:
    first = found.solutions[0]
    return [
        name
        for name, known in (("period", first.period_s), ("peak memory", first.memory_bytes), ("SQNR", first.error))
        if known is not None
    ]


def describe(pieces: Sequence[Piece]) -> str:
    """Write a plan on one line: the places in order with their operators."""
    several = len({(p.place.processor, p.place.backend) for p in pieces}) > len({p.place.processor for p in pieces})
    mixed = len({is_int8(p.place) for p in pieces}) > 1
    parts = []
    for piece in pieces:
        place = piece.place
        name = "/".join([place.processor, *[place.backend] * several, *[place.precision] * mixed])
        ends = piece.nodes[0] if len(piece.nodes) == 1 else f"{piece.nodes[0]} .. {piece.nodes[-1]}"
        parts.append(f"{name} {len(piece.nodes)} ({ends})")
    if len(parts) > _LONG:
        middle = len(parts) - _LONG
        parts = [*parts[: _LONG // 2], f"... {middle} more ...", *parts[-_LONG // 2 :]]
    return " | ".join(parts)


def print_rivals(rivals: Sequence[Rival], console: Console) -> None:
    """Print the usual strategies with their gaps; all on modelled costs, sequential."""
    pipelined = any(r.period_s is not None for r in rivals)
    headings = ("period", "over the best") if pipelined else ()
    table = _table("strategy", "latency", "energy", *headings, "over the fastest", "from the frontier", "segments")
    for r in rivals:
        period = (seconds(r.period_s), _percent(r.period_gap_ratio)) if pipelined else ()
        gaps = (_percent(r.latency_gap_ratio), _percent(r.front_gap_ratio))
        table.add_row(r.name, seconds(r.latency_s), joules(r.energy_j), *period, *gaps, str(len(r.segments)))
    console.print("\nUsual strategies, on the modelled costs:", style="bold")
    console.print(table)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{round(ratio, 3) + 0.0:+.1%}"  # never "-0.0%"


def print_verified(verified: Sequence[Verified], mode: str, console: Console) -> None:
    """Print prediction beside what the compiled plan came to, and the output error of the stitched run."""
    console.print("\nCut, compiled and stitched:", style="bold")
    period = ("period", "predicted") if mode == "pipelined" else ()
    noise = ("SQNR", "predicted") if any(v.chosen.noise is not None for v in verified) else ()
    costs = ("latency", "predicted", "source", "energy", "predicted", "moved")
    table = _table("", *period, *costs, *noise, "stitched output", "ran on")
    done = [(v, v.row) for v in verified if v.row is not None and v.reason is None]
    for v, row in done:
        cells = [seconds(v.period_s), _beside(v.chosen.period_s, v.period_s, seconds)] if period else []
        cells += [seconds(v.latency_s), _beside(v.chosen.latency_s, v.latency_s, seconds), source_text(row)]
        cells += [joules(v.energy_j), _beside(v.chosen.energy_j, v.energy_j, joules), size(v.moved_bytes)]
        cells += [ratio_db(row.sqnr_db), ratio_db(decibels(v.chosen.noise))] if noise else []
        table.add_row(v.chosen.name, *cells, stitched(row), row.runs_on or "-")
    if done:
        console.print(table)
    for v, row in done:
        if row.reason:
            console.print(f"  {v.chosen.name} is not drawn: {row.reason}")
    for v in (v for v in verified if v.reason is not None):
        console.print(f"  {v.chosen.name} came to nothing: {v.reason}")
    for note in dict.fromkeys(n for v in verified if v.row for n in v.row.notes):
        console.print(f"  {note}", style="dim")


def _beside(predicted: float | None, obtained: float | None, write: Callable[[float | None], str]) -> str:
    if predicted is None or not obtained:
        return write(predicted)
    return f"{write(predicted)} ({predicted / obtained - 1:+.0%})"


def stitched(row: store.Row) -> str:
    """Say how the stitched outputs compare with the reference."""
    if row.error_verdict is None:
        return "not run here"
    if row.cosine is None or row.relative_max is None:
        return row.error_verdict
    return f"largest error {row.relative_max:.2g} of the largest value, cos {row.cosine:.5f}"


def print_sensitivity(found: Sensitivity, console: Console) -> None:
    """Print the fastest plan of each way to cut, as R7 does."""
    console.print("\nWhere the graph is cut (fastest plan of each way, modelled):", style="bold")
    table = _table("cut", "latency", "energy", "moved", "segments")
    for g in found.granularities:
        table.add_row(g.name, seconds(g.latency_s), joules(g.energy_j), size(g.moved_bytes), str(g.segments))
    console.print(table)
    for reason in found.left_out:
        console.print(f"  left out: {reason}")


def _table(*headings: str) -> Table:
    table = plain_table()
    for heading in headings:
        table.add_column(heading, no_wrap=heading not in {"segments", "stitched output", "ran on"})
    return table


PLAN_FIELDS: Final = (
    "number", "latency_s", "energy_j", "period_s", "memory_bytes", "sqnr_db", "moved_bytes", "segments", "places",
    "cuts",
)  # fmt: skip
VERIFIED_FIELDS: Final = (
    "name", "status", "latency_s", "predicted_latency_s", "latency_source", "energy_j", "predicted_energy_j",
    "period_s", "predicted_period_s", "moved_bytes", "segments", "error_verdict", "cosine", "sqnr_db",
    "predicted_sqnr_db", "relative_max", "runs_on", "plan_digest", "reason",
)  # fmt: skip
CUT_FIELDS: Final = (
    "position", "after", "first", "second", "latency_s", "energy_j", "moved_bytes", "fused_group_border",
    "single_tensor",
)  # fmt: skip


def write_found(request: Request, found: Found, rivals: Sequence[Rival]) -> None:
    """Write plans.csv, plans.json and search.json."""
    lines = [_plan_line(request, number, s) for number, s in enumerate(found.solutions, 1)]
    store.write_csv(request.folder / "plans.csv", PLAN_FIELDS, lines)
    store.write_json(request.folder / "plans.json", [_plan(s) for s in found.solutions])
    store.write_json(request.folder / "search.json", _search(request, found, rivals))


def _plan_line(request: Request, number: int, s: Solution) -> dict[str, object]:
    return {
        "number": number,
        "latency_s": s.latency_s,
        "energy_j": s.energy_j,
        "period_s": s.period_s,
        "memory_bytes": s.memory_bytes,
        "sqnr_db": decibels(s.error),
        "moved_bytes": moved_bytes(request.operators, s.segments),
        "segments": len(s.segments),
        "places": "|".join(str(p.place) for p in s.segments),
        "cuts": "|".join(handed_over(request.variant, s.segments)),
    }


def _plan(s: Solution) -> dict[str, object]:
    return {
        "latency_s": s.latency_s,
        "energy_j": s.energy_j,
        "period_s": s.period_s,
        "memory_bytes": s.memory_bytes,
        "noise_ratio": s.error,
        "segments": [{"place": dataclasses.asdict(p.place), "nodes": p.nodes} for p in s.segments],
    }


def _search(request: Request, found: Found, rivals: Sequence[Rival]) -> dict[str, object]:
    lazy = found.lazy
    return {
        "mode": request.options.mode,
        "objectives": request.objectives,
        "space": found.space,
        "gap_ratio": found.gap_ratio,
        "oracle": request.options.oracle,
        "oracle_calls": None if lazy is None else lazy.oracle_calls,
        "possible_calls": None if lazy is None else lazy.possible_calls,
        "bound_scale": None if lazy is None else lazy.bound_scale,
        "refused": found.refused,
        "effort": dataclasses.asdict(found.frontier.effort),
        "seconds": found.seconds,
        "pins": dict(request.options.pins),
        "strategies": [
            {k: v for k, v in dataclasses.asdict(r).items() if k != "segments"} | {"segments": len(r.segments)}
            for r in rivals
        ],
    }


def write_verified(request: Request, verified: Sequence[Verified]) -> None:
    """Write verified.csv."""
    store.write_csv(request.folder / "verified.csv", VERIFIED_FIELDS, map(_verified_line, verified))


def _verified_line(v: Verified) -> dict[str, object]:
    row = dataclasses.asdict(v.row) if v.row else {}
    return {
        **row,
        "name": v.chosen.name,
        "status": row.get("status", "not compiled"),
        "latency_s": v.latency_s,
        "energy_j": v.energy_j,
        "period_s": v.period_s,
        "predicted_latency_s": v.chosen.latency_s,
        "predicted_energy_j": v.chosen.energy_j,
        "predicted_period_s": v.chosen.period_s,
        "predicted_sqnr_db": decibels(v.chosen.noise),
        "moved_bytes": v.moved_bytes,
        "segments": len(v.chosen.pieces),
        "reason": v.reason or row.get("reason"),
    }


def write_sensitivity(request: Request, found: Sensitivity) -> None:
    """Write cuts.csv."""
    store.write_csv(request.folder / "cuts.csv", CUT_FIELDS, _cut_lines(request, found))


def _cut_lines(request: Request, found: Sensitivity) -> Iterator[dict[str, object]]:
    for cut in found.cuts:
        yield {
            **dataclasses.asdict(cut),
            "after": request.operators.nodes[cut.position - 1],
            "first": str(cut.first),
            "second": str(cut.second),
            "fused_group_border": cut.position in found.border_positions,
            "single_tensor": cut.position in found.single_positions,
        }
