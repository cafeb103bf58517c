"""Device and Processor: the figures of one chip, each with its source, read from `devices/NAME.toml`."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from partition.address import FORM, SCHEME, Address, read_address
from partition.dynamics import (
    OperatingPoint,
    PowerStates,
    Thermal,
    read_points,
    read_power_states,
    read_thermal,
)
from partition.geometry import GpuGeometry, NpuGeometry, read_geometry

if TYPE_CHECKING:
    from collections.abc import Mapping

TAGS: Final = ("published", "derived", "assumed")
DEVICES_DIR: Final = Path(__file__).parent / "devices"


class DeviceError(ValueError):
    """Say what is wrong with a device's name or file, in one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number of a chip: `low <= value <= high` in SI units, its tag and the key of its source."""

    value: float
    low: float
    high: float
    tag: str
    source: str
    note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Processor:
    """One processor of a device; a figure nobody published is absent, never zero.

    `macs_per_s` and `energy_j_per_mac` are keyed by precision ("fp32", "fp16", "int8"); `ids` holds what
    each vendor calls the chip, for example `{"qnn": {"soc_model": "52"}}`.
    """

    name: str
    kind: str
    title: str
    macs_per_s: Mapping[str, Figure]
    energy_j_per_mac: Mapping[str, Figure]
    dispatch_s: Figure | None
    active_w: Figure | None
    on_chip_bytes: Figure | None
    ids: Mapping[str, Mapping[str, str]]
    operating_points: tuple[OperatingPoint, ...] = ()
    power_states: PowerStates | None = None
    tile: NpuGeometry | GpuGeometry | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device as the sum of its processors, its memory and what a handover between processors costs.

    `form` is what it is built into ("phone", "board", "laptop"), empty where that follows from the system.
    `address` is where a real one can be reached, for those who can use it.
    """

    name: str
    title: str
    os: str
    processors: tuple[Processor, ...]
    dram_bytes_per_s: Figure | None
    dram_j_per_byte: Figure | None
    handover_s: Figure | None
    sources: Mapping[str, str]
    thermal: Thermal | None = None
    form: str = ""
    address: Address | None = None

    def processor(self, name: str) -> Processor:
        """Return the processor of that name.

        Raises:
            DeviceError: the device has none of that name; the message lists those it has.
        """
        for processor in self.processors:
            if processor.name == name:
                return processor
        have = ", ".join(p.name for p in self.processors)
        raise DeviceError(f"device {self.name!r} has no processor {name!r}; it has {have}")


def device_names() -> tuple[str, ...]:
    """List the devices that ship with the package, sorted."""
    return tuple(sorted(path.stem for path in DEVICES_DIR.glob("*.toml")))


def load_device(name: str) -> Device:
    """Read the device `name`, the TOML file at that path, or the device behind an `rpc://` address.

    Raises:
        DeviceError: there is no such device, its file has a figure without source or tag, or the address has
            another form than `rpc://HOST:PORT/KEY?device=NAME`.
    """
    if name.startswith(f"{SCHEME}:"):
        return _remote(name)
    path = Path(name) if name.endswith(".toml") else DEVICES_DIR / f"{name}.toml"
    if not path.is_file():
        close = difflib.get_close_matches(name, device_names(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise DeviceError(f"unknown device {name!r}{hint} (known: {', '.join(device_names())})")
    try:
        return _device(tomllib.loads(path.read_text(encoding="utf-8")), path.stem)
    except DeviceError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeviceError(f"device file {path} is malformed: {type(error).__name__}: {error}") from error


def _remote(text: str) -> Device:
    """Describe a device by its file and where it listens; another machine like this one is not the host."""
    try:
        address, name = read_address(text)
    except ValueError as error:
        raise DeviceError(f"{text!r} names no device: {error}; write {FORM}") from error
    device = load_device(name)
    if device.address is not None:
        raise DeviceError(f"{text!r} names no device: its device is an address again; name a device file")
    system = "linux" if device.os == "host" else device.os
    return dataclasses.replace(device, name=text, title=f"{device.title}, at {address}", os=system, address=address)


def _device(table: Mapping[str, Any], name: str) -> Device:
    sources = {key: str(text) for key, text in table.get("sources", {}).items()}
    read = _FigureReader(name, sources)
    dram = table.get("dram", {})
    processors = tuple(
        _processor(key, entry, read.within(f"processors.{key}")) for key, entry in table.get("processors", {}).items()
    )
    if not processors:
        raise DeviceError(f"device {name!r} lists no processor; add a [processors.cpu] table")
    return Device(
        name=name,
        title=table["title"],
        os=table["os"],
        processors=processors,
        dram_bytes_per_s=read.optional(dram, "bytes_per_s"),
        dram_j_per_byte=read.optional(dram, "j_per_byte"),
        handover_s=read.optional(table, "handover_s"),
        sources=sources,
        thermal=read_thermal(table["thermal"], read.within("thermal")) if "thermal" in table else None,
        form=str(table.get("form", "")),
    )


def _processor(name: str, table: Mapping[str, Any], read: _FigureReader) -> Processor:
    return Processor(
        name=name,
        kind=table.get("kind", name),
        title=table["title"],
        macs_per_s=read.each(table, "macs_per_s"),
        energy_j_per_mac=read.each(table, "energy_j_per_mac"),
        dispatch_s=read.optional(table, "dispatch_s"),
        active_w=read.optional(table, "active_w"),
        on_chip_bytes=read.optional(table, "on_chip_bytes"),
        ids={vendor: {k: str(v) for k, v in ids.items()} for vendor, ids in table.get("ids", {}).items()},
        operating_points=read_points(tuple(table.get("dvfs", ())), read),
        power_states=read_power_states(table["power_states"], read) if "power_states" in table else None,
        tile=_geometry(name, table, read) if "tile" in table else None,
    )


def _geometry(name: str, table: Mapping[str, Any], read: _FigureReader) -> NpuGeometry | GpuGeometry:
    memory = read.optional(table, "on_chip_bytes")
    return read_geometry(table.get("kind", name), table["tile"], memory, read.within("tile"))


@dataclasses.dataclass(frozen=True)
class _FigureReader:
    """Read figures of one device and refuse those that cannot be traced."""

    where: str
    sources: Mapping[str, str]

    def within(self, part: str) -> _FigureReader:
        return dataclasses.replace(self, where=f"{self.where}.{part}")

    def optional(self, table: Mapping[str, Any], key: str) -> Figure | None:
        return self.figure(key, table[key]) if key in table else None

    def each(self, table: Mapping[str, Any], key: str) -> Mapping[str, Figure]:
        return {name: self.figure(f"{key}.{name}", entry) for name, entry in table.get(key, {}).items()}

    def figure(self, key: str, entry: Mapping[str, Any]) -> Figure:
        where = f"{self.where}.{key}"
        value = float(entry["value"])
        figure = Figure(
            value=value,
            low=float(entry.get("low", value)),
            high=float(entry.get("high", value)),
            tag=entry["tag"],
            source=entry["source"],
            note=entry.get("note", ""),
        )
        if figure.tag not in TAGS:
            raise DeviceError(f"{where} has tag {figure.tag!r}; use one of {', '.join(TAGS)}")
        if figure.source not in self.sources:
            raise DeviceError(f"{where} cites {figure.source!r}, which [sources] does not list")
        if not 0 < figure.low <= figure.value <= figure.high < float("inf"):
            raise DeviceError(f"{where} must have 0 < low <= value <= high, all finite")
        return figure
