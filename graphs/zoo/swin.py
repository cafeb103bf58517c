"""Swin-T (Liu et al. 2021) as in torchvision.

The relative position bias is looked up when the model is built, as constant folding does on export: the file
holds (1, heads, 49, 49) where the published model trains 169 x heads values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphs.graph import GraphError
from graphs.zoo import blocks, sequences

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

WIDTH, WINDOW = 96, 7
STAGES = ((2, 3), (2, 6), (6, 12), (2, 24))
"""Depth and heads of each stage."""
MASKED = -100.0
"""What torchvision adds to the scores of tokens that a shift brought together."""


def swin_tiny(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `swin_t`: (batch, 3, size, size) to (batch, classes); size is a multiple of 224."""
    if size % 224:
        raise GraphError(f"swin_tiny is built for whole windows: size {size} is no multiple of 224")
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, WIDTH, 4, name="features.0.0", stride=4, padding=0, batch_norm=False)
    x = sequences.layer_norm(net, blocks.transpose(net, x, (0, 2, 3, 1)), name="features.0.2")
    for stage, (depth, heads) in enumerate(STAGES):
        if stage > 0:
            with net.scope(f"features.{2 * stage}"):
                x = _merge_patches(net, x)
        for index in range(depth):
            with net.scope(f"features.{2 * stage + 1}.{index}"):
                x = _block(net, x, heads, shift=WINDOW // 2 if index % 2 else 0)
    x = blocks.transpose(net, sequences.layer_norm(net, x, name="norm"), (0, 3, 1, 2))
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="head")}


def _merge_patches(net: Net, x: Value) -> Value:
    """Halve height and width: four neighbours become the channels of one position."""
    _, height, width, channels = x.shape
    corners = [
        blocks.cut(net, blocks.cut(net, x, row, height, axis=1, step=2), column, width, axis=2, step=2)
        for column in (0, 1)
        for row in (0, 1)
    ]
    y = sequences.layer_norm(net, blocks.concat(net, corners, axis=3), name="norm")
    return sequences.linear(net, y, 2 * channels, name="reduction", bias=False)


def _block(net: Net, x: Value, heads: int, shift: int) -> Value:
    channels = x.shape[-1]
    # One window that covers the whole map needs no shift.
    shift = 0 if x.shape[1] <= WINDOW else shift
    y = sequences.layer_norm(net, x, name="norm1")
    with net.scope("attn"):
        y = _window_attention(net, y, heads, shift, std=blocks.residual_std(x))
    x = blocks.add(net, x, y)
    y = sequences.layer_norm(net, x, name="norm2")
    y = sequences.mlp(net, y, 4 * channels, names=("mlp.0", "mlp.3"), std=blocks.residual_std(x))
    return blocks.add(net, x, y)


def _window_attention(net: Net, x: Value, heads: int, shift: int, *, std: float) -> Value:
    rolled = _roll(net, x, -shift) if shift else x
    windows = _to_windows(net, rolled)
    query, key, value = sequences.fused_qkv(net, windows, heads, name="qkv")
    scores = sequences.attention_scores(net, query, key)
    scores = net.node("Add", [scores, _position_bias(net, heads)], scores.shape)
    if shift:
        scores = _mask_strangers(net, scores, x.shape, shift)
    y = sequences.attend(net, scores, value)
    y = sequences.linear(net, y, x.shape[-1], name="proj", std=std)
    y = _from_windows(net, y, x.shape)
    return _roll(net, y, shift) if shift else y


def _roll(net: Net, x: Value, shift: int) -> Value:
    """Move height and width round by `shift`, as the exporter writes `torch.roll`."""
    for axis in (1, 2):
        side, cut = x.shape[axis], -shift % x.shape[axis]
        tail, head = blocks.cut(net, x, cut, side, axis=axis), blocks.cut(net, x, 0, cut, axis=axis)
        x = blocks.concat(net, [tail, head], axis=axis)
    return x


def _to_windows(net: Net, x: Value) -> Value:
    batch, height, width, channels = x.shape
    rows, columns = height // WINDOW, width // WINDOW
    x = blocks.reshape(net, x, (batch, rows, WINDOW, columns, WINDOW, channels))
    x = blocks.transpose(net, x, (0, 1, 3, 2, 4, 5))
    return blocks.reshape(net, x, (batch * rows * columns, WINDOW**2, channels))


def _from_windows(net: Net, x: Value, shape: tuple[int, ...]) -> Value:
    batch, height, width, channels = shape
    x = blocks.reshape(net, x, (batch, height // WINDOW, width // WINDOW, WINDOW, WINDOW, channels))
    return blocks.reshape(net, blocks.transpose(net, x, (0, 1, 3, 2, 4, 5)), shape)


def _position_bias(net: Net, heads: int) -> str:
    table = net.normal(((2 * WINDOW - 1) ** 2, heads), 0.5)
    grid = np.stack(np.meshgrid(np.arange(WINDOW), np.arange(WINDOW), indexing="ij")).reshape(2, -1)
    row, column = grid[:, :, None] - grid[:, None, :] + WINDOW - 1
    bias = table[row * (2 * WINDOW - 1) + column].transpose(2, 0, 1)[None]
    return net.parameter("relative_position_bias", np.ascontiguousarray(bias), count=table.size)


def _mask_strangers(net: Net, scores: Value, shape: tuple[int, ...], shift: int) -> Value:
    """Add -100 where query and key lie in one window only because the map was rolled."""
    batch, height, width, _ = shape
    windows, heads, tokens, _ = scores.shape
    mask = _shift_mask(height, width, shift)[None, :, None]
    split = blocks.reshape(net, scores, (batch, windows // batch, heads, tokens, tokens))
    split = net.node("Add", [split, net.constant(mask, "attention_mask")], split.shape)
    return blocks.reshape(net, split, scores.shape)


def _shift_mask(height: int, width: int, shift: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return (windows, 49, 49)."""
    regions = np.zeros((height, width))
    bounds = (slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None))
    for row, rows in enumerate(bounds):
        for column, columns in enumerate(bounds):
            regions[rows, columns] = 3 * row + column
    grid = regions.reshape(height // WINDOW, WINDOW, width // WINDOW, WINDOW)
    tiles = grid.transpose(0, 2, 1, 3).reshape(-1, WINDOW**2)
    return np.where(tiles[:, None, :] == tiles[:, :, None], 0.0, MASKED).astype(np.float32)
