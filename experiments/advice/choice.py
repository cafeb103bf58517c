"""Simulated runs and demands to a choice with its reasons: plain values in, sentences out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from experiments.units import joules, seconds, significant, size, watts
from partition import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.sustained_job import Run
    from partition import Device

_FLOOR_SHARE: Final = 0.4
_NOTABLE_SHARE: Final = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """What the deployment asks for; None = not asked. `slack_ratio` is the latency given away for less energy (R13)."""

    deadline_s: float | None = None
    cap_w: float | None = None
    slack_ratio: float = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The run to deploy, None when nothing meets the demands, and the sentences that say why."""

    run: Run | None
    sentences: tuple[str, ...]


def choose(runs: Sequence[Run], demands: Demands, device: Device) -> Choice:
    """Choose the least energy of what meets the demands: under a deadline of all, else near the fastest.

    Raises:
        ValueError: there is no run.
    """
    if not runs:
        raise ValueError("there is nothing to choose from")
    refusals = {run.name: _refusal(run, demands) for run in runs}
    able = [run for run in runs if refusals[run.name] is None]
    if not able:
        nearest = min(runs, key=_p99)
        reasons = [f"{run.name} {refusals[run.name]}" for run in sorted(runs, key=_p99)[:3]]
        return Choice(run=None, sentences=(f"Nothing meets the demands; the nearest is {nearest.name}.", *reasons))
    best = _best(able, demands)
    sentences = [_headline(best), *_against_fastest(best, runs, refusals, demands), *_ties(best, able)]
    for processor in dict.fromkeys(run.row.processor for run in runs if run.row.processor != best.row.processor):
        rival = _best([run for run in runs if run.row.processor == processor], Demands())
        sentences.append(_why_not(best, rival, refusals[rival.name], device))
    missed = sum(reason is not None for reason in refusals.values())
    if missed:
        sentences.append(f"{missed} of {len(runs)} candidates miss the demands.")
    return Choice(run=best, sentences=tuple(sentences))


def _refusal(run: Run, demands: Demands) -> str | None:
    result = run.result
    if not result.keeps_up:
        return "cannot keep up with the requests"
    if demands.deadline_s is not None and _p99(run) > demands.deadline_s:
        return f"misses the deadline: p99 {seconds(_p99(run))} against {seconds(demands.deadline_s)}"
    power_w = float(result.power_w.mean())
    if demands.cap_w is not None and power_w > demands.cap_w:
        return f"draws {watts(power_w)} against a cap of {watts(demands.cap_w)}"
    return None


def _best(runs: Sequence[Run], demands: Demands) -> Run:
    """Take the least energy under a deadline; else of those whose mean latency is within the slack of the least."""
    if demands.deadline_s is not None:
        return min(runs, key=_energy)
    fastest = min(_mean(run) for run in runs)
    return min((run for run in runs if _mean(run) <= (1.0 + demands.slack_ratio) * fastest), key=_energy)


def _headline(run: Run) -> str:
    return (
        f"Deploy {run.name}: mean {seconds(_mean(run))}, p99 {seconds(_p99(run))}, {joules(_energy(run))} per inference"
        f" with idling, {watts(float(run.result.power_w.mean()))} on average, die at most"
        f" {significant(float(run.result.temperatures_c[:, 0].max()))} degC"
        f" (latency {run.row.latency_source}, the rest modelled)."
    )


def _against_fastest(best: Run, runs: Sequence[Run], refusals: dict[str, str | None], demands: Demands) -> list[str]:
    answering = [run for run in runs if run.result.requests]
    fastest = min(answering, key=_mean)
    if fastest is best:
        return ["It is also the fastest."]
    reason = refusals[fastest.name]
    if reason is not None:
        return [f"{fastest.name} is faster ({seconds(_mean(fastest))}), but {reason}."]
    more = _energy(fastest) / _energy(best) - 1.0
    if more <= 0.0:  # within the slack of the fastest, which takes no more energy either
        return []
    told = f"{fastest.name} is faster ({seconds(_mean(fastest))}), and takes {more:.0%} more energy"
    if demands.deadline_s is not None:
        return [f"{told} to no use."]
    return [f"{told} for {1.0 - _mean(fastest) / _mean(best):.1%} less latency{_moved(fastest, best)}."]


