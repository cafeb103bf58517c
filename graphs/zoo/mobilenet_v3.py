"""MobileNetV3 (Howard et al. 2019) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphs.zoo import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphs.zoo.builder import Net, Value


class Row(NamedTuple):
    """One inverted residual, a row of the paper's tables 1 and 2."""

    kernel: int
    expanded: int
    out: int
    squeeze: bool
    act: str
    stride: int


RE, HS = "relu", "hardswish"
SE, NO = True, False
SMALL = (
    Row(3, 16, 16, SE, RE, 2),
    Row(3, 72, 24, NO, RE, 2),
    Row(3, 88, 24, NO, RE, 1),
    Row(5, 96, 40, SE, HS, 2),
    Row(5, 240, 40, SE, HS, 1),
    Row(5, 240, 40, SE, HS, 1),
    Row(5, 120, 48, SE, HS, 1),
    Row(5, 144, 48, SE, HS, 1),
    Row(5, 288, 96, SE, HS, 2),
    Row(5, 576, 96, SE, HS, 1),
    Row(5, 576, 96, SE, HS, 1),
)
LARGE = (
    Row(3, 16, 16, NO, RE, 1),
    Row(3, 64, 24, NO, RE, 2),
    Row(3, 72, 24, NO, RE, 1),
    Row(5, 72, 40, SE, RE, 2),
    Row(5, 120, 40, SE, RE, 1),
    Row(5, 120, 40, SE, RE, 1),
    Row(3, 240, 80, NO, HS, 2),
    Row(3, 200, 80, NO, HS, 1),
    Row(3, 184, 80, NO, HS, 1),
    Row(3, 184, 80, NO, HS, 1),
    Row(3, 480, 112, SE, HS, 1),
    Row(3, 672, 112, SE, HS, 1),
    Row(5, 672, 160, SE, HS, 2),
    Row(5, 960, 160, SE, HS, 1),
    Row(5, 960, 160, SE, HS, 1),
)


def mobilenet_v3_small(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `mobilenet_v3_small`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    return {"output": _mobilenet(net, image, SMALL, hidden=1024, classes=classes)}


def mobilenet_v3_large(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `mobilenet_v3_large`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    return {"output": _mobilenet(net, image, LARGE, hidden=1280, classes=classes)}


def _mobilenet(net: Net, image: Value, rows: Sequence[Row], *, hidden: int, classes: int) -> Value:
    x = blocks.conv(net, image, 16, 3, name="features.0.0", stride=2, act=HS)
    for index, row in enumerate(rows, start=1):
        with net.scope(f"features.{index}.block"):
            x = _inverted_residual(net, x, row)
    x = blocks.conv(net, x, 6 * x.shape[1], name=f"features.{len(rows) + 1}.0", act=HS)
    x = blocks.flatten(net, blocks.global_average(net, x))
    x = blocks.gemm(net, x, hidden, name="classifier.0")
    x = blocks.activation(net, x, HS)
    return blocks.gemm(net, x, classes, name="classifier.3")


def _inverted_residual(net: Net, x: Value, row: Row) -> Value:
    residual = row.stride == 1 and x.shape[1] == row.out
    y, layer = x, 0
    if row.expanded != x.shape[1]:
        y, layer = blocks.conv(net, y, row.expanded, name="0.0", act=row.act), 1
    y = blocks.conv(
        net, y, row.expanded, row.kernel, name=f"{layer}.0", stride=row.stride, groups=row.expanded, act=row.act
    )
    if row.squeeze:
        layer += 1
        squeezed = blocks.make_divisible(row.expanded // 4)
        names = (f"{layer}.fc1", f"{layer}.fc2")
        y = blocks.squeeze_excite(net, y, squeezed, names=names, act="relu", gate="hardsigmoid")
    std = blocks.residual_std(x) if residual else 1.0
    y = blocks.conv(net, y, row.out, name=f"{layer + 1}.0", std=std)
    return blocks.add(net, y, x) if residual else y
