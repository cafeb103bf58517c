"""Kernels that move data: shapes, slices, gathers, scatters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.execute.table import Arguments, kernel

Array = np.ndarray[Any, Any]


@kernel("reshape")
def _reshape(a: Arguments) -> Array:
    x = a["x"]
    target = [x.shape[i] if n == 0 else n for i, n in enumerate(a.ints("shape"))]
    return np.asarray(x.reshape(target))


@kernel("expand_dims")
def _expand_dims(a: Arguments) -> Array:
    return np.expand_dims(a["x"], tuple(a.ints("axes")))


@kernel("squeeze")
def _squeeze(a: Arguments) -> Array:
    x = a["x"]
    axes = a.ints("axes", [i for i, n in enumerate(x.shape) if n == 1])
    return np.asarray(np.squeeze(x, tuple(axes)))


@kernel("transpose")
def _transpose(a: Arguments) -> Array:
    return np.asarray(a["x"].transpose(a.ints("perm")), order="C")


@kernel("concat")
def _concat(a: Arguments) -> Array:
    values, axis = a["values"], a.integer("axis")
    joined = np.concatenate(values, axis=axis)
    if not a.flag("interleave", default=False):
        return joined
    # One slice of each operand in turn: what is left of a channel shuffle after coremltools' passes.
    return np.stack(values, axis=axis % joined.ndim + 1).reshape(joined.shape)


@kernel("stack")
def _stack(a: Arguments) -> Array:
    return np.stack(a["values"], axis=a.integer("axis"))


@kernel("split")
def _split(a: Arguments) -> tuple[Array, ...]:
    x, axis, count = a["x"], a.integer("axis"), a.get("num_splits")
    if a.get("split_sizes") is None:
        return tuple(np.split(x, int(count), axis=axis))
    return tuple(np.split(x, np.cumsum(a.ints("split_sizes"))[:-1], axis=axis))


@kernel("slice_by_index")
def _slice_by_index(a: Arguments) -> Array:
    x = a["x"]
    no = [0] * x.ndim
    begins, ends, strides = a.ints("begin"), a.ints("end"), a.ints("stride", [1] * x.ndim)
    masks = zip(a.ints("begin_mask", no), a.ints("end_mask", no), a.ints("squeeze_mask", no), strict=True)
    index: list[slice | int] = []
    for begin, end, stride, (no_begin, no_end, squeeze) in zip(begins, ends, strides, masks, strict=True):
        whole = slice(None if no_begin else begin, None if no_end else end, stride)
        index.append(begin if squeeze else whole)
    return np.asarray(x[tuple(index)], order="C")


@kernel("slice_by_size")
def _slice_by_size(a: Arguments) -> Array:
    x, begins, sizes = a["x"], a.ints("begin"), a.ints("size")
    ends = [n if size == -1 else b + size for b, size, n in zip(begins, sizes, x.shape, strict=True)]
    return np.asarray(x[tuple(slice(b, e) for b, e in zip(begins, ends, strict=True))], order="C")


@kernel("reverse")
def _reverse(a: Arguments) -> Array:
    x = a["x"]
    return np.asarray(np.flip(x, tuple(a.ints("axes", list(range(x.ndim))))), order="C")


@kernel("tile")
def _tile(a: Arguments) -> Array:
    return np.tile(a["x"], a.ints("reps"))


@kernel("pad")
def _pad(a: Arguments) -> Array:
    x, amounts = a["x"], a.ints("pad")
    mode = a.text("mode", "constant", "reflect", "replicate", default="constant")
    value = a.number("constant_val", 0.0)
    pairs = [(0, 0)] * (x.ndim - len(amounts) // 2) + list(zip(amounts[0::2], amounts[1::2], strict=True))
    if mode == "constant":
        return np.pad(x, pairs, constant_values=value)
    return np.pad(x, pairs, mode="reflect" if mode == "reflect" else "edge")


@kernel("fill")
def _fill(a: Arguments) -> Array:
    return np.full(a.ints("shape"), a.number("value", 0.0))


@kernel("shape")
def _shape(a: Arguments) -> Array:
    return np.array(a["x"].shape, np.int32)


@kernel("band_part")
def _band_part(a: Arguments) -> Array:
    x, lower, upper = a["x"], a.integer("lower", -1), a.integer("upper", -1)
    rows, columns = np.indices(x.shape[-2:])
    keep = ((rows - columns <= lower) | (lower < 0)) & ((columns - rows <= upper) | (upper < 0))
    return np.where(keep, x, 0)


@kernel("one_hot")
def _one_hot(a: Arguments) -> Array:
    indices, size, axis = a["indices"], a.integer("one_hot_vector_size"), a.integer("axis", -1)
    on, off = a.number("on_value", 1), a.number("off_value", 0)
    hit = np.expand_dims(indices, -1) == np.arange(size)
    return np.moveaxis(np.where(hit, on, off), -1, axis)


def _checked(indices: Array, limits: Array | int) -> Array:
    """Refuse an index that MIL leaves undefined: negative or outside (iOS17 and later)."""
    if indices.size and (np.any(indices < 0) or np.any(indices >= limits)):
        raise CompilerError("an index is negative or outside its axis; Core ML leaves the result undefined")
    return indices.astype(np.int64)


@kernel("gather")
def _gather(a: Arguments) -> Array:
    x, axis = a["x"], a.integer("axis", 0)
    a.flag("validate_indices", default=False)
    if a.integer("batch_dims", 0):
        raise CompilerError("batch_dims is not handled")
    return np.take(x, _checked(a["indices"], x.shape[axis]), axis=axis)


@kernel("gather_along_axis")
def _gather_along_axis(a: Arguments) -> Array:
    x, axis = a["x"], a.integer("axis", 0)
    a.flag("validate_indices", default=False)
    return np.take_along_axis(x, _checked(a["indices"], x.shape[axis]), axis)


@kernel("gather_nd")
def _gather_nd(a: Arguments) -> Array:
    x, batch = a["x"], a.integer("batch_dims", 0)
    a.flag("validate_indices", default=False)
    depth = a["indices"].shape[-1]
    indices = _checked(a["indices"], np.array(x.shape[batch : batch + depth]))
    lead, tail = x.shape[:batch], x.shape[batch + depth :]
    flat, places = x.reshape(-1, *x.shape[batch:]), indices.reshape(int(np.prod(lead)), -1, depth)
    picked = np.stack([block[tuple(place.T)] for block, place in zip(flat, places, strict=True)])
    return np.asarray(picked.reshape(*lead, *indices.shape[batch:-1], *tail))


_COMBINE: Final = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scatter(data: Array, place: tuple[Array, ...], updates: Array, mode: str) -> Array:
    result = data.copy()
    if mode == "update":
        result[place] = updates
    else:
        _COMBINE[mode].at(result, place, updates)
    return result


def _mode(a: Arguments) -> str:
    a.flag("validate_indices", default=False)
    return a.text("mode", "update", *_COMBINE, default="add")


@kernel("scatter_along_axis")
def _scatter_along_axis(a: Arguments) -> Array:
    data, axis = a["data"], a.integer("axis", 0)
    indices = _checked(a["indices"], data.shape[axis])
    place: list[Array] = list(np.indices(indices.shape))
    place[axis] = indices
    return _scatter(data, tuple(place), a["updates"], _mode(a))


@kernel("scatter_nd")
def _scatter_nd(a: Arguments) -> Array:
    data, indices = a["data"], a["indices"]
    indices = _checked(indices, np.array(data.shape[: indices.shape[-1]]))
    return _scatter(data, tuple(np.moveaxis(indices, -1, 0)), a["updates"], _mode(a))
