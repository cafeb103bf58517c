"""EfficientNet-Lite (Google 2020): EfficientNet without squeeze-excite, with ReLU6, as timm builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""Kernel, first stride, expansion, channels and repeats of each stage: EfficientNet-B0's."""


def efficientnet_lite0(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add timm's `efficientnet_lite0`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 32, 3, name="conv_stem", stride=2, act="relu6")
    for stage, (kernel, stride, expansion, channels, repeats) in enumerate(STAGES):
        for repeat in range(repeats):
            with net.scope(f"blocks.{stage}.{repeat}"):
                x = _inverted_residual(net, x, channels, kernel, stride if repeat == 0 else 1, expansion)
    x = blocks.conv(net, x, 1280, name="conv_head", act="relu6")
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="classifier")}


def _inverted_residual(net: Net, x: Value, channels: int, kernel: int, stride: int, expansion: int) -> Value:
    residual = stride == 1 and x.shape[1] == channels
    y, last = x, "conv_pw"
    if expansion > 1:
        y, last = blocks.conv(net, y, expansion * x.shape[1], name="conv_pw", act="relu6"), "conv_pwl"
    y = blocks.conv(net, y, y.shape[1], kernel, name="conv_dw", stride=stride, groups=y.shape[1], act="relu6")
    y = blocks.conv(net, y, channels, name=last, std=blocks.residual_std(x) if residual else 1.0)
    return blocks.add(net, y, x) if residual else y
