"""Schedules for GPUs: a block of threads computes one tile of positions by channels, each thread a part of it.

Imports TVM; only reached through the methods of `TvmCompiler`.

Shape of a tiled function, a reduction (convolution, matrix product, depthwise convolution, pool) with its epilogue,
for a `GpuTile`; names as there:

    blocks of (block_x x thread_x) positions by (block_y x thread_k) channels
      threads: channels along threadIdx.x, positions along threadIdx.y
        sums = 0                                 thread_x by thread_k, in registers
        for the reduction, k_tile input channels at a time
            [staged: the block's threads load data and weights into shared memory]
            for k_tile / unroll
                load thread_x by unroll data into registers
                for unroll, unrolled
                    load thread_k weights into registers
                    sums += data * weights       unrolled, in vectors along the channels
        write epilogue(sums)

Bytes of a quantised graph come in words of four input channels, and a step of the reduction is a word: `k_tile` and
`unroll` count words then.

Data are laid out channels last, so neighbouring threads must take neighbouring channels: weights and outputs are then
read and written in whole lines, and the data that they share is one broadcast.

A function with another form is scheduled by `gpu_flat`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi

from compilers.tvm.blocks import REDUCTION, UnscheduledError, first_line, private_like, size, sizes, unroll
from compilers.tvm.dot import BYTES
from compilers.tvm.gpu_dot import gpu_intrinsic, with_dots
from compilers.tvm.gpu_flat import flatten
from compilers.tvm.schedule import Parts
from partition.tile import CONV, DEPTHWISE, MATMUL, POOL, Layer, build_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partition.tile import GpuTile


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuNest:
    """What of a reduction decides which tiles are legal; extents in elements.

    `shares` tells that all channels read the same data, as in a convolution or a matrix product, so that there is
    something to stage.
    """

    batches: int
    positions: int
    channels: int
    reduction: int
    kernel: tuple[int, int]
    data: int
    shares: bool
    weighted: bool

    def layer(self, name: str) -> Layer:
        """Return the nest as the tile models see it."""
        kind = (MATMUL if self.kernel == (1, 1) else CONV) if self.shares else DEPTHWISE if self.weighted else POOL
        taps = math.prod(self.kernel)
        c = self.reduction // taps
        across = self.batches * (self.channels if not self.shares else c)
        return Layer(
            name=name, op_type="", kind=kind, k=self.channels, c=c, x=self.positions, groups=self.batches,
            kernel=self.kernel, in_x=max(1, self.data // across),
        )  # fmt: skip


def analyse_gpu(func: Any) -> GpuNest | None:  # noqa: ANN401
    """Return the reduction nest of a fused function, None when it has no reduction.

    Raises:
        UnscheduledError: the function has another form.
    """
    parts = Parts.of(func)
    return None if parts.reduction is None else _Axes.of(parts).nest


def schedule_gpu(func: Any, tile: GpuTile, target: Any = None) -> Any:  # noqa: ANN401
    """Return the function scheduled with `tile`; `func` stays as it is.

    `target` may have an instruction for the dot products of bytes.

    Raises:
        UnscheduledError: the function has a form that this schedule does not cover, or the tile is illegal for it.
    """
    parts = Parts.of(func)
    if parts.reduction is None:
        raise UnscheduledError("it has no reduction, so no tile")
    axes = _Axes.of(parts)
    reason = build_refusal(axes.nest.layer("function"), tile)
    if reason is not None:
        raise UnscheduledError(reason)
    try:
        data = str(parts.sch.get(parts.reduction).reads[0].source.dtype)
        dot = gpu_intrinsic(target, data, tile.vector) if target and axes.word else None
        # TVM writes a constant vector of 8 or 16 bytes, which padding has, as no CUDA (docs/vendor_bugs.md).
        narrow = bool(target and axes.word and parts.before) and str(target.kind.name) == "cuda"
        block = _tile(parts, axes, tile, dot=dot is not None, narrow=narrow)
        scheduled = with_dots(parts.sch.mod["main"], block, dot) if dot else parts.sch.mod["main"]
    except (tvm.s_tir.schedule.ScheduleError, tvm.error.InternalError) as error:
        raise UnscheduledError(first_line(error)) from error
    return private_like(func, scheduled)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Axes:
    """Roles of the reduction block's iterators, by position among the block's iterators.

    `word` has the axis over the four bytes that a dot product adds up, of a block that is laid out for it.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    reduced: tuple[int, ...]
    word: tuple[int, ...]
    extents: tuple[int, ...]
    nest: GpuNest

    @classmethod
    def of(cls, parts: Parts) -> _Axes:
        block = parts.sch.get(parts.reduction)
        if len(block.reads) not in (1, 2):
            raise UnscheduledError(f"its reduction reads {len(block.reads)} tensors")
        variables = [axis.var for axis in block.iter_vars]
        extents = tuple(size(axis.dom.extent) for axis in block.iter_vars)
        reduced = tuple(i for i, axis in enumerate(block.iter_vars) if int(axis.iter_type) == REDUCTION)
        spatial = tuple(i for i in range(len(extents)) if i not in reduced)
        if not spatial or reduced != tuple(range(len(spatial), len(extents))):
            raise UnscheduledError("its reduction has no channels, or its axes lie between others")
        used = [frozenset(i for i, v in enumerate(variables) if v in _variables(region)) for region in block.reads]
        weights = used[1] if len(used) == 2 else frozenset()
        shares = len(used) == 2 and spatial[-1] not in used[0] and spatial[-1] in weights
        outer = tuple(i for i in spatial[:-1] if shares and i in weights)
        inner = tuple(i for i in spatial[:-1] if i not in outer)
        reduced, word = (reduced[:-1], reduced[-1:]) if parts.dot() else (reduced, ())
        return cls(
            outer=outer, inner=inner, reduced=reduced, word=word, extents=extents,
            nest=_nest(extents, outer, inner, reduced, block.reads, shares=shares),
        )  # fmt: skip

    @property
    def channel(self) -> int:
        return len(self.outer) + len(self.inner)

    @property
    def stepped(self) -> int:
        """Which reduction axis `k_tile` splits: the last longer than 1."""
        long = [i for i in self.reduced if self.extents[i] > 1]
        return long[-1] if long else self.reduced[-1]

    def mixed(self, axes: Sequence[int], values: Sequence[Any] | Mapping[int, Any]) -> Any:  # noqa: ANN401
        """Return one index over several axes, the last fastest."""
        index = tvm.tirx.IntImm("int64", 0)
        for axis in axes:
            index = index * self.extents[axis] + values[axis]
        return index


