"""Graph -> networkx.DiGraph whose edges carry the tensors and bytes that a cut there would move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from graphs import Graph


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """One tensor that is not a weight: who makes it, who reads it, how big it is.

    `producer` is None for a graph input; `size_bytes` is None when its shape is unknown.
    """

    name: str
    size_bytes: int | None
    producer: str | None
    consumers: tuple[str, ...]
    is_output: bool


def activations(graph: Graph) -> tuple[Activation, ...]:
    """List the tensors that can cross a cut: graph inputs first, then node outputs in topological order.

    An output that nobody reads and that is no graph output never crosses anything and is left out.
    """
    readers: dict[str, list[str]] = {}
    for node in graph.nodes():
        for name in node.reads:
            readers.setdefault(name, []).append(node.name)
    outputs = {spec.name for spec in graph.outputs()}
    made: list[tuple[str, str | None]] = [(spec.name, None) for spec in graph.inputs()]
    made += [(name, node.name) for node in graph.nodes() for name in node.outputs if name]
    sizes = graph.tensors()
    return tuple(
        Activation(
            name=name,
            size_bytes=sizes[name].size_bytes if name in sizes else None,
            producer=producer,
            consumers=tuple(readers.get(name, ())),
            is_output=name in outputs,
        )
        for name, producer in made
        if name in readers or name in outputs
    )


def to_dag(graph: Graph) -> nx.DiGraph[str]:
    """Build the operator DAG, nodes in topological order.

    Node attributes: `op_type`, `macs`, `weight_bytes`. Edge attributes: `tensors`, the names that pass along
    it, and `bytes`, their sum, None when a shape is unknown. `dag.graph["activations"]` lists every tensor
    once with all its consumers, because a tensor with two consumers on one processor crosses only once.
    """
    crossing = activations(graph)
    dag: nx.DiGraph[str] = nx.DiGraph(name=graph.name, activations=crossing)
    for node in graph.nodes():
        dag.add_node(node.name, op_type=node.op_type, macs=node.macs, weight_bytes=node.weight_bytes)
    for tensor in crossing:
        if tensor.producer is not None:
            for consumer in tensor.consumers:
                _add_tensor(dag, tensor.producer, consumer, tensor)
    return dag


def _add_tensor(dag: nx.DiGraph[str], producer: str, consumer: str, tensor: Activation) -> None:
    known = dag.get_edge_data(producer, consumer, {"tensors": (), "bytes": 0})
    total = None if known["bytes"] is None or tensor.size_bytes is None else known["bytes"] + tensor.size_bytes
    dag.add_edge(producer, consumer, tensors=(*known["tensors"], tensor.name), bytes=total)
