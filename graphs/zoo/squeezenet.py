"""SqueezeNet 1.1 (Iandola et al. 2016) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

FIRES = (
    (3, 16, 64),
    (4, 16, 64),
    (6, 32, 128),
    (7, 32, 128),
    (9, 48, 192),
    (10, 48, 192),
    (11, 64, 256),
    (12, 64, 256),
)
"""Place in `features`, squeezed channels and channels of each expansion; pools stand at places 2, 5 and 8."""


def squeezenet1_1(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `squeezenet1_1`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 64, 3, name="features.0", stride=2, padding=0, batch_norm=False, act="relu")
    for place, squeezed, expanded in FIRES:
        if place - 1 in (2, 5, 8):
            x = blocks.pool(net, x, "max", 3, stride=2, ceil=True)
        with net.scope(f"features.{place}"):
            x = _fire(net, x, squeezed, expanded)
    x = blocks.conv(net, x, classes, name="classifier.1", batch_norm=False, act="relu")
    return {"output": blocks.flatten(net, blocks.global_average(net, x))}


def _fire(net: Net, x: Value, squeezed: int, expanded: int) -> Value:
    x = blocks.conv(net, x, squeezed, name="squeeze", batch_norm=False, act="relu")
    pointwise = blocks.conv(net, x, expanded, name="expand1x1", batch_norm=False, act="relu")
    spatial = blocks.conv(net, x, expanded, 3, name="expand3x3", batch_norm=False, act="relu")
    return blocks.concat(net, [pointwise, spatial])
