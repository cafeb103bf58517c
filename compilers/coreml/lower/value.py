"""One ONNX tensor while a graph is lowered, and the element types that MIL can hold."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from compilers.adapter import CompilerError

MAX_RANK: Final = 5

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1

# What a value of each ONNX type is inside the program. int64 narrows, so its constants are range-checked.
MIL_DTYPE: Final = {
    "float32": "fp32",
    "float16": "fp16",
    "int64": "int32",
    "int32": "int32",
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int8",
}

FLOATS: Final = ("float32", "float16")
INTEGERS: Final = ("int32", "int64")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """A constant that stays 8-bit in the package: `scale * (data - zero_point)` along `axis`."""

    data: np.ndarray[Any, Any]
    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]
    axis: int

    def dense(self) -> np.ndarray[Any, Any]:
        """Return the values, in the scale's type."""
        shape = [-1 if axis == self.axis and self.scale.ndim else 1 for axis in range(self.data.ndim)]
        steps = self.data.astype(np.float32) - self.zero_point.astype(np.float32).reshape(shape)
        values: np.ndarray[Any, Any] = steps * self.scale.astype(np.float32).reshape(shape)
        return values.astype(self.scale.dtype)

    def transposed(self) -> Quantised:
        """Swap the two axes of a matrix."""
        return dataclasses.replace(self, data=np.ascontiguousarray(self.data.T), axis=1 - self.axis)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Blockwise:
    """A 4-bit or 8-bit constant with a scale per block: `scale` and `zero_point` have as many axes as `data`."""

    data: np.ndarray[Any, Any]
    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any] | None

    def transposed(self) -> Blockwise:
        """Swap the two axes of a matrix."""
        zero = None if self.zero_point is None else np.ascontiguousarray(self.zero_point.T)
        return Blockwise(
            data=np.ascontiguousarray(self.data.T), scale=np.ascontiguousarray(self.scale.T), zero_point=zero
        )


@dataclasses.dataclass(slots=True)
class Value:
    """A tensor by its ONNX name: a constant, a quantised constant, or a MIL variable.

    `dtype` is the ONNX element type as a numpy name; the MIL variable is made from the constant on first use.
    """

    name: str
    dtype: str
    const: np.ndarray[Any, Any] | None = None
    quantised: Quantised | Blockwise | None = None
    var: Any = None
    long_shape: tuple[int, ...] | None = None
    """The shape when its rank is above MIL's 5; `var` then holds it without its axes of size 1."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The static shape."""
        if self.long_shape is not None:
            return self.long_shape
        if self.const is not None:
            return tuple(self.const.shape)
        if self.quantised is not None:
            return tuple(self.quantised.data.shape)
        return tuple(int(d) for d in self.var.shape)


def mil_array(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Return a constant in the element type that MIL stores it in.

    Raises:
        CompilerError: MIL has no such type, or an int64 does not fit int32.
    """
    if array.dtype == np.int64:
        if array.size and (array.min() < INT32_MIN or array.max() > INT32_MAX):
            raise CompilerError(f"{what} holds an int64 that does not fit the int32 of Core ML")
        return array.astype(np.int32)
    if str(array.dtype) not in MIL_DTYPE:
        raise CompilerError(f"{what} has element type {array.dtype}, which Core ML cannot hold")
    return array
