"""Conv and ConvTranspose, with explicit padding only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS
from compilers.coreml.lower.windows import read_window

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar


@lowers("Conv")
def _conv(node: Node) -> None:
    node.need_dtype(*FLOATS)
    kernel = _kernel(node)
    window = read_window(node, kernel, node.shape()[2:])
    bias = {"bias": node.constant(node.const(2))} if node.has(2) and node.is_const(2) else {}
    result = node.mil.conv(
        x=node.x(0),
        weight=node.x(1),
        strides=list(window.strides),
        pad_type="custom",
        pad=window.mil_pads(),
        dilations=list(window.dilations),
        groups=int(node.attr("group")),
        **bias,
    )
    node.out(result if bias or not node.has(2) else _add_bias(node, result))


@lowers("ConvTranspose")
def _conv_transpose(node: Node) -> None:
    # `output_shape` of MIL is never given: Core ML's CPU and GPU disagree about it (coremltools #2281).
    node.need_dtype(*FLOATS)
    pads, strides, dilations = _transpose_geometry(node)
    crop = [max(p, 0) for p in pads]
    grow = [max(-p, 0) for p in pads]
    result = node.mil.conv_transpose(
        x=node.x(0),
        weight=node.x(1),
        strides=strides,
        pad_type="custom",
        pad=crop,
        dilations=dilations,
        groups=int(node.attr("group")),
    )
    if any(grow):
        result = node.mil.pad(x=result, pad=[0, 0, 0, 0, *grow], mode="constant", constant_val=node.like(0))
    node.out(_add_bias(node, result) if node.has(2) else result)


def _kernel(node: Node) -> tuple[int, ...]:
    kernel = tuple(node.shape(1)[2:])
    stated = node.ints("kernel_shape")
    if stated is not None and tuple(stated) != kernel:
        node.refuse(f"attribute kernel_shape={stated} does not fit weights of kernel {kernel}")
    return kernel


def _add_bias(node: Node, result: MilVar) -> MilVar:
    channels = [1, -1, *[1] * (len(node.shape()) - 2)]
    if node.is_const(2):
        bias = node.constant(node.const(2).reshape(channels))
    else:
        bias = node.mil.reshape(x=node.x(2), shape=[1, node.shape(2)[0], *channels[2:]])
    return node.mil.add(x=result, y=bias)


def _transpose_geometry(node: Node) -> tuple[list[int], list[int], list[int]]:
    """Return (begin, end) crops in MIL's order (negative = grow), strides and dilations."""
    size, kernel = node.shape()[2:], _kernel(node)
    rank = len(size)
    strides = node.ints("strides") or [1] * rank
    dilations = node.ints("dilations") or [1] * rank
    extra = node.ints("output_padding") or [0] * rank
    full = [s * (n - 1) + (k - 1) * d + 1 for s, n, k, d in zip(strides, size, kernel, dilations, strict=True)]
    wanted = node.ints("output_shape")
    mode = node.attr("auto_pad", "NOTSET")
    given = node.ints("pads") or [0] * 2 * rank
    if wanted is None and mode in ("NOTSET", "VALID", ""):
        ends = [end - more for end, more in zip(given[rank:], extra, strict=True)]
        return _interleave(given[:rank], ends), strides, dilations
    if wanted is None:
        wanted = [s * n for s, n in zip(strides, size, strict=True)]
    totals = [f + more - w for f, more, w in zip(full, extra, wanted[-rank:], strict=True)]
    # ONNX: the larger half goes to the end for SAME_UPPER, to the beginning otherwise.
    begins = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
    ends = [t - b - more for t, b, more in zip(totals, begins, extra, strict=True)]
    return _interleave(begins, ends), strides, dilations


def _interleave(begins: list[int], ends: list[int]) -> list[int]:
    return np.array([begins, ends]).T.reshape(-1).tolist()
