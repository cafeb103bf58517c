"""Closing the loop: cut, compile, run and stitch plans, then hold what they cost against what was predicted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Final

from compilers import Action, get_compiler
from experiments import store
from experiments.evaluator import Context, Failure, compile_plan, depends_on, evaluate, handovers
from experiments.split_costs import handed_over, moved_bytes, plan_of, value
from experiments.units import counted
from partition.search import Constraints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from experiments.splitting.request import Request
    from experiments.splitting.search import Found, Rival
    from partition import Plan
    from partition.search import Piece, Place

_PROTOCOL: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A plan to verify: where it comes from and what the search predicts.

    `period_s` is there in pipelined mode only, `noise` (over signal) where the error of the outputs is searched.
    """

    name: str
    pieces: tuple[Piece, ...]
    latency_s: float
    energy_j: float
    period_s: float | None
    noise: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """A plan as it was cut, compiled and run: the row of the store, and its costs in the mode searched.

    `latency_s` is the sum of the segments and handovers (sequential, pipelined) or the end of the schedule
    (parallel); all None when the plan came to nothing, for the reason in `reason`.
    """

    chosen: Chosen
    moved_bytes: int
    row: store.Row | None
    reason: str | None
    latency_s: float | None = None
    energy_j: float | None = None
    period_s: float | None = None


def choose(request: Request, found: Found, others: Sequence[Rival]) -> tuple[Chosen, ...]:
    """Choose plans along the frontier, ends first; where it has fewer, the best strategies that split fill up.

    Strategies know no constraints, so under constraints none fills up.
    """
    count = request.options.verify
    numbers = _spread(len(found.solutions), count)
    chosen = [
        Chosen(
            name=f"plan {number + 1}",
            pieces=s.segments,
            latency_s=s.latency_s,
            energy_j=s.energy_j,
            period_s=s.period_s,
            noise=s.error,
        )
        for number, s in ((n, found.solutions[n]) for n in numbers)
    ]
    free = request.constraints == Constraints()
    for rival in sorted(others, key=lambda r: r.latency_s) if free else ():
        new = _parts(rival.segments) not in [_parts(c.pieces) for c in chosen]
        if len(chosen) < count and new and len({p.place for p in rival.segments}) > 1:
            chosen.append(
                Chosen(
                    name=rival.name,
                    pieces=rival.segments,
                    latency_s=rival.latency_s,
                    energy_j=rival.energy_j,
                    period_s=rival.period_s,
                )
            )
    return tuple(chosen)


def _parts(pieces: Sequence[Piece]) -> set[tuple[Place, frozenset[str]]]:
    """Return a plan without the order of its operators, in which equal plans may differ."""
    return {(piece.place, frozenset(piece.nodes)) for piece in pieces}


def _spread(size: int, count: int) -> list[int]:
    """Choose `count` of `size` places, the ends first and the rest evenly between."""
    if count <= 1 or size <= 1:
        return list(range(min(size, count)))
    count = min(size, count)
    return sorted({round(i * (size - 1) / (count - 1)) for i in range(count)})


def verify(
    request: Request, chosen: Sequence[Chosen], context: Callable[[], Context], tell: Callable[[str], None]
) -> Iterator[Verified]:
    """Yield each plan as it is done, from the store where an earlier run did it."""
    known = store.read_rows(request.folder)
    for one in chosen:
        lost = _no_backend(request, one)
        if lost:
            yield _result(request, one, None, None, lost)
            continue
        plan = plan_of(request.graph, request.device, one.pieces, request.cut(one.pieces))
        key = _key(request, plan)
        row = known.get(key)
        if row is None or store.may_differ_next_time(row):
            tell(f"verifying {one.name}: {counted(len(plan.segments), 'segment')}")
            found = _evaluated(request, plan, key, one, context())
            row = store.better(found, row)
            if row is found:
                store.append_row(request.folder, row)
        yield _result(request, one, plan, row, row.reason if row.status == "failed" else None)


def _no_backend(request: Request, one: Chosen) -> str | None:
    for piece in one.pieces:
        if not piece.place.backend:
            return f"no backend compiles for {piece.place.processor} of {request.device.name} here"
        why = get_compiler(piece.place.backend).why_not(Action.COMPILE, request.device, piece.place.processor)
        if why:
            return why
    return None


def _evaluated(request: Request, plan: Plan, key: str, one: Chosen, context: Context) -> store.Row:
    artefacts = compile_plan(plan, context)
    outcome = artefacts if isinstance(artefacts, Failure) else evaluate(plan, artefacts, context)
    return store.row(plan, key, request.graph.name, handed_over(request.variant, one.pieces), outcome)


def _key(request: Request, plan: Plan) -> str:
    """Name what a row depends on: plan, devices, compilers, machine, inputs and the way of evaluating."""
    parts = [*depends_on(plan), request.calibration.digest, request.latencies.rows_hash, request.options.seed]
    return hashlib.sha256(json.dumps([*parts, "splits", _PROTOCOL]).encode()).hexdigest()[:24]


def _result(request: Request, one: Chosen, plan: Plan | None, row: store.Row | None, reason: str | None) -> Verified:
    moved = moved_bytes(request.operators, one.pieces)
    if plan is None or row is None or row.status == "failed" or row.segment_latency_s is None:
        return Verified(chosen=one, moved_bytes=moved, row=row, reason=reason or "it gave no latency")
    mode = request.options.mode
    parallel, pipelined = mode == "parallel", mode == "pipelined"
    return Verified(
        chosen=one,
        moved_bytes=moved,
        row=row,
        reason=None,
        latency_s=_schedule_s(plan, row.segment_latency_s) if parallel else row.latency_s,
        energy_j=row.energy_j,
        period_s=_period_s(plan, row.segment_latency_s) if pipelined else None,
    )


def _period_s(plan: Plan, latencies_s: Sequence[float]) -> float:
    """Return the time of the busiest processor, with the handovers that it waits for."""
    load: dict[str, float] = {}
    for segment, latency_s, fetched in zip(plan.segments, latencies_s, handovers(plan), strict=True):
        spent = latency_s + len(fetched) * value(plan.device.handover_s)
        load[segment.processor] = load.get(segment.processor, 0.0) + spent
    return max(load.values())


def _schedule_s(plan: Plan, latencies_s: Sequence[float]) -> float:
    """Return the end when each segment starts as soon as its processor is free and its inputs have come."""
    handover_s = value(plan.device.handover_s)
    free: dict[str, float] = {}
    made: dict[str, tuple[float, str]] = {}
    for segment, latency_s in zip(plan.segments, latencies_s, strict=True):
        here = segment.processor
        ready = [free.get(here, 0.0)]
        for spec in segment.graph.inputs():
            if spec.name in made:
                at, where = made[spec.name]
                ready.append(at + (handover_s if where != here else 0.0))
        free[here] = max(ready) + latency_s
        made.update({spec.name: (free[here], here) for spec in segment.graph.outputs()})
    return max(free.values())
