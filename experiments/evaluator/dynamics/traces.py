"""Workload traces: when requests arrive and how much work each brings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from experiments.csv_file import read_csv

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[np.float64]
SYNTAX: Final = (
    "closed, poisson:5/s, periodic:30/s, burst:20@10s, batches:1,16@3/s or a CSV file with a column arrival_s"
)
_MAX_REQUESTS: Final = 20_000_000


class TraceError(ValueError):
    """A trace that cannot be used; the message says why and what one looks like."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests: `arrivals_s` ascending, `works` relative to one inference; None arrivals = the next on completion.

    `closed` has no arrivals: a client sends a request as soon as it has the answer to the one before.
    """

    title: str
    arrivals_s: Array | None
    works: Array | None = None

    def __post_init__(self) -> None:
        if self.arrivals_s is None:
            return
        if len(self.arrivals_s) == 0:
            raise TraceError(f"trace {self.title} has no request in the time simulated")
        if not np.isfinite(self.arrivals_s).all() or self.arrivals_s[0] < 0:
            raise TraceError(f"trace {self.title} has an arrival that is negative or no number")
        backwards = np.flatnonzero(np.diff(self.arrivals_s) < 0)
        if len(backwards):
            raise TraceError(f"trace {self.title} is out of order at request {int(backwards[0]) + 2}; sort it by time")
        if self.works is not None and (len(self.works) != len(self.arrivals_s) or not (self.works > 0).all()):
            raise TraceError(f"trace {self.title} needs one work above 0 per request")


def parse_trace(text: str, horizon_s: float, seed: int) -> Trace:
    """Read a trace as the command line writes it.

    Raises:
        UserError: the file is no CSV file with a column arrival_s.
        TraceError: the text or the file is none, or asks for more than twenty million requests.
    """
    kind, _, rest = text.partition(":")
    if text == "closed":
        return Trace(title=text, arrivals_s=None)
    if kind in {"poisson", "periodic"}:
        return _steady(text, kind, _rate(text, rest), horizon_s, seed)
    if kind == "burst":
        return _bursts(text, rest, horizon_s)
    if kind == "batches":
        return _batches(text, rest, horizon_s)
    if text.endswith(".csv"):
        return _from_csv(Path(text), horizon_s)
    raise TraceError(f"unknown trace {text!r}; write {SYNTAX}")


def poisson(rate_per_s: float, horizon_s: float, seed: int) -> Trace:
    """Draw independent arrivals at a mean rate."""
    return _steady(f"poisson:{rate_per_s:g}/s", "poisson", rate_per_s, horizon_s, seed)


def periodic(rate_per_s: float, horizon_s: float) -> Trace:
    """Space arrivals evenly."""
    return _steady(f"periodic:{rate_per_s:g}/s", "periodic", rate_per_s, horizon_s, 0)


def _steady(title: str, kind: str, rate_per_s: float, horizon_s: float, seed: int) -> Trace:
    if rate_per_s * horizon_s > _MAX_REQUESTS:
        raise TraceError(f"trace {title} asks for {rate_per_s * horizon_s:.3g} requests; shorten it or lower the rate")
    if kind == "periodic":
        return Trace(title=title, arrivals_s=np.arange(0.0, horizon_s, 1.0 / rate_per_s))
    rng = np.random.default_rng(seed)
    count = int(rate_per_s * horizon_s + 6 * np.sqrt(rate_per_s * horizon_s) + 20)
    arrivals = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Trace(title=title, arrivals_s=arrivals[arrivals < horizon_s])


def _bursts(text: str, rest: str, horizon_s: float) -> Trace:
    size, _, gap = rest.partition("@")
    gap_s = _number(text, gap.removesuffix("s"))
    if not size.isdecimal() or int(size) < 1 or gap_s <= 0:
        raise TraceError(f"cannot read trace {text!r}; write {SYNTAX}")
    starts = np.arange(0.0, horizon_s, gap_s)
    return Trace(title=text, arrivals_s=np.repeat(starts, int(size)))


def _batches(text: str, rest: str, horizon_s: float) -> Trace:
    """Space batches of the given sizes evenly, one size after the other; a batch is as much work as its inferences."""
    sizes, _, rate = rest.partition("@")
    if not all(size.isdecimal() and int(size) for size in sizes.split(",")):
        raise TraceError(f"cannot read trace {text!r}; write {SYNTAX}")
    even = _steady(text, "periodic", _rate(text, rate), horizon_s, 0)
    assert even.arrivals_s is not None, "an even trace has arrivals"
    works = np.resize(np.array([float(size) for size in sizes.split(",")]), len(even.arrivals_s))
    return dataclasses.replace(even, works=works)


def _from_csv(path: Path, horizon_s: float) -> Trace:
    header, lines = read_csv(path, needed=("arrival_s",))
    arrivals = _column(path, lines, "arrival_s")
    works = _column(path, lines, "work") if "work" in header else None
    kept = ~(arrivals >= horizon_s)  # NaN is kept, so that it is refused and not lost
    return Trace(title=path.name, arrivals_s=arrivals[kept], works=None if works is None else works[kept])


def _column(path: Path, lines: Sequence[tuple[int, dict[str, str]]], name: str) -> Array:
    values = np.empty(len(lines))
    for i, (place, cells) in enumerate(lines):
        try:
            values[i] = float(cells[name])
        except ValueError:
            raise TraceError(f"{path}, line {place}: {name} is {cells[name]!r} where a number is needed") from None
    return values


def _rate(text: str, rest: str) -> float:
    rate = _number(text, rest.removesuffix("/s"))
    if not 0 < rate < np.inf:
        raise TraceError(f"trace {text!r} needs a rate above 0")
    return rate


def _number(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise TraceError(f"cannot read trace {text!r}; write {SYNTAX}") from None
