"""Energy of an inference: by a meter, or modelled as active power x time + energy per MAC x MACs + per byte x bytes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import Latency, Source
from partition import Device, Figure, Processor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.evaluator.power.window import MeasuredEnergy

_NOTHING = Figure(value=0.0, low=0.0, high=0.0, tag="derived", source="")


class UnknownFigureError(ValueError):
    """The device file lacks a figure that the model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Joules of one inference by cause, with the bounds on the total.

    A model's causes are compute, memory (what segments hand over is part of it) and static. A meter sees two: "net",
    what the inference added, and "idle", what the processor would have drawn without it; `metered` then says how it was
    measured.
    """

    parts_j: Mapping[str, float]
    low_j: float
    high_j: float
    source: Source
    metered: Metered | None = None

    @property
    def total_j(self) -> float:
        """The sum over the causes."""
        return sum(self.parts_j.values())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metered:
    """Which meter, and what it saw."""

    meter: str
    measured: MeasuredEnergy


def measured_energy(meter: str, measured: MeasuredEnergy) -> Energy:
    """Take a meter's joules per inference; the bounds are the measurement's uncertainty."""
    gross_j = measured.gross_j
    return Energy(
        parts_j={"net": measured.net_j, "idle": gross_j - measured.net_j},
        low_j=max(gross_j - measured.uncertainty_j, 0.0),
        high_j=gross_j + measured.uncertainty_j,
        source=Source.MEASURED,
        metered=Metered(meter=meter, measured=measured),
    )


def modelled_energy(
    device: Device,
    processor: Processor,
    precision: str,
    *,
    latency: Latency,
    macs: int,
    dram_bytes: int,
) -> Energy:
    """Model the energy of one inference on one processor from the device file's coefficients.

    Bounds combine the coefficients' bounds with the latency's.

    Raises:
        UnknownFigureError: the device file has no active power, energy per MAC or energy per byte.
    """
    active_w = _known(processor.active_w, device, f"processors.{processor.name}.active_w")
    mac_key = f"processors.{processor.name}.energy_j_per_mac.{precision}"
    j_per_mac = _known(processor.energy_j_per_mac.get(precision), device, mac_key) if macs else _NOTHING
    j_per_byte = _known(device.dram_j_per_byte, device, "dram.j_per_byte")
    return Energy(
        parts_j={
            "compute": j_per_mac.value * macs,
            "memory": j_per_byte.value * dram_bytes,
            "static": active_w.value * latency.typical_s,
        },
        low_j=j_per_mac.low * macs + j_per_byte.low * dram_bytes + active_w.low * latency.low_s,
        high_j=j_per_mac.high * macs + j_per_byte.high * dram_bytes + active_w.high * latency.high_s,
        source=Source.MODELLED,
    )


def add_energies(parts: tuple[Energy, ...]) -> Energy:
    """Add the energies of a plan's segments; the bounds add up too, as if the errors were all alike.

    The sum is measured when every part is.
    """
    causes = dict.fromkeys(cause for part in parts for cause in part.parts_j)
    measured = all(part.source is Source.MEASURED for part in parts)
    return Energy(
        parts_j={cause: sum(part.parts_j.get(cause, 0.0) for part in parts) for cause in causes},
        low_j=sum(p.low_j for p in parts),
        high_j=sum(p.high_j for p in parts),
        source=Source.MEASURED if measured else Source.MODELLED,
        metered=parts[0].metered if len(parts) == 1 else None,
    )


def _known(figure: Figure | None, device: Device, key: str) -> Figure:
    if figure is None:
        raise UnknownFigureError(f"device {device.name!r} gives no {key}; add it to its file with a source")
    return figure
