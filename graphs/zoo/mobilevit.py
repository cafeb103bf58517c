"""MobileViTv2 1.0 (Mehta and Rastegari 2022) as in timm (`mobilevitv2_100`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphs.graph import GraphError
from graphs.zoo import blocks
from graphs.zoo.builder import BIAS_STD, scaled

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

STAGES = ((64, 1, 1, 0), (128, 2, 2, 0), (256, 1, 2, 2), (384, 1, 2, 4), (512, 1, 2, 3))
"""Channels, inverted residuals, first stride and transformer layers of each stage."""
PATCH = 2


def mobilevit_v2(net: Net, *, batch: int = 1, size: int = 256, classes: int = 1000) -> dict[str, Value]:
    """Add timm's `mobilevitv2_100`: (batch, 3, size, size) to (batch, classes); size is a multiple of 64."""
    if size % 64:
        # timm resizes maps of odd size inside the network; such a model is another one.
        raise GraphError(f"mobilevit_v2 is built for whole patches: size {size} is no multiple of 64")
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, 32, 3, name="stem.conv", stride=2, act="silu")
    for stage, (channels, repeats, stride, layers) in enumerate(STAGES):
        for index in range(repeats):
            with net.scope(f"stages.{stage}.{index}"):
                x = _inverted_residual(net, x, channels, stride if index == 0 else 1)
        if layers:
            with net.scope(f"stages.{stage}.{repeats}"):
                x = _mobilevit_block(net, x, layers)
    x = blocks.flatten(net, blocks.global_average(net, x))
    return {"output": blocks.gemm(net, x, classes, name="head.fc")}


def _inverted_residual(net: Net, x: Value, channels: int, stride: int) -> Value:
    residual = stride == 1 and x.shape[1] == channels
    middle = 2 * x.shape[1]
    y = blocks.conv(net, x, middle, name="conv1_1x1.conv", act="silu")
    y = blocks.conv(net, y, middle, 3, name="conv2_kxk.conv", stride=stride, groups=middle, act="silu")
    std = blocks.residual_std(x) if residual else 1.0
    y = blocks.conv(net, y, channels, name="conv3_1x1.conv", std=std)
    return blocks.add(net, y, x) if residual else y


def _mobilevit_block(net: Net, x: Value, layers: int) -> Value:
    _, channels, height, width = x.shape
    y = blocks.conv(net, x, channels, 3, name="conv_kxk.conv", groups=channels, act="silu")
    y = blocks.conv(net, y, channels // 2, name="conv_1x1", batch_norm=False, bias=False)
    y = _unfold(net, y)
    for index in range(layers):
        with net.scope(f"transformer.{index}"):
            y = _transformer_layer(net, y)
    y = _fold(net, _group_norm(net, y, "norm"), height, width)
    return blocks.conv(net, y, channels, name="conv_proj.conv")


def _unfold(net: Net, x: Value) -> Value:
    """Turn (batch, channels, height, width) into (batch, channels, pixels of a patch, patches)."""
    batch, channels, height, width = x.shape
    rows, columns = height // PATCH, width // PATCH
    x = blocks.reshape(net, x, (batch, channels, rows, PATCH, columns, PATCH))
    x = blocks.transpose(net, x, (0, 1, 3, 5, 2, 4))
    return blocks.reshape(net, x, (batch, channels, PATCH**2, rows * columns))


def _fold(net: Net, x: Value, height: int, width: int) -> Value:
    batch, channels = x.shape[:2]
    x = blocks.reshape(net, x, (batch, channels, PATCH, PATCH, height // PATCH, width // PATCH))
    x = blocks.transpose(net, x, (0, 1, 4, 2, 5, 3))
    return blocks.reshape(net, x, (batch, channels, height, width))


def _transformer_layer(net: Net, x: Value) -> Value:
    y = _linear_attention(net, _group_norm(net, x, "norm1"), blocks.residual_std(x))
    x = blocks.add(net, x, y)
    y = _group_norm(net, x, "norm2")
    y = blocks.conv(net, y, 2 * x.shape[1], name="mlp.fc1", batch_norm=False, act="silu")
    y = blocks.conv(net, y, x.shape[1], name="mlp.fc2", batch_norm=False, std=blocks.residual_std(x))
    return blocks.add(net, x, y)


def _linear_attention(net: Net, x: Value, std: float) -> Value:
    """Weigh the keys by one score a token, sum them, and scale the values of every token by the sum."""
    channels = x.shape[1]
    joined = blocks.conv(net, x, 1 + 2 * channels, name="attn.qkv_proj", batch_norm=False)
    query, key, value = blocks.split(net, joined, (1, channels, channels), axis=1)
    scores = net.node("Softmax", [query], query.shape, axis=-1)
    weighted = net.node("Mul", [key, scores], key.shape)
    context = blocks.reduce(net, weighted, "ReduceSum", (3,), keep=True)
    rectified = blocks.activation(net, value, "relu")
    shape = net.integers(*value.shape)
    expanded = net.node("Expand", [context, shape], value.shape)
    output = net.node("Mul", [rectified, expanded], value.shape)
    # The context is an average over hundreds of tokens: what is left is mostly what they share.
    output = scaled(output, mean=0.0, power=0.02)
    return blocks.conv(net, output, channels, name="attn.out_proj", batch_norm=False, std=std)


def _group_norm(net: Net, x: Value, name: str) -> Value:
    """Add a group norm with one group, as the exporter writes it: InstanceNormalization on a flat view."""
    batch, channels, pixels, patches = x.shape
    flat = blocks.reshape(net, x, (batch, 1, channels * pixels * patches))
    one, zero = net.constant(np.ones(1, np.float32)), net.constant(np.zeros(1, np.float32))
    normal = net.node("InstanceNormalization", [flat, one, zero], flat.shape, name=name, epsilon=1e-5)
    normal = blocks.reshape(net, scaled(normal, mean=0.0, power=1.0), x.shape)
    scale = net.parameter(f"{name}.weight", net.normal((channels, 1, 1), BIAS_STD, 1.0))
    shift = net.parameter(f"{name}.bias", net.normal((channels, 1, 1), BIAS_STD))
    return net.node("Add", [net.node("Mul", [normal, scale], x.shape), shift], x.shape)
