"""The configurations that no other beats, kept while a space passes by in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, np.dtype[Any]]

# Points of the front that a block is held against first; the few that survive are compared with all.
_PIVOTS: Final = 16
_PENDING: Final = 8192


def undominated(costs: Array) -> Array:
    """Return the indices of the rows of `costs` (n, objectives) that no other row beats; of equal rows, the first.

    A row beats another when it is nowhere larger and somewhere smaller.
    """
    order = np.lexsort(costs.T[::-1])
    rest, kept = order, []
    while rest.size:
        first, rest = rest[0], rest[1:]
        kept.append(first)
        # In lexicographic order nothing later can beat the first.
        rest = rest[(costs[rest] < costs[first]).any(axis=1)]
    return np.array(kept, dtype=np.intp)


class Front:
    """The undominated points so far; each remembers where in its block it was, and the block's description."""

    def __init__(self) -> None:
        self._costs = np.empty((0, 3))
        self._at: Array = np.empty((0, 3), dtype=np.intp)
        self._blocks: list[Any] = []
        self._pending: list[tuple[Array, Array]] = []
        self._waiting = 0
        self._chosen: Array = self._costs

    @property
    def size(self) -> int:
        """Number of points."""
        self._settle()
        return len(self._costs)

    def add(self, costs: tuple[Array, Array, Array], legal: Array, block: Any) -> None:  # noqa: ANN401
        """Add the legal points of a block of shape (rows, columns)."""
        shape = np.broadcast_shapes(*(c.shape for c in costs), legal.shape)
        keep = np.broadcast_to(legal, shape)
        pivots = self._pivots()
        if len(pivots):
            # The first pivot, tried on all, leaves few; the others see only those.
            keep = keep & ~_beaten(costs, pivots[0])
        index = np.flatnonzero(keep)
        parts = [np.broadcast_to(c, shape).ravel()[index] for c in costs]
        for pivot in pivots[1:]:
            left = ~_beaten((parts[0], parts[1], parts[2]), pivot)
            index, parts = index[left], [c[left] for c in parts]
        if not index.size:
            return
        found = np.stack(parts, axis=1)
        inside = undominated(found) if index.size > _PENDING else np.arange(index.size)
        rows, columns = np.unravel_index(index[inside], shape)
        self._pending.append((found[inside], np.stack([np.full_like(rows, len(self._blocks)), rows, columns], axis=1)))
        self._blocks.append(block)
        self._waiting += inside.size
        if self._waiting > _PENDING:
            self._settle()

    def picks(self) -> Iterator[tuple[tuple[float, float, float], tuple[int, int], Any]]:
        """Yield (costs, (row, column), block) of each point, the one with the least first cost first."""
        self._settle()
        for (first, second, third), (block, row, column) in zip(self._costs.tolist(), self._at.tolist(), strict=True):
            yield (first, second, third), (row, column), self._blocks[block]

    def _pivots(self) -> Array:
        """Return points of the front that stand for it: the one of least product, then evenly along the first cost."""
        return self._chosen

    def _settle(self) -> None:
        if not self._pending:
            return
        costs = np.concatenate([self._costs, *(c for c, _ in self._pending)])
        at = np.concatenate([self._at, *(a for _, a in self._pending)])
        kept = undominated(costs)
        self._costs, self._at = costs[kept], at[kept]
        self._pending, self._waiting = [], 0
        even = np.linspace(0, len(kept) - 1, _PIVOTS).astype(np.intp)
        product = np.log(np.maximum(self._costs, 1e-300)).sum(axis=1)
        self._chosen = self._costs[[product.argmin(), *even]]


def _beaten(costs: tuple[Array, Array, Array], pivot: Array) -> Array:
    return np.asarray((costs[0] >= pivot[0]) & (costs[1] >= pivot[1]) & (costs[2] >= pivot[2]))
