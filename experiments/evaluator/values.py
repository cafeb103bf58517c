"""Evaluation and Failure: the two things a candidate can come to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compilers import Latency
    from experiments.evaluator.energy import Energy
    from experiments.evaluator.measure import Samples
    from graphs import OutputError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Misplacement:
    """A processor asked for and not, or not wholly, given: node counts by unit, and a reason per node."""

    asked: str
    counts: Mapping[str, int]
    reasons: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What one plan costs, and how that is known.

    `output_error` is the worst over the graph's outputs, None when the plan could not be run here;
    `runs_on` says what ran it. `peak_memory_bytes` is None where nobody can tell. `latency` is the segments' one
    after the other, handovers included; `segment_latencies` and `segment_energies` are theirs alone.
    `temperature_c` is the machine's hottest zone before and after the timing. `uncalibrated` says why a part of the
    latency is the device file's alone where other candidates of that processor are predicted by calibration: such an
    evaluation cannot be compared with theirs.
    """

    plan_digest: str
    latency: Latency
    energy: Energy | None
    peak_memory_bytes: int | None
    artefact_bytes: int
    dram_bytes: int | None
    output_error: OutputError | None
    runs_on: str
    placement: Mapping[str, int] | None
    misplaced: tuple[Misplacement, ...]
    samples: Samples | None
    notes: tuple[str, ...]
    compile_s: float
    segment_latencies: tuple[Latency, ...] = ()
    segment_energies: tuple[Energy | None, ...] = ()
    temperature_c: tuple[float, float] | None = None
    uncalibrated: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A plan that came to nothing: which segment, which backend, doing what, and why.

    `passing` is true where a rerun may get past it, as after a crash or a limit.
    """

    plan_digest: str
    segment: int
    compiler: str
    action: str
    reason: str
    log: str
    passing: bool = False
