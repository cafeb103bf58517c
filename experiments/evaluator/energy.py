"""Energy without a meter: E = active power x time + energy per MAC x MACs + energy per byte x DRAM bytes."""

from __future__ import annotations

import dataclasses

from compilers import Latency, Source
from partition import Device, Figure, Processor

_NOTHING = Figure(value=0.0, low=0.0, high=0.0, tag="derived", source="")


class UnknownFigureError(ValueError):
    """The device file lacks a figure that the model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Joules of one inference by cause, with the bounds that the figures allow on the total."""

    compute_j: float
    memory_j: float
    static_j: float
    transfer_j: float
    low_j: float
    high_j: float
    source: Source

    @property
    def total_j(self) -> float:
        """The sum over the causes."""
        return self.compute_j + self.memory_j + self.static_j + self.transfer_j


def modelled_energy(
    device: Device,
    processor: Processor,
    precision: str,
    *,
    latency: Latency,
    macs: int,
    dram_bytes: int,
    transfer_bytes: int = 0,
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
    moved = dram_bytes + transfer_bytes
    return Energy(
        compute_j=j_per_mac.value * macs,
        memory_j=j_per_byte.value * dram_bytes,
        static_j=active_w.value * latency.typical_s,
        transfer_j=j_per_byte.value * transfer_bytes,
        low_j=j_per_mac.low * macs + j_per_byte.low * moved + active_w.low * latency.low_s,
        high_j=j_per_mac.high * macs + j_per_byte.high * moved + active_w.high * latency.high_s,
        source=Source.MODELLED,
    )


def add_energies(parts: tuple[Energy, ...]) -> Energy:
    """Add the energies of a plan's segments; the bounds add up too, as if the errors were all alike."""
    return Energy(
        compute_j=sum(p.compute_j for p in parts),
        memory_j=sum(p.memory_j for p in parts),
        static_j=sum(p.static_j for p in parts),
        transfer_j=sum(p.transfer_j for p in parts),
        low_j=sum(p.low_j for p in parts),
        high_j=sum(p.high_j for p in parts),
        source=Source.MODELLED,
    )


def _known(figure: Figure | None, device: Device, key: str) -> Figure:
    if figure is None:
        raise UnknownFigureError(f"device {device.name!r} gives no {key}; add it to its file with a source")
    return figure
