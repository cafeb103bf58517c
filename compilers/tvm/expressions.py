"""Small Relax expressions that the importer's converters share.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

Array = np.ndarray[Any, Any]


def is_float(expr: Any) -> bool:  # noqa: ANN401
    """Tell whether an expression is a tensor of floats."""
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype).startswith("float")


def is_constant(expr: Any) -> bool:  # noqa: ANN401
    """Tell whether an expression is a constant tensor."""
    return isinstance(expr, tvm.ir.GenericConst)


def operator_name(expr: Any) -> str:  # noqa: ANN401
    """Return the name of the operator that an expression calls, "" when it calls none."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def given(inputs: list[Any], position: int) -> Any | None:  # noqa: ANN401
    """Return the input at `position`, None when the node has none there."""
    return inputs[position] if position < len(inputs) else None


def constant(inputs: list[Any], position: int) -> Array | None:
    """Return the input at `position` when it is given and constant."""
    value: Any = given(inputs, position)
    return value.value.numpy() if is_constant(value) else None


def scalar(like: Any, value: float) -> Any:  # noqa: ANN401
    """Return a 0-d constant of the type of `like`: ConvertLayout passes through arithmetic with it."""
    return relax.const(value, str(like.ty.dtype))


def clamp(bb: Any, x: Any, low: float | None, high: float | None) -> Any:  # noqa: ANN401
    """Bound an expression from below and above; None is no bound."""
    if low is not None:
        x = bb.emit(relax.op.maximum(x, scalar(x, low)))
    if high is not None:
        x = bb.emit(relax.op.minimum(x, scalar(x, high)))
    return x


def static_shape(expr: Any) -> tuple[int, ...] | None:  # noqa: ANN401
    """Return the shape of a tensor when every extent is known."""
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    if shape is None or any(not isinstance(extent, tvm.tirx.IntImm) for extent in shape.values):
        return None
    return tuple(int(extent) for extent in shape.values)
