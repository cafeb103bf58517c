"""Rows to frontiers: which candidate is on the frontier of its series, and which one only seems to be off it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.frontier import certainly_dominated, frontier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from experiments.store import Row

OBJECTIVES: Final = ("latency", "energy", "power", "memory", "size", "error")
_UNITS: Final = {"latency": "s", "energy": "J", "power": "W", "memory": "B", "size": "B", "error": ""}
_NAMES: Final = {
    "latency": "latency",
    "energy": "energy per inference",
    "power": "mean power",
    "memory": "peak memory",
    "size": "artefact size",
    "error": "output error (1 - cosine)",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """A row with its standing: "frontier", "tie" (its interval reaches the frontier), "dominated" or "unranked".

    `device_standing` is the same among all series of its device.
    """

    row: Row
    standing: str
    device_standing: str


def objective_unit(objective: str) -> str:
    """Return the SI unit of an objective."""
    return _UNITS[objective]


def objective_name(objective: str) -> str:
    """Return the objective's name for an axis."""
    return _NAMES[objective]


def value(row: Row, objective: str) -> tuple[float, float, float] | None:
    """Return (typical, low, high) of an objective in SI units, None when it is unknown."""
    if objective == "latency" and row.latency_s is not None:
        return row.latency_s, row.latency_low_s or row.latency_s, row.latency_high_s or row.latency_s
    if objective == "energy" and row.energy_j is not None:
        low_j = row.energy_j if row.energy_low_j is None else row.energy_low_j  # a meter's bound may be 0
        return row.energy_j, low_j, row.energy_high_j or row.energy_j
    if objective == "power" and row.power_w is not None:
        low_w, high_w = row.power_bounds_w or (row.power_w, row.power_w)
        return row.power_w, low_w, high_w
    plain = {
        "memory": row.peak_memory_bytes,
        "size": row.artefact_bytes,
        "error": None if row.cosine is None else max(0.0, 1.0 - row.cosine),
    }.get(objective)
    return None if plain is None else (float(plain), float(plain), float(plain))


def rank(rows: Iterable[Row], objectives: Sequence[str]) -> tuple[Ranked, ...]:
    """Rank all rows: those with status "ok" and every objective known compete, the rest are "unranked"."""
    rows = tuple(rows)
    in_series = _standings(rows, objectives, [row.series for row in rows])
    in_device = _standings(rows, objectives, [row.device for row in rows])
    return tuple(
        Ranked(row=row, standing=a, device_standing=b) for row, a, b in zip(rows, in_series, in_device, strict=True)
    )


def _standings(rows: Sequence[Row], objectives: Sequence[str], groups: Sequence[object]) -> list[str]:
    standings = ["unranked"] * len(rows)
    for group in dict.fromkeys(groups):
        members = [i for i, row in enumerate(rows) if groups[i] == group and _competes(row, objectives)]
        for i, standing in zip(members, _within([rows[i] for i in members], objectives), strict=True):
            standings[i] = standing
    return standings


def _competes(row: Row, objectives: Sequence[str]) -> bool:
    return row.status == "ok" and all(value(row, objective) is not None for objective in objectives)


def _within(rows: Sequence[Row], objectives: Sequence[str]) -> list[str]:
    if not rows:
        return []
    cube = np.array([[value(row, objective) for objective in objectives] for row in rows], dtype=float)
    typical, low, high = cube[:, :, 0], cube[:, :, 1], cube[:, :, 2]
    on, beaten = frontier(typical), certainly_dominated(low, high)
    return ["frontier" if f else "dominated" if b else "tie" for f, b in zip(on, beaten, strict=True)]
