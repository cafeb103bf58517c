"""Operators that move data and compute nothing: reshape, transpose, concatenate, split, slice, pad, tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compilers.coreml.lower.arithmetic import NUMBERS, expand
from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS, MAX_RANK

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar


def _reshape(node: Node, shape: tuple[int, ...]) -> None:
    """Hand over the first input in another shape; a scalar is squeezed, because MIL cannot reshape to one."""
    if shape == node.shape():
        node.out_value(node.value(0))
    elif len(shape) > MAX_RANK:
        # Window partitions pass through rank 6 with a batch axis of 1: carry the rest until it is rank 5 again.
        full = [n for n in shape if n != 1]
        if len(full) > MAX_RANK:
            node.refuse(f"result shape {shape}; Core ML takes rank 5 at most")
        node.out_long(node.mil.reshape(x=node.squeezed(), shape=full), shape)
    elif shape:
        node.out(node.mil.reshape(x=node.squeezed(), shape=list(shape)))
    else:
        node.out(node.mil.squeeze(x=node.x(), axes=list(range(len(node.shape())))))


@lowers("Reshape")
def _reshape_node(node: Node) -> None:
    own, allow_zero = node.shape(), bool(node.attr("allowzero", 0))
    stated = node.ints("shape", 1)
    if stated is None:
        node.refuse("no target shape")
    target = [own[i] if n == 0 and not allow_zero and i < len(own) else n for i, n in enumerate(stated)]
    if -1 in target:
        known = int(np.prod([n for n in target if n != -1]))
        target[target.index(-1)] = int(np.prod(own)) // known if known else 0
    if int(np.prod(target)) != int(np.prod(own)):
        node.refuse(f"shape {own} cannot become {stated}")
    _reshape(node, tuple(target))


@lowers("Flatten")
def _flatten(node: Node) -> None:
    own, axis = node.shape(), int(node.attr("axis"))
    axis = axis + len(own) if axis < 0 else axis
    _reshape(node, (int(np.prod(own[:axis])), int(np.prod(own[axis:]))))


@lowers("Squeeze")
def _squeeze(node: Node) -> None:
    own, stated = node.shape(), node.ints("axes", 1)
    axes = (
        [i for i, n in enumerate(own) if n == 1] if stated is None else [node.normal_axis(a, len(own)) for a in stated]
    )
    if any(own[a] != 1 for a in axes):
        node.refuse(f"axes {axes} of shape {own} are not all 1")
    if not axes:
        node.out_value(node.value(0))
        return
    node.out(node.mil.squeeze(x=node.x(), axes=axes))


@lowers("Unsqueeze")
def _unsqueeze(node: Node) -> None:
    own, stated = node.shape(), node.ints("axes", 1)
    if stated is None:
        node.refuse("no axes")
    axes = sorted(node.normal_axis(a, len(own) + len(stated)) for a in stated)
    node.out(node.mil.expand_dims(x=node.x(), axes=axes))


@lowers("Transpose")
def _transpose(node: Node) -> None:
    rank = len(node.shape())
    perm = node.ints("perm") or list(reversed(range(rank)))
    if rank < 2:
        node.out_value(node.value(0))
        return
    if rank > MAX_RANK:
        own = node.shape()
        axes = [axis for axis in perm if own[axis] != 1]
        order = [sorted(axes).index(axis) for axis in axes]
        node.out_long(node.mil.transpose(x=node.squeezed(), perm=order), tuple(own[axis] for axis in perm))
        return
    node.out(node.mil.transpose(x=node.x(), perm=perm))


@lowers("Concat")
def _concat(node: Node) -> None:
    axis = node.axis()
    for i in range(node.arity):
        node.need_dtype(*NUMBERS, "bool", index=i)
    full = [i for i in range(node.arity) if 0 not in node.shape(i)]
    if len(full) == 1:
        node.out_value(node.value(full[0]))
        return
    node.out(node.mil.concat(values=[node.x(i) for i in full], axis=axis, interleave=False))


@lowers("Split")
def _split(node: Node) -> None:
    axis = node.axis()
    size = node.shape()[axis]
    sizes = node.ints("split", 1)
    node.attr("num_outputs")  # equals the number of outputs, by the checker
    if sizes is None:
        chunk = -(-size // node.outputs)
        sizes = [chunk] * (node.outputs - 1)
        sizes.append(size - sum(sizes))
    if sum(sizes) != size or min(sizes) < 0:
        node.refuse(f"a split of {size} into {sizes} is not handled")
    full = [index for index, part in enumerate(sizes) if part]
    for index in set(range(len(sizes))) - set(full):  # a Concat drops it again; nothing else can take it
        node.out_const(np.zeros([0 if a == axis else n for a, n in enumerate(node.shape())], node.dtype()), index)
    if len(full) == 1:
        node.out_value(node.value(0), full[0])
        return
    for index, part in zip(
        full, node.mil.split(x=node.x(), split_sizes=[sizes[i] for i in full], axis=axis), strict=True
    ):
        node.out(part, index=index)


@lowers("Slice")
def _slice(node: Node) -> None:
    own = node.shape()
    starts, ends = node.ints("starts", 1), node.ints("ends", 2)
    if starts is None or ends is None:
        node.refuse("no starts or ends")
    axes = node.ints("axes", 3) or list(range(len(starts)))
    steps = [1] * len(starts)
    if node.opset >= 10 and node.has(4):
        steps = [int(s) for s in node.const(4).reshape(-1)]
    slices = [slice(0, n, 1) for n in own]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index = node.normal_axis(axis, len(own))
        slices[index] = slice(*slice(start, end, step).indices(own[index]))
    node.out(slice_var(node, node.x(), slices))


def slice_var(node: Node, x: MilVar, slices: list[slice]) -> MilVar:
    """Slice a MIL variable by ranges as `slice.indices` gives them (end -1 with a negative step: to the front)."""
    if not all(range(s.start, s.stop, s.step) for s in slices):
        node.refuse("an empty slice is not handled")
    return node.mil.slice_by_index(
        x=x,
        begin=[s.start for s in slices],
        end=[max(s.stop, 0) for s in slices],
        stride=[s.step for s in slices],
        begin_mask=[False] * len(slices),
        end_mask=[s.stop < 0 for s in slices],
    )


@lowers("Pad")
def _pad(node: Node) -> None:
    node.need_dtype(*FLOATS)
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}
    mode = node.attr("mode")
    if mode not in modes:
        node.refuse(f"attribute mode={mode} is not handled, only {', '.join(modes)}")
    pads, value = _pad_amounts(node), _pad_value(node)
    crop = [slice(max(-b, 0), n - max(-e, 0), 1) for n, (b, e) in zip(node.shape(), pads, strict=True)]
    x = node.x() if all(b >= 0 and e >= 0 for b, e in pads) else slice_var(node, node.x(), crop)
    amounts = [max(n, 0) for pair in pads for n in pair]
    if mode != "constant" and (any(amounts[:-4]) or any(b < 0 or e < 0 for b, e in pads)):
        node.refuse(f"attribute mode={mode} on other than the last two axes is not handled")
    if not any(amounts):
        node.out(node.mil.identity(x=x))
        return
    node.out(node.mil.pad(x=x, pad=amounts, mode=modes[mode], constant_val=node.like(value)))


def _pad_amounts(node: Node) -> list[tuple[int, int]]:
    rank = len(node.shape())
    stated = node.ints("pads", 1)
    if stated is None:
        node.refuse("no pads")
    axes = [node.normal_axis(int(a), rank) for a in node.const(3).reshape(-1)] if node.has(3) else list(range(rank))
    pads = [(0, 0)] * rank
    for axis, begin, end in zip(axes, stated[: len(axes)], stated[len(axes) :], strict=True):
        pads[axis] = (begin, end)
    return pads


def _pad_value(node: Node) -> float:
    if node.opset < 11:
        return float(node.attr("value"))
    return float(node.const(2).reshape(())) if node.has(2) else 0.0


@lowers("Expand")
def _expand(node: Node) -> None:
    own = node.shape()
    shape = np.broadcast_shapes(own, tuple(int(n) for n in node.const(1)))
    if shape == own:
        node.out_value(node.value(0))
        return
    node.out(expand(node, node.x(), own, shape))


@lowers("Tile")
def _tile(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    repeats = [int(n) for n in node.const(1)]
    if min(repeats, default=1) < 1:
        node.refuse("an empty result (repeat 0) is not handled")
    node.out(node.mil.tile(x=node.x(), reps=repeats) if repeats else node.mil.identity(x=node.x()))


@lowers("DepthToSpace")
def _depth_to_space(node: Node) -> None:
    node.need_dtype(*FLOATS)
    block, mode = int(node.attr("blocksize")), node.attr("mode", "DCR")
    if mode == "CRD":
        node.out(node.mil.pixel_shuffle(x=node.x(), upscale_factor=block))
        return
    node.require("mode", "DCR", default="DCR")
    node.out(node.mil.depth_to_space(x=node.x(), block_size=block))


@lowers("SpaceToDepth")
def _space_to_depth(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.require("mode", "DCR", default="DCR")
    node.out(node.mil.space_to_depth(x=node.x(), block_size=int(node.attr("blocksize"))))


@lowers("Shape")
def _shape(node: Node) -> None:
    own = node.shape()
    begin, end = node.attr("start", 0), node.attr("end")
    part = own[slice(begin, end)]
    node.out_const(np.array(part, np.int64))


@lowers("Size")
def _size(node: Node) -> None:
    node.out_const(np.array(np.prod(node.shape(), dtype=np.int64)))


@lowers("EyeLike")
def _eye_like(node: Node) -> None:
    import onnx

    code = node.attr("dtype")
    dtype = node.dtype() if code is None else str(onnx.helper.tensor_dtype_to_np_dtype(code))
    rows, columns = node.shape()
    node.out_const(np.eye(rows, columns, k=int(node.attr("k"))).astype(dtype))


@lowers("Trilu")
def _trilu(node: Node) -> None:
    node.need_dtype(*NUMBERS)
    own, offset = node.shape(), int(node.const(1).reshape(())) if node.has(1) else 0
    ones = np.ones(own, bool)
    mask = np.triu(ones, offset) if node.attr("upper") else np.tril(ones, offset)
    zeros = node.constant(np.zeros(own, node.dtype()))
    node.out(node.mil.select(cond=node.constant(mask), a=node.x(), b=zeros))
