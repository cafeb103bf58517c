"""Nodes that a cut must not part, or had better not: quantised operators with their ranges, fused operators."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import networkx as nx

from partition.dag import to_dag
from partition.split import fused_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphs import Graph


def quantised_units(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Group the nodes of a QDQ graph so that every cut between groups passes a quantised tensor.

    A DequantizeLinear joins its readers, a QuantizeLinear joins its maker, and what would make a group wait for
    itself joins too. A node of a float graph stays alone. Groups come in topological order, members too.
    """
    dag = to_dag(graph)
    bound: nx.DiGraph[str] = nx.DiGraph(dag.edges)
    bound.add_nodes_from(dag)
    for before, after in dag.edges:
        if dag.nodes[before]["op_type"] == "DequantizeLinear" or dag.nodes[after]["op_type"] == "QuantizeLinear":
            bound.add_edge(after, before)  # both ways: one strongly connected component
    return _components(dag, bound)


def compile_units(graph: Graph, marks: Mapping[str, object] = {}) -> tuple[tuple[str, ...], ...]:
    """Group what a compiler fuses (`fused_groups`) and what quantisation binds (`quantised_units`).

    Nodes with different marks are not fused; quantisation binds them all the same. Cutting only between units is
    a restriction that keeps every fusion and every quantised border. Groups and members come in topological order.
    """
    dag = to_dag(graph)
    # A DequantizeLinear belongs to its reader: left to fuse with its maker it would chain the whole graph.
    own = {n: (marks.get(n), n if dag.nodes[n]["op_type"] == "DequantizeLinear" else "") for n in dag}
    bound: nx.DiGraph[str] = nx.DiGraph(dag.edges)
    bound.add_nodes_from(dag)
    for group in (*fused_groups(dag, own), *quantised_units(graph)):
        for before, after in pairwise(group):
            bound.add_edges_from([(before, after), (after, before)])
    return _components(dag, bound)


def _components(dag: nx.DiGraph[str], bound: nx.DiGraph[str]) -> tuple[tuple[str, ...], ...]:
    """List the strongly connected components of `bound`, each and all in the order of `dag`."""
    position = {node: index for index, node in enumerate(dag)}
    condensed = nx.condensation(bound)
    return tuple(
        tuple(sorted(condensed.nodes[component]["members"], key=position.__getitem__))
        for component in nx.lexicographical_topological_sort(
            condensed, key=lambda c: min(position[n] for n in condensed.nodes[c]["members"])
        )
    )
