"""RegNetY-400MF (Radosavovic et al. 2020) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = ((48, 1), (104, 3), (208, 6), (440, 6))
"""Width and depth of each stage: what `w_0=48, w_a=27.89, w_m=2.09, depth=16` with groups of 8 comes to."""
GROUP_WIDTH = 8


def regnet_y_400mf(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `regnet_y_400mf`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 32, 3, name="stem.0", stride=2, act="relu")
    for stage, (width, depth) in enumerate(STAGES, start=1):
        for index in range(depth):
            with net.scope(f"trunk_output.block{stage}.block{stage}-{index}"):
                x = _block(net, x, width, 2 if index == 0 else 1)
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="fc")}


def _block(net: Net, x: Value, width: int, stride: int) -> Value:
    shortcut = x
    if stride > 1 or x.shape[1] != width:
        shortcut = blocks.conv(net, x, width, name="proj.0", stride=stride)
    y = blocks.conv(net, x, width, name="f.a.0", act="relu")
    y = blocks.conv(net, y, width, 3, name="f.b.0", stride=stride, groups=width // GROUP_WIDTH, act="relu")
    # The squeeze is a quarter of the block's input, not of its width.
    squeezed = round(0.25 * x.shape[1])
    y = blocks.squeeze_excite(net, y, squeezed, names=("f.se.fc1", "f.se.fc2"), act="relu", gate="sigmoid")
    y = blocks.conv(net, y, width, name="f.c.0", std=blocks.residual_std(shortcut))
    return blocks.activation(net, blocks.add(net, shortcut, y), "relu")
