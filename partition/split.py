"""Segments of a DAG: the fewest that refusals allow, and the tensors that they hand over.

A node set is convex when no path leaves it and comes back: only then can it become one artefact without
waiting for itself. Convex partitions whose pieces do not wait for each other in a circle are exactly the
chains of *ideals* (sets closed under predecessors), so segments are grown from ideal to ideal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import networkx as nx

    from partition.dag import Activation


class SplitError(ValueError):
    """Say in one sentence why a node set or a sequence of segments cannot be executed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handover:
    """A tensor that passes between segments; `source` is None for a graph input, targets are indices."""

    tensor: Activation
    source: int | None
    targets: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Nodes of one convex segment, in topological order, and the place that executes them."""

    place: str
    nodes: tuple[str, ...]


def fewest_segments(dag: nx.DiGraph[str], allowed: Mapping[str, Collection[str]]) -> tuple[Run, ...]:
    """Cover the DAG by the fewest convex segments in executable order, each node on a place it allows.

    `allowed` maps node -> places. Among the shortest answers the one whose places sort first is returned.
    A segment is grown as far as it can go: a larger ideal never needs more segments to finish, so only the
    largest ideals reached with k segments have to be kept and the result is a true minimum.

    Raises:
        SplitError: no place takes a node.
    """
    for node in dag:
        if not allowed.get(node):
            raise SplitError(f"no place accepts node {node!r}")
    places = sorted({place for node in dag for place in allowed[node]})
    reached: dict[frozenset[str], tuple[Run, ...]] = {frozenset(): ()}
    everything = frozenset(dag)
    while everything not in reached:
        reached = _largest(_one_more(dag, allowed, places, reached))
    return reached[everything]


def _one_more(
    dag: nx.DiGraph[str],
    allowed: Mapping[str, Collection[str]],
    places: Sequence[str],
    reached: Mapping[frozenset[str], tuple[Run, ...]],
) -> dict[frozenset[str], tuple[Run, ...]]:
    grown: dict[frozenset[str], tuple[Run, ...]] = {}
    for done, runs in reached.items():
        for place in places:
            nodes = _grow(dag, allowed, done, place)
            if nodes:
                grown.setdefault(done | set(nodes), (*runs, Run(place=place, nodes=nodes)))
    return grown


def _grow(
    dag: nx.DiGraph[str], allowed: Mapping[str, Collection[str]], done: frozenset[str], place: str
) -> tuple[str, ...]:
    """Take every node that `place` can run after `done` without waiting for another place."""
    inside: dict[str, None] = {}
    for node in dag:
        fed = all(p in done or p in inside for p in dag.predecessors(node))
        if node not in done and place in allowed[node] and fed:
            inside[node] = None
    return tuple(inside)


def _largest(
    reached: Mapping[frozenset[str], tuple[Run, ...]],
) -> dict[frozenset[str], tuple[Run, ...]]:
    return {done: runs for done, runs in reached.items() if not any(done < other for other in reached)}


def handovers(dag: nx.DiGraph[str], segments: Sequence[Collection[str]]) -> tuple[Handover, ...]:
    """List the tensors that pass between `segments` (in executable order) or come in as graph inputs.

    Raises:
        SplitError: a node is missing or twice, or a segment would wait for a later one.
    """
    owner: dict[str, int] = {}
    for index, nodes in enumerate(segments):
        for node in nodes:
            if node in owner or node not in dag:
                raise SplitError(f"node {node!r} is {'in two segments' if node in owner else 'not in the graph'}")
            owner[node] = index
    if missing := [node for node in dag if node not in owner]:
        raise SplitError(f"node {missing[0]!r} is in no segment ({len(missing)} nodes are missing)")
    for producer, consumer in dag.edges:
        if owner[producer] > owner[consumer]:
            raise SplitError(
                f"segment {owner[consumer]} needs {producer!r} of the later segment {owner[producer]}: "
                "the segments wait for each other, so one of them is not convex here"
            )
    return tuple(found for tensor in dag.graph["activations"] if (found := _handover(tensor, owner)) is not None)


def _handover(tensor: Activation, owner: Mapping[str, int]) -> Handover | None:
    source = None if tensor.producer is None else owner[tensor.producer]
    targets = sorted({owner[consumer] for consumer in tensor.consumers} - {source})
    return (
        Handover(tensor=tensor, source=source, targets=tuple(t for t in targets if t is not None)) if targets else None
    )
