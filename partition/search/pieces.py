"""Between decisions and plans: pieces from a path, pins as refusals, operators fused to coarser nodes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from partition.search.encode import counted
from partition.search.problem import Cost, Piece, ProblemError, Space, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partition.search.arrays import Floats, Ints
    from partition.search.encode import Encoded
    from partition.search.problem import Place, Problem


def pinned(problem: Problem, pins: Mapping[str, str]) -> Problem:
    """Turn pins (node -> processor) into refusals by all other processors' places."""
    refusals = {node: dict(reasons) for node, reasons in problem.refusals.items()}
    for node, processor in pins.items():
        if node not in problem.nodes:
            raise ProblemError(f"{node!r} is pinned to {processor!r} but is no node of the problem")
        if processor not in {place.processor for place in problem.places}:
            raise ProblemError(f"{node!r} is pinned to {processor!r}; the places are {_listed(problem.places)}")
        others = [place for place in problem.places if place.processor != processor]
        refusals.setdefault(node, {}).update(dict.fromkeys(others, f"pinned to {processor}"))
    return dataclasses.replace(problem, refusals=refusals) if pins else problem


def _listed(places: Iterable[Place]) -> str:
    return ", ".join(str(place) for place in places)


def pieces_of_nodes(encoded: Encoded, path: Sequence[int], *, regroup: bool) -> tuple[Piece, ...]:
    """Join consecutive nodes on one place; `regroup` may reorder nodes first, where that costs nothing."""
    steps = [divmod(what, len(encoded.problem.places)) for what in path]
    if regroup:
        steps = _fewer_switches(encoded, dict(steps))
    runs: list[tuple[int, list[int]]] = []
    for node, place in steps:
        if not runs or runs[-1][0] != place:
            runs.append((place, []))
        runs[-1][1].append(node)
    return tuple(piece(encoded.problem, place, nodes) for place, nodes in runs)


def piece(problem: Problem, place: int, nodes: Iterable[int]) -> Piece:
    """Name the operators of one segment, those inside coarser nodes included."""
    names = [problem.nodes[node] for node in nodes]
    return Piece(
        place=problem.places[place],
        nodes=tuple(member for name in names for member in problem.members.get(name, (name,))),
    )


def _fewer_switches(encoded: Encoded, place_of: Mapping[int, int]) -> list[tuple[int, int]]:
    """Order nodes so that a place runs all it can before the next one does: fewer, larger artefacts."""
    problem, index = encoded.problem, encoded.node_index
    after: list[set[int]] = [set() for _ in problem.nodes]
    for tensor in problem.tensors:
        if tensor.producer is not None:
            after[index[tensor.producer]] |= {index[name] for name in tensor.consumers}
    waiting = [0] * len(after)
    for followers in after:
        for node in followers:
            waiting[node] += 1
    ready = [node for node, count in enumerate(waiting) if not count]
    steps: list[tuple[int, int]] = []
    while ready:
        current = steps[-1][1] if steps else place_of[ready[0]]
        node = next((n for n in ready if place_of[n] == current), ready[0])
        ready.remove(node)
        steps.append((node, place_of[node]))
        for follower in sorted(after[node]):
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return steps


def coarsen(problem: Problem, groups: Sequence[Sequence[str]], restriction: Space | None) -> Problem:
    """Make one node of each group (in topological order), so that cuts fall only on group borders.

    Costs add up, peaks take their maximum, a group is refused where any member is and is named after its last
    member. `restriction` names the borders in every result, because such an answer is exact only among plans
    that keep them; None is for groups that are proved to cost nothing.
    """
    problem = counted(problem)
    owner = {name: group[-1] for group in groups for name in group}
    names = tuple(dict.fromkeys(owner[name] for group in groups for name in group))
    if set(owner) != set(problem.nodes):
        raise ProblemError("the groups do not hold every node exactly once")
    members = {
        owner[group[0]]: tuple(m for name in group for m in problem.members.get(name, (name,))) for group in groups
    }
    refusals: dict[str, dict[Place, str]] = {}
    for name, reasons in problem.refusals.items():
        refusals.setdefault(owner[name], {}).update(reasons)
    costs = {
        (owner[group[0]], place): _together([problem.costs[name, place] for name in group])
        for group in groups
        for place in problem.places
        if problem.costs and place not in refusals.get(owner[group[0]], {})
    }
    tensors = tuple(t for tensor in problem.tensors if (t := _outside(tensor, owner)) is not None)
    return dataclasses.replace(
        problem, nodes=names, tensors=tensors, costs=costs, refusals=refusals, members=members, restriction=restriction
    )


def crossing(problem: Problem) -> tuple[Floats, Ints]:
    """Return per position 0..n of the node order the bytes and the number of tensors made before and read after it."""
    index = {name: number for number, name in enumerate(problem.nodes)}
    size, count = np.zeros(len(index) + 1), np.zeros(len(index) + 1, np.int64)
    for tensor in problem.tensors:
        if tensor.producer is not None and tensor.consumers:
            reach = slice(index[tensor.producer] + 1, max(index[name] for name in tensor.consumers) + 1)
            size[reach] += tensor.size_bytes
            count[reach] += 1
    return size, count


def in_space(problem: Problem, space: Space) -> tuple[Problem, Space]:
    """Return the problem whose nodes are all that `space` may cut between, and the space that it then is."""
    if space is Space.FUSED_GROUP_BORDERS:
        raise ProblemError("give the groups with `coarsen`, then ask for all cuts of one order or all convex cuts")
    if space is Space.SINGLE_TENSOR_CUTS:
        return coarsen(problem, single_tensor_groups(problem), space), Space.ORDER_CUTS
    return problem, space


def single_tensor_groups(problem: Problem) -> list[list[str]]:
    """Group the nodes between cuts of their order that exactly one tensor crosses."""
    _, count = crossing(problem)
    groups: list[list[str]] = [[]]
    for number, name in enumerate(problem.nodes):
        if number and count[number] == 1:
            groups.append([])
        groups[-1].append(name)
    return groups


def _together(costs: Sequence[Cost]) -> Cost:
    return Cost(
        latency_s=sum(cost.latency_s for cost in costs),
        energy_j=sum(cost.energy_j for cost in costs),
        memory_bytes=max(cost.memory_bytes for cost in costs),
        error=sum(cost.error for cost in costs),
    )


def _outside(tensor: Tensor, owner: Mapping[str, str]) -> Tensor | None:
    """Rename a tensor's ends to groups; None when it never leaves its group."""
    producer = None if tensor.producer is None else owner[tensor.producer]
    consumers = tuple(dict.fromkeys(owner[name] for name in tensor.consumers if owner[name] != producer))
    if not consumers and tensor.target is None:
        return None
    return dataclasses.replace(tensor, producer=producer, consumers=consumers)
