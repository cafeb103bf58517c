"""Legal cuts of a DAG: convex node sets, the tensors that cross them, the fewest segments refusals allow.

A node set is convex when no path leaves it and comes back: only then can it become one artefact without
waiting for itself. Convex partitions whose pieces do not wait for each other in a circle are exactly the
chains of *ideals* (sets closed under predecessors), so every function here works on ideals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from partition.dag import Activation


class SplitError(ValueError):
    """Say in one sentence why a node set or a sequence of segments cannot be executed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A position between two node sets: `before` is finished, `tensors` must be kept for the rest."""

    before: frozenset[str]
    tensors: tuple[Activation, ...]

    @property
    def size_bytes(self) -> int | None:
        """Sum the bytes that cross; None when one tensor's shape is unknown."""
        return total_bytes(self.tensors)


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


def total_bytes(tensors: Collection[Activation]) -> int | None:
    """Sum tensor sizes in bytes, None when any is unknown."""
    sizes = [tensor.size_bytes for tensor in tensors]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def is_convex(dag: nx.DiGraph[str], nodes: Collection[str]) -> bool:
    """Tell whether no path between two of `nodes` passes through a node outside them."""
    return not _detour(dag, frozenset(nodes))


def _detour(dag: nx.DiGraph[str], inside: frozenset[str]) -> set[str]:
    """Return the outside nodes that lie on a path from `inside` back to it."""
    if missing := inside - set(dag):
        raise SplitError(f"the graph has no node {min(missing)!r}")
    after = {reached for node in inside for reached in dag.successors(node)} - inside
    before = {reached for node in inside for reached in dag.predecessors(node)} - inside
    return _closure(dag, after, inside, down=True) & _closure(dag, before, inside, down=False)


def _closure(dag: nx.DiGraph[str], start: set[str], barrier: frozenset[str], *, down: bool) -> set[str]:
    seen, todo = set(start), list(start)
    while todo:
        node = todo.pop()
        fresh = set(dag.successors(node) if down else dag.predecessors(node)) - seen - barrier
        seen |= fresh
        todo.extend(fresh)
    return seen


def crossing(dag: nx.DiGraph[str], before: Collection[str]) -> tuple[Activation, ...]:
    """List the tensors alive after `before` has run: made or fed, and still read outside or a graph output.

    Graph inputs that only the rest reads are listed too: they must stay where they are until then.
    """
    done = frozenset(before)
    return tuple(
        tensor
        for tensor in dag.graph["activations"]
        if (tensor.producer is None or tensor.producer in done)
        and (tensor.is_output or any(consumer not in done for consumer in tensor.consumers))
    )


def _passing(dag: nx.DiGraph[str], done: frozenset[str]) -> tuple[Activation, ...]:
    """List the tensors that a split behind `done` hands over: made before it, read after it."""
    return tuple(
        tensor
        for tensor in dag.graph["activations"]
        if tensor.producer in done and any(consumer not in done for consumer in tensor.consumers)
    )


def order_cuts(dag: nx.DiGraph[str]) -> tuple[Cut, ...]:
    """List the cuts between consecutive nodes of the DAG's own topological order (n - 1 of them)."""
    order = tuple(dag)
    _check_order(dag, order)
    prefixes = (frozenset(order[:stop]) for stop in range(1, len(order)))
    return tuple(Cut(before=before, tensors=_passing(dag, before)) for before in prefixes)


def single_tensor_cuts(dag: nx.DiGraph[str]) -> tuple[Cut, ...]:
    """List the order cuts that one tensor crosses. A restriction: it loses most of some frontiers."""
    return tuple(cut for cut in order_cuts(dag) if len(cut.tensors) == 1)


def _check_order(dag: nx.DiGraph[str], order: Sequence[str]) -> None:
    position = {node: index for index, node in enumerate(order)}
    for producer, consumer in dag.edges:
        if position[producer] >= position[consumer]:
            raise SplitError(f"node {consumer!r} comes before {producer!r}, which it needs")


def ideals(dag: nx.DiGraph[str]) -> Iterator[frozenset[str]]:
    """Yield every node set closed under predecessors once, smaller ones first, the empty one included.

    Their number is exponential in the width of the graph; the caller decides when to stop.
    """
    if not nx.is_directed_acyclic_graph(dag):
        raise SplitError(f"the graph has a cycle: {nx.find_cycle(dag)}")
    layer = {frozenset[str]()}
    while layer:
        yield from sorted(layer, key=sorted)
        layer = {done | {node} for done in layer for node in _ready(dag, done)}


def _ready(dag: nx.DiGraph[str], done: frozenset[str]) -> list[str]:
    return [node for node in dag if node not in done and all(p in done for p in dag.predecessors(node))]


def fewest_segments(dag: nx.DiGraph[str], allowed: Mapping[str, Collection[str]]) -> tuple[Run, ...]:
    """Cover the DAG by the fewest convex segments in executable order, each node on a place it allows.

    `allowed` maps node -> places. Among the shortest answers the one whose places sort first is returned.
    A segment is grown as far as it can go: a larger ideal never needs more segments to finish, so only the
    largest ideals reached with k segments have to be kept and the result is a true minimum.
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

    Raise SplitError when a node is missing or twice, or when a segment would wait for a later one.
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
