"""Convolutions, pools and resampling by a factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.execute import reference
from compilers.coreml.execute.table import Arguments, kernel

Array = np.ndarray[Any, Any]


def _pads(a: Arguments, rank: int) -> tuple[int, ...]:
    """Return ONNX order: all beginnings, then all ends. "same" is not handled: its definition is unclear."""
    pads = a.ints("pad", [0] * 2 * rank)
    if a.text("pad_type", "custom", "valid", default="valid") == "valid":
        return (0,) * 2 * rank
    return (*pads[0::2], *pads[1::2])


@kernel("conv")
def _conv(a: Arguments) -> Array:
    return _convolve("Conv", a)


@kernel("conv_transpose")
def _conv_transpose(a: Arguments) -> Array:
    result = _convolve("ConvTranspose", a)
    # coremltools adds the shape that follows from the rest; a shape that says otherwise is ambiguous (#2281).
    if a.ints("output_shape", list(result.shape)) != list(result.shape):
        raise CompilerError(f"output_shape {a.ints('output_shape')} is not the {result.shape} that the pads give")
    return result


def _convolve(op_type: str, a: Arguments) -> Array:
    x, weight, bias = a["x"], a["weight"], a.get("bias")
    rank = x.ndim - 2
    return reference.run(
        op_type,
        *((x, weight) if bias is None else (x, weight, bias)),
        strides=tuple(a.ints("strides", [1] * rank)),
        pads=_pads(a, rank),
        dilations=tuple(a.ints("dilations", [1] * rank)),
        group=a.integer("groups", 1),
    )


@kernel("max_pool")
def _max_pool(a: Arguments) -> Array:
    return _pool("MaxPool", a)


@kernel("avg_pool")
def _avg_pool(a: Arguments) -> Array:
    excluded = a.flag("exclude_padding_from_average", default=False)
    return _pool("AveragePool", a, count_include_pad=int(not excluded))


def _pool(op_type: str, a: Arguments, **attributes: int) -> Array:
    x = a["x"]
    rank = x.ndim - 2
    return reference.run(
        op_type,
        x,
        kernel_shape=tuple(a.ints("kernel_sizes")),
        strides=tuple(a.ints("strides", [1] * rank)),
        pads=_pads(a, rank),
        ceil_mode=int(a.flag("ceil_mode", default=False)),
        **attributes,
    )


@kernel("upsample_nearest_neighbor")
def _upsample_nearest_neighbor(a: Arguments) -> Array:
    height, width = a.integer("scale_factor_height", 1), a.integer("scale_factor_width", 1)
    return np.repeat(np.repeat(a["x"], height, axis=-2), width, axis=-1)


@kernel("depth_to_space")
def _depth_to_space(a: Arguments) -> Array:
    return reference.run("DepthToSpace", a["x"], blocksize=a.integer("block_size"), mode="DCR")


@kernel("pixel_shuffle")
def _pixel_shuffle(a: Arguments) -> Array:
    return reference.run("DepthToSpace", a["x"], blocksize=a.integer("upscale_factor"), mode="CRD")


@kernel("space_to_depth")
def _space_to_depth(a: Arguments) -> Array:
    return reference.run("SpaceToDepth", a["x"], blocksize=a.integer("block_size"))


@kernel("resample")
def _resample(a: Arguments) -> Array:
    aligned = a.flag("align_corners", default=False)
    a.text("sampling_mode", "bilinear")
    a.text("coordinates_mode", "normalized_minus_one_to_one")
    mode = a.text("padding_mode", "constant", "border", "reflection", "symmetric")
    if a.number("padding_value", 0.0):
        raise CompilerError("resample with a padding_value other than 0 is not handled")
    if mode in ("reflection", "symmetric") and (mode == "reflection") != aligned:
        raise CompilerError(f"resample with padding_mode {mode} and align_corners={aligned} is not handled")
    padding = {"constant": "zeros", "border": "border"}.get(mode, "reflection")
    coordinates = a["coordinates"].astype(np.float32)
    return reference.run(
        "GridSample", a["x"], coordinates, mode="bilinear", padding_mode=padding, align_corners=int(aligned)
    )
