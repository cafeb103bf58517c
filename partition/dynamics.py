"""How a chip behaves over time: heat path, trip points, operating points and power states, each figure sourced.

All of it is optional in a device file; what a simulation needs and a file lacks, the simulation says.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partition.device import Figure


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ThermalNode:
    """One lump of the heat path: its heat capacity, and its resistance to the next node (the last: to the air)."""

    name: str
    heat_capacity_j_per_k: Figure
    resistance_k_per_w: Figure


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """A temperature at which the clock is cut: to `clock_ratio` of the maximum, or step by step when that is None."""

    node: str
    at_c: Figure
    hysteresis_k: Figure | None
    clock_ratio: Figure | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Thermal:
    """The heat path from die to air, and the trips along it."""

    nodes: tuple[ThermalNode, ...]
    trips: tuple[Trip, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    """A clock with the supply voltage that it needs."""

    clock_hz: Figure
    supply_v: Figure


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PowerStates:
    """What idling and sleeping draw, how long the processor stays awake, and what waking costs.

    `dwell_s` is the time awake after the last work, `save_s` the way into sleep, `wake_s` the way out,
    `restore_s` reloading the context, `cold_s` what cold caches add to the first inference, `wake_j` the
    energy of one way in and out.
    """

    idle_w: Figure | None
    sleep_w: Figure | None
    dwell_s: Figure | None
    save_s: Figure | None
    wake_s: Figure | None
    restore_s: Figure | None
    cold_s: Figure | None
    wake_j: Figure | None


class FigureReader(Protocol):
    """Reads a figure and refuses one that cannot be traced."""

    def figure(self, key: str, entry: Mapping[str, Any]) -> Figure:
        """Read the figure of that key."""
        ...

    def optional(self, table: Mapping[str, Any], key: str) -> Figure | None:
        """Read the figure of that key if the table has it."""
        ...


def read_thermal(table: Mapping[str, Any], read: FigureReader) -> Thermal:
    """Read `[thermal]`: `[[thermal.nodes]]` in the order of the heat path and `[[thermal.trips]]`."""
    nodes = tuple(
        ThermalNode(
            name=entry["name"],
            heat_capacity_j_per_k=read.figure("nodes.heat_capacity_j_per_k", entry["heat_capacity_j_per_k"]),
            resistance_k_per_w=read.figure("nodes.resistance_k_per_w", entry["resistance_k_per_w"]),
        )
        for entry in table.get("nodes", ())
    )
    trips = tuple(
        Trip(
            node=entry["node"],
            at_c=read.figure("trips.at_c", entry["at_c"]),
            hysteresis_k=read.optional(entry, "hysteresis_k"),
            clock_ratio=read.optional(entry, "clock_ratio"),
        )
        for entry in table.get("trips", ())
    )
    return Thermal(nodes=nodes, trips=trips)


def read_points(entries: tuple[Mapping[str, Any], ...], read: FigureReader) -> tuple[OperatingPoint, ...]:
    """Read `[[processors.X.dvfs]]`, and return the points fastest first."""
    points = (
        OperatingPoint(
            clock_hz=read.figure("dvfs.clock_hz", entry["clock_hz"]),
            supply_v=read.figure("dvfs.supply_v", entry["supply_v"]),
        )
        for entry in entries
    )
    return tuple(sorted(points, key=lambda point: -point.clock_hz.value))


def read_power_states(table: Mapping[str, Any], read: FigureReader) -> PowerStates:
    """Read `[processors.X.power_states]`."""
    return PowerStates(**{field.name: read.optional(table, field.name) for field in dataclasses.fields(PowerStates)})
