"""Integer convolutions and products in the layout that a dot-product instruction reads.

Imports TVM; only reached through the methods of `TvmCompiler`.

The importer writes an integer convolution as `conv2d(int16(x) - zero, weights)`, which any target computes. Here it
becomes, for a target with a dot product of bytes, `sum(x * packed) + correction`: x stays bytes, padded with its zero
point; four input channels lie together in the packed weights; and `correction = -zero * sum(weights)` joins the bias.
Both are exact in int32, so the result is the same.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from tvm import relax, te, tirx, topi

from compilers.tvm import crops
from compilers.tvm import dot as dots
from compilers.tvm.expressions import is_constant, operator_name, static_shape

if TYPE_CHECKING:
    from compilers.tvm.dot import Dot

Array = np.ndarray[Any, Any]

DOT: Final = "edgefrontier.dot"
"""The annotation of a block that computes dot products: the name of the instructions that it is laid out for."""


def pack(module: Any, target: Any) -> Any:  # noqa: ANN401
    """Rewrite the integer products of `main`; its convolutions are NHWC, its constants folded."""
    return relax.transform.DeadCodeElimination()(_Packer(module, dots.dot_of(target)).packed())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    """A convolution's geometry: (height, width) pairs, padding as (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]

    def outputs(self, padded: Any) -> tuple[int, int]:  # noqa: ANN401
        """Return the output's height and width for data that is padded already."""
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        height, width = ((int(padded.shape[i + 1]) - spans[i]) // self.strides[i] + 1 for i in range(2))
        return height, width

    def source(self, at: tuple[Any, Any], tap: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return where in the padded data an output reads at a tap of the kernel."""
        row, column = (at[i] * self.strides[i] + tap[i] * self.dilation[i] for i in range(2))
        return row, column


@relax.expr_functor.mutator
class _Packer(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, dot: Dot | None) -> None:  # noqa: ANN401
        super().__init__(module)
        self._module = module
        self._dot = dot
        self._owner = ""

    def packed(self) -> Any:  # noqa: ANN401
        """Return the module with `main` rewritten."""
        main = self._module.get_global_var("main")
        self.builder_.update_func(main, self.visit_expr(self._module[main]))
        return self.builder_.finalize()

    def visit_var_binding_(self, binding: Any) -> None:  # noqa: ANN401
        self._owner = binding.var.name
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        call = self.visit_expr_post_order(call)
        rewrites = {
            "relax.nn.conv2d": self._conv2d,
            "relax.matmul": self._matmul,
            "relax.add": self._add,
            "relax.sum": self._sum,
        }
        rewrite = rewrites.get(operator_name(call))
        rewritten = rewrite(call) if rewrite else None
        if rewritten is None:
            rewritten = crops.sunk(call, self._bound, self._emit)
        return call if rewritten is None else rewritten

    def _bound(self, expr: Any) -> Any:  # noqa: ANN401
        """Return what a variable is bound to."""
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr

    def _bytes(self, expr: Any) -> tuple[Any, int] | None:  # noqa: ANN401
        """Match `int16(bytes) - zero`, transposed or not, and return (bytes, zero).

        The bytes may have more channels than the expression: then the weights of those are to be zero.
        """
        call = self._bound(expr)
        wide = crops.uncropped(call)
        if wide is not None:
            return self._bytes(wide)
        if operator_name(call) == "relax.permute_dims":
            return self._transposed(call)
        if operator_name(call) != "relax.subtract":
            return None
        wide, zero = (self._bound(argument) for argument in call.args)
        if not is_constant(zero) or str(zero.ty.dtype) != "int16" or operator_name(wide) != "relax.astype":
            return None
        data = wide.args[0]
        return (data, int(zero.value.numpy().item())) if str(data.ty.dtype) in ("int8", "uint8") else None

    def _transposed(self, call: Any) -> tuple[Any, int] | None:  # noqa: ANN401
        found = self._bytes(call.args[0])
        if found is None or static_shape(found[0]) != static_shape(call.args[0]):
            return None
        return self.builder_.emit(relax.op.permute_dims(found[0], call.attrs.axes)), found[1]

    def _operands(self, call: Any) -> tuple[Any, int, Array] | None:  # noqa: ANN401
        weights = self._bound(call.args[1])
        if not is_constant(weights) or str(weights.ty.dtype) != "int8" or str(call.ty.dtype) != "int32":
            return None
        found = self._bytes(call.args[0])
        return found and (*found, weights.value.numpy())

    def _conv2d(self, call: Any) -> Any:  # noqa: ANN401
        attrs = call.attrs
        operands = self._operands(call)
        if operands is None or (attrs.data_layout, attrs.kernel_layout) != ("NHWC", "HWIO"):
            return None
        data, zero, weights = operands
        window = _Window(
            kernel=weights.shape[:2],
            strides=tuple(int(s) for s in attrs.strides),  # type: ignore[arg-type]
            dilation=tuple(int(d) for d in attrs.dilation),  # type: ignore[arg-type]
            padding=tuple(int(p) for p in attrs.padding),  # type: ignore[arg-type]
        )
        if int(attrs.groups) == 1:
            return self._dense(data, zero, weights, window)
        channels = (static_shape(call.args[0]) or (0,))[-1]
        if int(attrs.groups) == channels == weights.shape[-1] and weights.shape[2] == 1:
            return self._depthwise(data, zero, weights[:, :, 0, :], window)
        return None

    def _matmul(self, call: Any) -> Any:  # noqa: ANN401
        operands = self._operands(call)
        if operands is None or operands[2].ndim != 2:
            return None
        data, zero, weights = operands
        return self._dense(data, zero, weights, None)

    def _dense(self, data: Any, zero: int, weights: Array, window: _Window | None) -> Any:  # noqa: ANN401
        dot = self._dot
        if dot is None:
            return None
        channels = weights.shape[-1]
        weights = crops.filled(weights, -2, int(data.ty.shape.values[-1]))
        weights = crops.filled(weights, -1, crops.width(channels, dot.lanes))
        shift = _shift(str(data.ty.dtype), dot)
        packed = relax.const(_packed(weights))
        terms = weights.astype(np.int64).reshape(-1, weights.shape[-1]).sum(axis=0)
        correction = (-(zero + shift) * terms).astype(np.int32)

        def compute(x: Any, w: Any) -> Any:  # noqa: ANN401
            inner = _laid_out(x, zero, shift, w.shape[-3] * dots.BYTES, dot.data or x.dtype, window)
            return _dot_conv(inner, w, window, dot) if window else _dot_matmul(inner, w, dot)

        total = self.builder_.emit_te(
            compute, data, packed, primfunc_name_hint="dot_conv2d" if window else "dot_matmul"
        )
        return self._cropped(relax.op.add(total, relax.const(correction)), weights.shape[-1], channels)

    def _depthwise(self, data: Any, zero: int, weights: Array, window: _Window) -> Any:  # noqa: ANN401
        channels = weights.shape[-1]
        weights = crops.filled(weights, -1, int(data.ty.shape.values[-1]))

        def compute(x: Any, w: Any) -> Any:  # noqa: ANN401
            return _depthwise_conv(_laid_out(x, zero, 0, int(x.shape[-1]), x.dtype, window), w, window)

        terms = weights.astype(np.int64).sum(axis=(0, 1))
        total = self.builder_.emit_te(compute, data, relax.const(weights), primfunc_name_hint="depthwise_conv2d")
        correction = (-zero * terms).astype(np.int32)
        return self._cropped(relax.op.add(total, relax.const(correction)), weights.shape[-1], channels)

    def _sum(self, call: Any) -> Any:  # noqa: ANN401
        """Read bytes where they are summed; else the cast joins the function before, which then writes int32."""
        wide = self._bound(call.args[0])
        axes, keep = [int(axis) for axis in call.attrs.axis or ()], bool(call.attrs.keepdims)
        uncropped, last = crops.uncropped(wide), len(call.args[0].ty.shape.values) - 1
        if uncropped is not None and axes and not {last, -1} & set(axes):
            wide = self._bound(uncropped)
        if operator_name(wide) != "relax.astype" or str(call.ty.dtype) != "int32":
            return None

        def compute(x: Any) -> Any:  # noqa: ANN401
            return topi.sum(topi.cast(x, "int32"), axes, keep)

        total = self.builder_.call_te(compute, wide.args[0], primfunc_name_hint="sum_bytes")
        extents = [int(expr.ty.shape.values[-1]) for expr in (wide.args[0], call.args[0], call)]
        return self._cropped(total, extents[2] + extents[0] - extents[1], extents[2])

    def _cropped(self, call: Any, extent: int, channels: int) -> Any:  # noqa: ANN401
        return crops.cropped(call, extent, channels, self._emit)

    def _emit(self, expr: Any) -> Any:  # noqa: ANN401
        """Bind an expression to a variable that is named after the same node as the one at hand."""
        return self.builder_.emit(expr, self._owner)

    def _add(self, call: Any) -> Any:  # noqa: ANN401
        """Join the correction with the bias: `(x + a) + b` is `x + (a + b)` in int32, which wraps around."""
        first, bias = self._bound(call.args[0]), self._bound(call.args[1])
        wide = crops.uncropped(first)
        first = first if wide is None else self._bound(wide)
        if str(call.ty.dtype) != "int32" or operator_name(first) != "relax.add":
            return None
        correction = self._bound(first.args[1])
        if not (is_constant(bias) and is_constant(correction)):
            return None
        channels, filled = int(call.ty.shape.values[-1]), int(first.ty.shape.values[-1])
        joined = correction.value.numpy() + crops.filled(bias.value.numpy(), -1, filled)
        return self._cropped(relax.op.add(first.args[0], relax.const(joined)), filled, channels)


def _shift(dtype: str, dot: Dot) -> int:
    """Return what to add to a byte so that it fits the type that the instructions read."""
    if dot.data in ("", dtype):
        return 0
    return 128 if dot.data == "uint8" else -128


def _packed(weights: Array) -> Array:
    """Lay `[..., input, output]` out as `[..., input / 4, output, 4]`, the input filled up with zeros."""
    *outer, inputs, outputs = weights.shape
    filled = np.zeros((*outer, -(-inputs // dots.BYTES) * dots.BYTES, outputs), np.int8)
    filled[..., :inputs, :] = weights
    return np.ascontiguousarray(filled.reshape(*outer, -1, dots.BYTES, outputs).swapaxes(-1, -2))


def _laid_out(x: Any, zero: int, shift: int, channels: int, dtype: str, window: _Window | None) -> Any:  # noqa: ANN401
    """Return the data as the sum reads it: in `dtype`, padded with its zero point; `x` when that changes nothing."""
    inputs = int(x.shape[-1])
    top, left, bottom, right = window.padding if window else (0, 0, 0, 0)
    if not (top or left or bottom or right or shift) and channels == inputs:
        return x
    shape = [int(extent) for extent in x.shape[:-1]] + [channels]
    if window:
        shape[1:3] = [shape[1] + top + bottom, shape[2] + left + right]

    def element(*index: Any) -> Any:  # noqa: ANN401
        inside = []
        source = list(index)
        if window:
            for axis, before, extent in ((1, top, x.shape[1]), (2, left, x.shape[2])):
                source[axis] = index[axis] - before
                if shape[axis] != int(extent):
                    inside += [source[axis] >= 0, source[axis] < extent]
        if channels != inputs:
            inside.append(index[-1] < inputs)
        value = (x(*source).astype("int32") + shift).astype(dtype) if shift else x(*source)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(zero + shift, dtype)) if inside else value

    return te.compute(shape, element, name="pad")


def _products(left: Any, right: Any) -> Any:  # noqa: ANN401
    return left.astype("int32") * right.astype("int32")


def _dot_conv(x: Any, w: Any, window: _Window, dot: Dot) -> Any:  # noqa: ANN401
    height, width = window.outputs(x)
    kernel = [te.reduce_axis((0, int(extent))) for extent in (*window.kernel, w.shape[2], dots.BYTES)]

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:  # noqa: ANN401
        i, j, k, r = kernel
        at = window.source((y, z), (i, j))
        return te.sum(_products(x[n, at[0], at[1], k * dots.BYTES + r], w[i, j, k, c, r]), axis=kernel)

    return te.compute((x.shape[0], height, width, w.shape[3]), element, name="dot", attrs={DOT: dot.name})


def _dot_matmul(x: Any, w: Any, dot: Dot) -> Any:  # noqa: ANN401
    k, r = te.reduce_axis((0, w.shape[0])), te.reduce_axis((0, dots.BYTES))

    def element(*index: Any) -> Any:  # noqa: ANN401
        data = x(*index[:-1], k * dots.BYTES + r)
        return te.sum(_products(data, w[k, index[-1], r]), axis=[k, r])

    return te.compute((*x.shape[:-1], w.shape[1]), element, name="dot", attrs={DOT: dot.name})


def _depthwise_conv(x: Any, w: Any, window: _Window) -> Any:  # noqa: ANN401
    height, width = window.outputs(x)
    i, j = (te.reduce_axis((0, extent)) for extent in window.kernel)

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:  # noqa: ANN401
        at = window.source((y, z), (i, j))
        return te.sum(_products(x[n, at[0], at[1], c], w[i, j, c]), axis=[i, j])

    return te.compute((x.shape[0], height, width, x.shape[3]), element, name="depthwise")
