"""Matrix products, reductions, normalisation, softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.execute import reference
from compilers.coreml.execute.elementwise import _exact
from compilers.coreml.execute.table import KERNELS, Arguments, kernel

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]


@kernel("linear")
def _linear(a: Arguments) -> Array:
    x, weight, bias = a["x"], a["weight"], a.get("bias")
    if x.ndim == 2:
        return reference.run("Gemm", x, weight, *(() if bias is None else (bias,)), transB=1)
    product = _product(x, weight.T)
    return product if bias is None else product + bias


@kernel("matmul")
def _matmul(a: Arguments) -> Array:
    x, y = a["x"], a["y"]
    if a.flag("transpose_x", default=False):
        x = x.swapaxes(-1, -2)
    if a.flag("transpose_y", default=False):
        y = y.swapaxes(-1, -2)
    if min(x.ndim, y.ndim) < 2:
        raise CompilerError("a matmul of a rank-1 operand is not handled")
    return _product(x, y)


def _product(x: Array, y: Array) -> Array:
    return _exact(np.matmul, x, y) if x.dtype == np.int32 else reference.run("MatMul", x, y)


def _sum_square(x: Array, **how: Any) -> Array:  # noqa: ANN401 - numpy's axis and keepdims
    return np.asarray(np.sum(x * x, **how))


def _log_sum_exp(x: Array, **how: Any) -> Array:  # noqa: ANN401 - numpy's axis and keepdims
    top = np.max(x, axis=how["axis"], keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=how["axis"], keepdims=True)) + top
    return np.asarray(total if how["keepdims"] else total.squeeze(how["axis"]))


_REDUCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_sum_square": _sum_square,
    "reduce_l1_norm": lambda x, **how: np.sum(np.abs(x), **how),
    "reduce_l2_norm": lambda x, **how: np.sqrt(_sum_square(x, **how)),
    "reduce_log_sum_exp": _log_sum_exp,
}


def _reduction(function: Callable[..., Any]) -> Callable[[Arguments], Array]:
    def run(a: Arguments) -> Array:
        x = a["x"]
        axes = tuple(n % x.ndim for n in a.ints("axes", list(range(x.ndim))))
        keep = a.flag("keep_dims", default=False)
        return _exact(lambda v: function(v, axis=axes, keepdims=keep), x)

    return run


KERNELS.update({name: _reduction(function) for name, function in _REDUCTIONS.items()})


@kernel("reduce_argmax")
def _argmax(a: Arguments) -> Array:
    return _arg(np.argmax, a)


@kernel("reduce_argmin")
def _argmin(a: Arguments) -> Array:
    return _arg(np.argmin, a)


def _arg(function: Callable[..., Any], a: Arguments) -> Array:
    a.text("output_dtype", "int32", default="int32")
    keep = a.flag("keep_dims", default=False)
    return np.asarray(function(a["x"], axis=a.integer("axis", -1), keepdims=keep)).astype(np.int32)


@kernel("topk")
def _topk(a: Arguments) -> tuple[Array, Array]:
    x, axis, count = a["x"], a.integer("axis", -1), a.integer("k", 1)
    indices = a.text("output_indices_dtype", "int32", "uint16", default="int32")
    if not (a.flag("sort", default=True) and a.flag("return_indices", default=True)):
        raise CompilerError("topk with sort=False or return_indices=False is not handled")
    keys = x if a.flag("ascending", default=False) else -x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    order = np.argsort(keys, axis=axis, kind="stable").take(np.arange(count), axis=axis)
    return np.take_along_axis(x, order, axis), order.astype(indices)


@kernel("cumsum")
def _cumsum(a: Arguments) -> Array:
    x, axis = a["x"], a.integer("axis", 0)
    backwards = a.flag("reverse", default=False)
    x = np.flip(x, axis) if backwards else x
    total = _exact(lambda v: np.cumsum(v, axis=axis), x)
    if a.flag("exclusive", default=False):
        total = total - x
    return np.flip(total, axis) if backwards else total


@kernel("softmax")
def _softmax(a: Arguments) -> Array:
    return reference.run("Softmax", a["x"], axis=a.integer("axis", -1))


@kernel("batch_norm")
def _batch_norm(a: Arguments) -> Array:
    x = a["x"]
    channels = a["mean"].shape[0]
    gamma = a.get("gamma", np.ones(channels, np.float32))
    beta = a.get("beta", np.zeros(channels, np.float32))
    return reference.run(
        "BatchNormalization", x, gamma, beta, a["mean"], a["variance"], epsilon=a.number("epsilon", 1e-5)
    )


@kernel("instance_norm")
def _instance_norm(a: Arguments) -> Array:
    x = a["x"]
    ones, zeros = (np.full(x.shape[1], n, np.float32) for n in (1, 0))
    scale, shift = a.get("gamma", ones), a.get("beta", zeros)
    return reference.run("InstanceNormalization", x, scale, shift, epsilon=a.number("epsilon", 1e-5))


@kernel("layer_norm")
def _layer_norm(a: Arguments) -> Array:
    x = a["x"]
    axes = tuple(n % x.ndim for n in a.ints("axes"))
    if axes == tuple(range(axes[0], x.ndim)):
        # Such a rounding error moves 8-bit values after it over a step: the reference's kernel has the same one.
        ones, zeros = (np.full(x.shape[axes[0] :], n, np.float32) for n in (1, 0))
        scale, shift = a.get("gamma", ones), a.get("beta", zeros)
        return reference.run("LayerNormalization", x, scale, shift, axis=axes[0], epsilon=a.number("epsilon", 1e-5))
    normal = _normalise(x, axes, a.number("epsilon", 1e-5))
    shape = [n if i in axes else 1 for i, n in enumerate(x.shape)]
    gamma, beta = a.get("gamma"), a.get("beta")
    scaled = normal if gamma is None else normal * gamma.reshape(shape)
    return np.asarray(scaled if beta is None else scaled + beta.reshape(shape))


def _normalise(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon)).astype(np.float32)


@kernel("l2_norm")
def _l2_norm(a: Arguments) -> Array:
    x = a["x"]
    axes = tuple(range(x.ndim - 3, x.ndim))
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=axes, keepdims=True) + np.float32(a.number("epsilon", 1e-6))))
