"""Single operators in simpler ones, where ONNX gives no definition or a worse one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphs.expansion.parts import Impossible, Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]


def one_hot(parts: Parts) -> list[str]:
    """Compare each index with 0, 1, ... along the new axis; negative ones count from the end."""
    depth = int(parts.known(1, "depth").reshape(-1)[0])
    rank = len(parts.shape(0)) + 1
    axis = parts.attr("axis", -1) % rank
    indices = parts.reshape(parts.cast(parts.input(0), np.int64), *_with_one(parts.shape(0), axis))
    steps = np.arange(depth).reshape([-1 if index == axis else 1 for index in range(rank)])
    hit = parts("Or", parts("Equal", indices, steps), parts("Equal", indices, steps - depth))
    values = parts.input(2)
    return [parts("Where", hit, parts.row(values, 0, 1), parts.row(values, 0, 0))]


def _with_one(shape: Sequence[int], axis: int) -> list[int]:
    return [*shape[:axis], 1, *shape[axis:]]


def power(parts: Parts) -> list[str]:
    """Bring both operands of a Pow to one float type, or multiply; the result is of the first one's, as in ONNX."""
    base, exponent = parts.dtype(0), parts.dtype(1)
    if base.kind == "f":
        return [parts("Pow", parts.input(0), parts.cast(parts.input(1), base))]
    if exponent.kind not in "iuf":
        raise Impossible
    times = _known_times(parts)
    if times:
        return [_multiplied(parts, times)]
    wide = [parts.cast(parts.input(position), np.float64) for position in range(2)]
    return [parts.cast(parts("Pow", *wide), base)]


def _known_times(parts: Parts) -> int:
    """Return how often an integer is multiplied with itself, 0 where that is not known or more than a few products."""
    value = parts.constant(1)
    if value is None or value.size != 1 or value.ndim > len(parts.shape(0)) or value.item() not in range(1, 64):
        return 0
    return int(value.item())


def _multiplied(parts: Parts, times: int) -> str:
    """Multiply an integer with itself: it wraps around as integers do, and through a float it would not."""
    value, square = "", parts.input(0)
    while times:
        if times & 1:
            value = parts("Mul", value, square) if value else square
        times >>= 1
        square = parts("Mul", square, square) if times else square
    return value


def modulo(parts: Parts) -> list[str]:
    """Give the remainder of floats the sign of the divisor."""
    if parts.dtype(0).kind != "f":
        raise Impossible
    by, zero = parts.input(1), np.zeros((), parts.dtype(0))
    rest = parts("Mod", parts.input(0), by, fmod=1)
    differs = parts("Xor", parts("Less", rest, zero), parts("Less", by, zero))
    kept = parts("Or", parts("Equal", rest, zero), parts("Not", differs))
    return [parts("Where", kept, rest, parts("Add", rest, by))]


def is_inf(parts: Parts) -> list[str]:
    """Look at the sign of what is infinite."""
    x = parts.input(0)
    infinite, zero = parts("IsInf", x), np.zeros((), parts.dtype(0))
    if parts.attr("detect_positive", 1):
        return [parts("And", infinite, parts("Greater", x, zero))]
    if parts.attr("detect_negative", 1):
        return [parts("And", infinite, parts("Less", x, zero))]
    return [parts("And", infinite, np.array(0, np.bool_))]


def dropout(parts: Parts) -> list[str]:
    """Pass everything on, as outside training or with a ratio of 0."""
    training = parts.has(2) and bool(parts.known(2, "training mode").all())
    ratio = float(parts.known(1, "ratio").item()) if parts.has(1) else float(parts.attr("ratio", 0.5))
    if training and ratio:
        raise Impossible("it is in training mode, where chance decides")
    return [parts.input(0), parts.named(np.ones(parts.shape(0), np.bool_))]


def eye_like(parts: Parts) -> list[str]:
    """State the matrix."""
    rows, columns = parts.shape(0)
    number = parts.attr("dtype")
    dtype = parts.dtype(0) if number is None else onnx.helper.tensor_dtype_to_np_dtype(number)
    return [parts.named(np.eye(rows, columns, parts.attr("k", 0), dtype))]


