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
        return bb.call_te(lambda x: _reduced(x, reducer, axes, keep=keep), call.args[0], primfunc_name_hint=name)

    return lower


def _inside(search: Callable[..., Any], name: str) -> Legalise:
    """Lower the search for a place; -1 is that of no element better than the start, and so the first.

    A reducer with another start would be right, but those that GPUs share among threads are known by their start.
    """

    def lower(bb: Any, call: Any) -> Any:  # noqa: ANN401
        axis, keep = int(call.attrs.axis), bool(call.attrs.keepdims)

        def place(x: Any) -> Any:  # noqa: ANN401
            found = search(x, axis, keep)
            return topi.maximum(found, tirx.const(0, found.dtype))

        return bb.call_te(place, call.args[0], primfunc_name_hint=name)

    return lower


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
    "relax.argmax": _inside(topi.argmax, "argmax"),
    "relax.argmin": _inside(topi.argmin, "argmin"),
    "relax.max": _legalised(tirx.Max, -math.inf, te.min_value, "max"),
    "relax.min": _legalised(tirx.Min, math.inf, te.max_value, "min"),
}
