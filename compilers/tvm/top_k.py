"""The largest or smallest elements of floats, NaN above all others, as ONNX Runtime and numpy order them.

Imports TVM; only reached through the methods of `TvmCompiler`.

TVM's sort compares floats with `<`, by which a NaN is equal to everything, and the order is then none. Integers in the
same order are sorted in their place: a float's bits, with those of negative ones turned over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tvm import relax, te, tirx

from compilers.tvm.expressions import constant, is_float

if TYPE_CHECKING:
    from collections.abc import Mapping

_BITS: Final = {"float16": "int16", "float32": "int32", "float64": "int64"}
_SORTED: Final = {"int16": "int32"}  # TVM sorts none of 16 bits


def top_k(bb: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Emit (values, places) for the inputs of ONNX's operator; None leaves it to TVM's converter."""
    count = constant(inputs, 1)
    bits = _BITS.get(str(inputs[0].ty.dtype)) if is_float(inputs[0]) else None
    if count is None or bits is None or not attrs.get("sorted", 1):
        return None
    key = _SORTED.get(bits, bits)
    keys = bb.emit_te(_keys, inputs[0], bits, key, primfunc_name_hint="sortable")
    axis, largest = int(attrs.get("axis", -1)), bool(attrs.get("largest", 1))
    found = bb.emit(relax.op.topk(keys, int(count.item()), axis, ret_type="both", largest=largest, dtype="int64"))
    first, places = (bb.emit(relax.TupleGetItem(found, index)) for index in range(2))
    values = bb.emit_te(_floats, first, bits, str(inputs[0].ty.dtype), primfunc_name_hint="unsortable")
    return relax.Tuple([values, places])


def _keys(x: Any, bits: str, key: str) -> Any:  # noqa: ANN401
    most, zero = te.max_value(bits), tirx.const(0, bits)

    def sortable(*index: Any) -> Any:  # noqa: ANN401
        value = x(*index)
        flat = tirx.Select(value == tirx.const(0, x.dtype), zero, _turned(tirx.reinterpret(bits, value), bits))
        return tirx.Cast(key, tirx.Select(tirx.EQ(value, value), flat, most))

    return te.compute(x.shape, sortable, name="sortable")


def _floats(keys: Any, bits: str, dtype: str) -> Any:  # noqa: ANN401
    def value(*index: Any) -> Any:  # noqa: ANN401
        return tirx.reinterpret(dtype, _turned(tirx.Cast(bits, keys(*index)), bits))

    return te.compute(keys.shape, value, name="floats")


def _turned(number: Any, bits: str) -> Any:  # noqa: ANN401
    """Turn the bits of a negative number over, except its sign; done twice, it is what it was."""
    sign = number >> tirx.const(int(bits.removeprefix("int")) - 1, bits)
    return number ^ (sign & te.max_value(bits))
