"""A graph in fewer kinds of operators: known values computed, and what a backend lacks written in what it has.

`expanded` is for a backend that reads ONNX operator by operator and lacks some. The values stay what they were up to
the rounding of a sum, except where a rule's docstring says more.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from graphs.expansion.constants import folded, without_dead_nodes
from graphs.expansion.definitions import by_definition
from graphs.expansion.parts import Impossible, Parts, Source, View
from graphs.expansion.rules import RULES
from graphs.graph import GraphError
from graphs.onnx_io import from_proto

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from graphs.graph import Graph

    WhyNot = Callable[[View], str | None]

# A definition is made of operators that have definitions themselves, and so on: Attention needs four.
_ROUNDS: Final = 12


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expanded:
    """A graph in which nodes stand for others."""

    graph: Graph
    owners: Mapping[str, str]
    """Each new node -> the node of the original graph that it is a part of."""
    refused: Mapping[str, str]
    """Nodes of the original graph that still hold what the backend lacks -> why."""


def expanded(graph: Graph, why_not: WhyNot) -> Expanded:
    """Compute what depends on constants and shapes alone, and replace nodes that a backend lacks.

    Args:
        graph: With shapes; it is returned itself when there is nothing to do.
        why_not: Says why the backend lacks a node, None for one that it takes; asked of what replaces it too.
    """
    graph = folded(graph)
    owners: dict[str, str] = {}
    stuck: dict[str, str] = {}
    for _ in range(_ROUNDS):
        refused = {name: why for name, why in refusals(graph, why_not).items() if name not in stuck}
        if not refused:
            break
        graph = folded(_replaced(graph, refused, owners, stuck))
    reasons = {owners.get(name, name): stuck.get(name, why) for name, why in refusals(graph, why_not).items()}
    return Expanded(graph=graph, owners=owners, refused=reasons)


def refusals(graph: Graph, why_not: WhyNot) -> dict[str, str]:
    """Map each node that a backend lacks to the reason."""
    source = Source(graph)
    reasons = {node.name: why_not(View(source, node)) for node in source.body.graph.node}
    return {name: reason for name, reason in reasons.items() if reason}


def _replaced(graph: Graph, refused: Mapping[str, str], owners: dict[str, str], stuck: dict[str, str]) -> Graph:
    """Return the graph with what can be replaced replaced; `owners` and `stuck` are added to."""
    source = Source(graph)
    model = graph.proto()
    nodes: list[onnx.NodeProto] = []
    made: dict[str, str] = {}
    for node in list(model.graph.node):
        if node.name not in refused:
            nodes.append(node)
            continue
        try:
            parts = _parts(source, node)
        except Impossible as reason:
            stuck[node.name] = f"{refused[node.name]}; {reason}" if str(reason) else refused[node.name]
            nodes.append(node)
            continue
        made.update((part.name, node.name) for part in parts.nodes)
        nodes.extend(parts.nodes)
        model.graph.initializer.extend(parts.constants)
    if not made:
        return graph
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]  # inferred anew
    try:
        result = from_proto(without_dead_nodes(model), name=graph.name, base_dir=graph.base_dir)
    except GraphError as error:
        stuck.update((name, f"{refused[name]}; its replacement is not valid: {error}") for name in made.values())
        return graph
    owners.update((part, owners.get(node, node)) for part, node in made.items())
    return result


def _parts(source: Source, node: onnx.NodeProto) -> Parts:
    """Return what a node can be replaced by.

    Raises:
        Impossible: Nothing; with a reason where more is known than that there is no rule.
    """
    rule = RULES.get((node.domain, node.op_type))
    if rule is None:
        return by_definition(source, node)
    parts = Parts(source, node)
    parts.finish(rule(parts))
    return parts
