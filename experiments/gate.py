"""Compare two runs candidate by candidate, as noise allows."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import statistics
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments import store
from experiments.evaluator.noise import NoiseError, Ratio, between_runs, drift_ratio, ratio_of_medians
from experiments.units import counted, joules, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_HARDWARE: Final = ("cpu", "cores")
_VERSIONS: Final = ("versions", "compilers")
_MOST_DRIFT: Final = 0.1
_TAIL: Final = 0.95


class GateError(ValueError):
    """Two runs that cannot be compared; the message says why and what helps."""


class Verdict(enum.StrEnum):
    """What a comparison comes to.

    UNCLEAR passes: the noise hides even a change as large as the threshold. UNRANKED: it has a cost in both runs, but
    not of one kind (it came to lie elsewhere than asked, or lost its calibration).
    """

    REGRESSION = "regression"
    BROKEN = "no longer works"
    MISSING = "missing"
    UNRANKED = "does not compare"
    UNCLEAR = "too noisy to tell"
    SAME = "same"
    SLOWER = "slower, within the threshold"
    BETTER = "better"
    NEW = "new"


_BAD: Final = {Verdict.REGRESSION, Verdict.BROKEN, Verdict.MISSING, Verdict.UNRANKED}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The thresholds: current over baseline."""

    latency: float
    energy: float | None
    run_noise: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One candidate in both runs, judged by one quantity."""

    name: str
    quantity: str
    verdict: Verdict
    before: str
    after: str
    ratio: Ratio | None
    remark: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All comparisons and what differs in the surroundings."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """True when anything got worse than allowed."""
        return any(c.verdict in _BAD for c in self.comparisons)


def compare_folders(baseline: Path, current: Path, limits: Limits, *, force: bool = False, seed: int = 0) -> Report:
    """Compare two folders that `experiments.pareto` wrote.

    Raises:
        GateError: a folder has no results or damaged ones, they are of different models, or of different hardware
            without `force`.
    """
    before, after = _rows(baseline), _rows(current)
    models = {row.model for row in (*before.values(), *after.values())}
    if len(models) > 1:
        raise GateError(f"the runs are of different models: {', '.join(sorted(models))}")
    measured = any(row.latency_source == "measured" for row in before.values())
    notes = _surroundings(baseline, current, force=force, matters=measured)
    if not force:
        _see_same_processors(before, after)
    comparisons = [c for name, row in before.items() for c in _compare(name, row, after.get(name), limits, seed)]
    comparisons += [
        Comparison(
            name=name, quantity="latency", verdict=Verdict.NEW, before="-", after=seconds(row.latency_s), ratio=None
        )
        for name, row in after.items()
        if name not in before and row.status != "failed"
    ]
    return Report(comparisons=tuple(comparisons), notes=(*notes, *_unread(baseline), *_unread(current)))


def _rows(folder: Path) -> dict[str, store.Row]:
    if not (folder / store.OUTCOMES_FILE).is_file():
        raise GateError(f"{folder} has no {store.OUTCOMES_FILE}; give the folder that experiments.pareto wrote")
    rows = {_name(row): row for row in store.read_rows(folder).values()}
    if not any(row.status != "failed" for row in rows.values()):
        raise GateError("; ".join([f"{folder} holds no candidate that came to a cost", *_unread(folder)]))
    for name, row in rows.items():
        _see_numbers(folder, name, row)
    return rows


def _unread(folder: Path) -> tuple[str, ...]:
    """Say that some candidates may be missing because their lines cannot be read."""
    count, file = store.unreadable_lines(folder), folder / store.OUTCOMES_FILE
    return (f"{counted(count, 'line')} of {file} cannot be read: cut short, or of another version",) if count else ()


def _see_numbers(folder: Path, name: str, row: store.Row) -> None:
    """Refuse costs that are none: NaN compares as the same as everything."""
    sound = all(value is None or _is_above_zero(value) for value in (row.latency_s, row.energy_j))
    listed = all(isinstance(samples, tuple) for samples in (row.samples_s or (), row.process_medians_s or ()))
    if not (sound and listed and all(map(_is_above_zero, (*(row.samples_s or ()), *(row.process_medians_s or ()))))):
        raise GateError(
            f"{folder / store.OUTCOMES_FILE} is damaged: {name} has a latency, an energy or a sample that is not a "
            "number above 0"
        )


def _is_above_zero(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _name(row: store.Row) -> str:
    cuts = f"cut at {','.join(row.cuts)}" if row.cuts else ""
    return " ".join(filter(None, [row.backend, f"{row.device}/{row.processor}", row.precision, row.options, cuts]))


def _surroundings(baseline: Path, current: Path, *, force: bool, matters: bool) -> tuple[str, ...]:
    """Refuse other hardware where times were measured, and list the versions that differ."""
    before, after = _environment(baseline), _environment(current)
    if matters and not force:
        if before is None or after is None:
            missing = baseline if before is None else current
            raise GateError(f"{missing} has no environment.json, so its hardware is not known; --force compares anyway")
        for key in _HARDWARE:
            if before.get(key) != after.get(key):
                raise GateError(
                    f"the baseline was measured on other hardware ({key} {before.get(key)!r}, here {after.get(key)!r});"
                    " measure a baseline here, or compare with --force"
                )
    notes = []
    if force and matters:
        notes.append("compared with --force: the hardware may differ, so measured ratios may mean nothing")
    for key in ("usable_cores", "governor"):
        old, new = (before or {}).get(key), (after or {}).get(key)
        notes += [f"{key} {old} -> {new}"] if old != new else []
    for part in _VERSIONS:
        old, new = (before or {}).get(part) or {}, (after or {}).get(part) or {}
        notes += [f"{k} {old.get(k)} -> {new.get(k)}" for k in sorted({*old, *new}) if old.get(k) != new.get(k)]
    return tuple(notes)


def _see_same_processors(before: Mapping[str, store.Row], after: Mapping[str, store.Row]) -> None:
    """Refuse a candidate that another GPU, or one with another driver, measured: the CPU's name does not tell."""
    for name in before.keys() & after.keys():
        rows = before[name], after[name]
        was, now = (row.runs_on for row in rows)
        if was != now and {row.latency_source for row in rows} == {"measured"}:
            raise GateError(
                f"{name} was measured on {was}, in the current run on {now}; measure a baseline there, or compare "
                "with --force"
            )


