"""Values that are quantised and dequantised inside one function: they stay floats, and no byte is made of them.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from compilers.tvm.expressions import operator_name

_BYTES: Final = ("int8", "uint8")


def keep_floats(func: Any) -> Any:  # noqa: ANN401
    """Replace `float(byte(int(r) + zero)) - zero` by `r`, where r is rounded and bounded so that it fits the byte.

    The value is the same, and LLVM, which does not see that, has a third less to compile.
    """
    return tvm_ffi.structural_map(func, [(tirx.Sub, _without_zero), (tirx.Cast, _cast)])


def _without_zero(node: Any) -> Any:  # noqa: ANN401
    zero = _number(node.b)
    return node if zero is None else _rounded(node.a, int(zero), node)


def _cast(node: Any) -> Any:  # noqa: ANN401
    return _rounded(node, 0, node)


def _rounded(wide: Any, zero: int, otherwise: Any) -> Any:  # noqa: ANN401
    """Match `float(byte(int(r) + zero))` with a bounded r."""
    byte = _cast_of(wide, "float32")
    dtype = _dtype(byte)
    shifted = _cast_of(byte, dtype) if dtype in _BYTES else None
    if isinstance(shifted, tirx.Add) and _number(shifted.b) == zero:
        shifted = shifted.a
    elif zero:
        return otherwise
    rounded = _cast_of(shifted, "int32")
    bounds = _bounds(rounded)
    limits = np.iinfo(dtype) if bounds else None
    if bounds is None or limits is None or bounds[0] + zero < limits.min or bounds[1] + zero > limits.max:
        return otherwise
    return rounded


def _bounds(rounded: Any) -> tuple[float, float] | None:  # noqa: ANN401
    """Match `nearbyint(min(max(x, low), high))`."""
    name = operator_name(rounded)
    low_side = rounded.args[0] if name == "tirx.nearbyint" else None
    if not isinstance(low_side, tirx.Min) or not isinstance(low_side.a, tirx.Max):
        return None
    low, high = _number(low_side.a.b), _number(low_side.b)
    return None if low is None or high is None else (low, high)


def _cast_of(node: Any, dtype: str) -> Any | None:  # noqa: ANN401
    return node.value if isinstance(node, tirx.Cast) and _dtype(node) == dtype else None


def _dtype(node: Any) -> str:  # noqa: ANN401
    return "" if node is None else str(node.ty.dtype)


def _number(node: Any) -> float | None:  # noqa: ANN401
    return float(node.value) if isinstance(node, tvm.tirx.FloatImm | tvm.tirx.IntImm) else None
