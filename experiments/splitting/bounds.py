"""What segments cost as wholes, before any is compiled: their peak memory, and bounds that no compile comes below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.split_costs import CODED_SHARE, is_int8, members, value
from partition import Device, Figure
from partition.search import Cost, Place, Problem, SegmentTable, Tensor, additive_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from graphs import Graph

    Array = NDArray[np.float64]

_NOTHING: Final = Figure(value=0.0, low=0.0, high=0.0, tag="derived", source="")


def peak_memory_table(graph: Graph, problem: Problem) -> SegmentTable:
    """Build the costs of all segments with a peak memory: the segment's weights and the activations alive then.

    Latency, energy and dispatch add up as in the problem. Activations live in shared memory, so all those of the
    graph that are alive while a node runs count, whoever made them.
    """
    table = additive_table(problem)
    weights = {node.name: node.weight_bytes or 0 for node in graph.nodes()}
    total = np.append(0, np.cumsum([sum(weights[m] for m in members(problem, [n])) for n in problem.nodes]))
    alive = _alive_bytes(problem)
    for start in range(len(problem.nodes)):
        peak = np.maximum.accumulate(alive[start:])
        rows = table.rows[start, start + 1 :, :, 2]
        rows[:] = (peak + total[start + 1 :] - total[start])[:, None]
    return table


def _alive_bytes(problem: Problem) -> Array:
    index = {name: number for number, name in enumerate(problem.nodes)}
    alive = np.zeros(len(problem.nodes))
    for t in problem.tensors:
        first = 0 if t.producer is None else index[t.producer]
        last = max((index[name] for name in t.consumers), default=first)
        alive[first : last + 1] += t.size_bytes
    return alive


def lower_bounds(
    graph: Graph,
    device: Device,
    problem: Problem,
    is_exact: Callable[[Place], bool],
    lowered: Mapping[str, tuple[int, int]] | None = None,
) -> SegmentTable:
    """Bound the cost of every segment from below: the device's best figures, weights and boundary tensors once.

    `is_exact(place)` says where the evaluator itself models with the figures' typical values; there the bound is
    the model, so that only the others have to be found out by compiling. Elsewhere fp16 halves a float graph's bytes.
    In a mix of precisions `lowered` gives the (MACs, weight bytes) of every operator in int8.
    """
    table = additive_table(problem)
    work = {node.name: (node.macs or 0, node.weight_bytes or 0) for node in graph.nodes()}
    border = _boundary_bytes(graph, problem)
    as_float = _sums_of_work(problem, work)
    as_int8 = None if lowered is None else _sums_of_work(problem, lowered)
    for number, place in enumerate(problem.places):
        coded = as_int8 is not None and is_int8(place)
        macs, weights = as_int8 if as_int8 is not None and coded else as_float
        traffic = weights + border * (CODED_SHARE if coded else 1.0)
        latency, energy = _least(device, place, macs, traffic, exact=is_exact(place))
        refused = ~np.isfinite(table.rows[:, :, number, 0])
        table.rows[:, :, number, 0] = np.where(refused, np.inf, latency)
        table.rows[:, :, number, 1] = np.where(refused, np.inf, energy)
    return SegmentTable(table.rows)


def set_bounds(
    graph: Graph,
    device: Device,
    problem: Problem,
    is_exact: Callable[[Place], bool],
    lowered: Mapping[str, tuple[int, int]] | None = None,
) -> Callable[[Place, tuple[str, ...]], Cost]:
    """Bound the cost of any set of the problem's nodes as `lower_bounds` does that of the runs of one order."""
    work = {node.name: (node.macs or 0, node.weight_bytes or 0) for node in graph.nodes()}
    outputs = {spec.name for spec in graph.outputs()}
    near: dict[str, list[Tensor]] = {name: [] for name in problem.nodes}
    for t in problem.tensors:
        for name in dict.fromkeys([*t.consumers, *([] if t.producer is None else [t.producer])]):
            near[name].append(t)

    def bound(place: Place, nodes: tuple[str, ...]) -> Cost:
        inside, coded = frozenset(nodes), lowered is not None and is_int8(place)
        table = lowered if coded and lowered is not None else work
        macs, weights = (sum(table[m][k] for m in members(problem, nodes)) for k in (0, 1))
        border = sum(
            t.size_bytes
            for t in {t.name: t for name in nodes for t in near[name]}.values()
            if t.producer not in inside or t.name in outputs or not inside.issuperset(t.consumers)
        )
        traffic = weights + border * (CODED_SHARE if coded else 1.0)
        latency, energy = _least(device, place, np.array(float(macs)), np.array(traffic), exact=is_exact(place))
        return Cost(latency_s=float(latency), energy_j=float(energy))

    return bound


def _sums_of_work(problem: Problem, work: Mapping[str, tuple[int, int]]) -> tuple[Array, Array]:
    """Sum MACs and weight bytes of every segment [start, stop)."""
    rows = np.array([[sum(w) for w in zip(*(work[m] for m in members(problem, [n])), strict=True)]
                     for n in problem.nodes], dtype=float)  # fmt: skip
    sums = np.concatenate([np.zeros((1, 2)), rows.cumsum(0)])
    macs, weights = (sums[None, :, k] - sums[:, None, k] for k in (0, 1))
    return macs, weights


def _least(device: Device, place: Place, macs: Array, traffic: Array, *, exact: bool) -> tuple[Array, Array]:
    processor = device.processor(place.processor)

    def best(figure: Figure | None, *, low: bool) -> float:
        figure = figure or _NOTHING
        return figure.value if exact else figure.low if low else figure.high

    if place.precision == "fp16" and not exact:
        traffic = traffic / 2
    latency = macs / best(processor.macs_per_s[place.precision], low=False)
    if device.dram_bytes_per_s is not None:
        latency = np.maximum(latency, traffic / best(device.dram_bytes_per_s, low=False))
    latency = np.maximum(latency, 1e-9) + best(processor.dispatch_s, low=True)
    energy = macs * value(processor.energy_j_per_mac.get(place.precision)) + traffic * value(device.dram_j_per_byte)
    return latency, energy + latency * value(processor.active_w)


def _boundary_bytes(graph: Graph, problem: Problem) -> Array:
    """Sum, for every segment [start, stop) of the node order, the bytes of its inputs and outputs."""
    index = {name: number for number, name in enumerate(problem.nodes)}
    outputs = {spec.name for spec in graph.outputs()}
    start, stop = np.ogrid[: len(index) + 1, : len(index) + 1]
    total = np.zeros((len(index) + 1, len(index) + 1))
    for t in problem.tensors:
        made = -1 if t.producer is None else index[t.producer]
        read = [index[name] for name in t.consumers]
        inside = np.zeros(total.shape, bool)
        for reader in read:
            inside |= (start <= reader) & (reader < stop)
        own = (start <= made) & (made < stop)
        leaves = own & ((max(read, default=-1) >= stop) | (t.name in outputs))
        total += t.size_bytes * ((inside & ~own).astype(int) + leaves)
    return total
