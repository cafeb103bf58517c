"""Vision Transformer B/16 (Dosovitskiy et al. 2020) as in torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.graph import GraphError
from graphs.zoo import blocks, sequences

if TYPE_CHECKING:
    from graphs.zoo.builder import Net, Value

PATCH, WIDTH, HEADS, DEPTH, HIDDEN = 16, 768, 12, 12, 3072


def vit_b_16(net: Net, *, batch: int = 1, size: int = 224, classes: int = 1000) -> dict[str, Value]:
    """Add torchvision's `vit_b_16`: (batch, 3, size, size) to (batch, classes); size is a multiple of 16."""
    if size % PATCH:
        raise GraphError(f"vit_b_16 cuts the image into patches of {PATCH} pixels: size {size} is no multiple")
    image = net.input("input", (batch, 3, size, size))
    x = blocks.conv(net, image, WIDTH, PATCH, name="conv_proj", stride=PATCH, padding=0, batch_norm=False)
    x = _with_class_token(net, sequences.flatten_grid(net, x))
    positions = net.parameter("encoder.pos_embedding", net.normal((1, *x.shape[1:]), 0.5))
    x = net.node("Add", [x, positions], x.shape)
    for index in range(DEPTH):
        with net.scope(f"encoder.layers.encoder_layer_{index}"):
            x = _layer(net, x)
    x = sequences.layer_norm(net, x, name="encoder.ln", epsilon=1e-6)
    return {"output": blocks.gemm(net, blocks.take(net, x, 0, axis=1), classes, name="heads.head")}


def _with_class_token(net: Net, x: Value) -> Value:
    batch, tokens, width = x.shape
    token = net.parameter("class_token", net.normal((1, 1, width), 1.0))
    expanded = net.node("Expand", [token, net.integers(batch, 1, width)], (batch, 1, width))
    return net.node("Concat", [expanded, x], (batch, tokens + 1, width), axis=1)


def _layer(net: Net, x: Value) -> Value:
    y = sequences.layer_norm(net, x, name="ln_1", epsilon=1e-6)
    query, key, value = sequences.fused_qkv(net, y, HEADS, name="self_attention.in_proj")
    y = sequences.attend(net, sequences.attention_scores(net, query, key), value)
    y = sequences.linear(net, y, WIDTH, name="self_attention.out_proj", std=blocks.residual_std(x))
    x = blocks.add(net, y, x)
    y = sequences.layer_norm(net, x, name="ln_2", epsilon=1e-6)
    y = sequences.mlp(net, y, HIDDEN, names=("mlp.0", "mlp.3"), std=blocks.residual_std(x))
    return blocks.add(net, x, y)
