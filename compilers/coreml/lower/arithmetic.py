"""Element by element: unary mathematics, binary operators, comparisons, logic, casts."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np

from compilers.coreml.lower.table import TABLE, lowers
from compilers.coreml.lower.value import FLOATS, INTEGERS, MIL_DTYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar

NUMBERS: Final = (*FLOATS, *INTEGERS)

_UNARY: Final = {
    "Acos": "acos", "Asin": "asin", "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Round": "round", "Sin": "sin",
    "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_UNARY_ANY: Final = {"Abs": "abs", "Sign": "sign"}

_BINARY: Final = {
    "Add": ("add", NUMBERS, None),
    "Sub": ("sub", NUMBERS, None),
    "Mul": ("mul", NUMBERS, None),
    "Greater": ("greater", NUMBERS, "bool"),
    "GreaterOrEqual": ("greater_equal", NUMBERS, "bool"),
    "Less": ("less", NUMBERS, "bool"),
    "LessOrEqual": ("less_equal", NUMBERS, "bool"),
    "And": ("logical_and", ("bool",), None),
    "Or": ("logical_or", ("bool",), None),
    "Xor": ("logical_xor", ("bool",), None),
}

_VARIADIC: Final = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(mil_op: str, dtypes: tuple[str, ...]) -> Callable[[Node], None]:
    def lowering(node: Node) -> None:
        node.need_dtype(*dtypes)
        node.out(getattr(node.mil, mil_op)(x=node.x()))

    return lowering


def _binary(mil_op: str, dtypes: tuple[str, ...], result: str | None) -> Callable[[Node], None]:
    def lowering(node: Node) -> None:
        node.need_dtype(*dtypes)
        node.out(getattr(node.mil, mil_op)(x=node.x(0), y=node.x(1)), result)

    return lowering


def _variadic(mil_op: str) -> Callable[[Node], None]:
    def lowering(node: Node) -> None:
        node.need_dtype(*NUMBERS)
        operands = [node.x(i) for i in range(node.arity)]
        node.out(fold_left(node, mil_op, operands))

    return lowering


def fold_left(node: Node, mil_op: str, operands: list[MilVar]) -> MilVar:
    """Chain a binary MIL operator over the operands; one operand alone passes through an identity."""
    if len(operands) == 1:
        return node.mil.identity(x=operands[0])
    return reduce(lambda a, b: getattr(node.mil, mil_op)(x=a, y=b), operands)


TABLE.update({op: _unary(mil, FLOATS) for op, mil in _UNARY.items()})
TABLE.update({op: _unary(mil, NUMBERS) for op, mil in _UNARY_ANY.items()})
TABLE.update({op: _binary(*row) for op, row in _BINARY.items()})
TABLE.update({op: _variadic(mil) for op, mil in _VARIADIC.items()})


@lowers("Identity")
def _identity(node: Node) -> None:
    node.out_value(node.value(0))


@lowers("Dropout")
def _dropout(node: Node) -> None:
    if node.has(2) and bool(node.const(2)):
        node.refuse("training_mode is on")
    node.attr("ratio")
    node.attr("seed")
    if node.has(1):
        node.value(1)  # the ratio matters in training only
    node.out_value(node.value(0))


@lowers("Not")
def _not(node: Node) -> None:
    node.out(node.mil.logical_not(x=node.x()))


@lowers("Neg")
def _neg(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    node.out(node.mil.mul(x=node.x(), y=node.like(-1)))


@lowers("Reciprocal")
def _reciprocal(node: Node) -> None:
    # MIL's own `inverse` adds 1e-4 to its operand.
    node.need_dtype(*FLOATS)
    node.out(node.mil.real_div(x=node.like(1), y=node.x()))


@lowers("Log")
def _log(node: Node) -> None:
    # MIL's default epsilon of 1e-45 turns log(0) into -103.
    node.need_dtype(*FLOATS)
    node.out(log(node, node.x()))


def log(node: Node, x: MilVar) -> MilVar:
    """Natural logarithm with no epsilon."""
    return node.mil.log(x=x, epsilon=node.like(0))


@lowers("Asinh")
def _asinh(node: Node) -> None:
    # sign(x) log(|x| + sqrt(x^2 + 1)); written for |x|, where nothing cancels.
    node.need_dtype(*FLOATS)
    x, mil = node.x(), node.mil
    magnitude = mil.abs(x=x)
    root = mil.sqrt(x=mil.add(x=mil.mul(x=x, y=x), y=node.like(1)))
    node.out(mil.mul(x=mil.sign(x=x), y=log(node, mil.add(x=magnitude, y=root))))


@lowers("Acosh")
def _acosh(node: Node) -> None:
    node.need_dtype(*FLOATS)
    x, mil = node.x(), node.mil
    root = mil.sqrt(x=mil.mul(x=mil.sub(x=x, y=node.like(1)), y=mil.add(x=x, y=node.like(1))))
    node.out(log(node, mil.add(x=x, y=root)))


@lowers("IsNaN")
def _is_nan(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.out(node.mil.not_equal(x=node.x(), y=node.x()), "bool")


@lowers("IsInf")
def _is_inf(node: Node) -> None:
    node.need_dtype(*FLOATS)
    positive, negative = node.attr("detect_positive"), node.attr("detect_negative")
    if positive and negative:
        node.out(node.mil.equal(x=node.mil.abs(x=node.x()), y=node.like(np.inf)), "bool")
    elif positive or negative:
        node.out(node.mil.equal(x=node.x(), y=node.like(np.inf if positive else -np.inf)), "bool")
    else:
        node.refuse("attributes detect_positive=0 and detect_negative=0 together are not handled")


@lowers("Equal")
def _equal(node: Node) -> None:
    if node.dtype() == "bool":
        node.out(node.mil.logical_not(x=node.mil.logical_xor(x=node.x(0), y=node.x(1))))
        return
    node.need_dtype(*NUMBERS)
    node.out(node.mil.equal(x=node.x(0), y=node.x(1)), "bool")


@lowers("Div")
def _div(node: Node) -> None:
    if node.dtype() in FLOATS:
        node.out(node.mil.real_div(x=node.x(0), y=node.x(1)))
        return
    # ONNX divides integers towards zero, MIL towards minus infinity: divide magnitudes, then set the sign.
    node.need_dtype(*INTEGERS)
    a, b, mil = node.x(0), node.x(1), node.mil
    magnitude = mil.floor_div(x=mil.abs(x=a), y=mil.abs(x=b))
    node.out(mil.mul(x=magnitude, y=mil.mul(x=mil.sign(x=a), y=mil.sign(x=b))))


@lowers("Mod")
def _mod(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    a, b, mil = node.x(0), node.x(1), node.mil
    if not node.attr("fmod"):
        # MIL's remainder takes the sign of the divisor, as ONNX wants for integers.
        node.need_dtype(*INTEGERS)
        node.out(mil.mod(x=a, y=b))
        return
    node.out(mil.mul(x=mil.mod(x=mil.abs(x=a), y=mil.abs(x=b)), y=mil.sign(x=a)))


@lowers("Pow")
def _pow(node: Node) -> None:
    node.need_dtype(*FLOATS)
    exponent = node.x(1)
    if node.dtype(1) != node.dtype(0):
        node.need_dtype(*NUMBERS, index=1)
        exponent = node.mil.cast(x=exponent, dtype=MIL_DTYPE[node.dtype(0)])
    node.out(node.mil.pow(x=node.x(0), y=exponent))


@lowers("Mean")
def _mean(node: Node) -> None:
    node.need_dtype(*FLOATS)
    total = fold_left(node, "add", [node.x(i) for i in range(node.arity)])
    node.out(node.mil.real_div(x=total, y=node.like(node.arity)))


@lowers("Clip")
def _clip(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    low = node.attr("min") if node.opset < 11 else None
    high = node.attr("max") if node.opset < 11 else None
    if node.opset >= 11:
        if node.dtype() not in FLOATS or not _known_bounds(node):
            _clip_computed(node)
            return
        low = float(node.const(1)) if node.has(1) else None
        high = float(node.const(2)) if node.has(2) else None
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    # ONNX: the upper bound wins when the bounds cross. MIL wants them ordered.
    node.out(node.mil.clip(x=node.x(), alpha=node.like(min(low, high)), beta=node.like(high)))


def _known_bounds(node: Node) -> bool:
    return all(not node.has(i) or node.is_const(i) for i in (1, 2))


def _clip_computed(node: Node) -> None:
    result = node.x()
    if node.has(1):
        result = node.mil.maximum(x=result, y=node.x(1))
    if node.has(2):
        result = node.mil.minimum(x=result, y=node.x(2))
    node.out(node.mil.identity(x=result))


@lowers("Cast")
def _cast(node: Node) -> None:
    import onnx

    target = str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("to")))
    node.attr("saturate")  # about float8 only, which `cast` refuses
    node.attr("round_mode")
    cast(node, target)


@lowers("CastLike")
def _cast_like(node: Node) -> None:
    node.attr("saturate")
    node.attr("round_mode")
    cast(node, node.dtype(1))


def cast(node: Node, target: str) -> None:
    """Convert the first input to an ONNX type; types that would wrap or saturate are refused."""
    source, x = node.dtype(), node.x()
    if source not in (*NUMBERS, "bool", "uint8", "int8") or target not in (*NUMBERS, "bool"):
        node.refuse(f"a cast from {source} to {target} is not handled")
    if MIL_DTYPE[source] == MIL_DTYPE[target]:
        node.out(x, target)
    elif target == "bool":
        node.out(node.mil.not_equal(x=x, y=node.like(0)), "bool")
    else:
        node.out(node.mil.cast(x=x, dtype=MIL_DTYPE[target]), target)


@lowers("Where")
def _where(node: Node) -> None:
    # `select` does not broadcast as Where does, so every operand gets the full shape first.
    node.need_dtype(*NUMBERS, "bool", index=1)
    shape = np.broadcast_shapes(node.shape(0), node.shape(1), node.shape(2))
    condition, a, b = (broadcast_to(node, i, shape) for i in range(3))
    if node.dtype(1) == "bool":
        mil = node.mil
        yes = mil.logical_and(x=condition, y=a)
        node.out(mil.logical_or(x=yes, y=mil.logical_and(x=mil.logical_not(x=condition), y=b)), "bool")
        return
    node.out(node.mil.select(cond=condition, a=a, b=b), node.dtype(1))


def broadcast_to(node: Node, index: int, shape: tuple[int, ...]) -> MilVar:
    """Give an input the full shape: a constant now, a variable by tiling."""
    own = node.shape(index)
    if own == shape:
        return node.x(index)
    if node.is_const(index):
        return node.constant(np.ascontiguousarray(np.broadcast_to(node.const(index), shape)))
    return expand(node, node.x(index), own, shape)


def expand(node: Node, x: MilVar, own: tuple[int, ...], shape: tuple[int, ...]) -> MilVar:
    """Broadcast a MIL variable of shape `own` to `shape` by reshaping and tiling."""
    padded = (1,) * (len(shape) - len(own)) + tuple(own)
    repeats = [full // have for full, have in zip(shape, padded, strict=True)]
    if padded != tuple(own):
        x = node.mil.reshape(x=x, shape=list(padded))
    if set(repeats) <= {1}:
        return x
    if x.is_tensor_or_scalar_of(dtype="bool"):  # MIL tiles numbers only
        as_int = node.mil.tile(x=node.mil.cast(x=x, dtype="int32"), reps=repeats)
        return node.mil.not_equal(x=as_int, y=np.int32(0))
    return node.mil.tile(x=x, reps=repeats)
