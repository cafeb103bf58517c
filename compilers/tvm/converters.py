"""Operators of ONNX in Relax where TVM's importer has another meaning, or breaks the chain of layouts.

Imports TVM; only reached through the methods of `TvmCompiler`.

The stock converters for Clip, HardSigmoid and HardSwish give operators through which ConvertLayout does not pass
(docs/vendor_bugs.md): a pair of transposes around each; it dies of those for Max and Min. Arithmetic with 0-d constants
passes, and fuses into the convolution before it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from tvm import relax

from compilers.tvm.expressions import clamp, constant, is_float, scalar
from compilers.tvm.suppression import suppress
from compilers.tvm.top_k import top_k

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Converter = Callable[[Any, list[Any], Mapping[str, Any]], Any]
    """Of a block builder, the node's inputs and its attributes; None leaves the node to TVM's own converter."""


def _clip(bb: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert Clip of floats with bounds that are constant and not NaN; None leaves any other to TVM's converter."""
    bounds = []
    for position, attribute in ((1, "min"), (2, "max")):
        given = position < len(inputs) and inputs[position] is not None
        bound = constant(inputs, position) if given else attrs.get(attribute)
        if given and bound is None:
            return None
        bounds.append(None if bound is None else float(np.asarray(bound).item()))
    if not is_float(inputs[0]) or any(bound is not None and np.isnan(bound) for bound in bounds):
        return None
    return clamp(bb, inputs[0], bounds[0], bounds[1])


def _hard_sigmoid(bb: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    x = inputs[0]
    if not is_float(x):
        return None
    scaled = bb.emit(relax.op.multiply(x, scalar(x, attrs.get("alpha", 0.2))))
    shifted = bb.emit(relax.op.add(scaled, scalar(x, attrs.get("beta", 0.5))))
    return clamp(bb, shifted, 0.0, 1.0)


def _hard_swish(bb: Any, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    gate = _hard_sigmoid(bb, inputs, {"alpha": 1 / 6, "beta": 0.5})
    return None if gate is None else bb.emit(relax.op.multiply(inputs[0], gate))


def _extreme(combine: Any) -> Converter:  # noqa: ANN401
    """Convert Max or Min pair by pair; TVM's converter stacks the operands, of which ConvertLayout dies."""
    return lambda bb, inputs, _attrs: functools.reduce(lambda a, b: bb.emit(combine(a, b)), inputs)


def _bit_shift(bb: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert BitShift so that nothing but a sign is left where all bits are shifted out; LLVM leaves that open."""
    value, count = inputs
    shift = relax.op.left_shift if attrs["direction"] in (b"LEFT", "LEFT") else relax.op.right_shift
    most = scalar(count, np.iinfo(str(value.ty.dtype)).bits - 1)
    shifted = bb.emit(shift(value, bb.emit(relax.op.minimum(count, most))))
    if shift is relax.op.right_shift and str(value.ty.dtype).startswith("int"):
        return shifted
    return bb.emit(relax.op.where(bb.emit(relax.op.less_equal(count, most)), shifted, scalar(value, 0)))


def _slice(bb: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert a Slice of before opset 10, whose limits are attributes; TVM's converter reads inputs alone."""
    if "starts" not in attrs:
        return None
    starts, ends = list(attrs["starts"]), list(attrs["ends"])
    return bb.emit(relax.op.strided_slice(inputs[0], list(attrs.get("axes", range(len(starts)))), starts, ends))


CONVERTERS: Final[dict[str, Converter]] = {
    "BitShift": _bit_shift,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Max": _extreme(relax.op.maximum),
    "Min": _extreme(relax.op.minimum),
    "NonMaxSuppression": suppress,
    "Slice": _slice,
    "TopK": top_k,
}
