"""Pooling; what ceil_mode hangs over the end is padding that never enters an average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS
from compilers.coreml.lower.windows import Window, read_window

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar


@lowers("MaxPool")
def _max_pool(node: Node) -> None:
    window = _window(node)
    node.attr("storage_order")  # orders the indices output only, and that is refused when used
    node.out(_pool(node, "max_pool", window))


@lowers("AveragePool")
def _average_pool(node: Node) -> None:
    window = _window(node)
    if not node.attr("count_include_pad", 0):
        node.out(_pool(node, "avg_pool", window, exclude_padding_from_average=True))
        return
    if not any(window.overhang):
        node.out(_pool(node, "avg_pool", window, exclude_padding_from_average=False))
        return
    # The padding counts, the overhang does not (coremltools #2772): make the padding part of the image.
    pads = [0, 0, 0, 0, *window.mil_pads(with_overhang=False)]
    padded = node.mil.pad(x=node.x(), pad=pads, mode="constant", constant_val=node.like(0))
    rest = [n for more in window.overhang for n in (0, more)]
    node.out(_pool(node, "avg_pool", window, x=padded, pad=rest, exclude_padding_from_average=True))


@lowers("GlobalAveragePool")
def _global_average_pool(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.out(node.mil.reduce_mean(x=node.x(), axes=_spatial(node), keep_dims=True))


@lowers("GlobalMaxPool")
def _global_max_pool(node: Node) -> None:
    node.need_dtype(*FLOATS)
    node.out(node.mil.reduce_max(x=node.x(), axes=_spatial(node), keep_dims=True))


def _spatial(node: Node) -> list[int]:
    return list(range(2, len(node.shape())))


def _window(node: Node) -> Window:
    node.need_dtype(*FLOATS)
    window = read_window(node, tuple(node.ints("kernel_shape") or ()), node.shape()[2:])
    if set(window.dilations) != {1}:
        node.refuse(f"attribute dilations={window.dilations}: MIL pools have none")
    return window


def _pool(node: Node, mil_op: str, window: Window, **more: object) -> MilVar:
    arguments = {
        "x": node.x(),
        "kernel_sizes": list(window.kernel),
        "strides": list(window.strides),
        "pad_type": "custom",
        "pad": window.mil_pads(),
        **more,
    }
    return getattr(node.mil, mil_op)(**arguments)