def reverse_sequence(parts: Parts) -> list[str]:
    """Gather the steps of each sequence, whose length is known, backwards."""
    lengths = parts.known(1, "lengths of sequences")
    time, shape = parts.attr("time_axis", 0), parts.shape(0)
    steps = np.arange(shape[time])[:, None]
    source = np.where(steps < lengths, lengths - 1 - steps, steps)
    flat = source * shape[1] + np.arange(shape[1]) if time == 0 else (source + np.arange(shape[0]) * shape[1]).T
    rows = parts.reshape(parts.input(0), shape[0] * shape[1], *shape[2:])
    return [parts.reshape(parts("Gather", rows, flat.reshape(-1), axis=0), *shape)]


def reduced_truth(parts: Parts) -> list[str]:
    """Reduce truth values as bytes."""
    return [parts.cast(_reduced_alike(parts, parts.op_type, parts.cast(parts.input(0), np.uint8)), np.bool_)]


def integer_mean(parts: Parts) -> list[str]:
    """Divide as floats of twice the width, and round to zero."""
    wide = parts.cast(parts.input(0), np.float64)
    return [parts.cast(_reduced_alike(parts, "ReduceMean", wide), parts.dtype(0))]


def log_sum_exp(parts: Parts) -> list[str]:
    """Take the largest out of the exponents, except an infinite one: infinity less infinity is no number."""
    x, zero = parts.input(0), np.zeros((), parts.dtype(0))
    largest = _reduced_alike(parts, "ReduceMax", x, keepdims=1)
    infinite = parts("Equal", parts("Abs", largest), np.asarray(math.inf, parts.dtype(0)))
    finite = parts("Where", infinite, zero, largest)
    total = _reduced_alike(parts, "ReduceSum", parts("Exp", parts("Sub", x, finite)), keepdims=1)
    result = parts("Add", parts("Log", total), finite)
    return [result if parts.attr("keepdims", 1) else parts.reshape(result, *parts.output_shape())]


def _reduced_alike(parts: Parts, op_type: str, value: str, keepdims: int | None = None) -> str:
    """Reduce a value over the axes of the node, named as the model's opset has it."""
    keep = parts.attr("keepdims", 1) if keepdims is None else keepdims
    axes = parts.known(1, "axes").tolist() if parts.has(1) else list(parts.attr("axes") or ())
    if not axes and parts.attr("noop_with_empty_axes", 0):
        return value
    return parts.reduce(op_type, value, axes or range(len(parts.shape(0))), keepdims=bool(keep))


def equal_truth(parts: Parts) -> list[str]:
    """Compare truth values."""
    return [parts("Not", parts("Xor", parts.input(0), parts.input(1)))]


def sorted_narrow(parts: Parts) -> list[str]:
    """Find the largest of 16-bit integers among ones of 32 bits."""
    same = {name: parts.attr(name) for name in ("axis", "largest", "sorted")}
    wide = parts.cast(parts.input(0), np.int32)
    values, places = parts.many("TopK", wide, parts.input(1), count=2, **same)
    return [parts.cast(values, parts.dtype(0)), places]


def unique_elements(parts: Parts) -> list[str]:
    """Search the elements in one row, as their places are counted."""
    row = parts.reshape(parts.input(0), -1)
    return parts.many("Unique", row, count=4, sorted=parts.attr("sorted"))


def sampled_wide(parts: Parts) -> list[str]:
    """Sample a grid in float32."""
    same = {name: parts.attr(name) for name in ("mode", "padding_mode", "align_corners")}
    wide = [parts.cast(parts.input(position), np.float32) for position in range(2)]
    return [parts.cast(parts("GridSample", *wide, **same), parts.dtype(0))]


