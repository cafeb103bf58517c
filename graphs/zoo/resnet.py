"""ResNet (He et al. 2015) as in torchvision: a bottleneck strides on its 3x3 convolution ("v1.5")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphs.zoo.builder import Net, Value

    Branch = Callable[[Net, Value, int, int, float], Value]


def resnet18(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `resnet18`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    return {"output": _resnet(net, image, classes, _basic, depths=(2, 2, 2, 2), expansion=1)}


def resnet50(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `resnet50`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    return {"output": _resnet(net, image, classes, _bottleneck, depths=(3, 4, 6, 3), expansion=4)}


def _resnet(net: Net, image: Value, classes: int, branch: Branch, *, depths: Sequence[int], expansion: int) -> Value:
    x = blocks.conv(net, image, 64, 7, name="conv1", stride=2, act="relu")
    x = blocks.pool(net, x, "max", 3, stride=2, padding=1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            with net.scope(f"layer{stage + 1}.{index}"):
                x = _residual(net, x, 64 << stage, stride, branch, expansion)
    x = blocks.flatten(net, blocks.global_average(net, x))
    return blocks.gemm(net, x, classes, name="fc")


def _residual(net: Net, x: Value, width: int, stride: int, branch: Branch, expansion: int) -> Value:
    out, shortcut = width * expansion, x
    if stride > 1 or x.shape[1] != out:
        shortcut = blocks.conv(net, x, out, name="downsample.0", stride=stride)
    y = branch(net, x, width, stride, blocks.residual_std(shortcut))
    return blocks.activation(net, blocks.add(net, y, shortcut), "relu")


def _basic(net: Net, x: Value, width: int, stride: int, std: float) -> Value:
    x = blocks.conv(net, x, width, 3, name="conv1", stride=stride, act="relu")
    return blocks.conv(net, x, width, 3, name="conv2", std=std)


def _bottleneck(net: Net, x: Value, width: int, stride: int, std: float) -> Value:
    x = blocks.conv(net, x, width, name="conv1", act="relu")
    x = blocks.conv(net, x, width, 3, name="conv2", stride=stride, act="relu")
    return blocks.conv(net, x, 4 * width, name="conv3", std=std)
