"""GoogLeNet (Szegedy et al. 2014) and Inception v3 (2015) as in torchvision, without the auxiliary heads.

The heads serve training only. Left out too is the channel-wise affine map of the input that torchvision adds
when it loads its own weights (`transform_input`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from graphs.zoo import blocks

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

GOOGLENET = (
    ("3a", 64, 96, 128, 16, 32, 32),
    ("3b", 128, 128, 192, 32, 96, 64),
    ("4a", 192, 96, 208, 16, 48, 64),
    ("4b", 160, 112, 224, 24, 64, 64),
    ("4c", 128, 128, 256, 24, 64, 64),
    ("4d", 112, 144, 288, 32, 64, 64),
    ("4e", 256, 160, 320, 32, 128, 128),
    ("5a", 256, 160, 320, 32, 128, 128),
    ("5b", 384, 192, 384, 48, 128, 128),
)
"""Channels of each module, in the order of the paper's table 1."""


def googlenet(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `googlenet`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = _conv(net, image, "conv1", 64, 7, stride=2)
    x = blocks.pool(net, x, "max", 3, stride=2, ceil=True)
    x = _conv(net, x, "conv2", 64)
    x = _conv(net, x, "conv3", 192, 3)
    x = blocks.pool(net, x, "max", 3, stride=2, ceil=True)
    for name, *widths in GOOGLENET:
        if name == "4a":
            x = blocks.pool(net, x, "max", 3, stride=2, ceil=True)
        if name == "5a":
            x = blocks.pool(net, x, "max", 2, stride=2, ceil=True)
        with net.scope(f"inception{name}"):
            x = _googlenet_module(net, x, *widths)
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="fc")}


def _googlenet_module(net: Net, x: Value, one: int, in3: int, out3: int, in5: int, out5: int, pooled: int) -> Value:
    """Add one module; what the paper calls the 5x5 branch has a 3x3 kernel in torchvision."""
    branches = [
        _conv(net, x, "branch1", one),
        _conv(net, _conv(net, x, "branch2.0", in3), "branch2.1", out3, 3),
        _conv(net, _conv(net, x, "branch3.0", in5), "branch3.1", out5, 3),
        _conv(net, blocks.pool(net, x, "max", 3, stride=1, padding=1, ceil=True), "branch4.1", pooled),
    ]
    return blocks.concat(net, branches)


def inception_v3(net: Net, *, batch: int = 1, size: int = 299, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `inception_v3`: (batch, 3, size, size) to (batch, classes)."""
    image = net.input("input", (batch, 3, size, size))
    x = _conv(net, image, "Conv2d_1a_3x3", 32, 3, stride=2, padding=0)
    x = _conv(net, x, "Conv2d_2a_3x3", 32, 3, padding=0)
    x = _conv(net, x, "Conv2d_2b_3x3", 64, 3)
    x = blocks.pool(net, x, "max", 3, stride=2)
    x = _conv(net, x, "Conv2d_3b_1x1", 80)
    x = _conv(net, x, "Conv2d_4a_3x3", 192, 3, padding=0)
    x = blocks.pool(net, x, "max", 3, stride=2)
    for name, module in _MODULES:
        with net.scope(name):
            x = module(net, x)
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="fc")}


def _module_a(net: Net, x: Value, *, pooled: int) -> Value:
    five = _conv(net, _conv(net, x, "branch5x5_1", 48), "branch5x5_2", 64, 5)
    three = _conv(net, x, "branch3x3dbl_1", 64)
    three = _conv(net, three, "branch3x3dbl_2", 96, 3)
    three = _conv(net, three, "branch3x3dbl_3", 96, 3)
    return blocks.concat(net, [_conv(net, x, "branch1x1", 64), five, three, _pool_branch(net, x, pooled)])


def _module_b(net: Net, x: Value) -> Value:
    single = _conv(net, x, "branch3x3", 384, 3, stride=2, padding=0)
    double = _conv(net, x, "branch3x3dbl_1", 64)
    double = _conv(net, double, "branch3x3dbl_2", 96, 3)
    double = _conv(net, double, "branch3x3dbl_3", 96, 3, stride=2, padding=0)
    return blocks.concat(net, [single, double, blocks.pool(net, x, "max", 3, stride=2)])


def _module_c(net: Net, x: Value, *, width: int) -> Value:
    single = _conv(net, x, "branch7x7_1", width)
    single = _conv(net, single, "branch7x7_2", width, (1, 7))
    single = _conv(net, single, "branch7x7_3", 192, (7, 1))
    double = _conv(net, x, "branch7x7dbl_1", width)
    double = _conv(net, double, "branch7x7dbl_2", width, (7, 1))
    double = _conv(net, double, "branch7x7dbl_3", width, (1, 7))
    double = _conv(net, double, "branch7x7dbl_4", width, (7, 1))
    double = _conv(net, double, "branch7x7dbl_5", 192, (1, 7))
    return blocks.concat(net, [_conv(net, x, "branch1x1", 192), single, double, _pool_branch(net, x, 192)])


def _module_d(net: Net, x: Value) -> Value:
    three = _conv(net, x, "branch3x3_1", 192)
    three = _conv(net, three, "branch3x3_2", 320, 3, stride=2, padding=0)
    seven = _conv(net, x, "branch7x7x3_1", 192)
    seven = _conv(net, seven, "branch7x7x3_2", 192, (1, 7))
    seven = _conv(net, seven, "branch7x7x3_3", 192, (7, 1))
    seven = _conv(net, seven, "branch7x7x3_4", 192, 3, stride=2, padding=0)
    return blocks.concat(net, [three, seven, blocks.pool(net, x, "max", 3, stride=2)])


def _module_e(net: Net, x: Value) -> Value:
    single = _fork(net, _conv(net, x, "branch3x3_1", 384), "branch3x3_2")
    deep = _conv(net, _conv(net, x, "branch3x3dbl_1", 448), "branch3x3dbl_2", 384, 3)
    double = _fork(net, deep, "branch3x3dbl_3")
    return blocks.concat(net, [_conv(net, x, "branch1x1", 320), *single, *double, _pool_branch(net, x, 192)])


def _fork(net: Net, x: Value, name: str) -> tuple[Value, Value]:
    """Return both halves: the exporter joins a concatenation into the one that reads it."""
    return _conv(net, x, f"{name}a", 384, (1, 3)), _conv(net, x, f"{name}b", 384, (3, 1))


def _pool_branch(net: Net, x: Value, channels: int) -> Value:
    return _conv(net, blocks.pool(net, x, "average", 3, stride=1, padding=1), "branch_pool", channels)


def _conv(
    net: Net,
    x: Value,
    name: str,
    channels: int,
    kernel: int | tuple[int, int] = 1,
    *,
    stride: int = 1,
    padding: int | None = None,
) -> Value:
    return blocks.conv(net, x, channels, kernel, name=f"{name}.conv", stride=stride, padding=padding, act="relu")


_MODULES = (
    ("Mixed_5b", partial(_module_a, pooled=32)),
    ("Mixed_5c", partial(_module_a, pooled=64)),
    ("Mixed_5d", partial(_module_a, pooled=64)),
    ("Mixed_6a", _module_b),
    ("Mixed_6b", partial(_module_c, width=128)),
    ("Mixed_6c", partial(_module_c, width=160)),
    ("Mixed_6d", partial(_module_c, width=160)),
    ("Mixed_6e", partial(_module_c, width=192)),
    ("Mixed_7a", _module_d),
    ("Mixed_7b", _module_e),
    ("Mixed_7c", _module_e),
)
