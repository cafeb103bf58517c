"""The kernels of a GPU artefact as values: who launches what, with which buffers, in which tile, and what it costs.

No TVM here. The cost is the sum of the kernels' modelled times and of the launches, scaled by a fit to latencies that
somebody measured on the device with another runtime (`benchmarks.tvm_gpu --write`): what TVM's kernels would take if
they came as near to the model as that runtime's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from compilers.adapter import CompilerError
from compilers.artefact import Estimate, Latency, Source
from partition import CALIBRATION_FILE, load_calibration
from partition.tile import GpuKernel, kernel_cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compilers.artefact import Artefact
    from partition import LatencyModel
    from partition.tile import GpuMachine, GpuTile

FIT_FILE: Final = CALIBRATION_FILE.with_name("tvm_gpu.json")
# Terms of the fit: seconds within kernels by the model, and number of launches.
BUSY: Final = "busy_s"
LAUNCHES: Final = "launches"
# What a kernel's entry in kernels.json has beside the fields of the kernel.
_ADDED: Final = frozenset({"called_with", "modelled"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One kernel and the buffers it is called with, in its order: names of the function's parameters or temporaries."""

    kernel: GpuKernel
    arguments: tuple[str, ...]

    def owner_of(self, argument: str) -> str:
        """Return the function's parameter or temporary behind one of the kernel's own buffers."""
        return dict(zip((name for name, _ in self.kernel.arguments), self.arguments, strict=True))[argument]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostCode:
    """How the host calls the kernels of one function; `temporaries` are the global buffers it allocates, in bytes."""

    parameters: tuple[str, ...]
    temporaries: tuple[tuple[str, int], ...]
    launches: tuple[Launch, ...]

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read it from what `Function.to_json` wrote."""
        kernels = [{key: value for key, value in entry.items() if key not in _ADDED} for entry in row["kernels"]]
        called_with = [tuple(entry["called_with"]) for entry in row["kernels"]]
        return cls(
            parameters=tuple(row["parameters"]),
            temporaries=tuple(row["temporaries"].items()),
            launches=tuple(
                Launch(kernel=GpuKernel.from_json(fields), arguments=names)
                for fields, names in zip(kernels, called_with, strict=True)
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A tensor between functions, under the name that the calls give it.

    The shape of a texture is slices, rows, texels of a row, and the elements of a texel.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    texture: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` and JSON made of it."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One call of a function; `arguments` are values in the order of its parameters, results last."""

    function: str
    arguments: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The calls of a whole graph in order. Two values may share a name: one is the other in another shape."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        inputs, outputs = (tuple(map(Value.from_json, fields[key])) for key in ("inputs", "outputs"))
        steps = tuple(
            Step(function=step["function"], arguments=tuple(map(Value.from_json, step["arguments"])))
            for step in fields["steps"]
        )
        return cls(inputs=inputs, outputs=outputs, steps=steps)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """One fused function: the tile it was scheduled with or the rule that did it, and its kernels.

    `nodes` are the ONNX nodes of each call; `reason` says why it has no tile, or who asked for it. Where textures were
    asked for, `buffers` says of each parameter that is none why.
    """

    name: str
    calls: int
    nodes: tuple[tuple[str, ...], ...]
    rule: str
    tile: GpuTile | None
    reason: str
    code: HostCode
    buffers: tuple[tuple[str, str], ...] = ()

    @property
    def textures(self) -> frozenset[str]:
        """Return which parameters are textures."""
        return frozenset(
            launch.owner_of(access.buffer)
            for launch in self.code.launches
            for access in launch.kernel.accesses
            if access.texture
        )

    def to_json(self, machine: GpuMachine | None) -> dict[str, Any]:
        """Return all of it, JSON-ready, with each kernel's modelled cost where the machine is known."""
        return {
            "function": self.name,
            "calls": self.calls,
            "nodes": [list(names) for names in self.nodes],
            "rule": self.rule,
            "tile": dict(self.tile.sizes) if self.tile else None,
            "reason": self.reason,
            "buffers": dict(self.buffers),
            "parameters": list(self.code.parameters),
            "temporaries": dict(self.code.temporaries),
            "kernels": [_kernel(launch, machine) for launch in self.code.launches],
        }


def _kernel(launch: Launch, machine: GpuMachine | None) -> dict[str, Any]:
    entry = {**launch.kernel.to_json(), "called_with": list(launch.arguments)}
    if machine is not None:
        cost = kernel_cost(launch.kernel, machine)
        entry["modelled"] = {"latency_s": cost.latency_s, "dram_bytes": cost.dram_bytes, **dict(cost.parts)}
    return entry


