"""Kernels that work element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.execute import reference
from compilers.coreml.execute.table import KERNELS, Arguments, kernel

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]

INT32 = np.iinfo(np.int32)


def _exact(function: Callable[..., Any], *operands: Array) -> Array:
    """Apply in int64 when the operands are int32, and refuse a result that int32 cannot hold."""
    if all(o.dtype == np.int32 for o in operands):
        wide: Array = np.asarray(function(*(o.astype(np.int64) for o in operands)))
        if wide.size and (wide.min() < INT32.min or wide.max() > INT32.max):
            raise CompilerError("an int32 result overflows; the int64 of the ONNX graph does not fit Core ML")
        return wide
    return np.asarray(function(*operands))


_BINARY: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "real_div": np.divide, "floor_div": np.floor_divide,
    "mod": np.mod, "pow": np.power, "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal,
    "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal, "less": np.less,
    "less_equal": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}  # fmt: skip

_UNARY: Final[dict[str, Callable[..., Any]]] = {
    "abs": np.abs, "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "atanh": np.arctanh,
    "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "floor": np.floor,
    "round": np.rint, "sign": np.sign, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "square": np.square,
    "tan": np.tan, "tanh": np.tanh, "logical_not": np.logical_not, "identity": np.asarray,
}  # fmt: skip


def _binary(function: Callable[..., Any]) -> Callable[[Arguments], Array]:
    return lambda a: _exact(function, a["x"], a["y"])


def _unary(function: Callable[..., Any]) -> Callable[[Arguments], Array]:
    return lambda a: np.asarray(function(a["x"]))


KERNELS.update({name: _binary(function) for name, function in _BINARY.items()})
KERNELS.update({name: _unary(function) for name, function in _UNARY.items()})


@kernel("erf")
def _erf(a: Arguments) -> Array:
    return reference.run("Erf", a["x"])


@kernel("log")
def _log(a: Arguments) -> Array:
    return np.asarray(np.log(a["x"] + np.float32(a.number("epsilon", 1e-45))))


@kernel("rsqrt")
def _rsqrt(a: Arguments) -> Array:
    return np.asarray(1 / np.sqrt(a["x"] + np.float32(a.number("epsilon", 1e-12))))


@kernel("inverse")
def _inverse(a: Arguments) -> Array:
    return np.asarray(1 / (a["x"] + np.float32(a.number("epsilon", 1e-4))))


@kernel("clip")
def _clip(a: Arguments) -> Array:
    return np.asarray(np.clip(a["x"], np.float32(a.number("alpha")), np.float32(a.number("beta"))))


@kernel("threshold")
def _threshold(a: Arguments) -> Array:
    return np.asarray(np.maximum(a["x"], np.float32(a.number("alpha"))))


@kernel("relu")
def _relu(a: Arguments) -> Array:
    return np.asarray(np.maximum(a["x"], np.float32(0)))


@kernel("relu6")
def _relu6(a: Arguments) -> Array:
    return np.asarray(np.clip(a["x"], np.float32(0), np.float32(6)))


@kernel("leaky_relu")
def _leaky_relu(a: Arguments) -> Array:
    x: Array = a["x"]
    return np.where(x >= 0, x, x * np.float32(a.number("alpha")))


@kernel("prelu")
def _prelu(a: Arguments) -> Array:
    x: Array = a["x"]
    alpha = a["alpha"].reshape(-1, *[1] * (x.ndim - 2))
    return np.where(x >= 0, x, x * alpha)


@kernel("elu")
def _elu(a: Arguments) -> Array:
    x: Array = a["x"]
    return np.where(x > 0, x, np.float32(a.number("alpha")) * np.expm1(np.minimum(x, 0)))


@kernel("sigmoid")
def _sigmoid(a: Arguments) -> Array:
    return reference.run("Sigmoid", a["x"])


@kernel("silu")
def _silu(a: Arguments) -> Array:
    return np.asarray(a["x"] * reference.run("Sigmoid", a["x"]))


@kernel("sigmoid_hard")
def _sigmoid_hard(a: Arguments) -> Array:
    line = np.float32(a.number("alpha")) * a["x"] + np.float32(a.number("beta"))
    return np.asarray(np.clip(line, np.float32(0), np.float32(1)))


@kernel("linear_activation")
def _linear_activation(a: Arguments) -> Array:
    return np.asarray(np.float32(a.number("alpha")) * a["x"] + np.float32(a.number("beta")))


@kernel("scaled_tanh")
def _scaled_tanh(a: Arguments) -> Array:
    return np.asarray(np.float32(a.number("alpha")) * np.tanh(np.float32(a.number("beta")) * a["x"]))


@kernel("softplus")
def _softplus(a: Arguments) -> Array:
    x = a["x"]
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


@kernel("softsign")
def _softsign(a: Arguments) -> Array:
    return np.asarray(a["x"] / (1 + np.abs(a["x"])))


@kernel("thresholded_relu")
def _thresholded_relu(a: Arguments) -> Array:
    return np.where(a["x"] >= np.float32(a.number("alpha")), a["x"], np.float32(0))


@kernel("gelu")
def _gelu(a: Arguments) -> Array:
    x = a["x"]
    mode = a.text("mode", "EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION", default="EXACT")
    if mode == "EXACT":
        return np.asarray(np.float32(0.5) * x * (1 + reference.run("Erf", x * np.float32(np.sqrt(0.5)))))
    if mode == "SIGMOID_APPROXIMATION":
        return np.asarray(x * reference.run("Sigmoid", np.float32(1.702) * x))
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))


@kernel("cast")
def _cast(a: Arguments) -> Array:
    names = {"fp32": "float32", "fp16": "float16", "bool": "bool"}
    integers = ("int32", "int16", "uint16", "int8", "uint8")
    target = a.text("dtype", *names, *integers)
    x = a["x"]
    if target not in integers:
        return np.asarray(x.astype(names[target]))
    info = np.iinfo(target)
    whole = np.trunc(x) if x.dtype.kind == "f" else x
    if whole.size and not (np.min(whole) >= info.min and np.max(whole) <= info.max):
        raise CompilerError(f"a value does not fit the cast to {target}; Core ML leaves the result undefined")
    return np.asarray(whole.astype(target))


@kernel("select")
def _select(a: Arguments) -> Array:
    x: Array = a["a"]
    y: Array = a["b"]
    condition = a["cond"]
    if not (np.ndim(condition) == 0 or condition.shape == x.shape == y.shape):
        raise CompilerError("select does not broadcast")
    return np.where(condition, x, y)
