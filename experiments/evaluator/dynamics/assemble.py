"""A device file and an evaluated candidate to a Machine, with every assumption said."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.evaluator.dynamics.thermal import RcChain
from experiments.evaluator.dynamics.values import Cost, Machine, Part, Point, Sleep, TripPoint
from partition import Device, DeviceError, OperatingPoint, PowerStates, Processor, Trip, load_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from experiments.store import Row
    from partition import Figure, ThermalNode

_ASSUMED: Final = Path(__file__).parent / "assumed"
_FORMS: Final = {"android": "phone", "ios": "phone", "linux": "board", "windows": "laptop", "host": "laptop"}
_DEFAULT_HYSTERESIS_K: Final = 3.0
_STEP_SHARE: Final = 0.05
_HANDOVER: Final = "handover"


class DynamicsError(ValueError):
    """A candidate that cannot be simulated; the message says what is missing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """A machine, and one sentence for each thing that its device file does not give and that was assumed."""

    machine: Machine
    assumptions: tuple[str, ...]


def assemble(device: Device, row: Row) -> Assembled:
    """Build the machine that runs the candidate of `row`.

    In a plan that is cut over several processors each part follows the clock of its own; all of them idle and wake.

    Raises:
        DynamicsError: the row has no latency or energy, or the device no such processor.
    """
    try:
        processors = [device.processor(name) for name in row.processor.split("+")]
    except DeviceError as error:
        raise DynamicsError(str(error)) from error
    stand_in = _stand_in_device(device)
    notes: list[str] = []
    chain, trips = _heat_path(device, stand_in, notes)
    costs = _costs(device, row, notes)
    parts = [
        Part(cost=costs[p.name], points=_points(device, p, stand_in, notes)) for p in processors if p.name in costs
    ]
    if _HANDOVER in costs:
        parts.append(Part(cost=costs[_HANDOVER]))
    machine = Machine(
        cost=parts[0].cost,
        chain=chain,
        trips=trips,
        points=parts[0].points,
        others=tuple(parts[1:]),
        sleep=_together([_sleep(device, processor, stand_in, notes) for processor in processors]),
    )
    return Assembled(machine=machine, assumptions=tuple(notes))


def power_states(device: Device, processor: Processor) -> tuple[Sleep, tuple[str, ...]]:
    """Return the power states of a processor, and what was assumed about them."""
    notes: list[str] = []
    return _sleep(device, processor, _stand_in_device(device), notes), tuple(notes)


def _stand_in_device(device: Device) -> Device:
    return load_device(str(_ASSUMED / f"{device.form or _FORMS.get(device.os, 'board')}.toml"))


def _costs(device: Device, row: Row, notes: list[str]) -> dict[str, Cost]:
    """Return the cost by processor, and that of handing over, which follows no clock."""
    if row.latency_s is None or row.energy_parts_j is None:
        missing = "latency" if row.latency_s is None else "energy"
        raise DynamicsError(f"{row.backend} {row.precision} on {row.processor} has no {missing}, so it has no heat")
    names, latencies, energies = row.segment_processors, row.segment_latency_s, row.segment_energy_parts_j
    if row.segments == 1 or not names or not latencies or not energies or None in energies:
        name = row.processor.split("+")[0]
        if row.segments > 1:
            notes.append(f"{row.processor}: the row does not tell its parts apart, so all follows the clock of {name}")
        return {name: _cost(device, name, row.latency_s, row.energy_parts_j, row, notes)}
    found: dict[str, Cost] = {}
    for name in dict.fromkeys(names):
        mine = [i for i, other in enumerate(names) if other == name]
        drawn = [energies[i] or {} for i in mine]
        parts = {cause: sum(part.get(cause, 0.0) for part in drawn) for cause in row.energy_parts_j}
        found[name] = _cost(device, name, sum(latencies[i] for i in mine), parts, row, notes)
    handover_s = row.latency_s - sum(latencies)
    return {**found, _HANDOVER: Cost(compute_s=0.0, fixed_s=handover_s)} if handover_s > 0 else found


def _cost(device: Device, name: str, latency_s: float, parts: Mapping[str, float], row: Row, notes: list[str]) -> Cost:
    """Split latency and energy: dispatch and DRAM time do not follow the clock, the rest does."""
    processor = device.processor(name)
    dispatch_s = processor.dispatch_s.value if processor.dispatch_s else 0.0
    dram_s = 0.0
    if row.dram_bytes is not None and device.dram_bytes_per_s is not None:
        all_j = (row.energy_parts_j or {}).get("memory", 0.0)
        share = parts.get("memory", 0.0) / all_j if all_j else 1.0  # the model's memory energy is by the byte
        dram_s = share * row.dram_bytes / device.dram_bytes_per_s.value
    else:
        notes.append(f"{name}: the DRAM time is not known, so all but dispatch is taken to follow the clock")
    if "net" in parts:
        notes.append(f"{name}: a meter cannot tell memory from compute, so all above idle follows the clock")
    fixed_s = min(dispatch_s + dram_s, 0.9 * latency_s)
    return Cost(
        compute_s=latency_s - fixed_s,
        fixed_s=fixed_s,
        compute_j=max(parts.get("compute", 0.0) + parts.get("net", 0.0), 0.0),
        memory_j=parts.get("memory", 0.0),
        static_w=(parts.get("static", 0.0) + parts.get("idle", 0.0)) / latency_s,
    )


