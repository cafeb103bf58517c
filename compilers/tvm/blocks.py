"""The blocks of a TIR function as a schedule sees them, and what every schedule on a CPU does with some of them.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Final

import tvm
from tvm.s_tir import Schedule

from compilers.tvm.tiles import EVEN, uneven

REDUCTION: Final = 2  # tvm.tirx.IterVar.CommReduce
_FLAT_LANES: Final = (32, 16, 8, 4, 2)
# TVM has vectors of round and floor, and makes a loop of scalars of this one, which LLVM then takes half of its time to
# make a vector of again (docs/vendor_bugs.md, Apache TVM 29).
tvm.ir.register_op_attr("tirx.nearbyint", "TVectorizable", value=True, level=11)


class UnscheduledError(Exception):
    """The generic schedule does not fit this function; the message says why."""


def opened(func: Any) -> tuple[Any, Any, list[Any]]:  # noqa: ANN401
    """Return (owner, schedule, blocks) of a function.

    Keep the owner as long as the schedule: a Schedule whose module nobody else holds edits the caller's function in
    place (docs/vendor_bugs.md, Apache TVM).

    Raises:
        UnscheduledError: its loops are not made of blocks.
    """
    owner = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    sch = Schedule(owner)
    try:
        blocks = list(sch.get_child_blocks(sch.get_sblock("root")))
    except tvm.s_tir.schedule.ScheduleError:  # TVM wrote its loops by hand, as for CumSum
        blocks = []
    if any(not hasattr(sch.get(block), "iter_vars") for block in blocks) or not blocks:
        raise UnscheduledError("it has no blocks")
    return owner, sch, blocks


def vectorise(sch: Any, block: Any, *, threads: int) -> None:  # noqa: ANN401
    """Make one outer loop and one vector loop of an elementwise block."""
    loops = list(sch.get_loops(block))
    if not loops:
        return
    inner = int(sch.get(loops[-1]).extent)
    lanes = next((n for n in _FLAT_LANES if inner % n == 0), 1)
    if lanes > 1:
        loops[-1], vector = sch.split(loops[-1], [None, lanes])
        sch.vectorize(vector)
    spread(sch, loops, threads)


def spread(sch: Any, loops: list[Any], threads: int) -> None:  # noqa: ANN401
    """Give each thread its share of the outermost loops: the fewest of them that divide evenly, else all.

    An index that is computed from that of a joined loop keeps what depends on the row alone in the innermost loop.
    """
    iterations = list(itertools.accumulate((int(sch.get(loop).extent) for loop in loops), operator.mul))
    if threads > 1 and iterations and iterations[-1] > 1:
        even = (i for i, count in enumerate(iterations, 1) if uneven(count, threads) <= EVEN)
        sch.parallel(sch.fuse(*loops[: next(even, len(loops))]))


def unroll(sch: Any, loops: list[Any]) -> None:  # noqa: ANN401
    """Unroll all loops but the last, and vectorise that."""
    for loop in loops[:-1]:
        sch.unroll(loop)
    if int(sch.get(loops[-1]).extent) > 1:
        sch.vectorize(loops[-1])


def private_like(original: Any, scheduled: Any) -> Any:  # noqa: ANN401
    """Give the scheduled function the linkage of the original."""
    if original.attrs and "global_symbol" in original.attrs:
        return scheduled.with_attr("global_symbol", original.attrs["global_symbol"])
    return scheduled.without_attr("global_symbol")


def is_reduction(sch: Any, block: Any) -> bool:  # noqa: ANN401
    """Tell whether a block has an axis that it reduces."""
    return any(kind == REDUCTION for kind, _ in iterators(sch, block))


def iterators(sch: Any, block: Any) -> list[tuple[int, int]]:  # noqa: ANN401
    """List (kind, extent) of a block's iterators."""
    return [(int(axis.iter_type), size(axis.dom.extent)) for axis in sch.get(block).iter_vars]


def results(sch: Any) -> frozenset[str]:  # noqa: ANN401
    """Return the names of the blocks that write what the function returns: a Split returns several tensors."""
    return frozenset(str(sch.get(block).name_hint) for block in sch.get_output_blocks("root"))


def written(sch: Any, block: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Return the shape of the one tensor that a block writes."""
    writes = sch.get(block).writes
    if len(writes) != 1:
        raise UnscheduledError(f"a block writes {len(writes)} tensors")
    return sizes(writes[0].source.shape)


def sizes(shape: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Return a shape whose extents are all known."""
    return tuple(size(number) for number in shape)


def size(number: Any) -> int:  # noqa: ANN401
    """Return a number that is known when the code is compiled."""
    if not isinstance(number, int | tvm.tirx.IntImm):
        raise UnscheduledError("a shape is not static")
    return int(number)


def first_line(error: Exception) -> str:
    """Return the line of TVM's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Error message")), lines[0] if lines else "refused")
