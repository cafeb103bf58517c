"""Which tiles a kernel generator can build for channels-last data, and the space of those worth a search.

The models of `gpu.py` cost any tile; a kernel that really gets written splits one axis of the reduction, so that axis
must come out even, and loads vectors of channels. `compilers/tvm` builds exactly what is not refused here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from partition.tile.gpu import power_space

if TYPE_CHECKING:
    from partition.tile.gpu import GpuMachine, GpuSpace, GpuTile
    from partition.tile.operators import Layer

_WIDEST_STEP: Final = 32
_LONGEST_UNROLL: Final = 8


def reduction_steps(layer: Layer) -> int:
    """Return the extent of the reduction axis that `k_tile` splits: input channels, else columns, else rows of taps."""
    along = (layer.c, layer.kernel[1], layer.kernel[0])
    return next((extent for extent in along if extent > 1), 1)


def build_refusal(layer: Layer, tile: GpuTile) -> str | None:
    """Return why no kernel can be written with the tile, or None; what a device can hold is another question."""
    steps = reduction_steps(layer)
    if steps % tile.k_tile:
        return f"k_tile {tile.k_tile} does not divide the {steps} elements that the reduction steps over"
    if tile.k_tile % tile.unroll:
        return f"unroll {tile.unroll} does not divide k_tile {tile.k_tile}"
    if tile.thread_k % tile.vector or layer.k % tile.vector:
        return f"vector {tile.vector} does not divide thread_k {tile.thread_k} and the {layer.k} channels"
    if tile.staged and layer.per_channel:
        return "staged: each channel reads data of its own, so threads have nothing to share"
    return None


def buildable_space(layer: Layer, machine: GpuMachine) -> GpuSpace:
    """Return `power_space` without what would be refused, and with the odd steps that layers have.

    The reduction is unrolled as far as it goes, up to 8: only then are data loaded in vectors, as `gpu.py` counts on.
    """
    powers, steps = power_space(layer, machine), reduction_steps(layer)
    even = [n for n in range(1, _WIDEST_STEP + 1) if steps % n == 0 and (n & (n - 1) == 0 or n == steps)]
    unroll = max(n for n in even if n <= _LONGEST_UNROLL)
    return dataclasses.replace(
        powers,
        name="buildable powers of two",
        k_tile=tuple(n for n in even if n % unroll == 0),
        staged=(False,) if layer.per_channel else powers.staged,
        vector=tuple(n for n in powers.vector if layer.k % n == 0),
        unroll=(unroll,),
    )
