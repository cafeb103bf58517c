"""The vocabulary of the transformer families: products, layer norm and attention on (batch, tokens, channels).

Written in the operators of PyTorch's exporter: a `Linear` on three axes is MatMul and Add, its weight transposed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from graphs.zoo import blocks
from graphs.zoo.builder import BIAS_STD, Net, Value, scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARPNESS = 2.0
"""Standard deviation of the queries: attention that is neither an average of all tokens nor a choice of one."""
CONTEXT_POWER = 0.3
"""Mean square left when values of mean square 1 are averaged with such attention."""


def linear(
    net: Net,
    x: Value,
    features: int,
    *,
    name: str,
    bias: bool = True,
    std: float | Sequence[tuple[int, float]] = 1.0,
) -> Value:
    """Apply a matrix and a bias to the last axis.

    `std` is the standard deviation of the output, or of its parts as (features, standard deviation).
    """
    parts = [(features, std)] if isinstance(std, float) else std
    stds = np.concatenate([np.full(size, value, np.float32) for size, value in parts])
    weight = net.normal((x.shape[-1], features), 1 / math.sqrt(x.shape[-1] * x.variance))
    weight *= stds
    shift = net.normal((features,), BIAS_STD) * stds - np.float32(x.mean) * weight.sum(axis=0) if bias else None
    shape = (*x.shape[:-1], features)
    output = net.node("MatMul", [x, net.parameter(f"{name}.weight", weight)], shape, name=f"{name}/MatMul")
    if shift is not None:
        output = net.node("Add", [net.parameter(f"{name}.bias", shift), output], shape, name=f"{name}/Add")
    return scaled(output, mean=0.0, power=float(np.mean(stds**2)))


def layer_norm(net: Net, x: Value, *, name: str, epsilon: float = 1e-5) -> Value:
    """Normalise over the last axis; below opset 17, where ONNX has no such operator, spelled out."""
    scale = net.parameter(f"{name}.weight", net.normal(x.shape[-1:], BIAS_STD, 1.0))
    shift = net.parameter(f"{name}.bias", net.normal(x.shape[-1:], BIAS_STD))
    if net.opset >= 17:
        return net.node("LayerNormalization", [x, scale, shift], x.shape, name=name, axis=-1, epsilon=epsilon)
    last = len(x.shape) - 1
    centred = net.node("Sub", [x, blocks.reduce(net, x, "ReduceMean", [last], keep=True)], x.shape)
    squared = net.node("Pow", [centred, net.scalar(2.0)], x.shape)
    variance = blocks.reduce(net, squared, "ReduceMean", [last], keep=True)
    spread = net.node("Sqrt", [net.node("Add", [variance, net.scalar(epsilon)], variance.shape)], variance.shape)
    normal = net.node("Div", [centred, spread], x.shape)
    return net.node("Add", [net.node("Mul", [normal, scale], x.shape), shift], x.shape)


def mlp(net: Net, x: Value, hidden: int, *, names: tuple[str, str], std: float) -> Value:
    """Add Linear, GELU, Linear; `std` is that of the result."""
    features = x.shape[-1]
    x = blocks.activation(net, linear(net, x, hidden, name=names[0]), "gelu")
    return linear(net, x, features, name=names[1], std=std)


def layer_scale(net: Net, x: Value, shape: Sequence[int], std: float, *, name: str) -> Value:
    """Multiply by a trained factor for each channel; here one that gives `x` the standard deviation `std`."""
    factor = std / math.sqrt(x.variance)
    gamma = net.parameter(name, net.normal(shape, BIAS_STD * factor, factor))
    output = net.node("Mul", [x, gamma], x.shape)
    return scaled(output, mean=x.mean * factor, power=std**2 + (x.mean * factor) ** 2)


def fused_qkv(net: Net, x: Value, heads: int, *, name: str) -> tuple[Value, Value, Value]:
    """Project to queries, keys and values (batch, heads, tokens, channels of a head) with one matrix."""
    batch, tokens, channels = x.shape
    joined = linear(net, x, 3 * channels, name=name, std=[(channels, SHARPNESS), (2 * channels, 1.0)])
    joined = blocks.reshape(net, joined, (batch, tokens, 3, heads, channels // heads))
    joined = blocks.transpose(net, joined, (2, 0, 3, 1, 4))
    query, key, value = (blocks.take(net, joined, index, axis=0) for index in range(3))
    return query, key, value


def attention_scores(net: Net, query: Value, key: Value, *, scale_first: bool = True) -> Value:
    """Return the scaled products of queries and keys, (batch, heads, queries, keys)."""
    factor = net.scalar(query.shape[-1] ** -0.5)
    if scale_first:
        query = net.node("Mul", [query, factor], query.shape)
    shape = (*query.shape[:-1], key.shape[-2])
    product = net.node("MatMul", [query, blocks.transpose(net, key, (0, 1, 3, 2))], shape)
    return product if scale_first else net.node("Mul", [product, factor], shape)


def attend(net: Net, scores: Value, value: Value) -> Value:
    """Average the values by the softmax of the scores and put the heads side by side: (batch, tokens, channels)."""
    weights = net.node("Softmax", [scores], scores.shape, axis=-1)
    batch, heads, tokens = scores.shape[:3]
    context = net.node("MatMul", [weights, value], (batch, heads, tokens, value.shape[-1]))
    context = blocks.transpose(net, context, (0, 2, 1, 3))
    joined = blocks.reshape(net, context, (batch, tokens, heads * value.shape[-1]))
    return scaled(joined, mean=0.0, power=CONTEXT_POWER)


def flatten_grid(net: Net, x: Value) -> Value:
    """Turn (batch, channels, height, width) into (batch, height * width, channels)."""
    batch, channels, height, width = x.shape
    return blocks.transpose(net, blocks.reshape(net, x, (batch, channels, height * width)), (0, 2, 1))
