"""The search that a request asks for, and what it found with the proof that goes with it."""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from compilers import CompilerError
from experiments.arguments import UserError
from experiments.mixing import STEPS, decibels, in_steps, int8_work, measured_noise, with_noise
from experiments.split_costs import is_int8, members
from experiments.splitting.bounds import lower_bounds, peak_memory_table, set_bounds
from experiments.splitting.oracle import CompileOracle, structural_key
from partition.search import (
    Baselines,
    Conflict,
    Frontier,
    Infeasible,
    LazyFrontier,
    Piece,
    Solution,
    Transfer,
    certified_cover,
    lazy_convex,
    lazy_frontier,
    ratio_over,
    search,
    search_parallel,
    search_segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.evaluator import Context
    from experiments.splitting.request import Request
    from partition.search import Place


ROUNDING: Final = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """All plans found, in the space named, and how far they can be from the optimum of that space.

    `lazy` is there when costs were compiles. `seconds` is the time of the search, compiles included.
    """

    solutions: tuple[Solution, ...]
    frontier: Frontier
    space: str
    gap_ratio: float
    lazy: LazyFrontier | None
    refused: tuple[str, ...]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """A plan of a usual strategy on the modelled costs, and its gaps to the frontier of (latency, energy).

    `period_gap_ratio` and `period_s` are there for pipelined execution.
    """

    name: str
    segments: tuple[Piece, ...]
    latency_s: float
    energy_j: float
    latency_gap_ratio: float
    front_gap_ratio: float
    period_s: float | None
    period_gap_ratio: float | None


def find(request: Request, context: Callable[[], Context], tell: Callable[[str], None]) -> Found:
    """Search as the request says; `context` is made only when segments are compiled.

    Raises:
        Infeasible: no plan meets the constraints, with which and by how much.
        TooWide: the exact state space passed its limit.
    """
    start = time.perf_counter()
    lazy: LazyFrontier | None = None
    refused: tuple[str, ...] = ()
    if request.options.oracle == "compile":
        lazy, refused = _by_compiles(request, context(), tell)
        if lazy.frontier is None:
            raise Infeasible((_nothing_known(lazy, refused),))
        found, gap = lazy.frontier, lazy.gap_ratio
    else:
        found = _by_model(request, context)
        gap = found.gap_ratio
    space = found.space
    if request.options.mode == "parallel":
        solutions, space, gap = _with_sequential(request, found)
    else:
        solutions = tuple(sorted(found, key=lambda s: (s.latency_s, s.energy_j)))
    if request.wants_error:
        solutions, space = _with_full_noise(request, context(), solutions), f"{space}; noise in {STEPS} steps"
    return Found(
        solutions=solutions,
        frontier=found,
        space=space,
        gap_ratio=gap,
        lazy=lazy,
        refused=refused,
        seconds=time.perf_counter() - start,
    )


def _by_model(request: Request, context: Callable[[], Context]) -> Frontier:
    problem, options = request.problem, request.options
    if request.wants_error:
        return _with_error(request, context())
    if options.mode == "parallel":
        return search_parallel(problem, contention=options.contention)
    if request.wants_memory:
        table = peak_memory_table(request.variant, problem)
        return search_segments(problem, table, objectives=request.objectives, constraints=request.constraints)
    if options.gap:
        return certified_cover(problem, options.gap, space=request.space)
    return search(problem, space=request.space, objectives=request.objectives, constraints=request.constraints)


def _with_error(request: Request, context: Context) -> Frontier:
    """Search with the noise that each operator in int8 was measured to put on the outputs."""
    problem = with_noise(request.problem, in_steps(_noise(request, context)))
    try:
        return search(problem, space=request.space, objectives=request.objectives, constraints=request.constraints)
    except Infeasible as error:
        raise Infeasible(tuple(map(_in_decibels, error.conflicts))) from error


def _noise(request: Request, context: Context) -> tuple[float, ...]:
    assert request.mixer is not None, "checked with the arguments"
    parts = [members(request.problem, [node]) for node in request.problem.nodes]
    try:
        return measured_noise(request.mixer, parts, context.feed, context.reference, context.build)
    except CompilerError as error:
        raise UserError(f"the error of {request.graph.name} in int8 cannot be measured: {error.reason}") from error


def _with_full_noise(request: Request, context: Context, found: Sequence[Solution]) -> tuple[Solution, ...]:
    """Give the plans the noise that was measured, without the steps of the search, and keep those within the limit.

    Raises:
        Infeasible: none is; the steps let a plan pass that is above the limit by less than one.
    """
    problem, noise = request.problem, _noise(request, context)
    of = {members(problem, [node])[0]: one for node, one in zip(problem.nodes, noise, strict=True)}
    cap = request.constraints.error_cap
    noises = [sum(of.get(n, 0.0) for p in s.segments if is_int8(p.place) for n in p.nodes) for s in found]
    kept = [(s, error) for s, error in zip(found, noises, strict=True) if cap is None or error <= cap * (1 + ROUNDING)]
    if cap is not None and not kept:
        raise Infeasible((_error_conflict(cap, min(noises)),))
    return tuple(dataclasses.replace(s, error=error) for s, error in kept)


def _in_decibels(conflict: Conflict) -> Conflict:
    if conflict.constraint != "error cap":
        return conflict
    return _error_conflict(conflict.limit, conflict.best)


def _error_conflict(cap: float, least: float) -> Conflict:
    limit, best = decibels(cap) or 0.0, decibels(least) or 0.0
    sentence = f"--min-sqnr {limit:.4g} dB: the most reachable is {best:.4g} dB, {limit - best:.3g} dB too little"
    return Conflict(constraint="min sqnr", limit=limit, best=best, unit="dB", sentence=sentence)


def _by_compiles(
    request: Request, context: Context, tell: Callable[[str], None]
) -> tuple[LazyFrontier, tuple[str, ...]]:
    # What a compiled segment costs holds its boundary tensors' way to and from DRAM already.
    problem = dataclasses.replace(
        request.problem,
        transfers={pair: _handover(t) for pair, t in request.problem.transfers.items()},
    )
    oracle = CompileOracle(request.part, request.device, problem, context, tell)
    about = (request.variant, request.device, problem, _modelled_by(request))
    lowered = None if request.mixer is None else int8_work(request.mixer)
    ask: Callable[..., LazyFrontier]
    if request.options.where == "convex":
        ask = partial(lazy_convex, problem, set_bounds(*about, lowered))
    else:
        ask = partial(lazy_frontier, problem, lower_bounds(*about, lowered))
    lazy = ask(
        oracle,
        gap_ratio=request.options.gap,
        max_calls=request.options.max_compiles,
        key=structural_key(request.variant, problem),
        objectives=request.objectives,
        constraints=request.constraints,
    )
    return lazy, tuple(oracle.refused)


def _handover(transfer: Transfer) -> Transfer:
    """Keep the synchronisation; and a conversion between precisions, which no segment has when it is compiled."""
    return transfer if math.isfinite(transfer.bytes_per_s) else Transfer(latency_s=transfer.latency_s)


def _modelled_by(request: Request) -> Callable[[Place], bool]:
    """Tell the places whose segments nothing simulates or predicts, so that the model is all there is."""
    from compilers import Action, get_compiler

    def modelled(place: Place) -> bool:
        fitted = any(request.latencies.find(request.device.name, place.backend, p) for p in (place.precision, "w8a16"))
        simulated = get_compiler(place.backend).available(Action.ESTIMATE, request.device, place.processor)
        return not fitted and not simulated

    return modelled


def _nothing_known(lazy: LazyFrontier, refused: tuple[str, ...]) -> Conflict:
    reasons = f"; {len(refused)} segments were refused, the last one {refused[-1]}" if refused else ""
    return Conflict(
        constraint="compiles",
        limit=lazy.oracle_calls,
        best=lazy.possible_calls,
        unit="compiles",
        sentence=f"no plan is known completely after {lazy.oracle_calls} of {lazy.possible_calls} compiles"
        f" (--max-compiles){reasons}",
    )


def _with_sequential(request: Request, found: Frontier) -> tuple[tuple[Solution, ...], str, float]:
    """Join schedules of parallel branches with sequential plans, which pay one dispatch for a whole segment.

    A schedule pays a dispatch per node, so either may be better; a deadline bounds one of the two objectives, so
    what it leaves of the joint frontier is the frontier under it.
    """
    sequential = search(request.problem, space=request.space)
    every = sorted([*found, *sequential], key=lambda s: (s.latency_s, s.energy_j))
    best: list[Solution] = []
    for s in every:
        if not best or s.energy_j < best[-1].energy_j:
            best.append(s)
    _check_deadline(request, best[0].latency_s)
    deadline = request.constraints.deadline_s
    kept = tuple(s for s in best if deadline is None or s.latency_s <= deadline)
    # The sequential plans are exact in their space, so what is left is how much better a schedule can be than any.
    gap = found.gap_with(np.array([(s.latency_s, s.energy_j) for s in best]))
    return kept, f"{found.space}, and sequential plans of {sequential.space}", gap


def _check_deadline(request: Request, best: float) -> None:
    deadline = request.constraints.deadline_s
    if deadline is not None and best > deadline:
        sentence = f"deadline {deadline:.6g} s: the least reachable is {best:.6g} s, {best - deadline:.3g} s too much"
        raise Infeasible((Conflict(constraint="deadline", limit=deadline, best=best, unit="s", sentence=sentence),))


def rivals(request: Request, found: Found) -> tuple[Rival, ...]:
    """Cost the usual strategies on the modelled costs and say how far each is from the exact frontier.

    The frontier is that of sequential execution: the one found, where it is over modelled latency and energy without
    constraints, else one searched for this.
    """
    problem = request.problem
    reference = found.frontier if _is_reference(request) else search(problem, space=request.space)
    periods = [s.period_s for s in found.solutions if s.period_s is not None]
    made = []
    judge = Baselines(problem, reference)
    for s in judge.all(request.options.rule_threshold):
        period = judge.period_s(s.segments) if periods else None
        made.append(
            Rival(
                name=s.name,
                segments=s.segments,
                latency_s=s.latency_s,
                energy_j=s.energy_j,
                latency_gap_ratio=s.latency_gap_ratio,
                front_gap_ratio=s.front_gap_ratio,
                period_s=period,
                period_gap_ratio=None if period is None else ratio_over(period, min(periods)),
            )
        )
    return tuple(made)


def _is_reference(request: Request) -> bool:
    plain = request.objectives == ("latency", "energy") and not request.wants_memory
    limits = request.constraints
    capped = (limits.deadline_s, limits.power_cap_w, limits.memory_cap_bytes, limits.max_segments, limits.error_cap)
    free = all(x is None for x in capped)
    return plain and free and request.options.oracle == "model" and request.options.mode == "sequential"
