"""Sessions over a saved package: ONNX names and types at the border, MIL inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from compilers.adapter import CompilerError, Session
from compilers.coreml.execute import Executor
from compilers.coreml.package import read_package
from compilers.coreml.write import read_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from compilers.coreml.lower import Port

Array = np.ndarray[Any, Any]


class EmulatedSession(Session):
    """Runs a package by MIL's documented semantics, off the Mac; its times say nothing about a device."""

    on_device: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self.program = read_package(path)
        self._inputs, self._outputs = read_ports(self.program.metadata)
        self._executor = Executor(self.program)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by ONNX input name in, arrays by ONNX output name out."""
        return self.run_watched(inputs, None)

    def run_watched(self, inputs: Mapping[str, Array], watch: Callable[[str, Array], None] | None) -> dict[str, Array]:
        """Run once and show `watch` every tensor by its MIL name."""
        feeds = {port.mil_name: to_carrier(inputs, port) for port in self._inputs}
        results = self._executor.run(feeds, watch)
        return {port.name: from_carrier(results[port.mil_name], port) for port in self._outputs}


def to_carrier(inputs: Mapping[str, Array], port: Port) -> Array:
    """Return the array that crosses the package's border for an ONNX input.

    Raises:
        CompilerError: the input is missing, has another shape or type, or an int64 does not fit int32.
    """
    if port.name not in inputs:
        raise CompilerError(f"input {port.name!r} is missing; got {', '.join(inputs) or 'none'}")
    array = np.asarray(inputs[port.name])
    if array.shape != port.shape or str(array.dtype) != port.dtype:
        raise CompilerError(
            f"input {port.name!r} is {array.dtype}{array.shape}, the model wants {port.dtype}{port.shape}"
        )
    carried = array.astype(port.carrier_dtype).reshape(port.carrier_shape)
    if port.dtype == "int64" and not np.array_equal(carried.reshape(array.shape), array):
        raise CompilerError(f"input {port.name!r} holds an int64 that does not fit the int32 of Core ML")
    return carried


def from_carrier(array: Array, port: Port) -> Array:
    """Return the ONNX output for the array that came out of the package."""
    return np.asarray(array).reshape(port.shape).astype(port.dtype)
