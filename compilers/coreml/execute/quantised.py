"""8-bit operations and compressed constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.execute import reference
from compilers.coreml.execute.table import Arguments, kernel
from compilers.coreml.package import unpack_bits

Array = np.ndarray[Any, Any]


def _along(parameter: Array, rank: int, axis: int) -> Array:
    """Shape a scalar or vector so that it broadcasts along `axis`."""
    if parameter.ndim == 0:
        return parameter
    return parameter.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


@kernel("quantize")
def _quantize(a: Arguments) -> Array:
    x, scale, axis = a["input"], np.asarray(a["scale"]), a.integer("axis", 0)
    target = a.text("output_dtype", "uint8", "int8")
    zero_point = np.asarray(a.get("zero_point", np.zeros(scale.shape, target)))
    return reference.run("QuantizeLinear", x, scale, np.broadcast_to(zero_point, scale.shape), axis=axis)


@kernel("dequantize")
def _dequantize(a: Arguments) -> Array:
    data, scale, axis = a["input"], np.asarray(a["scale"]), a.integer("axis", 0)
    zero_point = np.asarray(a.get("zero_point", np.zeros(scale.shape, data.dtype)))
    return reference.run("DequantizeLinear", data, scale, np.broadcast_to(zero_point, scale.shape), axis=axis)


@kernel("constexpr_affine_dequantize")
def _constexpr_affine_dequantize(a: Arguments) -> Array:
    return _affine(a["quantized_data"], a["scale"], a["zero_point"], a.integer("axis"))


def _affine(data: Array, scale: Array, zero_point: Array | None, axis: int) -> Array:
    zero = np.zeros((), np.float32) if zero_point is None else np.asarray(zero_point).astype(np.float32)
    centred = data.astype(np.float32) - _along(zero, data.ndim, axis)
    return np.asarray(centred * _along(np.asarray(scale), data.ndim, axis))


@kernel("constexpr_cast")
def _constexpr_cast(a: Arguments) -> Array:
    names = {"fp32": "float32", "fp16": "float16"}
    return np.asarray(a["source_val"].astype(names[a.text("output_dtype", *names)]))


@kernel("constexpr_lut_to_dense")
def _constexpr_lut_to_dense(a: Arguments) -> Array:
    indices, lut, shape = a["indices"], a["lut"], a.get("shape")
    if shape is None:
        axis = None if a.get("vector_axis") is None else a.integer("vector_axis")
        return _looked_up(indices, lut, axis)
    # iOS16: one table, and indices packed below a byte.
    sizes = [int(n) for n in shape]
    return np.asarray(lut[unpack_bits(indices, _log2(lut.size), int(np.prod(sizes)))].reshape(sizes))


def _looked_up(indices: Array, lut: Array, vector_axis: int | None) -> Array:
    """Return lut[block of the element, index]; the table's first axes divide the index into blocks (iOS18)."""
    entries, width = lut.shape[-2:]
    _log2(entries)
    vectors = lut.reshape(-1, entries, width)[_table_of(indices.shape, lut.shape[:-2]), indices]
    if width == 1:
        return np.asarray(vectors[..., 0])
    if vector_axis is None:
        raise CompilerError("a table of vectors needs vector_axis")
    axis = vector_axis % indices.ndim
    sizes = [n * width if i == axis else n for i, n in enumerate(indices.shape)]
    return np.moveaxis(vectors, -1, axis + 1).reshape(sizes)


def _table_of(shape: tuple[int, ...], tables: tuple[int, ...]) -> Array:
    """Number the table of each element; broadcasts to `shape`."""
    number = np.zeros([1] * len(shape), np.int64)
    for axis, (size, count) in enumerate(zip(shape, tables, strict=True)):
        blocks = np.arange(size) // _block(size, count)
        number = number * count + blocks.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return number


def _block(size: int, count: int) -> int:
    if size % count:
        raise CompilerError(f"{count} blocks do not divide an axis of {size}")
    return size // count


def _log2(count: int) -> int:
    bits = int(count).bit_length() - 1
    if count != 1 << bits or not 1 <= bits <= 8:
        raise CompilerError(f"a look-up table of {count} entries is not handled")
    return bits


def _blocked(parameter: Array, shape: tuple[int, ...]) -> Array:
    """Repeat a parameter of one value per block so that it has `shape`."""
    for axis, size in enumerate(shape):
        block = _block(size, parameter.shape[axis])
        if parameter.shape[axis] > 1 and block > 1:  # a single block broadcasts
            parameter = np.repeat(parameter, block, axis=axis)
    return parameter


@kernel("constexpr_blockwise_shift_scale")
def _constexpr_blockwise_shift_scale(a: Arguments) -> Array:
    return _shifted_and_scaled(a["data"], a["scale"], a.get("offset"))


def _shifted_and_scaled(data: Array, scale: Array, offset: Array | None) -> Array:
    values = data.astype(np.float32)
    if offset is not None:
        values = values - _blocked(offset.astype(np.float32), data.shape)
    return np.asarray(values * _blocked(scale, data.shape))


@kernel("constexpr_sparse_to_dense")
def _constexpr_sparse_to_dense(a: Arguments) -> Array:
    values, mask, shape = a["nonzero_data"], a["mask"], a.get("shape")
    if shape is not None:  # iOS16: the mask is packed
        sizes = [int(n) for n in shape]
        mask = unpack_bits(mask, 1, int(np.prod(sizes))).reshape(sizes)
    return _spread(values, mask)


def _spread(values: Array, mask: Array) -> Array:
    if int(np.count_nonzero(mask)) != values.size:
        raise CompilerError(f"the mask has {int(np.count_nonzero(mask))} bits for {values.size} values")
    dense = np.zeros(mask.shape, values.dtype)
    dense[mask != 0] = values
    return dense


@kernel("constexpr_lut_to_sparse")
def _constexpr_lut_to_sparse(a: Arguments) -> tuple[Array, Array]:
    mask, axis = a["indices_mask"], a.get("vector_axis")
    dense = _looked_up(_spread(a["indices_nonzero_data"], mask), a["lut"], None if axis is None else int(axis))
    if axis is not None:
        mask = np.repeat(mask, a["lut"].shape[-1], axis=int(axis))
    return mask, np.asarray(dense[mask != 0])


@kernel("constexpr_sparse_blockwise_shift_scale")
def _constexpr_sparse_blockwise_shift_scale(a: Arguments) -> tuple[Array, Array]:
    mask = a["data_mask"]
    dense = _shifted_and_scaled(_spread(a["nonzero_data"], mask), a["scale"], a.get("offset"))
    return mask, np.asarray(dense[mask != 0])
