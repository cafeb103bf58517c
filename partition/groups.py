"""Nodes that a cut must not part, or had better not: quantised operators with their ranges, fused operators."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import networkx as nx

from partition.dag import to_dag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


# Operators that compilers fuse into the operator before them: cheap, element by element, same layout.
# fmt: off
FOLLOWERS: Final = frozenset({
    "Add", "BatchNormalization", "Cast", "Clip", "DequantizeLinear", "Div", "Elu", "Erf", "Gelu", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Mish", "Mul", "PRelu", "QuantizeLinear", "Relu", "Sigmoid", "Softplus", "Sqrt",
    "Sub", "Tanh",
})
# fmt: on


def fused_groups(dag: nx.DiGraph[str], marks: Mapping[str, object] = {}) -> tuple[tuple[str, ...], ...]:
    """Group operators that a compiler would fuse anyway, groups and members in topological order.

    An element-wise operator joins the group of its latest producer, unless that would make two groups wait for
    each other, or its mark differs from that of the operator which began the group (`marks`: node -> what must be
    alike, such as the places that take it). A node without activations, such as the DequantizeLinear of a weight,
    joins its only reader.
    Cutting only between groups is a restriction, not an equivalence: name it in the result.
    """
    names = list(dag)
    order = {node: index for index, node in enumerate(names)}
    group: dict[str, int] = {}
    borders: nx.DiGraph[int] = nx.DiGraph()
    fed = {c for t in dag.graph["activations"] for c in t.consumers}
    for node, index in order.items():
        made_by = sorted((p for p in dag.predecessors(node) if p in fed), key=order.__getitem__)
        home = group[made_by[-1]] if made_by and dag.nodes[node]["op_type"] in FOLLOWERS else index
        home = home if marks.get(names[home]) == marks.get(node) else index
        others = {group[p] for p in dag.predecessors(node) if p in fed} - {home}
        if home in borders and any(nx.has_path(borders, home, other) for other in others):
            home, others = index, others | {home}
        group[node] = home
        borders.add_node(home)
        borders.add_edges_from((other, home) for other in others)
    _join_constants(dag, group, fed)
    return _in_order(dag, group)


def _join_constants(dag: nx.DiGraph[str], group: dict[str, int], fed: Collection[str]) -> None:
    for node in reversed(list(dag)):
        readers = {group[reader] for reader in dag.successors(node)}
        if node not in fed and len(readers) == 1:
            group[node] = readers.pop()


def _in_order(dag: nx.DiGraph[str], group: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Sort groups so that each comes after those it reads from."""
    members: dict[int, list[str]] = {}
    for node in dag:
        members.setdefault(group[node], []).append(node)
    borders: nx.DiGraph[int] = nx.DiGraph()
    borders.add_nodes_from(members)
    borders.add_edges_from((group[a], group[b]) for a, b in dag.edges if group[a] != group[b])
    return tuple(tuple(members[number]) for number in nx.lexicographical_topological_sort(borders))
