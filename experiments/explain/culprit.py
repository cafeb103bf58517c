"""Which node makes a compiler fail: bisection over the node order, a handful of compiles for any graph."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """The unit at which a failing sequence starts to fail; `company` is what it needs before it to fail."""

    unit: int
    company: tuple[int, ...]


def find_culprit(units: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Culprit:
    """Find the last unit of the shortest failing prefix of `units`, which as a whole is known to fail.

    `units` are in topological order, so that each slice of them is convex. About log2 n calls find the unit; one
    more tells whether it fails alone; if not, about log2 n more find how far back its company reaches. Both
    searches keep one end known to pass and one known to fail, so what they return was seen to fail whether or not
    failing is monotone.
    """
    passing, failing = 0, len(units)
    while failing - passing > 1:
        middle = (passing + failing) // 2
        if fails(units[:middle]):
            failing = middle
        else:
            passing = middle
    unit = failing - 1
    if unit == 0 or fails(units[unit : unit + 1]):
        return Culprit(unit=unit, company=())
    start, too_late = 0, unit
    while too_late - start > 1:
        middle = (start + too_late) // 2
        if fails(units[middle : unit + 1]):
            start = middle
        else:
            too_late = middle
    return Culprit(unit=unit, company=tuple(range(start, unit)))
