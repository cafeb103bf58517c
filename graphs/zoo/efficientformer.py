"""EfficientFormer-L1 (Li et al. 2022) as in timm.

Convolutions have biases of their own before their batch norm; both are folded into one. The attention biases
are looked up when the model is built: the file holds (8, tokens, tokens) where the published model trains
8 x tokens values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphs.zoo import blocks, sequences
from graphs.zoo.builder import scaled

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = ((48, 3), (96, 2), (224, 6), (448, 4))
"""Channels and depth of each stage; the last block of the last stage attends."""
HEADS, KEY, VALUE = 8, 32, 128
SMOOTHING = 0.1
"""Share of the average in each pooling block: more of it, twelve times over, leaves one grey image."""


def efficientformer_l1(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add timm's `efficientformer_l1`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 24, 3, name="stem.conv1", stride=2, bias=True, act="relu")
    x = blocks.conv(net, x, 48, 3, name="stem.conv2", stride=2, bias=True, act="relu")
    for stage, (channels, depth) in enumerate(STAGES):
        with net.scope(f"stages.{stage}"):
            if stage > 0:
                x = blocks.conv(net, x, channels, 3, name="downsample.conv", stride=2, bias=True)
            x = _stage(net, x, depth, attending=1 if stage == len(STAGES) - 1 else 0)
    x = blocks.reduce(net, sequences.layer_norm(net, x, name="norm"), "ReduceMean", (1,), keep=False)
    heads = [blocks.gemm(net, x, classes, name=name) for name in ("head", "head_dist")]
    both = blocks.add(net, *heads)
    return {"output": net.node("Div", [both, net.scalar(2.0)], both.shape)}


def _stage(net: Net, x: Value, depth: int, attending: int) -> Value:
    for index in range(depth - attending):
        with net.scope(f"blocks.{index}"):
            x = _pooling_block(net, x)
    if not attending:
        return x
    grid = (x.shape[2], x.shape[3])
    x = sequences.flatten_grid(net, x)
    # The flattening counts as a block in timm's sequence.
    for index in range(depth - attending + 1, depth + 1):
        with net.scope(f"blocks.{index}"):
            x = _attention_block(net, x, grid)
    return x


def _pooling_block(net: Net, x: Value) -> Value:
    channels, shape = x.shape[1], (1, x.shape[1], 1, 1)
    pooled = blocks.pool(net, x, "average", 3, stride=1, padding=1, count_padding=False)
    mixed = scaled(net.node("Sub", [pooled, x], x.shape), mean=0.0, power=x.variance)
    mixed = sequences.layer_scale(net, mixed, shape, SMOOTHING * x.rms, name="ls1.gamma")
    x = blocks.add(net, x, mixed)
    y = blocks.conv(net, x, 4 * channels, name="mlp.fc1", bias=True, act="gelu")
    y = blocks.conv(net, y, channels, name="mlp.fc2", bias=True)
    y = sequences.layer_scale(net, y, shape, blocks.residual_std(x), name="ls2.gamma")
    return blocks.add(net, x, y)


def _attention_block(net: Net, x: Value, grid: tuple[int, int]) -> Value:
    channels = x.shape[2]
    y = sequences.layer_norm(net, x, name="norm1")
    with net.scope("token_mixer"):
        y = _attention(net, y, grid)
    y = sequences.layer_scale(net, y, (channels,), blocks.residual_std(x), name="ls1.gamma")
    x = blocks.add(net, x, y)
    y = sequences.layer_norm(net, x, name="norm2")
    y = sequences.mlp(net, y, 4 * channels, names=("mlp.fc1", "mlp.fc2"), std=1.0)
    y = sequences.layer_scale(net, y, (channels,), blocks.residual_std(x), name="ls2.gamma")
    return blocks.add(net, x, y)


def _attention(net: Net, x: Value, grid: tuple[int, int]) -> Value:
    batch, tokens, channels = x.shape
    widths = (2 * KEY + VALUE) * HEADS
    # Queries, keys and values alternate head by head.
    parts = [(KEY, sequences.SHARPNESS), (KEY, 1.0), (VALUE, 1.0)] * HEADS
    joined = sequences.linear(net, x, widths, name="qkv", std=parts)
    joined = blocks.reshape(net, joined, (batch, tokens, HEADS, 2 * KEY + VALUE))
    joined = blocks.transpose(net, joined, (0, 2, 1, 3))
    query, key, value = blocks.split(net, joined, (KEY, KEY, VALUE), axis=3)
    scores = sequences.attention_scores(net, query, key, scale_first=False)
    scores = net.node("Add", [scores, _position_bias(net, grid)], scores.shape)
    return sequences.linear(net, sequences.attend(net, scores, value), channels, name="proj")


def _position_bias(net: Net, grid: tuple[int, int]) -> str:
    table = net.normal((HEADS, grid[0] * grid[1]), 0.5)
    places = np.stack(np.meshgrid(np.arange(grid[0]), np.arange(grid[1]), indexing="ij")).reshape(2, -1)
    row, column = np.abs(places[:, :, None] - places[:, None, :])
    bias = table[:, row * grid[1] + column]
    return net.parameter("attention_biases", np.ascontiguousarray(bias), count=table.size)
