"""Nodes that a cut must not part: a quantised operator lives with the Q and DQ nodes that give it its ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

from partition.dag import to_dag

if TYPE_CHECKING:
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
    position = {node: index for index, node in enumerate(dag)}
    condensed = nx.condensation(bound)
    return tuple(
        tuple(sorted(condensed.nodes[component]["members"], key=position.__getitem__))
        for component in nx.lexicographical_topological_sort(
            condensed, key=lambda c: min(position[n] for n in condensed.nodes[c]["members"])
        )
    )
