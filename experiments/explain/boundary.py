"""What it costs that a graph changes the processor: the tensors that move, their bytes, and the time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from partition import handovers, to_dag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from graphs import Graph
    from partition import Device, Figure, Run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """A tensor that one segment makes and later ones read; `size_bytes` is None without a known shape.

    `size_bytes` are the bytes of the graph's own dtype, once, however many segments read it.
    """

    tensor: str
    size_bytes: int | None
    source: int
    targets: tuple[int, ...]


def crossings(graph: Graph, runs: Sequence[Run]) -> tuple[Crossing, ...]:
    """List the tensors that pass between the segments, in the order of their making."""
    return tuple(
        Crossing(tensor=h.tensor.name, size_bytes=h.tensor.size_bytes, source=h.source, targets=h.targets)
        for h in handovers(to_dag(graph), [run.nodes for run in runs])
        if h.source is not None
    )


def moved_in(found: Sequence[Crossing], run: int) -> int | None:
    """Add up the bytes that a segment gets from earlier ones; None when one tensor's size is not known."""
    return _total(c for c in found if run in c.targets)


def moved_out(found: Sequence[Crossing], run: int) -> int | None:
    """Add up the bytes that a segment gives to later ones; None when one tensor's size is not known."""
    return _total(c for c in found if c.source == run)


def boundary_s(device: Device, in_bytes: int | None, out_bytes: int | None) -> tuple[float, float, float] | None:
    """Model the time of a stay on another processor: (typical, low, high) seconds; None without the figures.

    Two handovers (there and back), and each tensor written to DRAM and read from it once.
    """
    handover, rate = device.handover_s, device.dram_bytes_per_s
    if handover is None or rate is None or in_bytes is None or out_bytes is None:
        return None
    moved = 2 * (in_bytes + out_bytes)
    return (
        2 * handover.value + moved / rate.value,
        2 * handover.low + moved / rate.high,
        2 * handover.high + moved / rate.low,
    )


def extra_dispatch_s(dispatch: Figure | None, parts: int) -> float | None:
    """Return the seconds that more calls of the accelerator than one add; None when one call's cost is not known."""
    return None if dispatch is None else max(parts - 1, 0) * dispatch.value


def _total(found: Iterable[Crossing]) -> int | None:
    sizes = [crossing.size_bytes for crossing in found]
    return None if None in sizes else sum(size for size in sizes if size is not None)