def check_textures(source: str, functions: tuple[Function, ...]) -> tuple[tuple[str, str], ...]:
    """Count the textures of functions, and see that the OpenCL source reads and writes each as an image; as facts.

    Raises:
        CompilerError: it does not.
    """
    for launch in (launch for function in functions for launch in function.code.launches):
        name = launch.kernel.name
        text = source.split(f"// Function: {name}\n", maxsplit=1)[-1].split("// Function: ", maxsplit=1)[0]
        for access in launch.kernel.accesses:
            if access.texture:
                kind, call = ("write", "write_image") if access.store else ("read", "READ_IMAGE")
                declared = f"__{kind}_only image2d_array_t {access.buffer}" in text
                if not declared or not re.search(rf"\b{call}[fh]\({access.buffer},", text, re.IGNORECASE):
                    raise CompilerError(f"TVM's code of {name} does not {kind} {access.buffer} as an image")
    textures = [len(function.textures) for function in functions]
    parameters = sum(len(function.code.parameters) for function in functions)
    return (
        ("textures", f"{sum(textures)} of {parameters} parameters of functions"),
        ("texture_reads", str(len(re.findall(r"\(READ_IMAGE[FH]\(", source)))),
        ("texture_writes", str(len(re.findall(r"\bwrite_image[fh]\(", source)))),
        ("functions_without_textures", " ".join(f.name for f in functions if not f.textures)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a whole artefact asks of its GPU by the model: time within kernels, launches, DRAM bytes."""

    busy_s: float
    launches: int
    dram_bytes: float

    @classmethod
    def of(cls, functions: tuple[Function, ...], machine: GpuMachine) -> Work:
        """Add up all calls; a launch's own overhead is not in `busy_s`."""
        launched = [(f.calls, kernel_cost(launch.kernel, machine)) for f in functions for launch in f.code.launches]
        return cls(
            busy_s=sum(calls * (cost.latency_s - machine.launch_s) for calls, cost in launched),
            launches=sum(calls for calls, _ in launched),
            dram_bytes=sum(calls * cost.dram_bytes for calls, cost in launched),
        )

    def to_facts(self) -> tuple[tuple[str, str], ...]:
        """Return the figures as facts of an artefact."""
        return ((BUSY, repr(self.busy_s)), (LAUNCHES, str(self.launches)), ("dram_bytes", str(round(self.dram_bytes))))


def fitted_precisions(device: str) -> tuple[str, ...]:
    """List the precisions in which the device's GPU has a fit."""
    return tuple(model.precision for model in _fits() if model.device == device)


def estimate(artefact: Artefact) -> Estimate:
    """Return the modelled latency, with the interval that holds 8 of 10 models which took no part in the fit.

    Raises:
        CompilerError: the device has no fit in this precision, or lacked figures of its GPU when this was compiled.
    """
    found = [m for m in _fits() if m.key == (artefact.device, artefact.compiler, artefact.precision)]
    if not found:
        have = ", ".join(fitted_precisions(artefact.device)) or "none"
        raise CompilerError(
            f"no estimate: there is no fit to measured rows in {artefact.precision} for the GPU of {artefact.device}; "
            f"those there are: {have}"
        )
    if artefact.fact("textures"):
        raise CompilerError(
            "no estimate of kernels that read textures: the model knows buffers, and no public figures tell what this "
            "GPU's texture caches hold and deliver; leave option textures out"
        )
    if not artefact.fact(BUSY):
        raise CompilerError(f"no estimate: {artefact.device} has no tile geometry of its GPU in {artefact.precision}")
    fit = found[0]
    typical_s = fit.predict({term: float(artefact.fact(term)) for term in (BUSY, LAUNCHES)})
    latency = Latency(
        typical_s=typical_s,
        low_s=typical_s * fit.low_ratio,
        high_s=typical_s * fit.high_ratio,
        source=Source.MODELLED,
    )
    note = (
        f"modelled from the kernels' code, by a fit to {fit.models} models that were measured with ncnn's kernels: "
        f"held out, they are off by {fit.error_median:.1%} (median) and {fit.error_p90:.1%} (90th percentile), and the "
        "interval holds 8 of 10"
    )
    return Estimate(latency=latency, dram_bytes=int(artefact.fact("dram_bytes")), note=note)


@functools.cache
def _fits() -> tuple[LatencyModel, ...]:
    return load_calibration(FIT_FILE).models
