"""What runs where: devices, plans, legal cuts and (in `partition.search`) the exact search over them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from partition.address import Address
from partition.calibration import (
    CALIBRATION_FILE,
    DRAM_BYTES,
    MACS,
    OVERHEAD,
    CalibrationFileError,
    CalibrationSet,
    LatencyModel,
    load_calibration,
    save_calibration,
)
from partition.device import Device, DeviceError, Figure, Processor, device_names, load_device
from partition.dynamics import OperatingPoint, PowerStates, Thermal, ThermalNode, Trip
from partition.plan import PRECISIONS, FeedFile, Plan, PlanError, Segment, Tile

if TYPE_CHECKING:
    from partition.dag import Activation, activations, to_dag
    from partition.groups import compile_units, quantised_units
    from partition.split import Run, fewest_segments, handovers

# Every child process imports this package for its values; networkx arrives with the first graph question.
_LAZY = {
    "Activation": "partition.dag",
    "Run": "partition.split",
    "activations": "partition.dag",
    "compile_units": "partition.groups",
    "fewest_segments": "partition.split",
    "handovers": "partition.split",
    "quantised_units": "partition.groups",
    "to_dag": "partition.dag",
}

__all__ = [
    "CALIBRATION_FILE",
    "DRAM_BYTES",
    "MACS",
    "OVERHEAD",
    "PRECISIONS",
    "Activation",
    "Address",
    "CalibrationFileError",
    "CalibrationSet",
    "Device",
    "DeviceError",
    "FeedFile",
    "Figure",
    "LatencyModel",
    "OperatingPoint",
    "Plan",
    "PlanError",
    "PowerStates",
    "Processor",
    "Run",
    "Segment",
    "Thermal",
    "ThermalNode",
    "Tile",
    "Trip",
    "activations",
    "compile_units",
    "device_names",
    "fewest_segments",
    "handovers",
    "load_calibration",
    "load_device",
    "quantised_units",
    "save_calibration",
    "to_dag",
]


def __getattr__(name: str) -> object:
    """Import what `name` needs on its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'partition' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