def _nest(
    extents: Sequence[int],
    outer: Sequence[int],
    inner: Sequence[int],
    reduced: Sequence[int],
    reads: Any,  # noqa: ANN401
    *,
    shares: bool,
) -> GpuNest:
    def product(axes: Iterable[int]) -> int:
        return math.prod(extents[i] for i in axes)

    lengths = [extents[i] for i in reduced]
    windowed = len(lengths) >= 2
    return GpuNest(
        batches=product(outer),
        positions=product(inner),
        channels=extents[len(outer) + len(inner)],
        reduction=math.prod(lengths),
        kernel=(lengths[0], lengths[1]) if windowed else (1, 1),
        data=math.prod(sizes(reads[0].source.shape)),
        shares=shares,
        weighted=len(reads) == 2,
    )


def _tile(parts: Parts, axes: _Axes, tile: GpuTile, *, dot: bool, narrow: bool) -> str:
    """Schedule the function, up to its dot products if there is an instruction; return the name of the sums' block.

    `narrow` loads data one by one, not in vectors.
    """
    sch, reduction = parts.sch, parts.reduction
    data = weights = None
    if axes.nest.shares:
        data, weights = (sch.reindex(reduction, ("read", i)) for i in (0, 1))
    out = sch.reindex(reduction, ("write", 0))
    _inline(parts)
    _normalise(sch, axes, reduction, data, weights, out)
    inner = _bind_output(sch, out, tile)
    sch.compute_at(reduction, inner, preserve_unit_loops=True)
    sch.set_scope(reduction, 0, "local")
    steps, order = _order_sums(sch, axes, reduction, tile)
    if axes.nest.shares:
        _load(sch, (reduction, data, weights), steps, tile, packed=bool(axes.word), narrow=narrow)
    elif axes.nest.weighted:
        _to_registers(sch, sch.cache_read(reduction, 1, "local"), steps[-1], tile.vector)
    sch.decompose_reduction(reduction, order[0])
    if axes.word and not dot:
        sch.unroll(order[-2])
        sch.unroll(order[-1])
    return str(sch.get(reduction).name_hint)


