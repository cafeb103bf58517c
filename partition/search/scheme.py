"""Which coordinates a label has: the objectives asked for, and one more per constraint that needs it.

Dominance in every coordinate is what keeps label setting exact. A power cap, for instance, is no limit on
either objective alone: a slower plan of equal energy may be the only one that keeps it, so
energy - cap * latency becomes a coordinate of its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from partition.search.arrays import Bools, Ints
    from partition.search.encode import Encoded
    from partition.search.problem import Constraints, Objective

Kind = Literal["latency", "energy", "memory", "error", "segments", "power", "load"]
BASE: dict[str, int] = {"latency": 0, "energy": 1, "memory": 2, "error": 3}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Coordinate:
    """One component of a label: what it counts, how it combines along a path, and its limit in integer steps.

    `asked` is the limit as it was asked for, which may be less than one step.
    """

    kind: Kind
    limit: int | None = None
    asked: float | None = None
    processor: str = ""

    @property
    def takes_maximum(self) -> bool:
        """Tell whether the coordinate is a peak; all others add up."""
        return self.kind == "memory"

    @property
    def grows(self) -> bool:
        """Tell whether a longer plan never has less of it, so that a partial plan can be cut off."""
        return self.kind != "power"


class Scheme:
    """The coordinates of one question and how a decision's cost becomes a row of them."""

    def __init__(self, encoded: Encoded, coordinates: tuple[Coordinate, ...], *, watts: float | None = None) -> None:
        self.encoded, self.coordinates, self.watts = encoded, coordinates, watts
        self.power_steps = None if watts is None else watts * encoded.units.latency_s / encoded.units.energy_j
        self.counts_segments = any(c.kind == "segments" for c in coordinates)
        self.needs_all = any(c.kind in {"memory", "error"} for c in coordinates)
        self.plain = [c.kind for c in coordinates] == ["latency", "energy"]

    def columns(self, cost: Ints, opened: Bools, place: int | None) -> Ints:
        """Turn rows (latency, energy[, memory, error]) of decisions for `place` into rows of coordinates.

        A transfer loads the processor that waits for it; `place` None is nobody's load.
        """
        if self.plain:
            return cost[:, :2]
        return np.stack([self._column(c, cost, opened, place) for c in self.coordinates], axis=1)

    def _column(self, coordinate: Coordinate, cost: Ints, opened: Bools, place: int | None) -> Ints:
        if coordinate.kind in BASE:
            return cost[:, BASE[coordinate.kind]]
        if coordinate.kind == "segments":
            return opened.astype(np.int64)
        if coordinate.kind == "load":
            mine = place is not None and self.encoded.problem.places[place].processor == coordinate.processor
            return cost[:, 0] * int(mine)
        assert self.power_steps is not None
        # Fixed point with 20 fractional bits: rounding moves the cap by less than 1e-6 W per mW scale.
        scale = 1 << 20
        return cost[:, 1] * scale - cost[:, 0] * round(self.power_steps * scale)

    @property
    def pair_limits(self) -> tuple[int | None, int | None]:
        """Return the limits on latency and energy."""
        return self.coordinates[0].limit, self.coordinates[1].limit

    def column(self, kind: str, rows: Ints) -> Ints | None:
        """Return one coordinate of label rows; "period" is the largest load; None when it is not tracked."""
        if kind == "period":
            loads = [i for i, c in enumerate(self.coordinates) if c.kind == "load"]
            return rows[:, loads].max(1) if loads else None
        found = [i for i, c in enumerate(self.coordinates) if c.kind == kind]
        return rows[:, found[0]] if found else None

    def per_unit(self, kind: str) -> float:
        """Return how many integer steps of a coordinate make one SI unit."""
        units = {"latency": 0, "energy": 1, "memory": 2, "error": 3, "load": 0, "period": 0}
        return float(self.encoded.per_unit[units[kind]]) if kind in units else 1.0

    def within(self, rows: Ints) -> Bools:
        """Tell which label rows keep every limit."""
        limits = [np.iinfo(np.int64).max if c.limit is None else c.limit for c in self.coordinates]
        return np.asarray((rows <= np.array(limits)).all(1))


def scheme_for(encoded: Encoded, objectives: tuple[Objective, ...], limits: Constraints) -> Scheme:
    """Choose the coordinates for `objectives` under `limits`."""
    units = encoded.steps
    caps = {
        "latency": limits.deadline_s,
        "energy": limits.energy_cap_j,
        "memory": limits.memory_cap_bytes,
        "error": limits.error_cap,
    }
    needed = [k for k in BASE if k in {"latency", "energy"} or k in objectives or caps[k] is not None]
    found = [Coordinate(kind=k, limit=_floor(caps[k], units[BASE[k]]), asked=caps[k]) for k in needed]  # type: ignore[arg-type]
    if limits.max_segments is not None:
        found.append(Coordinate(kind="segments", limit=limits.max_segments))
    if limits.power_cap_w is not None:
        found.append(Coordinate(kind="power", limit=0))
    if "period" in objectives or limits.period_s is not None:
        processors = dict.fromkeys(place.processor for place in encoded.problem.places)
        limit = _floor(limits.period_s, units[0])
        found += [Coordinate(kind="load", processor=name, limit=limit, asked=limits.period_s) for name in processors]
    return Scheme(encoded, tuple(found), watts=limits.power_cap_w)


def _floor(limit: float | None, step: float) -> int | None:
    # A limit met to within a billionth is met: 26e-3 / 1e-9 must not become 25999999.
    return None if limit is None else int(np.floor(limit / step * (1 + 1e-9) + 1e-9))
