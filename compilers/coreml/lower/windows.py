"""Explicit padding for everything that slides a window: MIL's own "same" and ceil modes are never used."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Kernel, strides, dilations and the padding (begin, end) of each spatial axis.

    `overhang` is what ceil_mode adds behind the end padding; it counts as outside the image.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    overhang: tuple[int, ...]

    def mil_pads(self, *, with_overhang: bool = True) -> list[int]:
        """Return MIL's order: begin, end, begin, end."""
        extra = self.overhang if with_overhang else (0,) * len(self.overhang)
        return [n for (begin, end), more in zip(self.pads, extra, strict=True) for n in (begin, end + more)]


def read_window(node: Node, kernel: tuple[int, ...], size: tuple[int, ...]) -> Window:
    """Read the window attributes of a node over an image of spatial `size`."""
    rank = len(size)
    if len(kernel) != rank or not 1 <= rank <= 3:
        node.refuse(f"a kernel of rank {len(kernel)} on {rank} spatial axes is not handled")
    strides = tuple(node.ints("strides") or (1,) * rank)
    dilations = tuple(node.ints("dilations") or (1,) * rank)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    pads = _pads(node, reach, strides, size)
    overhang = (0,) * rank
    if node.attr("ceil_mode", 0):
        overhang = tuple(_overhang(*each) for each in zip(reach, strides, pads, size, strict=True))
    return Window(kernel=kernel, strides=strides, dilations=dilations, pads=pads, overhang=overhang)


def _pads(
    node: Node, reach: tuple[int, ...], strides: tuple[int, ...], size: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    rank = len(size)
    mode = node.attr("auto_pad", "NOTSET")
    given = node.ints("pads") or [0] * 2 * rank
    if mode in ("NOTSET", ""):
        pads = tuple(zip(given[:rank], given[rank:], strict=True))
        if min(given) < 0:
            node.refuse(f"attribute pads={given}: negative padding is not handled")
        return pads
    if mode == "VALID":
        return ((0, 0),) * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"attribute auto_pad={mode} is not handled")
    return tuple(_same(*each, lower=mode == "SAME_LOWER") for each in zip(reach, strides, size, strict=True))


def _same(reach: int, stride: int, size: int, *, lower: bool) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    half = total // 2
    return (total - half, half) if lower else (half, total - half)


def _overhang(reach: int, stride: int, pads: tuple[int, int], size: int) -> int:
    begin, end = pads
    count = -(-(size + begin + end - reach) // stride) + 1
    if (count - 1) * stride >= size + begin:  # the last window must start inside the image or its padding
        count -= 1
    return max((count - 1) * stride + reach - size - begin - end, 0)
