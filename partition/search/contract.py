"""Exact contraction: join two nodes when a plan that separates them is never better in anything.

A node u whose only reader is v can move into v's segment (or v, when u is all it waits for, into u's) without
breaking a segment or adding one. If for every pair of different places one of the two moves costs no more than
the separation, in every coordinate, then plans that keep u and v together hold the whole frontier.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from partition.search.pieces import coarsen

if TYPE_CHECKING:
    from partition.search.arrays import Bools, Ints
    from partition.search.encode import Encoded
    from partition.search.problem import Problem


@dataclasses.dataclass(slots=True)
class _Node:
    """One group under construction: members in order, cost[place, field], allowed[place], tensors in and out."""

    members: list[int]
    cost: Ints
    allowed: Bools
    reads: set[int]
    makes: set[int]


def contract(encoded: Encoded) -> Problem:
    """Return the problem with provably inseparable nodes joined; its frontier is the same.

    Exact for any of latency, energy, peak memory, error and segment count, not for loads or a power cap, which
    a move between processors can make worse while it lowers latency and energy.
    """
    groups = _Contraction(encoded).run()
    problem = encoded.problem
    if len(groups) == len(problem.nodes):
        return problem
    named = [[problem.nodes[n] for n in group] for group in groups]
    return coarsen(problem, named, problem.restriction)


class _Contraction:
    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded
        tensors, index = encoded.problem.tensors, encoded.node_index
        self._nodes = {
            n: _Node([n], encoded.node_cost[n].copy(), encoded.allowed[n].copy(), set(), set())
            for n in range(len(encoded.problem.nodes))
        }
        self._readers: list[set[int]] = [{index[name] for name in tensor.consumers} for tensor in tensors]
        self._maker: list[int | None] = [None if t.producer is None else index[t.producer] for t in tensors]
        for t, (readers, maker) in enumerate(zip(self._readers, self._maker, strict=True)):
            for reader in readers:
                self._nodes[reader].reads.add(t)
            if maker is not None:
                self._nodes[maker].makes.add(t)
        homes = len(encoded.homes)
        self._move = encoded.move_cost.reshape(-1, homes, homes, 4)
        self._home = encoded.place_home

    def run(self) -> list[list[int]]:
        """Join pairs until none qualifies; return the groups in topological order."""
        todo = list(self._nodes)
        while todo:
            node = todo.pop()
            reader = self._only_reader(node) if node in self._nodes else None
            if reader is not None and self._inseparable(node, reader):
                self._join(node, reader)
                # What feeds the joined node, and the node itself, may qualify now.
                todo += [maker for t in self._nodes[reader].reads if (maker := self._maker[t]) is not None]
                todo.append(reader)
        # A group's last member comes last in the node order, and only it is read from outside.
        return [node.members for _, node in sorted(self._nodes.items())]

    def _only_reader(self, node: int) -> int | None:
        """Return the one node that reads all that `node` makes, None when there are others or it is an output."""
        makes = self._nodes[node].makes
        readers = {reader for t in makes for reader in self._readers[t]}
        wanted = any(self._encoded.problem.tensors[t].target is not None for t in makes)
        return next(iter(readers)) if len(readers) == 1 and not wanted else None

    def _inseparable(self, first: int, second: int) -> bool:
        u, v = self._nodes[first], self._nodes[second]
        follows_only = all(self._maker[t] == first for t in v.reads)
        for p in np.flatnonzero(u.allowed).tolist():
            for q in np.flatnonzero(v.allowed).tolist():
                if p == q:
                    continue
                # Of what u makes, what nobody reads is handed over to nobody.
                passed = (self._move[t, self._home[p], self._home[q]] for t in u.makes & v.reads)
                handover = sum(passed, np.zeros(4, np.int64))
                later = u.allowed[q] and (u.cost[q] + self._fetch(u, q) <= u.cost[p] + handover).all()
                sooner = (
                    follows_only and v.allowed[p] and (v.cost[p] + self._deliver(v, p, q) <= v.cost[q] + handover).all()
                )
                if not (later or sooner):
                    return False
        return True

    def _fetch(self, u: _Node, place: int) -> Ints:
        """Bound what it can cost to have u's inputs on `place` too."""
        home = self._home[place]
        return sum((self._sources(t, home).max(0) for t in u.reads), np.zeros(4, np.int64))

    def _sources(self, tensor: int, home: int) -> Ints:
        """Return the cost rows of moving a tensor to `home` from wherever it may have been made."""
        maker = self._maker[tensor]
        if maker is not None:
            origins = {self._home[p] for p in np.flatnonzero(self._nodes[maker].allowed)}
            return self._move[tensor, sorted(origins), home]
        source = self._encoded.problem.tensors[tensor].source
        return (
            np.zeros((1, 4), np.int64)
            if source is None
            else self._move[tensor, [self._encoded.homes.index(source)], home]
        )

    def _deliver(self, v: _Node, now: int, before: int) -> Ints:
        """Bound what it can cost more that v's outputs are made on `now` and not on `before`."""
        start, old = self._home[now], self._home[before]
        extra = [np.maximum(self._move[t, start] - self._move[t, old], 0).sum(0) for t in v.makes]
        return sum(extra, np.zeros(4, np.int64))

    def _join(self, first: int, second: int) -> None:
        u, v = self._nodes.pop(first), self._nodes[second]
        peak = np.maximum(u.cost[:, 2], v.cost[:, 2])
        v.members = u.members + v.members
        v.cost = u.cost + v.cost
        v.cost[:, 2] = peak
        v.allowed = u.allowed & v.allowed
        v.reads = (u.reads | v.reads) - u.makes
        for t in u.reads:
            self._readers[t] = (self._readers[t] - {first}) | {second}
