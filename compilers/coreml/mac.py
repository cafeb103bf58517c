"""What only a Mac can do: run a package on a compute unit, and ask Core ML where each operation runs.

Kept thin, because our CI has no Mac: nothing here was run on one. The tests hold it against recorded objects of
coremltools 9.0 (`MLModel`, `MLComputePlan`), whose names were read in its macOS wheel.
"""

from __future__ import annotations

import json
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from compilers.adapter import CompilerError, Session
from compilers.artefact import Placement
from compilers.coreml.session import from_carrier, to_carrier
from compilers.coreml.vendor import coremltools
from compilers.machine import cpu_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from compilers.coreml.lower import Port
    from partition import Device

Array = np.ndarray[Any, Any]

# The narrowest choice of Core ML that has the processor; the CPU is always in it.
UNITS: Final[Mapping[str, str]] = MappingProxyType({"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "npu": "CPU_AND_NE"})

# The least target whose plan names devices (it does from iOS 17.4 on).
PLANNED_TARGET: Final = "iOS18"

_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"MLCPUComputeDevice": "cpu", "MLGPUComputeDevice": "gpu", "MLNeuralEngineComputeDevice": "npu"}
)


def is_this_mac(device: Device, processor: str) -> bool:
    """Tell whether the device is a Mac with this machine's chip (`ids.coreml.chip`, such as "m4")."""
    if sys.platform != "darwin" or device.os != "macos":
        return False
    return chip_of(cpu_model()) == device.processor(processor).ids.get("coreml", {}).get("chip", "")


def chip_of(brand: str) -> str:
    """Return "m4_pro" for "Apple M4 Pro"."""
    return "_".join(brand.strip().lower().removeprefix("apple ").split())


class MacSession(Session):
    """A package on one of this Mac's compute units."""

    on_device: ClassVar[bool] = True

    def __init__(self, model: Any, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:  # noqa: ANN401
        self._model, self._inputs, self._outputs = model, tuple(inputs), tuple(outputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by ONNX input name in, arrays by ONNX output name out."""
        results = self._model.predict({port.mil_name: to_carrier(inputs, port) for port in self._inputs})
        return {port.name: from_carrier(results[port.mil_name], port) for port in self._outputs}


def open_session(package: Path, unit: str) -> MacSession:
    """Load a package of ours on a compute unit ("CPU_AND_NE").

    Raises:
        CompilerError: Core ML refuses it.
    """
    from compilers.coreml.package import read_package
    from compilers.coreml.write import read_ports

    ct = coremltools()
    try:
        model = ct.models.MLModel(str(package), compute_units=getattr(ct.ComputeUnit, unit))
    except Exception as error:
        raise CompilerError(f"Core ML cannot load {package.name} on {unit}: {error}") from error
    return MacSession(model, *read_ports(read_package(package).metadata))


def ask_plan(package: Path, unit: str, scratch: Path) -> Placement:
    """Compile the package and ask Core ML where its MIL operations run on a compute unit.

    `scratch` receives the `.mlmodelc`.

    Raises:
        CompilerError: Core ML refuses it, or tells nothing (it does below target iOS17.4).
    """
    ct = coremltools()
    from coremltools.models.compute_plan import MLComputePlan

    try:
        compiled = ct.models.utils.compile_model(str(package), destination_path=str(scratch / "model.mlmodelc"))
        plan = MLComputePlan.load_from_path(path=str(compiled), compute_units=getattr(ct.ComputeUnit, unit))
    except Exception as error:
        raise CompilerError(f"Core ML cannot plan {package.name} on {unit}: {error}") from error
    return read_compute_plan(plan, asked=_kind_of(unit))


def _kind_of(unit: str) -> str:
    return next(kind for kind, name in UNITS.items() if name == unit)


def read_compute_plan(plan: Any, *, asked: str) -> Placement:  # noqa: ANN401 - an MLComputePlan
    """Read where an MLComputePlan has the MIL operations; operations without a device (constants) are left out.

    Raises:
        CompilerError: no operation has one.
    """
    units, reasons = {}, {}
    for operation in _operations(plan.model_structure.program.functions["main"].block):
        usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is None or not operation.outputs:
            continue
        name = operation.outputs[0].name
        units[name] = _KINDS[type(usage.preferred_compute_device).__name__]
        if units[name] != asked:
            able = {_KINDS[type(d).__name__] for d in usage.supported_compute_devices}
            reasons[name] = f"Core ML prefers {units[name]}" + (f"; {asked} can do it" if asked in able else "")
    if not units:
        raise CompilerError("Core ML's plan names no device for any operation; compile for target iOS18")
    return Placement(units=units, reasons=reasons)


def _operations(block: Any) -> Iterator[Any]:  # noqa: ANN401 - objects of coremltools
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def by_node(plan: Placement, node_of: Mapping[str, str], kind: str) -> Placement:
    """Return the placement by ONNX node: a node is where asked only when all of its operations are."""
    units: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for operation, unit in plan.units.items():
        node = node_of.get(operation, "")
        if node and units.get(node, kind) == kind:
            units[node] = unit
            if operation in plan.reasons:
                reasons[node] = f"{operation}: {plan.reasons[operation]}"
    return Placement(units=units, reasons=reasons)


def write_plan(placement: Placement, path: Path) -> None:
    """Write a placement as JSON."""
    content = {"units": dict(placement.units), "reasons": dict(placement.reasons)}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_plan(path: Path) -> Placement:
    """Read what `write_plan` wrote.

    Raises:
        CompilerError: the file is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Placement(units=content["units"], reasons=content["reasons"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(f"{path} is damaged: {error}; compile again") from error
