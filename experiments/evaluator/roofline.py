"""Latency from a device's figures alone: the widest of the ways to know it, for chips with nothing better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from compilers import Estimate, Latency, Source
from experiments.evaluator.energy import UnknownFigureError
from partition import Device, Figure, Processor

if TYPE_CHECKING:
    from graphs import Graph

# A figure that the device file lacks takes no part: no dispatch cost, memory never the limit.
_NO_DISPATCH = Figure(value=0.0, low=0.0, high=0.0, tag="derived", source="")
_UNLIMITED = Figure(value=math.inf, low=math.inf, high=math.inf, tag="derived", source="")


def roofline(graph: Graph, device: Device, processor: Processor, precision: str) -> Estimate:
    """Model latency as dispatch + the longer of compute and weight-plus-boundary traffic.

    Traffic is `moved_bytes`: what a segment moves when its activations fit on the chip. The
    bounds follow from the figures' bounds; the note says what the device file lacks.

    Raises:
        UnknownFigureError: the device gives no rate for this precision, or the graph's work is not known.
    """
    if graph.macs is None:
        raise UnknownFigureError(f"the MACs of {graph.name} are not known: some nodes have no shape")
    dram_bytes = moved_bytes(graph)
    latency = roofline_latency(device, processor, precision, macs=graph.macs, dram_bytes=dram_bytes)
    lacking = [] if processor.dispatch_s else [f"no dispatch of its {processor.name}, so that a call itself is free"]
    lacking += [] if device.dram_bytes_per_s else ["no DRAM rate, so that memory is never the limit"]
    return Estimate(
        latency=latency,
        dram_bytes=dram_bytes,
        uncosted_nodes=tuple(graph.uncosted_nodes()),
        note=f"{device.name} gives {' and '.join(lacking)}" if lacking else "",
    )


def roofline_latency(device: Device, processor: Processor, precision: str, *, macs: int, dram_bytes: int) -> Latency:
    """Model the latency of that much work and traffic.

    Raises:
        UnknownFigureError: the device gives no rate for this precision.
    """
    rate = processor.macs_per_s.get(precision)
    if rate is None:
        have = ", ".join(sorted(processor.macs_per_s)) or "none"
        raise UnknownFigureError(f"{device.name} {processor.name} has no throughput for {precision} (it has {have})")
    bandwidth = device.dram_bytes_per_s or _UNLIMITED
    dispatch = processor.dispatch_s or _NO_DISPATCH

    def seconds(macs_per_s: float, bytes_per_s: float, dispatch_s: float) -> float:
        return dispatch_s + max(macs / macs_per_s, dram_bytes / bytes_per_s, 1e-9)

    return Latency(
        typical_s=seconds(rate.value, bandwidth.value, dispatch.value),
        low_s=seconds(rate.high, bandwidth.high, dispatch.low),
        high_s=seconds(rate.low, bandwidth.low, dispatch.high),
        source=Source.MODELLED,
    )


def moved_bytes(graph: Graph) -> int:
    """Add up the constants, graph inputs and outputs that one inference reads and writes, each once.

    Of a table that is only looked up in (an embedding), what is picked counts.
    """
    read = [node.weight_bytes for node in graph.nodes()]
    known = [count for count in read if count is not None]
    weights = min(graph.weight_bytes, sum(known)) if len(known) == len(read) else graph.weight_bytes
    return boundary_bytes(graph) + weights


def boundary_bytes(graph: Graph) -> int:
    """Add up the bytes of the graph's inputs and outputs; unknown shapes count nothing."""
    return sum(spec.size_bytes or 0 for spec in (*graph.inputs(), *graph.outputs()))
