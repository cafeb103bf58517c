"""The trace of a compiled graph on a simulated chip, as values; the vendors' readers fill them."""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One operation on one unit; cycles of the simulated core. `node` is what `Trace.names` has names for."""

    unit: str
    thread: int
    operation: str
    node: int
    start: int
    cycles: int
    dims: tuple[int, ...]
    dram_read_bytes: int
    dram_write_bytes: int

    @property
    def end(self) -> int:
        """Cycle at which it ended."""
        return self.start + self.cycles


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """The chip that was simulated, as the trace says."""

    name: str
    core_hz: float
    ddr_bytes_per_s: float
    hvx_threads: int
    vtcm_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One graph on the simulated chip."""

    chip: Chip
    events: tuple[Event, ...]
    names: Mapping[int, str]

    @property
    def cycles(self) -> int:
        """End of the last event; the profile's own total is a few cycles more."""
        return max((event.end for event in self.events), default=0)

    def busy_ratio(self, unit: str) -> float:
        """Share of the time that a unit works; for "hvx", of all its threads."""
        busy = sum(event.cycles for event in self.events if event.unit == unit)
        return busy / (self.cycles * (self.chip.hvx_threads if unit == "hvx" else 1))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeTrace:
    """What became of one node: its tiles as (dims, count), cycles by unit, bytes, and its part of the longest chain."""

    node: str
    tiles: tuple[tuple[tuple[int, ...], int], ...]
    cycles: Mapping[str, int]
    dram_read_bytes: int
    dram_write_bytes: int
    first_cycle: int
    last_cycle: int
    chain_cycles: int


def trace_by_node(trace: Trace, nodes: Collection[str]) -> tuple[NodeTrace, ...]:
    """Sum the events by ONNX node, in the order of their first event.

    `nodes` are the names in the ONNX graph. What the compiler put in itself (layout, graph input and output)
    stands under its own name in angle brackets.
    """
    known = frozenset(nodes)
    groups: dict[str, list[Event]] = defaultdict(list)
    for event in trace.events:
        groups[_title(trace.names, event.node, known)].append(event)
    chain: dict[int, int] = defaultdict(int)
    for event, cycles in longest_chain(trace):
        chain[event.node] += cycles
    found = [_summary(name, events, chain) for name, events in groups.items()]
    return tuple(sorted(found, key=lambda node: node.first_cycle))


def longest_chain(trace: Trace) -> tuple[tuple[Event, int], ...]:
    """Walk back from the end of the trace, always to the event that ended last before the present one began.

    Each event comes with the cycles from the end of the one before to its own end (the last: to the end of the trace),
    so that the cycles add up to the whole. The trace does not tell dependencies: the chain shows what kept the chip
    busy, not a proof of cause.
    """
    events = sorted((e for e in trace.events if e.cycles), key=lambda e: (e.end, e.cycles))
    ends = [event.end for event in events]
    chain = []
    at, until = len(events) - 1, trace.cycles
    while at >= 0:
        event = events[at]
        before = min(bisect.bisect_right(ends, event.start), at) - 1
        previous_end = events[before].end if before >= 0 else 0
        chain.append((event, until - previous_end))
        at, until = before, previous_end
    return tuple(reversed(chain))


def _title(names: Mapping[int, str], node: int, known: frozenset[str]) -> str:
    name = names.get(node)
    if name is None:
        return "<graph input and output>"
    return name if name in known else f"<{name}>"


def _summary(name: str, events: Sequence[Event], chain: Mapping[int, int]) -> NodeTrace:
    cycles: dict[str, int] = defaultdict(int)
    tiles: dict[tuple[int, ...], int] = defaultdict(int)
    main = _main_unit(events)
    for event in events:
        cycles[event.unit] += event.cycles
        if event.unit == main and event.dims:
            tiles[event.dims] += 1
    return NodeTrace(
        node=name,
        tiles=tuple(tiles.items()),
        cycles=dict(cycles),
        dram_read_bytes=sum(event.dram_read_bytes for event in events),
        dram_write_bytes=sum(event.dram_write_bytes for event in events),
        first_cycle=min(event.start for event in events),
        last_cycle=max(event.end for event in events),
        chain_cycles=sum(chain[node] for node in {event.node for event in events}),
    )


def _main_unit(events: Sequence[Event]) -> str:
    """The unit whose tiles are the node's: the matrix unit if it takes part, else the vector unit."""
    units = {event.unit for event in events}
    return next((unit for unit in ("hmx", "hvx", "dma", "scalar") if unit in units), "scalar")
