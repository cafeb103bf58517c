"""Results on disk: one JSON line per candidate, appended as it is known, so that a run can be resumed.

The keys of a line are the field names of `Row`; `docs/results.md` explains each.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Final

from compilers import adapters_hash, get_compiler
from experiments.arguments import UserError
from experiments.evaluator import NOT_METERED, PROVISIONAL, Evaluation, Failure
from experiments.files import naming, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from partition import Plan, Segment

OUTCOMES_FILE: Final = "outcomes.jsonl"
_LOCK_FILE: Final = ".lock"
_DEPLOYED: Final = "deployed-"
_LOG_CHARS: Final = 4000
_REFUSED: Final = frozenset({"failed", "misplaced"})


class StoreError(UserError):
    """The results folder cannot be used; the message says why and names the way out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One candidate and what it came to.

    `status` is "ok", "misplaced" (it ran, but not wholly where it was asked to), "uncalibrated" (its latency is the
    device file's, where others of its processor are predicted by calibration) or "failed". Only what is "ok" is
    ranked; for the rest `reason` is the sentence why.
    """

    key: str
    status: str
    model: str
    device: str
    processor: str
    backend: str
    precision: str
    options: str
    segments: int
    cuts: tuple[str, ...]
    plan_digest: str
    backend_versions: Mapping[str, str] | None = None
    latency_s: float | None = None
    latency_low_s: float | None = None
    latency_high_s: float | None = None
    latency_source: str | None = None
    energy_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    energy_source: str | None = None
    energy_parts_j: Mapping[str, float] | None = None
    energy_net_j: float | None = None
    energy_meter: Mapping[str, float | str] | None = None
    peak_memory_bytes: int | None = None
    artefact_bytes: int | None = None
    dram_bytes: int | None = None
    error_verdict: str | None = None
    cosine: float | None = None
    sqnr_db: float | None = None
    relative_max: float | None = None
    runs_on: str | None = None
    placement: Mapping[str, int] | None = None
    misplaced: Mapping[str, str] | None = None
    cold_s: float | None = None
    samples_s: tuple[float, ...] | None = None
    process_medians_s: tuple[float, ...] | None = None
    spread_ratio: float | None = None
    temperature_c: tuple[float, float] | None = None
    compile_s: float | None = None
    segment_processors: tuple[str, ...] | None = None
    segment_latency_s: tuple[float, ...] | None = None
    segment_energy_parts_j: tuple[Mapping[str, float] | None, ...] | None = None
    notes: tuple[str, ...] = ()
    failed_action: str | None = None
    reason: str | None = None
    log: str | None = None
    passing: bool = False
    refused_by: str | None = None

    @property
    def series(self) -> tuple[str, str, str]:
        """Backend, device and processor: what shares one frontier."""
        return self.backend, self.device, self.processor

    @property
    def power_w(self) -> float | None:
        """Mean power during the inference."""
        return self.energy_j / self.latency_s if self.energy_j is not None and self.latency_s else None

    @property
    def power_bounds_w(self) -> tuple[float, float] | None:
        """Bounds of the mean power; the ends of a modelled energy are those of the latency too, a meter's are not."""
        typical_w = self.power_w
        if typical_w is None or self.latency_s is None or self.energy_low_j is None or self.energy_high_j is None:
            return None
        metered = self.energy_source == "measured"
        low_s = self.latency_s if metered else self.latency_low_s or self.latency_s
        high_s = self.latency_s if metered else self.latency_high_s or self.latency_s
        ends = (self.energy_low_j / low_s, typical_w, self.energy_high_j / high_s)
        return min(ends), max(ends)


def row(plan: Plan, key: str, model: str, cuts: tuple[str, ...], outcome: Evaluation | Failure) -> Row:
    """Flatten one outcome."""
    about: dict[str, Any] = {
        "key": key,
        "model": model,
        "cuts": cuts,
        "device": plan.device.name,
        "processor": _joined(s.processor for s in plan.segments),
        "backend": _joined(s.compiler for s in plan.segments),
        "precision": _joined(s.precision for s in plan.segments),
        "options": _joined(map(options_text, plan.segments)),
        "segments": len(plan.segments),
        "segment_processors": tuple(s.processor for s in plan.segments),
        "plan_digest": plan.digest,
        "backend_versions": {
            name: get_compiler(name).version() for name in sorted({s.compiler for s in plan.segments})
        },
    }
    if isinstance(outcome, Failure):
        return Row(
            **about,
            status="failed",
            refused_by=what_refuses(),
            failed_action=outcome.action,
            reason=outcome.reason,
            log=outcome.log[-_LOG_CHARS:],
            passing=outcome.passing,
        )
    status, why_not = _standing(outcome)
    by = what_refuses() if status == "misplaced" else None
    return Row(**about, status=status, reason=why_not, refused_by=by, **_costs(outcome))


def what_refuses() -> str:
    """Name the code of ours that says why a plan is not taken, or not where it was asked for."""
    return adapters_hash()[:12]


def _standing(outcome: Evaluation) -> tuple[str, str | None]:
    """Tell the status of what came to a cost, and why it is not ranked, if so."""
    if outcome.misplaced:
        first = outcome.misplaced[0]
        counts = ", ".join(f"{nodes} on {unit}" for unit, nodes in first.counts.items())
        node, why = next(iter(first.reasons.items()))
        return "misplaced", f"asked for {first.asked}, got {counts}: {node}: {why}"
    if outcome.uncalibrated:
        return "uncalibrated", "; ".join(outcome.uncalibrated)
    return "ok", None


def _costs(outcome: Evaluation) -> dict[str, Any]:
    energy, error, samples = outcome.energy, outcome.output_error, outcome.samples
    metered = energy and energy.metered
    return {
        "latency_s": outcome.latency.typical_s,
        "latency_low_s": outcome.latency.low_s,
        "latency_high_s": outcome.latency.high_s,
        "latency_source": outcome.latency.source.value,
        "energy_j": energy and energy.total_j,
        "energy_low_j": energy and energy.low_j,
        "energy_high_j": energy and energy.high_j,
        "energy_source": energy and energy.source.value,
        "energy_parts_j": energy and dict(energy.parts_j),
        "energy_net_j": metered and metered.measured.net_j,
        "energy_meter": metered and {"meter": metered.meter, **dataclasses.asdict(metered.measured)},
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "artefact_bytes": outcome.artefact_bytes,
        "dram_bytes": outcome.dram_bytes,
        "error_verdict": error and error.verdict.value,
        "cosine": error and error.cosine,
        "sqnr_db": error and error.sqnr_db,
        "relative_max": error and error.relative_max,
        "runs_on": outcome.runs_on,
        "placement": outcome.placement and dict(outcome.placement),
        "misplaced": {node: why for m in outcome.misplaced for node, why in m.reasons.items()} or None,
        "cold_s": samples and samples.cold_s,
        "samples_s": samples and samples.steady_s,
        "process_medians_s": samples and samples.medians_s,
        "spread_ratio": samples and samples.spread_ratio,
        "temperature_c": outcome.temperature_c,
        "compile_s": outcome.compile_s,
        "segment_latency_s": tuple(latency.typical_s for latency in outcome.segment_latencies) or None,
        "segment_energy_parts_j": tuple(e and dict(e.parts_j) for e in outcome.segment_energies) or None,
        "notes": outcome.notes,
    }


def options_text(segment: Segment) -> str:
    """Write a segment's options, and whether a plan gave it tiles, for people."""
    tiled = [f"{len(segment.tiles)} tiles of a plan"] if segment.tiles else []
    return " ".join([*(f"{key}={value}" for key, value in segment.options), *tiled])


def _joined(parts: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(p for p in parts if p))


def open_run(folder: Path) -> None:
    """Make the folder of a run and see that it can be written.

    Raises:
        StoreError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(f"cannot write results to {folder} ({error.strerror}); choose another with --out") from error


@contextlib.contextmanager
def alone_in(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Let one run at a time work in a folder; a second one says so and waits, and then finds what the first one made.

    Two at once would measure everything twice, and each the other's load.
    """
    with (folder / _LOCK_FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            tell(
                f"process {file.read().strip() or 'unknown'} works in {folder}: this one waits for it and takes what "
                "it made over; Ctrl-C ends the waiting, --out chooses another folder"
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def read_rows(folder: Path) -> dict[str, Row]:
    """Read the rows of a run by key, the last one of a key counting; a line cut short or damaged is left out."""
    return {row.key: row for row in map(_row_of, _lines(folder)) if row is not None}


def unreadable_lines(folder: Path) -> int:
    """Count the lines of a run that hold no row: cut short, damaged, or with fields of another version."""
    return sum(_row_of(line) is None for line in _lines(folder))


def _lines(folder: Path) -> list[bytes]:
    path = folder / OUTCOMES_FILE
    return [line for line in path.read_bytes().splitlines() if line.strip()] if path.exists() else []


def _row_of(line: bytes) -> Row | None:
    try:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(line).items()}
        return Row(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def may_differ_next_time(row: Row) -> bool:
    """Tell what a rerun may get past from what it cannot.

    A crash, a limit, a meter or device without answer passes; so does a refusal of adapters that are others by now.
    """
    if row.status in _REFUSED and row.refused_by != what_refuses():
        return True
    return row.passing or any(note.startswith((NOT_METERED, PROVISIONAL)) for note in row.notes)


def better(new: Row, known: Row | None) -> Row:
    """Return the new row; or the known one, where the new one failed of what passes and the known one did not."""
    return known if new.passing and known is not None and known.status != "failed" else new


def deployed_key(plan: Plan, device: str) -> str:
    """Name the row of a plan that a real device measured."""
    return f"{_DEPLOYED}{plan.digest[:12]}-{device}"


def with_deployed(rows: Iterable[Row], stored: Iterable[Row]) -> tuple[Row, ...]:
    """Let what a device measured take the place of the prediction for the same plan, where `stored` holds it."""
    measured: dict[str, list[Row]] = {}
    for entry in stored:
        if entry.key.startswith(_DEPLOYED):
            measured.setdefault(entry.plan_digest, []).append(entry)
    return tuple(shown for row in rows for shown in measured.get(row.plan_digest, [row]))


def append_row(folder: Path, entry: Row) -> None:
    """Add one row as one line, starting a new line if the one before was cut short."""
    path = folder / OUTCOMES_FILE
    line = json.dumps(dataclasses.asdict(entry)) + "\n"
    with naming(path), path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # `deploy` and a run may add at the same time
        file.seek(0, os.SEEK_END)
        if file.tell() and not _ends_with_newline(path):
            line = "\n" + line
        file.write(line.encode())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file by rename."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_csv(path: Path, header: tuple[str, ...], lines: Iterable[Mapping[str, object]]) -> None:
    """Write a CSV file by rename; unknown values are empty."""
    with writing(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)


def write_text(path: Path, text: str) -> None:
    """Write a file by rename."""
    with writing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
