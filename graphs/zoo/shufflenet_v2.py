"""ShuffleNetV2 (Ma et al. 2018) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = ((4, 116), (8, 232), (4, 464))
"""Repeats and channels of stages 2 to 4 at width 1.0."""


def shufflenet_v2(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `shufflenet_v2_x1_0`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 24, 3, name="conv1.0", stride=2, act="relu")
    x = blocks.pool(net, x, "max", 3, stride=2, padding=1)
    for stage, (repeats, channels) in enumerate(STAGES, start=2):
        for index in range(repeats):
            with net.scope(f"stage{stage}.{index}"):
                x = _downsample(net, x, channels // 2) if index == 0 else _basic(net, x)
    x = blocks.conv(net, x, 1024, name="conv5.0", act="relu")
    x = blocks.reduce(net, x, "ReduceMean", (2, 3), keep=False)
    return {"output": blocks.gemm(net, x, classes, name="fc")}


def _basic(net: Net, x: Value) -> Value:
    half = x.shape[1] // 2
    kept, worked = blocks.split(net, x, (half, half), axis=1)
    return _shuffle(net, kept, _branch(net, worked, half, 1))


def _downsample(net: Net, x: Value, channels: int) -> Value:
    first = blocks.conv(net, x, x.shape[1], 3, name="branch1.0", stride=2, groups=x.shape[1])
    first = blocks.conv(net, first, channels, name="branch1.2", act="relu")
    return _shuffle(net, first, _branch(net, x, channels, 2))


def _branch(net: Net, x: Value, channels: int, stride: int) -> Value:
    x = blocks.conv(net, x, channels, name="branch2.0", act="relu")
    x = blocks.conv(net, x, channels, 3, name="branch2.3", stride=stride, groups=channels)
    return blocks.conv(net, x, channels, name="branch2.5", act="relu")


def _shuffle(net: Net, x: Value, y: Value) -> Value:
    """Concatenate and interleave the channels of two branches."""
    joined = blocks.concat(net, [x, y])
    batch, channels, height, width = joined.shape
    grouped = blocks.reshape(net, joined, (batch, 2, channels // 2, height, width))
    return blocks.reshape(net, blocks.transpose(net, grouped, (0, 2, 1, 3, 4)), joined.shape)