def space_to_depth(parts: Parts) -> list[str]:
    """Move blocks into channels, whichever of the two comes first."""
    size, (batch, channels, height, width) = parts.attr("blocksize"), parts.shape(0)
    split = parts.reshape(parts.input(0), batch, channels, height // size, size, width // size, size)
    order = [0, 1, 3, 5, 2, 4] if parts.attr("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = parts("Transpose", split, perm=order)
    return [parts.reshape(moved, batch, channels * size * size, height // size, width // size)]


def conv_transpose(parts: Parts) -> list[str]:
    """State the padding that `output_shape` or `auto_pad` asks for."""
    spatial, wanted, kernel = parts.shape(0)[2:], parts.output_shape()[2:], parts.shape(1)[2:]
    ones = [1] * len(spatial)
    strides, dilations = parts.attr("strides", ones), parts.attr("dilations", ones)
    extra = list(parts.attr("output_padding", [0] * len(spatial)))
    before, after = [], []
    for axis, size in enumerate(spatial):
        total = strides[axis] * (size - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1 - wanted[axis]
        if total < 0:
            extra[axis] -= total
            total = 0
        half = total // 2
        lower = parts.attr("auto_pad", "NOTSET") != "SAME_UPPER"
        before.append(total - half if lower else half)
        after.append(half if lower else total - half)
    names = list(filter(None, parts.node.input))
    return [
        parts(
            "ConvTranspose", *names, kernel_shape=list(kernel), strides=strides, dilations=dilations,
            group=parts.attr("group", 1), pads=[*before, *after], output_padding=extra,
        )
    ]  # fmt: skip


def col2im(parts: Parts) -> list[str]:
    """Gather, for each element of the image, what the blocks have for it, and sum that."""
    image = [int(size) for size in parts.known(1, "image's shape")]
    block = [int(size) for size in parts.known(2, "block's shape")]
    batch, rows, columns = parts.shape(0)
    taps = math.prod(block)
    channels = rows // taps
    filled = parts("Concat", parts.reshape(parts.input(0), batch, channels, taps * columns),
                   np.zeros((batch, channels, 1), parts.dtype(0)), axis=2)  # fmt: skip
    source = _sources(parts, image, block, nothing=taps * columns)
    gathered = parts.reshape(parts("Gather", filled, source, axis=2), batch, channels, *image, taps)
    return [parts.reduce("ReduceSum", gathered, [len(image) + 2], keepdims=False)]


def _sources(parts: Parts, image: list[int], block: list[int], *, nothing: int) -> Array:
    """Return the flat (tap, column) that each tap of each element of an image is found at, or `nothing`."""
    rank = len(image)
    ones, column, tap, inside = [1] * rank, np.zeros((), np.int64), np.zeros((), np.int64), np.ones((), np.bool_)
    strides, dilations = parts.attr("strides", ones), parts.attr("dilations", ones)
    pads = parts.attr("pads", [0] * 2 * rank)
    for axis, (size, extent) in enumerate(zip(image, block, strict=True)):
        count = (size + pads[axis] + pads[axis + rank] - dilations[axis] * (extent - 1) - 1) // strides[axis] + 1
        at = np.arange(size)[:, None] + pads[axis] - np.arange(extent) * dilations[axis]
        step, rest = np.divmod(at, strides[axis])
        along = [size if i == axis else extent if i == axis + rank else 1 for i in range(2 * rank)]
        inside = inside & ((rest == 0) & (step >= 0) & (step < count)).reshape(along)
        column = column * count + step.reshape(along)
        tap = tap * extent + np.broadcast_to(np.arange(extent), at.shape).reshape(along)
    flat: Array = np.where(inside, tap * (nothing // math.prod(block)) + column, nothing)
    return flat.reshape(-1)


def lp_normalization(parts: Parts) -> list[str]:
    """Divide by the norm along an axis; all zeros stay."""
    x, axis, dtype = parts.input(0), parts.attr("axis", -1) % len(parts.shape(0)), parts.dtype(0)
    norm = parts.reduce("ReduceL1" if parts.attr("p", 2) == 1 else "ReduceL2", x, [axis])
    divisor = parts("Where", parts("Equal", norm, np.zeros((), dtype)), np.ones((), dtype), norm)
    return [parts("Div", x, divisor)]


def cum_prod(parts: Parts) -> list[str]:
    """Multiply with the products of twice as many elements each time, shifted by as many."""
    axis, size = int(parts.known(1, "axis").item()) % len(parts.shape(0)), parts.shape(0)
    backwards, length = bool(parts.attr("reverse", 0)), size[axis]

    def shifted(value: str, by: int) -> str:
        ones = parts.named(np.ones([*size[:axis], by, *size[axis + 1 :]], parts.dtype(0)))
        kept = parts.part(value, axis, by, length) if backwards else parts.part(value, axis, 0, length - by)
        return parts("Concat", *((kept, ones) if backwards else (ones, kept)), axis=axis)

    value, by = parts.input(0), 1
    while by < length:
        value, by = parts("Mul", value, shifted(value, by)), 2 * by
    if not parts.attr("exclusive", 0):
        return [value]
    return [shifted(value, 1) if length > 1 else parts.named(np.ones(size, parts.dtype(0)))]


def tensor_scatter(parts: Parts) -> list[str]:
    """Scatter the update along its axis, from each sequence's own index on, which is kept inside the tensor."""
    shape, update = parts.shape(0), parts.shape(1)
    axis = parts.attr("axis", -2) % len(shape)
    along = [1] * len(shape)
    steps = np.arange(update[axis]).reshape([*along[:axis], -1, *along[axis + 1 :]])
    index = parts.named(steps)
    if parts.has(2):
        start = parts.reshape(parts.cast(parts.input(2), np.int64), -1, *along[1:])
        if parts.attr("mode", "linear") == "circular":
            index = parts("Mod", parts("Add", start, steps), np.array(shape[axis]))
        else:
            index = parts(
                "Add", parts("Max", parts("Min", start, np.array(shape[axis] - update[axis])), np.array(0)), steps
            )
    return [
        parts("ScatterElements", parts.input(0), parts("Expand", index, np.array(update)), parts.input(1), axis=axis)
    ]


# Fourier transforms are products with constant matrices.


def dft(parts: Parts) -> list[str]:
    """Multiply with the cosines and sines of a transform whose length and axis are known."""
    shape = parts.shape(0)
    axis = (
        int(parts.known(2, "axis").item()) if parts.has(2) else int(parts.attr("axis", -2 if parts.opset >= 20 else 1))
    )
    axis %= len(shape)
    length = int(parts.known(1, "length").item()) if parts.has(1) else shape[axis]
    bins = parts.output_shape()[axis]
    if parts.attr("inverse", 0) and parts.attr("onesided", 0):
        raise Impossible("a one-sided inverse transform is not handled")
    used = min(length, shape[axis])
    x = parts.part(parts.input(0), axis, 0, used) if used < shape[axis] else parts.input(0)
    order = [*(i for i in range(len(shape)) if i != axis), axis]  # (..., real and imaginary, samples)
    x = parts("Transpose", x, perm=order)
    cosines, sines = _waves(used, length, bins, parts.dtype(0), inverse=bool(parts.attr("inverse", 0)))
    real, imaginary = parts("MatMul", x, cosines), parts("MatMul", x, sines)
    if shape[-1] == 1:
        both = parts("Concat", real, imaginary, axis=-2)
    else:
        turned = [
            parts.part(value, len(shape) - 2, index, index + 1) for value in (real, imaginary) for index in (0, 1)
        ]
        both = parts("Concat", parts("Sub", turned[0], turned[3]), parts("Add", turned[1], turned[2]), axis=-2)
    return [parts("Transpose", both, perm=[order.index(i) for i in range(len(shape))])]


def stft(parts: Parts) -> list[str]:
    """Gather the frames, and multiply them with the window and the waves."""
    step, shape = int(parts.known(1, "frame step").item()), parts.shape(0)
    if len(shape) == 3 and shape[2] != 1:
        raise Impossible("a complex signal is not handled")
    length = int(parts.known(3, "frame length").item()) if parts.has(3) else parts.shape(2)[0]
    # Not the inferred shape: onnx 1.23 infers all bins where `onesided` is left to its default.
    count, bins = (shape[1] - length) // step + 1, length // 2 + 1 if parts.attr("onesided", 1) else length
    signal = parts.reshape(parts.input(0), *shape[:2])
    frames = parts("Gather", signal, np.arange(count)[:, None] * step + np.arange(length), axis=1)
    if parts.has(2):
        frames = parts("Mul", frames, parts.input(2))
    waves = np.stack(_waves(length, length, bins, parts.dtype(0), inverse=False), axis=-1)
    both = parts("MatMul", frames, waves.reshape(length, bins * 2))
    return [parts.reshape(both, shape[0], count, bins, 2)]


def _waves(samples: int, length: int, bins: int, dtype: np.dtype[Any], *, inverse: bool) -> tuple[Array, Array]:
    """Return the cosines and sines (samples, bins) that give the real and imaginary part of a real signal."""
    turns = np.outer(np.arange(samples), np.arange(bins)) % length / length
    angle = (2 if inverse else -2) * math.pi * turns
    scale = 1 / length if inverse else 1
    return (np.cos(angle) * scale).astype(dtype), (np.sin(angle) * scale).astype(dtype)