def _inline(parts: Parts) -> None:
    """Bring producers into the loads and the epilogue into the store; what changes shape gets its own kernel."""
    sch, anchor = parts.sch, parts.anchor()
    for block in parts.before:
        sch.compute_inline(block)
    at = parts.after.index(anchor) + 1 if anchor is not None else 0
    for block in parts.after[: at - 1] if at else ():
        sch.compute_inline(block)
    if anchor is not None:
        sch.reverse_compute_inline(anchor)
    rest = parts.after[at:]
    for block in rest[:-1]:
        sch.compute_inline(block)
    if rest:
        flatten(sch, rest[-1])


def _normalise(sch: Any, axes: _Axes, reduction: Any, data: Any, weights: Any, out: Any) -> None:  # noqa: ANN401
    """Give all blocks the axes (batch, position, channel, reduction...), whatever they had."""
    spatial = len(axes.outer) + len(axes.inner) + 1

    def output(*v: Any) -> list[Any]:  # noqa: ANN401
        return [axes.mixed(axes.outer, v), axes.mixed(axes.inner, v), v[axes.channel]]

    def whole(*v: Any) -> list[Any]:  # noqa: ANN401
        return [*output(*v), *(v[i] for i in (*axes.reduced, *axes.word))]

    sch.transform_layout(reduction, ("write", 0), _index_map(output, spatial))
    for place, block in enumerate((data, weights)):
        if block is not None:
            _normalise_operand(sch, axes, block, _copied_axes(sch, reduction, place))
    sch.transform_block_layout(reduction, _index_map(whole, spatial + len(axes.reduced) + len(axes.word)))
    sch.transform_block_layout(out, _index_map(output, spatial))


def _copied_axes(sch: Any, reduction: Any, place: int) -> list[int]:  # noqa: ANN401
    """Return the axes that an operand has after `reindex`, which drops some of those of length 1."""
    block = sch.get(reduction)
    variables = [axis.var for axis in block.iter_vars]
    return [next(i for i, v in enumerate(variables) if v.same_as(part.min)) for part in block.reads[place].region]


def _normalise_operand(sch: Any, axes: _Axes, block: Any, used: list[int]) -> None:  # noqa: ANN401
    """Give an operand the axes (batch, position, reduction..., channel, word) that it has, in this order."""
    at = {axis: place for place, axis in enumerate(used)}
    groups = [[i for i in axis_group if i in at] for axis_group in (axes.outer, axes.inner)]

    def operand(*v: Any) -> list[Any]:  # noqa: ANN401
        values = {axis: v[place] for axis, place in at.items()}
        mixed = [axes.mixed(group, values) for group in groups if group]
        return [
            *mixed,
            *(values[i] for i in axes.reduced if i in at),
            *(values[i] for i in (axes.channel, *axes.word) if i in at),
        ]

    mapping = _index_map(operand, len(used))
    sch.transform_layout(block, ("write", 0), mapping)
    sch.transform_block_layout(block, mapping)


