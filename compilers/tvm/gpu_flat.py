"""Schedules for GPU functions that have no tile: a vector loop over all elements, or a rule of TVM's own dlight.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm.s_tir import SBlock, SBlockRealize, dlight

from compilers.tvm.blocks import UnscheduledError, private_like
from compilers.tvm.schedule import Parts

_THREADS: Final = 128
_LANES: Final = (4, 2)


def schedule_rest(func: Any, target: Any) -> tuple[Any, str]:  # noqa: ANN401
    """Schedule a function that has no tile; return it with the name of the rule.

    A vector loop where there is no reduction, else what of TVM's dlight takes it.

    Raises:
        UnscheduledError: no rule takes it.
    """
    flat = _flat(func)
    if flat is not None:
        return private_like(func, flat), "flat"
    for rule in (dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()):
        # Rules take a function apart in place (docs/vendor_bugs.md): each gets a copy.
        module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        try:
            with target:
                done = dlight.ApplyDefaultSchedule(rule)(tvm.ir.load_json(tvm.ir.save_json(module)))["main"]
        except (tvm.error.InternalError, tvm.s_tir.schedule.ScheduleError, ValueError, AssertionError):
            continue
        if done.attrs and done.attrs.get("tirx.is_scheduled"):
            return private_like(func, done.without_attr("tirx.is_scheduled")), f"dlight {type(rule).__name__}"
    raise UnscheduledError("none of TVM's rules for GPUs takes it")


def _flat(func: Any) -> Any | None:  # noqa: ANN401
    try:
        parts = Parts.of(func)
        if parts.reduction is not None:
            return None
        for block in parts.before:
            parts.sch.compute_inline(block)
        for block in parts.after:  # a kernel for each result
            flatten(parts.sch, block)
    except (UnscheduledError, tvm.s_tir.schedule.ScheduleError):
        return None
    return _with_even_choices(parts.sch.mod["main"])


def _with_even_choices(func: Any) -> Any:  # noqa: ANN401
    """Write comparisons of which all lanes of a vector have the same result so that TVM sees it.

    What a concatenation takes from depends on the channel, and where the parts begin at multiples of the vector's
    length, a vector comes from one of them: without this, TVM reads it element by element.
    """

    def even(loop: Any) -> Any:  # noqa: ANN401
        realize = loop.body
        if loop.kind != tvm.tirx.ForKind.VECTORIZED or not isinstance(realize, SBlockRealize):
            return loop
        block, lanes = realize.block, int(loop.extent)
        axis = block.iter_vars[-1].var
        first = axis // lanes * lanes

        def at_least(node: Any) -> Any:  # noqa: ANN401
            return tvm.tirx.LE(node.a, first) if node.b.same_as(axis) and _is_multiple(node.a, lanes) else node

        def below(node: Any) -> Any:  # noqa: ANN401
            return tvm.tirx.LT(first, node.b) if node.a.same_as(axis) and _is_multiple(node.b, lanes) else node

        body = tvm_ffi.structural_map(block.body, [(tvm.tirx.LE, at_least), (tvm.tirx.LT, below)])
        same = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body, annotations=block.annotations)
        changed = SBlockRealize(realize.iter_values, realize.predicate, same)
        return tvm.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, changed)

    return tvm_ffi.structural_map(func, [(tvm.tirx.For, even)])


def _is_multiple(expr: Any, lanes: int) -> bool:  # noqa: ANN401
    return isinstance(expr, tvm.tirx.IntImm) and int(expr) % lanes == 0


def flatten(sch: Any, block: Any) -> None:  # noqa: ANN401
    """One thread for each vector of an elementwise block."""
    loops = list(sch.get_loops(block))
    extent = int(sch.get(loops[-1]).extent) if loops else 1
    lanes = next((n for n in _LANES if extent % n == 0), 1)
    vector = None
    if lanes > 1:
        loops[-1], vector = sch.split(loops[-1], [None, lanes])
    flat = sch.fuse(*loops) if loops else sch.add_unit_loop(block)
    outer, thread = sch.split(flat, [None, _THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if vector is not None:
        sch.vectorize(vector)
