"""What the tools printed on a device, as measured latencies; an output that is not as expected is refused."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from compilers import Latency, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER: Final = r"([0-9.]+(?:e-?\d+)?)"


class OutputFormatError(ValueError):
    """A tool's output does not say what was measured; the message names what is missing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One segment on a device: its latency, the first inference (None where the tool does not say), a remark."""

    latency: Latency
    cold_s: float | None
    note: str


def read_perf_test(text: str, runs: int) -> Measured:
    """Read `onnxruntime_perf_test -s`: median, minimum and 95th percentile of `runs` inferences.

    Raises:
        OutputFormatError: a figure is missing, or it made another number of runs.
    """
    done = int(_figure(text, r"^Total inference requests: (\d+)"))
    if done != runs:
        raise OutputFormatError(f"onnxruntime_perf_test made {done} inferences instead of {runs}")
    low, typical, high = (_figure(text, rf"^{name} Latency: {_NUMBER} s") for name in ("Min", "P50", "P95"))
    return Measured(
        latency=_latency(low, typical, high),
        cold_s=_figure(text, rf"^First inference time cost: {_NUMBER} ms") * 1e-3,
        note=f"median of {runs} inferences on random inputs",
    )


def read_throughput(text: str) -> Measured:
    """Read `snpe-throughput-net-run` with one thread: the mean latency is the inverse of the throughput.

    Raises:
        OutputFormatError: the throughput is missing, or more than one thread ran.
    """
    threads = re.findall(r"^\[Thread \d+", text, re.MULTILINE)
    if len(threads) > 1:
        raise OutputFormatError(f"snpe-throughput-net-run used {len(threads)} threads; a latency needs one")
    mean_s = 1 / _figure(text, rf"^Total throughput: {_NUMBER} infs/sec")
    note = "mean over 10 s of inferences on random inputs, without a spread"
    return Measured(latency=_latency(mean_s, mean_s, mean_s), cold_s=None, note=note)


def total(parts: Sequence[Measured]) -> Latency:
    """Add the segments of a plan."""
    return _latency(
        sum(part.latency.low_s for part in parts),
        sum(part.latency.typical_s for part in parts),
        sum(part.latency.high_s for part in parts),
    )


def _latency(low: float, typical: float, high: float) -> Latency:
    try:
        return Latency(typical_s=typical, low_s=low, high_s=high, source=Source.MEASURED)
    except ValueError as error:
        raise OutputFormatError(f"the tool's figures contradict each other: {error}") from error


def _figure(text: str, pattern: str) -> float:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise OutputFormatError(f"the tool's output has no line {pattern.lstrip('^')!r}")
    value = float(found.group(1))
    if not value > 0:
        raise OutputFormatError(f"the tool says {found.group(0)!r}, which is no measurement")
    return value
