"""DenseNet-121 (Huang et al. 2016) as in torchvision.

A batch norm before an activation that reads a concatenation cannot be folded into a convolution: those stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

DEPTHS = (6, 12, 24, 16)
GROWTH = 32


def densenet121(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `densenet121`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 64, 7, name="features.conv0", stride=2, act="relu")
    x = blocks.pool(net, x, "max", 3, stride=2, padding=1)
    for number, depth in enumerate(DEPTHS, start=1):
        with net.scope(f"features.denseblock{number}"):
            x = _dense_block(net, x, depth)
        if number < len(DEPTHS):
            with net.scope(f"features.transition{number}"):
                x = blocks.batch_norm(net, x, name="norm", act="relu")
                x = blocks.conv(net, x, x.shape[1] // 2, name="conv", batch_norm=False, bias=False)
                x = blocks.pool(net, x, "average", 2, stride=2)
    x = blocks.batch_norm(net, x, name="features.norm5", act="relu")
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="classifier")}


def _dense_block(net: Net, x: Value, depth: int) -> Value:
    features = [x]
    for number in range(1, depth + 1):
        with net.scope(f"denselayer{number}"):
            joined = blocks.concat(net, features)
            y = blocks.batch_norm(net, joined, name="norm1", act="relu")
            y = blocks.conv(net, y, 4 * GROWTH, name="conv1", act="relu")
            features.append(blocks.conv(net, y, GROWTH, 3, name="conv2", batch_norm=False, bias=False))
    return blocks.concat(net, features)
