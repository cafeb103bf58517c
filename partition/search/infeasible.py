"""Why no plan meets the constraints: which one is in the way, and by how much."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from partition.search.general import RowLabels
from partition.search.problem import Conflict, Infeasible

if TYPE_CHECKING:
    from partition.search.arrays import Ints
    from partition.search.encode import Encoded
    from partition.search.scheme import Scheme
    from partition.search.states import StateGraph

NAMES: Final = {
    "latency": ("deadline", "s"),
    "energy": ("energy cap", "J"),
    "memory": ("memory cap", "bytes"),
    "error": ("error cap", ""),
    "segments": ("number of segments", ""),
    "power": ("power cap", "W"),
    "load": ("period", "s"),
}


NO_WAY: Final = Conflict(
    constraint="refusals",
    limit=0.0,
    best=1.0,
    unit="",
    sentence="no sequence of segments that some place takes covers the graph, whatever the limits",
)


def unplaceable(encoded: Encoded) -> None:
    """Raise Infeasible for nodes that every place refuses, with each place's reason."""
    problem = encoded.problem
    lost = [problem.nodes[n] for n in np.flatnonzero(~encoded.allowed.any(1))]
    if not lost:
        return
    raise Infeasible(
        tuple(
            Conflict(
                constraint="refusals",
                limit=0.0,
                best=1.0,
                unit="nodes",
                sentence=f"no place takes node {name!r} ("
                + "; ".join(f"{place}: {reason}" for place, reason in problem.refusals[name].items())
                + ")",
            )
            for name in lost
        )
    )


def explain(graph: StateGraph, scheme: Scheme) -> tuple[Conflict, ...]:
    """Lift one limit at a time and report the best value reachable while all others hold.

    A constraint whose lifting helps is named alone with its shortfall. When no single lifting helps, every
    limit is lifted and each constraint that no plan meets by itself is named; failing that, all together.
    """
    limited = [i for i, c in enumerate(scheme.coordinates) if c.limit is not None]
    alone = [_conflict(graph, scheme, i, keep=[j for j in limited if j != i]) for i in limited]
    if not any(alone):
        alone = [_conflict(graph, scheme, i, keep=[]) for i in limited]
    return tuple(conflict for conflict in alone if conflict is not None) or (NO_WAY,)


def _conflict(graph: StateGraph, scheme: Scheme, index: int, *, keep: list[int]) -> Conflict | None:
    """Find the least value of one coordinate under the limits `keep`; None when nothing is reachable."""
    lifted = tuple(
        dataclasses.replace(c, limit=c.limit if i in keep else None) for i, c in enumerate(scheme.coordinates)
    )
    rows = RowLabels(graph, lifted).points
    limits = np.array([np.iinfo(np.int64).max if c.limit is None else c.limit for c in lifted])
    rows = rows[(rows <= limits).all(1)]
    if not len(rows):
        return None
    return _sentence(scheme, index, rows)


def _sentence(scheme: Scheme, index: int, rows: Ints) -> Conflict:
    coordinate = scheme.coordinates[index]
    name, unit = NAMES[coordinate.kind]
    if coordinate.kind == "power":
        watts = rows[:, 1] / np.maximum(rows[:, 0], 1) * scheme.per_unit("latency") / scheme.per_unit("energy")
        limit, best = scheme.watts or 0.0, float(watts.min())
    else:
        per_unit = scheme.per_unit(coordinate.kind)
        limit = (coordinate.limit or 0) / per_unit if coordinate.asked is None else coordinate.asked
        best = float(rows[:, index].min() / per_unit)
    what = f"{name} {limit:.6g} {unit}".strip()
    reach = f"the least reachable is {best:.6g} {unit}".strip()
    return Conflict(
        constraint=name,
        limit=limit,
        best=best,
        unit=unit,
        sentence=f"{what}: {reach}, {best - limit:.3g} {unit}".strip() + " too much",
    )
