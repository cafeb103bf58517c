"""One generic CPU schedule for a fused function: a register tile around its reduction, or a flat vector loop.

Imports TVM; only reached through the methods of `TvmCompiler`.

Shape of a tiled function, for a reduction (convolution, matrix product, pool, mean) with its epilogue:

    [pad: a vectorised pass of its own, unless inlined]
    for outer positions and channel blocks (parallel when there are threads)
        accumulators = 0                         columns x channels, in registers
        for the reduction
            accumulators += data * weights       unrolled columns and vectors
        write epilogue(accumulators)
    [a consumer with another shape, such as the broadcast of squeeze-excite: a vectorised pass of its own]

The accumulation of a block that is laid out for dot products (`packing`) is one instruction for each vector.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tvm

from compilers.tvm import by_rows
from compilers.tvm import dot as dots
from compilers.tvm.blocks import (
    REDUCTION,
    UnscheduledError,
    first_line,
    is_reduction,
    iterators,
    opened,
    private_like,
    results,
    sizes,
    spread,
    unroll,
    vectorise,
    written,
)
from compilers.tvm.packing import DOT
from compilers.tvm.rounding import keep_floats
from compilers.tvm.tiles import Nest, TileConfig
from compilers.tvm.weights import Layout, lay_out, written_on


def analyse(func: Any) -> Nest | None:  # noqa: ANN401
    """Return the reduction nest of a fused function, None when it has none that a tile would serve.

    Raises:
        UnscheduledError: the function has another form.
    """
    if by_rows.fits(func):
        return None
    parts = Parts.of(func)
    return parts.nest() if parts.reduction is not None else None


def schedule(func: Any, config: TileConfig | None, *, threads: int) -> Any:  # noqa: ANN401
    """Return the function scheduled with `config` (None: it needs no tile); `func` stays as it is.

    Raises:
        UnscheduledError: the function has a form that this schedule does not cover.
    """
    if config is None and by_rows.fits(func):
        return by_rows.schedule(func, threads=threads)
    parts, layouts = Parts.of(func), []
    try:
        if parts.reduction is None:
            _schedule_flat(parts, threads=threads)
        elif config is not None:
            layouts = _schedule_tiled(parts, config, threads=threads)
        else:
            raise UnscheduledError("it has a reduction and no tile")
    except tvm.s_tir.schedule.ScheduleError as error:
        raise UnscheduledError(first_line(error)) from error
    return written_on(private_like(func, keep_floats(parts.sch.mod["main"])), layouts)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The blocks of a function by role. Without a reduction, `after` are those that write the results.

    `owner` is never read: a Schedule whose module nobody else holds edits the caller's function in place
    (docs/vendor_bugs.md, Apache TVM).
    """

    owner: Any
    sch: Any
    before: tuple[Any, ...]
    reduction: Any | None
    after: tuple[Any, ...]

    @classmethod
    def of(cls, func: Any) -> Parts:  # noqa: ANN401
        """Tell the blocks of a fused function apart.

        Raises:
            UnscheduledError: it has no blocks, several reductions, or a block that writes several tensors.
        """
        owner, sch, blocks = opened(func)
        reductions = [i for i, block in enumerate(blocks) if is_reduction(sch, block)]
        if len(reductions) > 1:
            raise UnscheduledError(f"it has {len(reductions)} reductions")
        for block in blocks:
            written(sch, block)
        if not reductions:
            outputs = results(sch)
            before = tuple(block for block in blocks if _name(sch, block) not in outputs)
            after = tuple(block for block in blocks if _name(sch, block) in outputs)
            return cls(owner=owner, sch=sch, before=before, reduction=None, after=after)
        (at,) = reductions
        return cls(owner=owner, sch=sch, before=tuple(blocks[:at]), reduction=blocks[at], after=tuple(blocks[at + 1 :]))

    def nest(self) -> Nest:
        """Describe the reduction."""
        shape = written(self.sch, self.reduction)
        if not shape:
            raise UnscheduledError("it reduces to a scalar")
        extents = [extent for kind, extent in iterators(self.sch, self.reduction) if kind == REDUCTION]
        block = self.sch.get(self.reduction)
        data = [sizes(region.source.shape) for region in block.reads]
        dot = self.dot()
        return Nest(
            channels=shape[-1],
            columns=shape[-2] if len(shape) > 1 else 1,
            rows=math.prod(shape[:-2]),
            lines=shape[-3] if len(shape) > 2 else 1,
            reduction=math.prod(extents),
            input_channels=data[0][-1] if data[0] else 1,
            padded=self.pad() is not None and not dot,
            shared=len(data) > 1 and extents[-1] > 1,
            weight_bytes=_item_bytes(block.reads[-1].source.dtype),
            dot_lanes=dots.family(dot).lanes if dot else (),
        )

    def dot(self) -> str | None:
        """Return the dot-product instructions that the reduction is laid out for."""
        name = self.sch.get(self.reduction).annotations.get(DOT)
        return None if name is None else str(name)

    def pad(self) -> Any | None:  # noqa: ANN401
        """Return the block before the reduction when it changes the shape, so that inlining costs something.

        An instruction reads memory, so what comes before a dot product is written there.
        """
        if not self.before:
            return None
        if self.dot():
            return self.before[-1]
        block = self.sch.get(self.before[-1])
        read = [sizes(region.source.shape) for region in block.reads]
        return None if written(self.sch, self.before[-1]) in read else self.before[-1]

    def anchor(self) -> Any | None:  # noqa: ANN401
        """Return the last block of the epilogue that still has the reduction's shape."""
        anchor = None
        for block in self.after:
            if written(self.sch, block) != written(self.sch, self.reduction):
                break
            anchor = block
        return anchor


