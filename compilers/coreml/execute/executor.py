"""Run a Program on numpy and ONNX Runtime kernels: MIL's documented semantics, not Apple's kernels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.execute.table import KERNELS, Arguments
from compilers.coreml.package import Operation, Program, Ref, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Array = np.ndarray[Any, Any]


class Executor:
    """A loaded program. Every result is held against the shape that the program declares and rounded to its type."""

    def __init__(self, program: Program) -> None:
        """Read the constants and decompress the weights.

        Raises:
            CompilerError: the program has an operation without a kernel.
        """
        self._program = program
        unknown = sorted({o.type for o in program.operations} - set(KERNELS) - {"const"})
        if unknown:
            raise CompilerError(f"the MIL executor has no kernel for {', '.join(unknown)}")
        self._constants: dict[str, Any] = {}
        self._steps: list[Operation] = []
        for operation in program.operations:
            self._load(operation)
        self._reads = Counter(name for step in self._steps for name in _names(step))
        self._reads.update(program.outputs)

    def _load(self, operation: Operation) -> None:
        if operation.type == "const":
            # Widened once here, not at every use: kernels compute in float32.
            self._constants[operation.outputs[0].name] = _widened(_constant(operation))
        elif operation.type.startswith("constexpr_"):
            results = _execute(operation, self._constants)
            self._constants.update({name: _widened(value) for name, value in results.items()})
        else:
            self._steps.append(operation)

    def run(self, inputs: Mapping[str, Array], watch: Callable[[str, Array], None] | None = None) -> dict[str, Array]:
        """Run once: arrays by MIL name in, arrays by MIL name out; `watch` sees every tensor as it is made.

        Raises:
            CompilerError: an input does not fit, or an operation's result contradicts the program.
        """
        values = dict(self._constants)
        for declared in self._program.inputs:
            if declared.name not in inputs:
                raise CompilerError(f"input {declared.name!r} is missing")
            values[declared.name] = _checked_input(inputs[declared.name], declared)
            _show(watch, {declared.name: values[declared.name]})
        left = self._reads.copy()
        for step in self._steps:
            results = _execute(step, values)
            _show(watch, results)
            values.update(results)
            for name in _names(step):
                left[name] -= 1
                if not left[name] and name not in self._constants:
                    del values[name]
        return {name: np.asarray(values[name]) for name in self._program.outputs}


def _show(watch: Callable[[str, Array], None] | None, results: Mapping[str, Array]) -> None:
    if watch is not None:
        for name, value in results.items():
            watch(name, value)


def _constant(operation: Operation) -> Array | str:
    """Return the value of a const; it must be what its output declares."""
    value, declared = operation.value, operation.outputs[0]
    if value is None:
        raise CompilerError(f"const {declared.name} has no value")
    if not isinstance(value, str) and (value.shape, str(value.dtype)) != (declared.shape, declared.dtype):
        raise CompilerError(f"const {declared.name} is {value.dtype}{value.shape}, declared {declared}")
    return value


def _checked_input(array: Array, declared: Tensor) -> Array:
    if array.shape != declared.shape or str(array.dtype) != declared.dtype:
        raise CompilerError(
            f"input {declared.name!r} is {array.dtype}{array.shape}, the program wants {declared.dtype}{declared.shape}"
        )
    return array


def _names(operation: Operation) -> set[str]:
    return {v for values in operation.inputs.values() for v in values if isinstance(v, Ref)}


def _execute(operation: Operation, values: Mapping[str, Any]) -> dict[str, Any]:
    arguments = Arguments({key: _argument(operation, key, bound, values) for key, bound in operation.inputs.items()})
    try:
        with np.errstate(all="ignore"):
            results = KERNELS[operation.type](arguments)
            results = results if isinstance(results, tuple) else (results,)
            rounded = [_rounded(r, o) for r, o in zip(results, operation.outputs, strict=True)]
    except CompilerError as error:
        raise CompilerError(f"MIL operation {operation.name} ({operation.type}): {error.reason}") from error
    except Exception as error:
        raise CompilerError(f"MIL operation {operation.name} ({operation.type}) failed: {error}") from error
    if arguments.unread():
        raise CompilerError(
            f"MIL operation {operation.name} ({operation.type}): arguments {arguments.unread()} are not handled"
        )
    return {o.name: r for o, r in zip(operation.outputs, rounded, strict=True)}


def _argument(operation: Operation, key: str, bound: tuple[Any, ...], values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    resolved = tuple(_widened(values[b] if isinstance(b, Ref) else b) for b in bound)
    many = operation.type in ("concat", "stack") and key == "values"
    return resolved if many else resolved[0]


def _widened(value: Any) -> Any:  # noqa: ANN401 - an array or a string
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float16 else value


def _rounded(result: Array, declared: Tensor) -> Array:
    result = np.asarray(result)
    if result.shape != declared.shape:
        raise CompilerError(f"result {declared.name} has shape {result.shape}, the program says {declared.shape}")
    return result if str(result.dtype) == declared.dtype else result.astype(declared.dtype)
