"""The largest and smallest element, and where it is: TVM's own reductions start from the largest finite number.

Imports TVM; only reached through the methods of `TvmCompiler`.

So the largest of a row that is -inf as a whole, as of a mask that leaves nothing, is -3.4e38; and it is at -1, as is
that of bytes that are all 0 (docs/vendor_bugs.md).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final

from tvm import te, tirx

if TYPE_CHECKING:
    from collections.abc import Callable

    Legalise = Callable[[Any, Any], Any]


def _legalised(
    combine: Callable[[Any, Any], Any], start: float, otherwise: Callable[[str], Any], name: str
) -> Legalise:
    """Lower a reduction with `combine`, which starts from `start` where the type has infinities."""
    reducer = te.comm_reducer(
        lambda a, b: combine(a, b),  # noqa: PLW0108  # a function of Python's is asked for
        lambda dtype: _start(dtype, start, otherwise),
        name=name,
    )

    def lower(bb: Any, call: Any) -> Any:  # noqa: ANN401
        keep = bool(call.attrs.keepdims)
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        return bb.call_te(lambda x: _reduced(x, reducer, axes, keep=keep), call.args[0], primfunc_name_hint=name)

    return lower


def _start(dtype: str, start: float, otherwise: Callable[[str], Any]) -> Any:  # noqa: ANN401
    return tirx.const(start, dtype) if "float" in str(dtype) else otherwise(dtype)


def _located(before: Callable[[Any, Any], Any], start: float, otherwise: Callable[[str], Any], name: str) -> Legalise:
    """Lower the search for the first element that no other comes `before`."""

    def combine(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        better = before(a[1], b[1])
        first = tirx.any(better, tirx.all(a[1] == b[1], a[0] < b[0]))
        return tirx.Select(first, a[0], b[0]), tirx.Select(better, a[1], b[1])

    # The start is behind every element, so that the first one takes its place even where it is no better.
    reducer = te.comm_reducer(
        combine, lambda place, value: (te.max_value(place), _start(value, start, otherwise)), name=name
    )

    def lower(bb: Any, call: Any) -> Any:  # noqa: ANN401
        axis, keep = int(call.attrs.axis), bool(call.attrs.keepdims)
        return bb.call_te(lambda x: _place(x, reducer, axis, keep=keep), call.args[0], primfunc_name_hint=name)

    return lower


def _place(x: Any, reducer: Any, axis: int, *, keep: bool) -> Any:  # noqa: ANN401
    axis %= len(x.shape)
    step = te.reduce_axis((0, x.shape[axis]))
    shape = [*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :]]

    def element(*index: Any) -> Any:  # noqa: ANN401
        return reducer((step.var, x(*index[:axis], step, *index[axis + keep :])), axis=step)

    place, _ = te.compute(shape, element, name="reduced")
    return te.compute(shape, lambda *index: place(*index), name="place")  # noqa: PLW0108  # as above


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


LEGALISED: Final[dict[str, Legalise]] = {
    "relax.argmax": _located(operator.gt, -math.inf, te.min_value, "argmax"),
    "relax.argmin": _located(operator.lt, math.inf, te.max_value, "argmin"),
    "relax.max": _legalised(tirx.Max, -math.inf, te.min_value, "max"),
    "relax.min": _legalised(tirx.Min, math.inf, te.max_value, "min"),
}
