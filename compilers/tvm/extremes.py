"""The largest and smallest element, and where it is: TVM's own reductions start from the largest finite number.

Imports TVM; only reached through the methods of `TvmCompiler`.

So the largest of a row that is -inf as a whole, as of a mask that leaves nothing, is -3.4e38; and it is at -1, as is
that of bytes that are all 0 (docs/vendor_bugs.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tvm import te, tirx, topi

if TYPE_CHECKING:
    from collections.abc import Callable

    Legalise = Callable[[Any, Any], Any]


_SUM: Final = te.comm_reducer(lambda a, b: a + b, lambda dtype: tirx.const(0, dtype), name="sum")


def _legalised(
    combine: Callable[[Any, Any], Any], start: float, otherwise: Callable[[str], Any], name: str
) -> Legalise:
    """Lower a reduction with `combine`, which starts from `start` where the type has infinities."""
    reducer = te.comm_reducer(
        lambda a, b: combine(a, b),  # noqa: PLW0108  # a function of Python's is asked for
        lambda dtype: tirx.const(start, dtype) if "float" in str(dtype) else otherwise(dtype),
        name=name,
    )

    def lower(bb: Any, call: Any) -> Any:  # noqa: ANN401
        keep = bool(call.attrs.keepdims)
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]

        def reduced(x: Any) -> Any:  # noqa: ANN401
            extreme = _reduced(x, reducer, axes, keep=keep)
            if "float" not in str(x.dtype):
                return extreme
            nans = te.compute(x.shape, lambda *i: tirx.Cast(str(x.dtype), tirx.isnan(x(*i))), name="nans")
            count = _reduced(nans, _SUM, axes, keep=keep)
            nan, zero = (tirx.const(value, x.dtype) for value in (math.nan, 0))
            return te.compute(extreme.shape, lambda *i: tirx.Select(count(*i) > zero, nan, extreme(*i)), name="either")

        return bb.call_te(reduced, call.args[0], primfunc_name_hint=name)

    return lower


def _sign(bb: Any, call: Any) -> Any:  # noqa: ANN401
    """Lower Sign: zeros and NaN are their own sign, and what has none has no -1."""

    def of(value: Any) -> Any:  # noqa: ANN401
        dtype = str(value.ty.dtype)
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        below = value if dtype.startswith("uint") else tirx.Select(value < zero, tirx.const(-1, dtype), value)
        return tirx.Select(value > zero, one, below)

    return bb.call_te(lambda x: te.compute(x.shape, lambda *i: of(x(*i))), call.args[0], primfunc_name_hint="sign")


def _inside(search: Callable[..., Any], best: float, name: str) -> Legalise:
    """Lower the search for a place; -1 is that of no element better than the start, and so the first.

    A NaN counts as `best`, the infinity that is searched for. A reducer with another start would be right, but those
    that GPUs share among threads are known by their start.
    """

    def lower(bb: Any, call: Any) -> Any:  # noqa: ANN401
        axis, keep = int(call.attrs.axis), bool(call.attrs.keepdims)

        def place(x: Any) -> Any:  # noqa: ANN401
            found = search(_without_nan(x, best), axis, keep)
            return topi.maximum(found, tirx.const(0, found.dtype))

        return bb.call_te(place, call.args[0], primfunc_name_hint=name)

    return lower


def _without_nan(x: Any, instead: float) -> Any:  # noqa: ANN401
    if "float" not in str(x.dtype):
        return x
    infinity = tirx.const(instead, x.dtype)
    return te.compute(x.shape, lambda *i: tirx.Select(tirx.isnan(x(*i)), infinity, x(*i)), name="numbers")


def _reduced(x: Any, reducer: Any, axes: list[int] | None, *, keep: bool) -> Any:  # noqa: ANN401
    rank = len(x.shape)
    gone = set(range(rank)) if axes is None else {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in gone]
    steps = {axis: te.reduce_axis((0, x.shape[axis])) for axis in sorted(gone)}
    shape = [1 if axis in gone else x.shape[axis] for axis in range(rank) if keep or axis not in gone]

    def element(*index: Any) -> Any:  # noqa: ANN401
        outer = dict(zip(range(rank) if keep else kept, index, strict=True))
        return reducer(x(*(steps.get(axis, outer.get(axis)) for axis in range(rank))), axis=list(steps.values()))

    return te.compute(shape, element, name="reduced")


def _pool(bb: Any, call: Any) -> Any:  # noqa: ANN401
    """Lower MaxPool with padding that is less than every element; TVM's is the smallest finite number."""
    attrs, shape = call.attrs, [int(extent) for extent in call.ty.shape]
    if attrs.out_layout != attrs.layout or not set(attrs.layout) <= set("NCDHW"):
        return call
    axes = [axis for axis, letter in enumerate(attrs.layout) if letter not in "NC"]
    kernel, strides, dilations = ([int(n) for n in each] for each in (attrs.pool_size, attrs.strides, attrs.dilation))
    pads = [int(n) for n in attrs.padding][: len(axes)]
    return bb.call_te(
        lambda x: _pooled(x, shape, list(zip(axes, kernel, strides, dilations, pads, strict=True))),
        call.args[0],
        primfunc_name_hint="max_pool",
    )


def _pooled(x: Any, shape: list[int], along: list[tuple[int, int, int, int, int]]) -> Any:  # noqa: ANN401
    """Pool to a shape; `along` is (axis, kernel, stride, dilation, padding before) of each pooled axis."""
    dtype = str(x.dtype)
    least = tirx.const(-math.inf, dtype) if "float" in dtype else te.min_value(dtype)
    before, behind = [0] * len(shape), [0] * len(shape)
    for axis, size, stride, dilation, pad in along:
        before[axis] = pad
        behind[axis] = max(0, (shape[axis] - 1) * stride + (size - 1) * dilation + 1 - int(x.shape[axis]) - pad)
    padded = topi.nn.pad(x, before, behind, least, name="pad_temp") if any(before + behind) else x
    reducer = te.comm_reducer(lambda a, b: tirx.Max(a, b), lambda _: least, name="max")  # noqa: PLW0108
    taps = {axis: te.reduce_axis((0, size)) for axis, size, *_ in along}
    steps = {axis: (stride, dilation) for axis, _, stride, dilation, _ in along}

    def element(*index: Any) -> Any:  # noqa: ANN401
        places = [
            i * steps[axis][0] + taps[axis] * steps[axis][1] if axis in taps else i for axis, i in enumerate(index)
        ]
        return reducer(padded(*places), axis=list(taps.values()))

    return te.compute(shape, element, name="pool_max")


LEGALISED: Final[dict[str, Legalise]] = {
    "relax.argmax": _inside(topi.argmax, math.inf, "argmax"),
    "relax.argmin": _inside(topi.argmin, -math.inf, "argmin"),
    "relax.nn.max_pool1d": _pool,
    "relax.nn.max_pool2d": _pool,
    "relax.nn.max_pool3d": _pool,
    "relax.sign": _sign,
    "relax.max": _legalised(tirx.Max, -math.inf, te.min_value, "max"),
    "relax.min": _legalised(tirx.Min, math.inf, te.max_value, "min"),
}
