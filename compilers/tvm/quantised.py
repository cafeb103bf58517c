"""Q/DQ graphs as integer arithmetic: what the importer makes of a DequantizeLinear and the nodes behind it.

Imports TVM; only reached through the methods of `TvmCompiler`.

Beside each float value that is integers times a scale, `Integers` remembers those integers. A convolution of such
values is computed on them, into int32, and is again integers times a scale; the QuantizeLinear behind it goes from
int32 to bytes in one float32 multiplication, as ONNX Runtime's integer kernels do
(docs/decisions/0011-integer-arithmetic.md). The float value is there too, for whatever reads it: an operator without
a rule here computes in float32, as the graph says, and what nobody reads is removed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from tvm import relax, topi

from compilers.tvm.expressions import clamp, constant, given, is_constant, is_float, scalar, static_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Stock = Callable[[str, list[Any], dict[str, Any]], Any]

Array = np.ndarray[Any, Any]

# ONNX Runtime's own bias has exactly the product's scale; another tool may have rounded it once more.
_SAME_SCALE: Final = 1e-5
_BYTES: Final = ("int8", "uint8")
_INT8_HALF_RANGE: Final = 128


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Integers:
    """A float tensor as `(steps - zero) * scale`.

    `steps` is an expression of bytes or of int32. `scale` is one float32, or one for each index of `axis`.
    """

    steps: Any
    zero: int
    scale: Array | np.float32
    axis: int = 0

    @property
    def bytes(self) -> bool:
        """Tell whether a step is one byte and one scale serves all."""
        return str(self.steps.ty.dtype) in _BYTES and not self.scale.ndim

    def same_steps(self, other: Integers) -> bool:
        """Tell whether equal values have equal steps."""
        alike = self.bytes and other.bytes and self.zero == other.zero and self.scale == other.scale
        return bool(alike) and str(self.steps.ty.dtype) == str(other.steps.ty.dtype)

    def scale_like_steps(self, factor: Array) -> Array:
        """Shape one factor per index of `axis` so that it multiplies the steps."""
        if not factor.ndim:
            return factor
        along = [1] * self.steps.ty.ndim
        along[self.axis] = -1
        return factor.reshape(along)


class Quantised:
    """The rules, and what they know of the values of one graph.

    `convert` is TVM's own converter. `macs` counts the multiply-adds that became integer.
    """

    def __init__(self, bb: Any, convert: Stock) -> None:  # noqa: ANN401
        self.macs = 0
        self._bb = bb
        self._convert = convert
        self._integers: dict[Any, Integers] = {}
        self._sums: dict[Any, tuple[Integers, Integers]] = {}
        self._rules: dict[str, Callable[[str, list[Any], Mapping[str, Any]], Any]] = {
            "Add": self._add,
            "Concat": self._concat,
            "Conv": self._conv,
            "ConvInteger": self._conv_integer,
            "DequantizeLinear": self._dequantize,
            "DynamicQuantizeLinear": self._quantize_dynamically,
            "Flatten": self._move,
            "Gemm": self._gemm,
            "GlobalAveragePool": self._global_average,
            "MatMul": self._matmul_weights,
            "MatMulInteger": self._matmul_integer,
            "MaxPool": self._move,
            "Mul": self._multiply,
            "QuantizeLinear": self._quantize,
            "Relu": self._relu,
            "Reshape": self._move,
            "Slice": self._move,
            "Split": self._split,
            "Squeeze": self._move,
            "Transpose": self._move,
            "Unsqueeze": self._move,
        }

    def lower(self, op_name: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return what a node computes, or None when no rule fits it."""
        rule = self._rules.get(op_name)
        return rule(op_name, inputs, attrs) if rule else None

    def steps_of(self, value: Any) -> Any | None:  # noqa: ANN401
        """Return the integers that stand beside a float value, if it has any."""
        found = self._integers.get(value)
        return found.steps if found else None

    def _emit(self, expr: Any) -> Any:  # noqa: ANN401
        return self._bb.emit(expr)

    def _of(self, inputs: list[Any], position: int) -> Integers | None:
        expr = given(inputs, position)
        return None if expr is None else self._integers.get(expr)

    # Floats to integers and back.

    def _quantize(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Convert QuantizeLinear with one constant scale and zero point for the whole tensor."""
        x, scale, zero = inputs[0], constant(inputs, 1), constant(inputs, 2)
        if not is_float(x) or scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
            return None
        wanted = Integers(steps=x, zero=int(zero.item()), scale=np.float32(scale.item()))
        dtype = zero.dtype
        found = self._integers.get(x)
        if found is not None and self._unchanged(found, wanted, dtype):
            return found.steps
        return self._to_steps(self._in_steps(x, wanted), wanted.zero, dtype)

    @staticmethod
    def _unchanged(found: Integers, wanted: Integers, dtype: np.dtype[Any]) -> bool:
        alike = found.bytes and found.zero == wanted.zero and found.scale == wanted.scale
        return bool(alike) and str(found.steps.ty.dtype) == dtype.name

    def _in_steps(self, x: Any, wanted: Integers) -> Any:  # noqa: ANN401
        """Divide a value by the scale that is wanted."""
        if x in self._integers:
            return self._rescaled(self._integers[x], wanted.scale)
        if x in self._sums:
            left, right = (self._rescaled(part, wanted.scale) for part in self._sums[x])
            return self._emit(relax.op.add(left, right))
        # Divided, not multiplied by the inverse: ONNX divides, and the last bit decides a rounding.
        return self._emit(relax.op.divide(x, scalar(x, float(wanted.scale))))

    def _rescaled(self, integers: Integers, unit: Array | np.float32) -> Any:  # noqa: ANN401
        factor = integers.scale_like_steps(np.asarray(integers.scale / np.float32(unit), np.float32))
        return self._emit(relax.op.multiply(self._centred(integers), relax.const(factor)))

    def _to_steps(self, x: Any, zero: int, dtype: np.dtype[Any]) -> Any:  # noqa: ANN401
        """Round half to even and saturate, in the order that has float32 hold every value exactly."""
        limits = np.iinfo(dtype)
        bounded = clamp(self._bb, x, float(int(limits.min) - zero), float(int(limits.max) - zero))
        whole = self._emit(relax.op.astype(self._emit(relax.op.round(bounded)), "int32"))
        shifted = self._emit(relax.op.add(whole, scalar(whole, zero))) if zero else whole
        return self._emit(relax.op.astype(shifted, dtype.name))

    def _dequantize(self, op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Convert DequantizeLinear with constant float32 scales and one zero point."""
        x, scale, zero = inputs[0], constant(inputs, 1), constant(inputs, 2)
        if scale is None or scale.dtype != np.float32 or "block_size" in attrs:
            return None
        zero = np.zeros((), x.ty.dtype.dtype) if zero is None else zero
        if zero.dtype.kind not in "iu" or not zero.size or np.ptp(zero.astype(np.int64)):
            return None
        integers = Integers(
            steps=x,
            zero=int(zero.flat[0]),
            scale=scale if scale.size > 1 else np.float32(scale.item()),
            axis=int(attrs.get("axis", 1)) % max(1, x.ty.ndim),
        )
        if is_constant(x):
            return self._known_as(self._convert(op, inputs, dict(attrs)), integers)
        if integers.scale.ndim or str(x.ty.dtype) not in _BYTES:
            return None
        return self._value(integers)

    def _value(self, integers: Integers) -> Any:  # noqa: ANN401
        """Return the float value of integers, which are remembered with it."""
        factor = integers.scale_like_steps(np.asarray(integers.scale, np.float32))
        return self._known_as(self._emit(relax.op.multiply(self._centred(integers), relax.const(factor))), integers)

    def _centred(self, integers: Integers) -> Any:  # noqa: ANN401
        """Return the steps as float32, less the zero point."""
        wide = integers.steps
        if not is_float(wide):
            wide = self._emit(relax.op.astype(wide, "float32"))
        return self._emit(relax.op.subtract(wide, scalar(wide, integers.zero))) if integers.zero else wide

    def _known_as(self, value: Any, integers: Integers) -> Any:  # noqa: ANN401
        self._integers[value] = integers
        return value

    # Sums of products.

    def _conv(self, _op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x, weight = self._of(inputs, 0), self._of(inputs, 1)
        if not _weighted(x, weight, rank=4, axis=0) or attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return None
        assert x is not None
        assert weight is not None
        convolution = relax.op.nn.conv2d(
            self._widened(x),
            weight.steps,
            strides=attrs.get("strides", 1),
            padding=attrs.get("pads", 0),
            dilation=attrs.get("dilations", 1),
            groups=attrs.get("group", 1),
            out_dtype="int32",
        )
        return self._product(convolution, (x, weight), inputs, axis=1)

    def _gemm(self, _op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x, weight = self._of(inputs, 0), self._of(inputs, 1)
        transposed = bool(attrs.get("transB", 0))
        plain = attrs.get("alpha", 1.0) == 1.0 and attrs.get("beta", 1.0) == 1.0 and not attrs.get("transA", 0)
        if not plain or not _weighted(x, weight, rank=2, axis=0 if transposed else 1):
            return None
        assert x is not None
        assert weight is not None
        if transposed:
            steps = relax.const(np.ascontiguousarray(weight.steps.value.numpy().T))
            weight = dataclasses.replace(weight, steps=steps, axis=1)
        return self._product(self._matmul(x, weight), (x, weight), inputs, axis=1)

    def _matmul_weights(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x, weight = self._of(inputs, 0), self._of(inputs, 1)
        if not _weighted(x, weight, rank=2, axis=1):
            return None
        assert x is not None
        assert weight is not None
        return self._product(self._matmul(x, weight), (x, weight), inputs[:2], axis=x.steps.ty.ndim - 1)

    def _quantize_dynamically(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Convert DynamicQuantizeLinear; TVM's converter computes scale and zero point anew for each reader."""
        x, op = inputs[0], relax.op
        low, high = (self._bb.emit_te(extreme, x) for extreme in (topi.min, topi.max))  # no search for NaN (`extremes`)
        low, high = self._emit(op.minimum(low, scalar(x, 0))), self._emit(op.maximum(high, scalar(x, 0)))
        scale = self._emit(op.divide(self._emit(op.subtract(high, low)), scalar(x, 255)))
        # All zeros have the scale 1, as in ONNX Runtime.
        scale = self._emit(op.where(self._emit(op.equal(scale, scalar(x, 0))), scalar(x, 1), scale))
        below = self._emit(op.divide(self._emit(op.negative(low)), scale))
        zero = self._emit(op.round(clamp(self._bb, below, 0, 255)))
        steps = self._emit(op.add(self._emit(op.round(self._emit(op.divide(x, scale)))), zero))
        steps = self._emit(op.astype(clamp(self._bb, steps, 0, 255), "uint8"))
        return relax.Tuple([steps, scale, self._emit(op.astype(zero, "uint8"))])

    # Products of bytes whose zero point is computed while the model runs, as ONNX Runtime's dynamic quantiser has them.
    # The zero point is taken out of the sum, where it is one more product with a constant: exact in int32.

    def _matmul_integer(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x, weight = inputs[0], _byte_weights(inputs, 1, 3, axis=1)
        if weight is None or weight.ndim != 2 or str(x.ty.dtype) not in _BYTES or static_shape(x) is None:
            return None
        if not _is_scalar(given(inputs, 2)):
            return None
        weights = Integers(steps=relax.const(weight), zero=0, scale=np.float32(1))
        total = self._emit(self._matmul(Integers(steps=x, zero=0, scale=np.float32(1)), weights))
        self.macs += math.prod(static_shape(total) or (0,)) * weight.shape[0]
        return self._without_zero(total, given(inputs, 2), weight.astype(np.int32).sum(axis=0))

    def _conv_integer(self, _op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x, weight = inputs[0], _byte_weights(inputs, 1, 3, axis=0, narrow=False)
        shape = static_shape(x)
        if weight is None or weight.ndim != 4 or shape is None or not _is_scalar(given(inputs, 2)):
            return None
        convolution = relax.op.nn.conv2d(
            self._widened(Integers(steps=x, zero=0, scale=np.float32(1))),
            relax.const(weight),
            strides=attrs.get("strides", 1),
            padding=attrs.get("pads", 0),
            dilation=attrs.get("dilations", 1),
            groups=attrs.get("group", 1),
            out_dtype="int32",
        )
        total = self._emit(convolution)
        self.macs += math.prod(static_shape(total) or (0,)) * math.prod(weight.shape[1:])
        return self._without_zero(total, given(inputs, 2), _sums_of_windows(weight, shape[2:], attrs))

    def _without_zero(self, total: Any, zero: Any | None, sums: Array) -> Any:  # noqa: ANN401
        """Take the zero point's share out of a sum of products; `sums` are the weights that each sum has."""
        if zero is None:
            return total
        whole = self._emit(relax.op.reshape(self._emit(relax.op.astype(zero, "int32")), ()))
        share = self._emit(relax.op.multiply(whole, relax.const(sums.astype(np.int32))))
        return self._emit(relax.op.subtract(total, share))

    def _matmul(self, x: Integers, weight: Integers) -> Any:  # noqa: ANN401
        return relax.op.matmul(self._widened(x), weight.steps, out_dtype="int32")

    def _widened(self, x: Integers) -> Any:  # noqa: ANN401
        """Return the steps less the zero point, in int16: exact, and zero is what a convolution pads with."""
        wide = self._emit(relax.op.astype(x.steps, "int16"))
        return self._emit(relax.op.subtract(wide, scalar(wide, x.zero)))

    def _product(self, call: Any, factors: tuple[Integers, Integers], inputs: list[Any], *, axis: int) -> Any:  # noqa: ANN401
        """Emit a sum of products with its bias, and count its multiply-adds."""
        x, weight = factors
        total = self._emit(call)
        shape = weight.steps.value.numpy().shape
        outputs = static_shape(total) or (0,)
        self.macs += math.prod(outputs) * (math.prod(shape[1:]) if axis == 1 and len(shape) == 4 else shape[0])
        result = Integers(steps=total, zero=0, scale=np.asarray(x.scale * weight.scale, np.float32), axis=axis)
        bias = self._bias(inputs, result)
        if bias is None:
            value = self._value(result)
            expr = self._broadcast(inputs[2], result)
            return self._emit(relax.op.add(value, expr))
        shaped = bias if axis != 1 or len(shape) != 4 else bias.reshape(1, -1, 1, 1)
        summed = self._emit(relax.op.add(total, relax.const(shaped)))
        return self._value(dataclasses.replace(result, steps=summed))

    def _bias(self, inputs: list[Any], result: Integers) -> Array | None:
        """Return the bias in the product's steps, zeros when there is none, None when it has another scale."""
        channels = int(result.steps.ty.shape.values[result.axis])
        if given(inputs, 2) is None:
            return np.zeros(channels, np.int32)
        bias = self._of(inputs, 2)
        if bias is None or not is_constant(bias.steps) or str(bias.steps.ty.dtype) != "int32" or bias.zero:
            return None
        if not np.allclose(bias.scale, result.scale, rtol=_SAME_SCALE, atol=0):
            return None
        return np.broadcast_to(bias.steps.value.numpy().reshape(-1), (channels,)).copy()

    def _broadcast(self, bias: Any, result: Integers) -> Any:  # noqa: ANN401
        if result.axis == result.steps.ty.ndim - 1:
            return bias
        return self._emit(relax.op.reshape(bias, (1, -1, 1, 1)))

    # Everything else between bytes and bytes.

    def _global_average(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x = self._of(inputs, 0)
        shape = None if x is None else static_shape(x.steps)
        if x is None or shape is None or not x.bytes or len(shape) < 3:
            return None
        count = math.prod(shape[2:])
        wide = self._emit(relax.op.astype(x.steps, "int32"))
        total = self._emit(relax.op.sum(wide, axis=list(range(2, len(shape))), keepdims=True))
        return self._value(Integers(steps=total, zero=x.zero * count, scale=np.float32(x.scale / np.float32(count))))

    def _add(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        left, right = self._of(inputs, 0), self._of(inputs, 1)
        if left is None or right is None or is_constant(left.steps) or is_constant(right.steps):
            return None
        value = self._emit(relax.op.add(inputs[0], inputs[1]))
        self._sums[value] = (left, right)
        return value

    def _multiply(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Multiply bytes: the product of their steps is exact in float32."""
        left, right = self._of(inputs, 0), self._of(inputs, 1)
        if left is None or right is None or not (left.bytes and right.bytes):
            return None
        if is_constant(left.steps) or is_constant(right.steps):
            return None
        steps = self._emit(relax.op.multiply(self._centred(left), self._centred(right)))
        return self._value(Integers(steps=steps, zero=0, scale=np.float32(left.scale * right.scale)))

    def _relu(self, _op: str, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x = self._of(inputs, 0)
        if x is None or is_constant(x.steps):
            return None
        return self._value(dataclasses.replace(x, steps=clamp(self._bb, x.steps, x.zero, None)))

    def _move(self, op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Move bytes, or choose among them: their scale and zero point stay."""
        x = self._of(inputs, 0)
        if x is None or not x.bytes or is_constant(x.steps):
            return None
        return self._value(dataclasses.replace(x, steps=self._stock(op, [x.steps, *inputs[1:]], attrs)))

    def _split(self, op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        x = self._of(inputs, 0)
        if x is None or not x.bytes or is_constant(x.steps):
            return None
        parts = self._stock(op, [x.steps, *inputs[1:]], attrs)
        steps = [self._emit(relax.TupleGetItem(parts, i)) for i in range(len(parts.ty.fields))]
        return relax.Tuple([self._value(dataclasses.replace(x, steps=part)) for part in steps])

    def _concat(self, op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        parts = [self._of(inputs, i) for i in range(len(inputs))]
        first = parts[0]
        if first is None or any(p is None or is_constant(p.steps) or not first.same_steps(p) for p in parts):
            return None
        steps = self._stock(op, [part.steps for part in parts if part is not None], attrs)
        return self._value(dataclasses.replace(first, steps=steps))

    def _stock(self, op: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return self._emit(self._convert(op, inputs, dict(attrs)))


def _is_scalar(zero: Any | None) -> bool:  # noqa: ANN401
    shape = () if zero is None else static_shape(zero)
    return shape is not None and math.prod(shape) == 1


def _byte_weights(inputs: list[Any], position: int, zero_at: int, *, axis: int, narrow: bool = True) -> Array | None:
    """Return constant weights less their zero points: int8 where they fit, else int16 unless `narrow`."""
    steps = constant(inputs, position)
    zero = np.zeros((), np.int8) if given(inputs, zero_at) is None else constant(inputs, zero_at)
    if steps is None or zero is None or steps.dtype not in (np.int8, np.uint8):
        return None
    along = [1] * steps.ndim
    along[axis] = -1
    centred = steps.astype(np.int16) - zero.astype(np.int16).reshape(along if zero.size > 1 else ())
    if np.abs(centred + 0.5).max() < _INT8_HALF_RANGE:
        return centred.astype(np.int8)
    return None if narrow else centred


def _sums_of_windows(weight: Array, extents: tuple[int, ...], attrs: Mapping[str, Any]) -> Array:
    """Return the sum of the weights that lie inside the data, (1, channels, height, width)."""
    strides, dilations = attrs.get("strides", (1, 1)), attrs.get("dilations", (1, 1))
    pads = attrs.get("pads", (0, 0, 0, 0))
    inside = []
    for axis, extent in enumerate(extents):
        taps = np.arange(weight.shape[2 + axis]) * dilations[axis]
        outputs = (extent + pads[axis] + pads[axis + 2] - taps[-1] - 1) // strides[axis] + 1
        at = np.arange(outputs)[:, None] * strides[axis] - pads[axis] + taps
        inside.append(((at >= 0) & (at < extent)).astype(np.int32))
    sums: Array = np.einsum("cij,yi,xj->cyx", weight.astype(np.int32).sum(axis=1), *inside)
    return sums[None]


def _weighted(x: Integers | None, weight: Integers | None, *, rank: int, axis: int) -> bool:
    """Tell whether these are bytes times constant, symmetric int8 weights, whose scales run along `axis`."""
    if x is None or weight is None or not x.bytes or is_constant(x.steps):
        return False
    if not is_constant(weight.steps) or str(weight.steps.ty.dtype) != "int8" or weight.zero:
        return False
    known = static_shape(x.steps) is not None and weight.steps.ty.ndim == rank
    return known and (rank != 4 or x.steps.ty.ndim == 4) and (not weight.scale.ndim or weight.axis == axis)