def _schedule_flat(parts: Parts, *, threads: int) -> None:
    for block in parts.before:
        parts.sch.compute_inline(block)
    for block in parts.after:
        vectorise(parts.sch, block, threads=threads)


def _schedule_tiled(parts: Parts, config: TileConfig, *, threads: int) -> list[Layout]:
    sch, reduction = parts.sch, parts.reduction
    pad = None if config.inline_pad else parts.pad()
    anchor = parts.anchor()
    last = parts.after[-1] if parts.after else None
    for block in parts.before:
        if block is not pad:
            sch.compute_inline(block)
    outputs = results(sch)
    for block in parts.after:
        if block is anchor or block is last:
            continue
        if _name(sch, block) in outputs:
            vectorise(sch, block, threads=threads)
        else:
            sch.compute_inline(block)
    if pad is not None:
        vectorise(sch, pad, threads=threads)
    if anchor is None:
        anchor = sch.cache_write(reduction, 0, "local")
    else:
        sch.set_scope(reduction, 0, "local")
        if last is not anchor:
            vectorise(sch, last, threads=threads)
    layouts = lay_out(sch, reduction, config.channels, in_place=parts.dot() is not None)
    _tile(sch, reduction, anchor, config, threads=threads, dot=parts.dot())
    return layouts


def _tile(
    sch: Any,  # noqa: ANN401
    reduction: Any,  # noqa: ANN401
    anchor: Any,  # noqa: ANN401
    config: TileConfig,
    *,
    threads: int,
    dot: str | None,
) -> None:
    outer, inner = _split_output(sch, anchor, config)
    sch.reorder(*outer, *inner)
    # Unit loops are kept so that the loops of the reduction line up with its iterators.
    sch.compute_at(reduction, outer[-1], preserve_unit_loops=True)
    unroll(sch, inner)
    loops = sch.get_loops(reduction)[len(outer) :]
    kinds = [kind for kind, _ in iterators(sch, reduction)]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != REDUCTION]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == REDUCTION]
    spatial[-1:] = sch.split(spatial[-1], [None, config.lanes])
    if dot:
        sch.reorder(*reduced[:-1], *spatial, reduced[-1])
        for loop in spatial[:-1]:
            sch.unroll(loop)
    else:
        sch.reorder(*reduced, *spatial)
        unroll(sch, spatial)
    spread(sch, outer, threads)
    # Last, because vectorising and parallelising ask for a block that is still one reduction.
    init = sch.decompose_reduction(reduction, reduced[0])
    if dot:
        sch.vectorize(sch.get_loops(init)[-1])
        sch.tensorize(spatial[-1], dots.intrinsic(dots.family(dot), config.lanes))


def _split_output(sch: Any, anchor: Any, config: TileConfig) -> tuple[list[Any], list[Any]]:  # noqa: ANN401
    """Split the output's loops into outer ones, in order, and those of one register tile."""
    loops = list(sch.get_loops(anchor))
    channel_block, channel = sch.split(loops[-1], [None, config.channels])
    outer, inner = loops[:-1], list(sch.split(channel, [None, config.lanes]))
    if outer:
        outer[-1], column = sch.split(outer[-1], [None, config.columns])
        inner.insert(0, column)
    within: list[Any] = []
    if config.block is not None:
        rows, columns, channels = config.block
        sizes = ([rows] if len(outer) > 1 else []) + ([columns // config.columns] if outer else [])
        for at, size in zip(range(len(outer) - len(sizes), len(outer)), sizes, strict=True):
            outer[at], part = sch.split(outer[at], [None, size])
            within.append(part)
        channel_block, part = sch.split(channel_block, [None, channels // config.channels])
        within.append(part)
    return [*([channel_block, *outer] if config.channels_outer else [*outer, channel_block]), *within], inner


def _name(sch: Any, block: Any) -> str:  # noqa: ANN401
    return str(sch.get(block).name_hint)


def _item_bytes(dtype: Any) -> int:  # noqa: ANN401
    return np.dtype(str(dtype)).itemsize
