"""ConvNeXt-Tiny (Liu et al. 2022) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks, sequences

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
"""Channels and depth of each stage."""
TO_LAST, TO_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def convnext_tiny(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `convnext_tiny`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 96, 4, name="features.0.0", stride=4, padding=0, batch_norm=False)
    x = _channel_norm(net, x, "features.0.1")
    for stage, (channels, depth) in enumerate(STAGES):
        if stage > 0:
            x = _channel_norm(net, x, f"features.{2 * stage}.0")
            name = f"features.{2 * stage}.1"
            x = blocks.conv(net, x, channels, 2, name=name, stride=2, padding=0, batch_norm=False)
        for index in range(depth):
            with net.scope(f"features.{2 * stage + 1}.{index}"):
                x = _block(net, x)
    x = _channel_norm(net, blocks.global_average(net, x), "classifier.0")
    return {"output": blocks.gemm(net, blocks.flatten(net, x), classes, name="classifier.2")}


def _block(net: Net, x: Value) -> Value:
    channels = x.shape[1]
    y = blocks.conv(net, x, channels, 7, name="block.0", groups=channels, batch_norm=False)
    y = blocks.transpose(net, y, TO_LAST)
    y = sequences.layer_norm(net, y, name="block.2", epsilon=1e-6)
    y = sequences.mlp(net, y, 4 * channels, names=("block.3", "block.5"), std=1.0)
    y = blocks.transpose(net, y, TO_SECOND)
    y = sequences.layer_scale(net, y, (channels, 1, 1), blocks.residual_std(x), name="layer_scale")
    return blocks.add(net, y, x)


def _channel_norm(net: Net, x: Value, name: str) -> Value:
    """Add torchvision's `LayerNorm2d`: the channels are moved to the end and back."""
    y = sequences.layer_norm(net, blocks.transpose(net, x, TO_LAST), name=name, epsilon=1e-6)
    return blocks.transpose(net, y, TO_SECOND)