def _moved(fastest: Run, best: Run) -> str:
    """Say what both move through the DRAM, where that is known, and whether their energies can be told apart."""
    moved = fastest.row.dram_bytes, best.row.dram_bytes
    text = "" if None in moved else f", with {size(moved[0])} through the DRAM against {size(moved[1])}"
    low_j, high_j = best.row.energy_low_j, best.row.energy_high_j
    rival_low_j, rival_high_j = fastest.row.energy_low_j, fastest.row.energy_high_j
    if None in (low_j, high_j, rival_low_j, rival_high_j):
        return text
    apart = (rival_low_j or 0.0) > (high_j or 0.0)
    bounds = f"{joules(low_j)} to {joules(high_j)} against {joules(rival_low_j)} to {joules(rival_high_j)}"
    return f"{text}; working, they take {bounds}{'' if apart else ', which may be the same'}"


def _ties(best: Run, able: Sequence[Run]) -> list[str]:
    """Name who may be as fast: the intervals of the rows' latencies overlap, whatever the simulation adds to both."""
    low_s, high_s = _interval(best)
    others = [
        run.name for run in able if run is not best and _interval(run)[0] <= high_s and _interval(run)[1] >= low_s
    ]
    return [f"By the intervals of their latencies {', '.join(others)} may be as fast: a tie."] if others else []


def _interval(run: Run) -> tuple[float, float]:
    row, typical_s = run.row, run.row.latency_s or float("inf")
    return row.latency_low_s or typical_s, row.latency_high_s or typical_s


def _why_not(best: Run, rival: Run, refusal: str | None, device: Device) -> str:
    """Say why the best candidate of another processor is not it: dispatch, waking, heat, or just slower."""
    about = f"On {rival.row.processor} the best is {rival.name}"
    if rival.result.requests == 0:
        return f"{about}, which answers nothing in time."
    figures = f"{seconds(_mean(rival))}, {joules(_energy(rival))}"
    causes = _causes(rival, device)
    if refusal is not None:
        causes.insert(0, f"it {refusal}")
    if not causes:
        ratio = _mean(rival) / _mean(best)
        causes.append(
            f"{significant(ratio)} times the latency, {significant(_energy(rival) / _energy(best))} the energy"
        )
    return f"{about} ({figures}): {'; '.join(causes)}."


def _causes(run: Run, device: Device) -> list[str]:
    causes, row, result = [], run.row, run.result
    try:
        dispatch = device.processor(row.processor).dispatch_s
    except DeviceError:
        dispatch = None  # a plan over several processors has no one dispatch
    if dispatch is not None and row.latency_s and dispatch.value >= _FLOOR_SHARE * row.latency_s:
        share = min(dispatch.value / row.latency_s, 1.0)
        causes.append(f"the dispatch floor of {seconds(dispatch.value)} is {share:.0%} of its time")
    waking_s = result.waking_s / max(result.requests, 1)
    if waking_s > _NOTABLE_SHARE * _mean(run):
        causes.append(f"waking up costs {seconds(waking_s)} per inference ({result.wakes} times)")
    if result.throttled_ratio > _NOTABLE_SHARE:
        causes.append(f"heat holds its clock back {result.throttled_ratio:.0%} of the time")
    return causes


def _mean(run: Run) -> float:
    return run.mean_s() or float("inf")


def _p99(run: Run) -> float:
    return run.result.quantile_s(0.99) or float("inf")


def _energy(run: Run) -> float:
    return run.energy_j() or float("inf")
