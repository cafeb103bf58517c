"""MobileNetV2 (Sandler et al. 2018) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats and first stride of each stage: the paper's table 2."""


def mobilenet_v2(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `mobilenet_v2`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 32, 3, name="features.0.0", stride=2, act="relu6")
    index = 1
    for expansion, channels, repeats, stride in STAGES:
        for repeat in range(repeats):
            with net.scope(f"features.{index}.conv"):
                x = _inverted_residual(net, x, channels, stride if repeat == 0 else 1, expansion)
            index += 1
    x = blocks.conv(net, x, 1280, name=f"features.{index}.0", act="relu6")
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="classifier.1")}


def _inverted_residual(net: Net, x: Value, channels: int, stride: int, expansion: int) -> Value:
    residual = stride == 1 and x.shape[1] == channels
    y, layer = x, 0
    if expansion > 1:
        y, layer = blocks.conv(net, y, expansion * x.shape[1], name="0.0", act="relu6"), 1
    y = blocks.conv(net, y, y.shape[1], 3, name=f"{layer}.0", stride=stride, groups=y.shape[1], act="relu6")
    y = blocks.conv(net, y, channels, name=str(layer + 1), std=blocks.residual_std(x) if residual else 1.0)
    return blocks.add(net, x, y) if residual else y
