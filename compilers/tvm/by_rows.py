"""A CPU schedule for functions that reduce rows: softmax, layer normalisation, a mean over the last axis.

Imports TVM; only reached through the methods of `TvmCompiler`.

Shape of a scheduled function:

    for rows (parallel when there are threads)
        for each step: a reduction, into a vector of partial results and then one, or a vector loop over the row
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.schedule import ScheduleError

from compilers.tvm.blocks import (
    REDUCTION,
    UnscheduledError,
    first_line,
    is_reduction,
    iterators,
    opened,
    private_like,
    sizes,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_LANES: Final = (16, 8, 4)


def fits(func: Any) -> bool:  # noqa: ANN401
    """Tell whether every reduction runs along the last axis of what it reads, and ends in one value for each row.

    Axes of one element do not count.

    Raises:
        UnscheduledError: the function is not made of blocks of known shape.
    """
    _, sch, blocks = opened(func)
    reductions = [block for block in blocks if is_reduction(sch, block)]
    if not reductions or not all(_is_of_rows(sch, block) for block in reductions):
        return False
    rows = _rows(sch, reductions[0])
    spatial = [tuple(n for kind, n in iterators(sch, block) if kind != REDUCTION) for block in blocks]
    return bool(rows) and all(extents[: len(rows)] == rows for extents in spatial)


def schedule(func: Any, *, threads: int) -> Any:  # noqa: ANN401
    """Return the function scheduled, one row after the other; `func` stays as it is.

    Raises:
        UnscheduledError: TVM refuses a step for this function.
    """
    restarted = _finite(func)
    owner, sch, blocks = opened(restarted)
    assert owner is not None, "it keeps the caller's function as it is"
    rows = len(_rows(sch, next(block for block in blocks if is_reduction(sch, block))))
    try:
        _schedule(sch, blocks, rows, threads=threads)
    except ScheduleError as error:
        raise UnscheduledError(first_line(error)) from error
    scheduled = sch.mod["main"]
    return private_like(func, scheduled if restarted.same_as(func) else _infinite(scheduled))


def _finite(func: Any) -> Any:  # noqa: ANN401
    """Start reductions that start from an infinity (`extremes`) as TVM's own do, the only ones that it splits."""
    return _restarted(func, lambda start, least, most: {-math.inf: least, math.inf: most}.get(start))


def _infinite(func: Any) -> Any:  # noqa: ANN401
    """Undo that in the parts: of the largest and the smallest the infinities are the neutral elements."""
    return _restarted(func, lambda start, least, most: {least: -math.inf, most: math.inf}.get(start))


def _restarted(func: Any, other: Callable[[float, float, float], float | None]) -> Any:  # noqa: ANN401
    def store(node: Any) -> Any:  # noqa: ANN401
        if not isinstance(node.value, tirx.FloatImm):
            return node
        dtype = str(node.value.ty.dtype)
        start = other(float(node.value.value), float(tirx.min_value(dtype).value), float(tirx.max_value(dtype).value))
        return node if start is None else tirx.BufferStore(node.buffer, tirx.const(start, dtype), node.indices)

    return tvm_ffi.structural_map(func, [(tirx.BufferStore, store)])


def _schedule(sch: Any, blocks: list[Any], rows: int, *, threads: int) -> None:  # noqa: ANN401
    *steps, last = blocks
    if is_reduction(sch, last):
        steps, last = blocks, sch.cache_write(last, 0, "local")
    partial = {id(step): _partial(sch, step) for step in steps if is_reduction(sch, step)}
    row = sch.get_loops(last)[rows - 1]
    for step in reversed(steps):
        for part in filter(None, (step, partial.get(id(step)))):
            sch.compute_at(part, row, preserve_unit_loops=True)
    for step in (*steps, last):
        if not is_reduction(sch, step):
            _vectorise(sch, step, rows)
    reduced = [(part, _vectorise_partial(sch, part, rows)) for part in filter(None, partial.values())]
    spread(sch, sch.get_loops(last)[:rows], threads)
    # Last, because vectorising and parallelising ask for blocks that are still one reduction.
    for part, loop in reduced:
        sch.decompose_reduction(part, loop)


def _partial(sch: Any, reduction: Any) -> Any | None:  # noqa: ANN401
    """Make a block of partial results, a vector for each row, that the reduction then joins; None where none fits."""
    loop = sch.get_loops(reduction)[-1]
    lanes = _lanes(sch, loop)
    if lanes is None:
        return None
    _, element = sch.split(loop, [None, lanes])
    try:
        return sch.rfactor(element, len(sch.get(reduction).writes[0].source.shape))
    except ScheduleError:  # TVM splits only reductions that it knows
        return None


def _vectorise(sch: Any, step: Any, rows: int) -> None:  # noqa: ANN401
    loops = [loop for loop in sch.get_loops(step)[rows:] if int(sch.get(loop).extent) > 1]
    lanes = _lanes(sch, loops[-1]) if loops else None
    if lanes is not None:
        sch.vectorize(sch.split(loops[-1], [None, lanes])[1])


def _vectorise_partial(sch: Any, part: Any, rows: int) -> Any:  # noqa: ANN401
    """Bring the vector's elements, the outermost loop as `rfactor` leaves it, inside the reduction; return its loop."""
    element, *_, reduced = sch.get_loops(part)[rows:]
    sch.reorder(reduced, element)
    sch.vectorize(element)
    return reduced


def _lanes(sch: Any, loop: Any) -> int | None:  # noqa: ANN401
    return next((n for n in _LANES if int(sch.get(loop).extent) % n == 0), None)


def _is_of_rows(sch: Any, reduction: Any) -> bool:  # noqa: ANN401
    """Tell whether a block reduces one axis, and that is the last of the only tensor it reads along it."""
    reduced = [axis.var for axis in sch.get(reduction).iter_vars if int(axis.iter_type) == REDUCTION]
    if len(reduced) != 1:
        return False
    reads = [_long_axes(region) for region in sch.get(reduction).reads]
    along = [read for read in reads if any(_uses(index, reduced[0]) for index in read)]
    return len(along) == 1 and bool(along[0][-1].same_as(reduced[0]))


def _long_axes(region: Any) -> list[Any]:  # noqa: ANN401
    """Return where a read starts on each axis that has more than one element."""
    return [part.min for part, extent in zip(region.region, sizes(region.source.shape), strict=True) if extent > 1]


def _uses(index: Any, variable: Any) -> bool:  # noqa: ANN401
    return any(variable.same_as(found) for found in tvm.tirx.analysis.undefined_vars(index, []))


def _rows(sch: Any, reduction: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Return the extents of the axes that a reduction keeps, less the ones at their end."""
    kept = [extent for kind, extent in iterators(sch, reduction) if kind != REDUCTION]
    while kept and kept[-1] == 1:
        kept.pop()
    return tuple(kept)
