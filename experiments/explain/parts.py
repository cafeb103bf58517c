"""Cover a graph by NPU and CPU segments around the nodes that the NPU refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import networkx as nx

from graphs import extract
from partition import Device, Plan, Run, Segment, fewest_segments, quantised_units, to_dag

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from graphs import Graph

_QUANTISERS: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})
CPU_BACKEND: Final = "ort_cpu"


def cover(graph: Graph, refused: Collection[str], processor: str, cpu: str) -> tuple[Run, ...]:
    """Cover the graph by the fewest convex segments that keep refused nodes, with their Q and DQ nodes, on the CPU."""
    units = quantised_units(graph)
    dag = _unit_dag(graph, units)
    stays = [any(node in refused for node in unit) for unit in units]
    allowed = {unit: (cpu,) if stay else (processor,) for unit, stay in zip(dag, stays, strict=True)}
    order = {node.name: index for index, node in enumerate(graph.nodes())}
    members = dict(zip(dag, units, strict=True))
    return tuple(
        Run(place=run.place, nodes=tuple(sorted((n for u in run.nodes for n in members[u]), key=order.__getitem__)))
        for run in fewest_segments(dag, allowed)
    )


def _unit_dag(graph: Graph, units: Sequence[tuple[str, ...]]) -> nx.DiGraph[str]:
    """Contract each unit to its first node."""
    head = {node: unit[0] for unit in units for node in unit}
    dag: nx.DiGraph[str] = nx.DiGraph()
    dag.add_nodes_from(unit[0] for unit in units)
    dag.add_edges_from((head[a], head[b]) for a, b in to_dag(graph).edges if head[a] != head[b])
    return dag


def plan_of(
    graph: Graph,
    runs: Sequence[Run],
    device: Device,
    backend: str,
    precision: str,
    options: tuple[tuple[str, str], ...] = (),
) -> Plan:
    """Make the plan of these segments: `backend` on the accelerator, ONNX Runtime on the CPU."""
    return Plan.of(graph, (segment_of(graph, run, device, backend, precision, options) for run in runs))


def segment_of(
    graph: Graph, run: Run, device: Device, backend: str, precision: str, options: tuple[tuple[str, str], ...] = ()
) -> Segment:
    """Make one segment."""
    part = graph if len(run.nodes) == len(graph.nodes()) else extract(graph, run.nodes)
    on_cpu = device.processor(run.place).kind == "cpu"
    return Segment(
        graph=part,
        device=device,
        processor=run.place,
        compiler=CPU_BACKEND if on_cpu else backend,
        precision=_precision_of(part, precision, on_cpu=on_cpu),
        options=() if on_cpu else options,
    )


def _precision_of(part: Graph, asked: str, *, on_cpu: bool) -> str:
    """Return what a part runs in: one of a quantised graph without a quantised operator runs in float."""
    if any(node.op_type in _QUANTISERS for node in part.nodes()):
        return "int8"
    if on_cpu:
        return "fp32"
    return "fp16" if asked == "int8" else asked