def _bind_output(sch: Any, out: Any, tile: GpuTile) -> Any:  # noqa: ANN401
    """Split the store over blocks and threads; return the last thread loop."""
    batch, position, channel = sch.get_loops(out)
    # The vector is split off first, so that no bound of the edge blocks depends on a lane.
    channel, lanes = sch.split(channel, [None, tile.vector])
    block_m, thread_m, m = sch.split(position, [None, tile.block_x, tile.thread_x])
    block_n, thread_n, n = sch.split(channel, [None, tile.block_y, tile.thread_k // tile.vector])
    sch.reorder(batch, block_m, block_n, thread_m, thread_n, m, n, lanes)
    for loop, name in (
        (batch, "blockIdx.z"), (block_m, "blockIdx.x"), (block_n, "blockIdx.y"), (thread_m, "threadIdx.y"),
        (thread_n, "threadIdx.x"),
    ):  # fmt: skip
        sch.bind(loop, name)
    unroll(sch, [m, n, lanes])
    return thread_n


def _order_sums(sch: Any, axes: _Axes, reduction: Any, tile: GpuTile) -> tuple[tuple[Any, Any, Any], list[Any]]:  # noqa: ANN401
    """Order a thread's loops; return those at which operands are loaded (shared, data, weights), and all of them."""
    loops = list(sch.get_loops(reduction))[-3 - len(axes.reduced) - len(axes.word) :]
    (batch, m, n), sums, word = loops[:3], loops[3 : 3 + len(axes.reduced)], loops[3 + len(axes.reduced) :]
    at = axes.stepped - axes.reduced[0]
    outer, middle, unrolled = sch.split(sums[at], [None, tile.k_tile // tile.unroll, tile.unroll])
    n, lanes = sch.split(n, [None, tile.vector])
    order = [*sums[:at], *sums[at + 1 :], outer, middle, unrolled, batch, m, n, lanes, *word]
    sch.reorder(*order)
    if word:
        for loop in (unrolled, m, n):
            sch.unroll(loop)
    else:
        unroll(sch, [unrolled, m, n, lanes])
    return (outer, middle, unrolled), order


def _load(
    sch: Any,  # noqa: ANN401
    blocks: tuple[Any, Any, Any],
    steps: tuple[Any, Any, Any],
    tile: GpuTile,
    *,
    packed: bool,
    narrow: bool,
) -> None:
    """Bring the operands that threads share into registers, through shared memory when staged."""
    reduction, data, weights = blocks
    at_shared, at_data, at_weights = steps
    rows, columns = (sch.cache_read(reduction, i, "local") for i in (0, 1)) if tile.staged else (data, weights)
    most = 1 if narrow else tile.vector
    _to_registers(sch, rows, at_data, math.gcd(most, tile.unroll), packed=packed)
    _to_registers(sch, columns, at_weights, tile.vector, packed=packed)
    if tile.staged:
        for block, lanes in ((data, math.gcd(most, tile.k_tile)), (weights, tile.vector)):
            # The scope first: it tells compute_at that the tile is for all threads of the block.
            sch.set_scope(block, 0, "shared")
            sch.compute_at(block, at_shared, preserve_unit_loops=True)
            _share(sch, block, lanes, tile, packed=packed)


def _to_registers(sch: Any, block: Any, at: Any, lanes: int, *, packed: bool = False) -> None:  # noqa: ANN401
    """Load what the loop `at` needs of an operand at once, each thread for itself, in vectors."""
    sch.compute_at(block, at, preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    unroll(sch, _in_vectors(sch, block, lanes, packed=packed))


def _share(sch: Any, block: Any, lanes: int, tile: GpuTile, *, packed: bool) -> None:  # noqa: ANN401
    """Spread the load of a tile over the threads of the block, in vectors."""
    *loops, vector = _in_vectors(sch, block, lanes, packed=packed)
    turns, thread_m, thread_n = sch.split(sch.fuse(*loops), [None, tile.block_x, tile.block_y])
    sch.bind(thread_m, "threadIdx.y")
    sch.bind(thread_n, "threadIdx.x")
    unroll(sch, [turns, vector])


def _in_vectors(sch: Any, block: Any, lanes: int, *, packed: bool) -> list[Any]:  # noqa: ANN401
    """Return the loops of a block with the last split; of packed bytes a lane is the four of a word."""
    loops = _own_loops(sch, block)
    last = sch.fuse(*loops[-2:]) if packed else loops[-1]
    return [*loops[: -2 if packed else -1], *sch.split(last, [None, lanes * BYTES if packed else lanes])]


def _own_loops(sch: Any, block: Any) -> list[Any]:  # noqa: ANN401
    """Return the loops of a block without those around it that it shares: one for each of its iterators."""
    return list(sch.get_loops(block))[-len(sch.get(block).iter_vars) :]


def _index_map(function: Any, rank: int) -> Any:  # noqa: ANN401
    return tvm.tirx.IndexMap.from_func(function, ndim=rank, index_dtype="int64")


def _variables(region: Any) -> set[Any]:  # noqa: ANN401
    found: set[Any] = set()
    for part in region.region:
        tvm_ffi.structural_walk(part.min, [(tvm.tirx.Var, found.add)])
    return found