def _environment(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    except ValueError as error:
        raise GateError(f"{folder / 'environment.json'} is damaged: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(part) or {}, dict) for part in _VERSIONS):
        raise GateError(f"{folder / 'environment.json'} is damaged: it does not hold what experiments.pareto writes")
    return found


def _compare(name: str, before: store.Row, after: store.Row | None, limits: Limits, seed: int) -> list[Comparison]:
    if before.latency_s is None:
        return []  # it did not work in the baseline either
    if after is None or after.latency_s is None:
        verdict = Verdict.MISSING if after is None else Verdict.BROKEN
        remark = "" if after is None else after.reason or ""
        return [
            Comparison(
                name=name, quantity="latency", verdict=verdict, before=seconds(before.latency_s), after="-", ratio=None,
                remark=remark,
            )
        ]  # fmt: skip
    if before.status != after.status:
        return [
            Comparison(
                name=name, quantity="latency", verdict=Verdict.NEW if after.status == "ok" else Verdict.UNRANKED,
                before=seconds(before.latency_s), after=seconds(after.latency_s), ratio=None,
                remark=after.reason or f"{before.status} before: {before.reason}",
            )
        ]  # fmt: skip
    latency = _latency_ratio(before, after, limits, seed)
    found = [
        Comparison(
            name=name,
            quantity="latency",
            verdict=judge(latency, limits.latency),
            before=seconds(before.latency_s),
            after=seconds(after.latency_s),
            ratio=latency,
            remark=_remark(before, after, limits),
        )
    ]
    if limits.energy is not None and before.energy_j and after.energy_j:
        ratio = _energy_ratio(before, after, latency)
        found.append(
            Comparison(
                name=name, quantity="energy", verdict=judge(ratio, limits.energy), before=joules(before.energy_j),
                after=joules(after.energy_j), ratio=ratio, remark=_sources(before.energy_source, after.energy_source),
            )
        )  # fmt: skip
    return found


def judge(ratio: Ratio, threshold: float) -> Verdict:
    """Call it a regression when it is certainly slower and as much as the threshold cannot be excluded."""
    if ratio.high >= threshold:
        return Verdict.REGRESSION if ratio.low > 1.0 else Verdict.UNCLEAR
    if ratio.low > 1.0:
        return Verdict.SLOWER
    return Verdict.BETTER if ratio.high < 1.0 else Verdict.SAME


def _latency_ratio(before: store.Row, after: store.Row, limits: Limits, seed: int) -> Ratio:
    """Resample where there are samples on both sides; simulated and modelled latencies have no noise.

    What a device measured came without samples: of its noise only the spread from run to run is known.
    """
    assert before.latency_s is not None, "checked by the caller"
    assert after.latency_s is not None, "checked by the caller"
    if before.samples_s and after.samples_s:
        try:
            noise = max(limits.run_noise, _between_runs(before), _between_runs(after))
            return ratio_of_medians(before.samples_s, after.samples_s, run_noise=noise, seed=seed)
        except NoiseError as error:
            raise GateError(f"{_name(before)}: {error}") from error
    ratio = after.latency_s / before.latency_s
    noise = limits.run_noise if "measured" in {before.latency_source, after.latency_source} else 0.0
    return between_runs(ratio, noise)


def _between_runs(row: store.Row) -> float:
    """Return the relative standard deviation of the medians of the row's processes, 0 for a single one."""
    medians = row.process_medians_s or ()
    return statistics.stdev(medians) / statistics.median(medians) if len(medians) > 1 else 0.0


def _energy_ratio(before: store.Row, after: store.Row, latency: Ratio) -> Ratio:
    """Bound the ratio by the meters' intervals; a modelled energy follows the latency, and so does its noise."""
    assert before.energy_j, "checked by the caller"
    assert after.energy_j, "checked by the caller"
    energy = after.energy_j / before.energy_j
    if "measured" not in {before.energy_source, after.energy_source}:
        return Ratio(
            typical=energy, low=energy * latency.low / latency.typical, high=energy * latency.high / latency.typical
        )
    off = math.hypot(_uncertainty(before), _uncertainty(after))
    return Ratio(typical=energy, low=energy * math.exp(-off), high=energy * math.exp(off))


def _uncertainty(row: store.Row) -> float:
    """Return the half width of the row's energy interval, relative."""
    assert row.energy_j, "checked by the caller"
    return ((row.energy_high_j or row.energy_j) - (row.energy_low_j or 0.0)) / (2.0 * row.energy_j)


def _sources(before: str | None, after: str | None) -> str:
    return "" if before == after else f"{before} before, {after} now"


def _remark(before: store.Row, after: store.Row, limits: Limits) -> str:
    parts = list(filter(None, [_sources(before.latency_source, after.latency_source)]))
    if before.samples_s and after.samples_s:
        tails = [float(np.quantile(samples, _TAIL)) for samples in (before.samples_s, after.samples_s)]
        if tails[1] > limits.latency * tails[0]:
            parts.append(f"the slowest {1 - _TAIL:.0%} of the calls take {tails[1] / tails[0]:.2g} times as long")
    if after.samples_s:
        drift = drift_ratio(after.samples_s)
        if abs(drift - 1.0) > _MOST_DRIFT:
            parts.append(f"drifts by {drift - 1.0:+.0%} within the run")
    return "; ".join(parts)


def markdown(report: Report, limits: Limits) -> str:
    """Write the summary for a pull request: verdict first, then what is worth looking at, then all of it."""
    bad = [c for c in report.comparisons if c.verdict in _BAD]
    energy = "" if limits.energy is None else f", energy {limits.energy:g}"
    total, unclear = len(report.comparisons), sum(c.verdict is Verdict.UNCLEAR for c in report.comparisons)
    verdict = f"**{counted(len(bad), 'regression')}**" if bad else "**No regression**"
    if total and unclear == total:
        verdict = f"**{Verdict.UNCLEAR.capitalize()}**"
    noisy = f"; {unclear} too noisy to tell" if 0 < unclear < total else ""
    lines = [f"{verdict} in {counted(total, 'comparison')} (latency {limits.latency:g}{energy}){noisy}", ""]
    lines += _table(
        sorted(report.comparisons, key=lambda c: (c.verdict not in _BAD, -(c.ratio.typical if c.ratio else 9)))
    )
    if report.notes:
        lines += ["", "Changed surroundings:", "", *(f"- {note}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def _table(comparisons: Sequence[Comparison]) -> list[str]:
    lines = ["| candidate | quantity | before | after | ratio (99 %) | verdict |", "|---|---|---|---|---|---|"]
    for c in comparisons:
        ratio = "-" if c.ratio is None else f"{c.ratio.typical:.3f} ({c.ratio.low:.3f} to {c.ratio.high:.3f})"
        verdict = f"**{c.verdict}**" if c.verdict in _BAD else str(c.verdict)
        remark = f": {c.remark}" if c.remark else ""
        lines.append(f"| {c.name} | {c.quantity} | {c.before} | {c.after} | {ratio} | {verdict}{remark} |")
    return lines
