"""Channels beyond those of the graph, which fill vectors up: where they come from, and how late they are cut off.

Imports TVM; only reached through the methods of `TvmCompiler`.

A product of 58 output channels is computed with 64, which 16 lanes divide, and cropped. Element by element,
`f(crop(x))` is `crop(f(x))`, so the crop sinks behind the epilogue, down to where the next product reads the surplus
channels and multiplies them by zero, or to whatever else needs the graph's own shape. All on the last axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tvm_ffi
from tvm import relax

from compilers.tvm.expressions import is_constant, operator_name, static_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]

# More than that, and narrower vectors are faster.
_MOST_FILLING: Final = 0.25
_SURPLUS: Final = 16
_ELEMENTWISE: Final = frozenset(
    f"relax.{name}"
    for name in ("add", "astype", "divide", "maximum", "minimum", "multiply", "nn.relu", "round", "subtract")
)


def width(channels: int, lanes: Sequence[int]) -> int:
    """Return how many channels to compute: what the widest vectors need that are not filled up by much."""
    widths = [-(-channels // n) * n for n in lanes]
    return next((wide for wide in widths if wide <= (1 + _MOST_FILLING) * channels), widths[-1])


def filled(array: Array, axis: int, extent: int) -> Array:
    """Fill an axis up with zeros."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, extent - array.shape[axis])
    return np.pad(array, widths) if any(more for _, more in widths) else array


def cropped(call: Any, extent: int, channels: int, emit: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Return the first `channels` of the last axis, which has `extent`; the call itself when that is all."""
    if extent == channels:
        return call
    wide = emit(call)
    return relax.op.strided_slice(wide, axes=[wide.ty.ndim - 1], begin=[0], end=[channels])


def uncropped(call: Any) -> Any | None:  # noqa: ANN401
    """Return what a call crops, None when it is no crop like ours."""
    if operator_name(call) != "relax.strided_slice":
        return None
    wide, narrow = static_shape(call.args[0]), static_shape(call)
    if wide is None or narrow is None or wide[:-1] != narrow[:-1] or not 0 < wide[-1] - narrow[-1] < _SURPLUS:
        return None
    same = relax.op.strided_slice(call.args[0], axes=[len(wide) - 1], begin=[0], end=[narrow[-1]])
    return call.args[0] if tvm_ffi.structural_equal(call.args[1:], same.args[1:]) else None


def sunk(call: Any, bound: Callable[[Any], Any], emit: Callable[[Any], Any]) -> Any | None:  # noqa: ANN401
    """Return `crop(f(x))` for `f(crop(x))`: f goes element by element, its other operand is constant or cropped too."""
    if operator_name(call) not in _ELEMENTWISE:
        return None
    operands = [bound(argument) for argument in call.args]
    wide = [uncropped(operand) for operand in operands]
    found = {(_last(c), _last(w)) for c, w in zip(operands, wide, strict=True) if w is not None}
    if len(found) != 1 or any(w is None and not is_constant(o) for w, o in zip(wide, operands, strict=True)):
        return None
    ((channels, extent),) = found
    if channels != _last(call):
        return None
    filled_up = [_constant(o, channels, extent) if w is None else w for w, o in zip(wide, operands, strict=True)]
    return cropped(relax.Call(call.op, filled_up, call.attrs), extent, channels, emit)


def _constant(expr: Any, channels: int, extent: int) -> Any:  # noqa: ANN401
    """Repeat the last element of a constant, unless it is broadcast, so that no division by zero comes in."""
    array = expr.value.numpy()
    if not array.ndim or array.shape[-1] != channels:
        return expr
    widths = [(0, 0)] * (array.ndim - 1) + [(0, extent - channels)]
    return relax.const(np.pad(array, widths, mode="edge"))


def _last(expr: Any) -> int:  # noqa: ANN401
    return int(expr.ty.shape.values[-1])