def _heat_path(device: Device, stand_in: Device, notes: list[str]) -> tuple[RcChain, tuple[TripPoint, ...]]:
    assert stand_in.thermal is not None, "the files in assumed/ have everything"
    own = device.thermal
    nodes, trips = (own.nodes, own.trips) if own is not None else ((), ())
    if not nodes:
        nodes = stand_in.thermal.nodes
        notes.append(f"{device.name} gives no heat path: that of {stand_in.title} is assumed ({_path_text(nodes)})")
    names = tuple(node.name for node in nodes)
    # A node without a trip of its own still needs one: a phone without a limit on its skin would burn its user.
    covered = {trip.node for trip in trips}
    added = tuple(trip for trip in stand_in.thermal.trips if trip.node in names and trip.node not in covered)
    notes.extend(
        f"{device.name} gives no trip for its {trip.node}: {trip.at_c.value:g} degC is assumed{_why(trip.at_c)}"
        for trip in added
    )
    for trip in trips:
        if trip.node not in names:
            raise DynamicsError(f"{device.name} has a trip on {trip.node!r}, which its heat path does not have")
    chain = RcChain(
        names=names,
        capacities_j_per_k=tuple(node.heat_capacity_j_per_k.value for node in nodes),
        resistances_k_per_w=tuple(node.resistance_k_per_w.value for node in nodes),
    )
    return chain, tuple(_trip(trip, chain) for trip in (*trips, *added))


def _why(figure: Figure) -> str:
    return f" ({figure.note})" if figure.note else ""


def _path_text(nodes: Sequence[ThermalNode]) -> str:
    return ", ".join(
        f"{node.name} {node.heat_capacity_j_per_k.value:g} J/K then {node.resistance_k_per_w.value:g} K/W"
        for node in nodes
    )


def _trip(trip: Trip, chain: RcChain) -> TripPoint:
    """Step in a rhythm that the node can follow: skin warms over minutes, and would be overshot step by step."""
    node = chain.names.index(trip.node)
    return TripPoint(
        node=node,
        at_c=trip.at_c.value,
        hysteresis_k=trip.hysteresis_k.value if trip.hysteresis_k else _DEFAULT_HYSTERESIS_K,
        clock_ratio=trip.clock_ratio.value if trip.clock_ratio else None,
        step_s=_STEP_SHARE * chain.capacities_j_per_k[node] * chain.resistances_k_per_w[node],
    )


def _points(device: Device, processor: Processor, stand_in: Device, notes: list[str]) -> tuple[Point, ...]:
    points: tuple[OperatingPoint, ...] = processor.operating_points
    if not points:
        points = _stand_in(processor, stand_in).operating_points
        ratios = ", ".join(f"{p.clock_hz.value / points[0].clock_hz.value:.2f}" for p in points)
        notes.append(
            f"{device.name} gives no operating points for its {processor.name}: clock ratios {ratios} are assumed"
        )
    fastest = points[0]
    return tuple(
        Point(
            clock_ratio=p.clock_hz.value / fastest.clock_hz.value,
            supply_ratio=p.supply_v.value / fastest.supply_v.value,
        )
        for p in points
    )


def _sleep(device: Device, processor: Processor, stand_in: Device, notes: list[str]) -> Sleep:
    """Take each figure from the device, else from the stand-in; what neither gives costs nothing."""
    own, generic = processor.power_states, _stand_in(processor, stand_in).power_states
    values: dict[str, float] = {}
    assumed = []
    for field in dataclasses.fields(PowerStates):
        figure: Figure | None = getattr(own, field.name) if own is not None else None
        if figure is None and generic is not None:
            figure = getattr(generic, field.name)
            if figure is not None:
                assumed.append(f"{field.name} {figure.value:g}")
        if figure is not None:
            values[field.name] = figure.value
    if assumed:
        notes.append(f"{device.name} gives not all power states of its {processor.name}: assumed {', '.join(assumed)}")
    return Sleep(**values)


def _together(sleeps: Sequence[Sleep]) -> Sleep:
    """Join the power states of processors that serve one request: each waits, all wake, one after the other.

    They fall asleep together, when the one that is dearest to wake does.
    """
    dearest = max(sleeps, key=lambda sleep: sleep.overhead_s)
    added = ("idle_w", "sleep_w", "save_s", "wake_s", "wake_spread_s", "restore_s", "cold_s", "wake_j")
    return Sleep(dwell_s=dearest.dwell_s, **{name: sum(getattr(sleep, name) for sleep in sleeps) for name in added})


def _stand_in(processor: Processor, stand_in: Device) -> Processor:
    kinds = {p.name: p for p in stand_in.processors}
    return kinds.get(processor.kind, kinds["cpu"])
