"""Layers from text and from graphs."""

from __future__ import annotations

import pytest

from graphs import zoo
from partition.tile import TileError, layers_of, parse_operator


def test_a_convolution_from_text() -> None:
    layer = parse_operator("conv2d:c=64,k=128,y=56,x=28,f=3x5,s=2,d=2x1,n=2")
    assert (layer.y, layer.x, layer.pads, layer.batch) == (28, 14, (2, 2), 2)
    assert layer.macs == 2 * 28 * 14 * 128 * 64 * 15


def test_groups_and_depthwise_from_text() -> None:
    grouped = parse_operator("conv2d:c=64,k=128,y=56,x=56,f=3,g=4")
    assert (grouped.kind, grouped.groups, grouped.c, grouped.k) == ("conv", 4, 16, 32)
    depthwise = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3,g=64")
    assert (depthwise.kind, depthwise.groups, depthwise.c, depthwise.k) == ("depthwise", 1, 1, 64)
    assert depthwise.macs == 56 * 56 * 64 * 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reshape:a=1", "operator 'reshape' has no tiles here; give one of conv2d"),
        ("conv2d", "cannot read 'an operator without sizes'"),
        ("conv2d:c=3", "lacks f; write conv2d:c=64"),
        ("conv2d:c=0,k=1,y=4,x=4,f=1", "c=0 is not a size of at least 1"),
        ("conv2d:c=3,k=4,y=2,x=2,f=7,p=0", "a 7x7 window does not fit the padded input of 2x2"),
        ("conv2d:c=3,k=4,y=2,x=2,f=1,g=2", "2 groups do not divide 3 input and 4 output channels"),
        ("conv2d:c=3,k=4,y=2,x=2,f=1,z=2", "conv2d has no 'z'"),
        ("matmul:m=2x3,c=4,k=4", "m of 'matmul:m=2x3,c=4,k=4' is one number"),
        ("matmul:m", "cannot read 'm'; write matmul"),
    ],
)
def test_bad_text_is_answered_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(TileError) as refused:
        parse_operator(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2"])
def test_the_layers_of_a_graph_hold_all_its_multiply_adds(name: str) -> None:
    graph = zoo.build(name)
    layers, refused = layers_of(graph)
    counted = sum(layer.macs for layer in layers if layer.kind in ("conv", "depthwise", "matmul"))
    assert counted == graph.macs
    assert {layer.name for layer in layers} | set(refused) == {node.name for node in graph.nodes()}
    assert all("has no tiles" in reason for reason in refused.values())


def test_attention_is_a_batch_of_products_and_spans() -> None:
    layers, _ = layers_of(zoo.build("whisper_tiny_encoder"))
    kinds = {(layer.kind, layer.op_type) for layer in layers}
    assert {("matmul", "MatMul"), ("norm", "Softmax"), ("norm", "LayerNormalization"), ("conv", "Conv")} <= kinds
    assert any(layer.kind == "matmul" and layer.groups > 1 for layer in layers)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:c=6,k=4,y=9,x=7,f=3x5,s=2,d=2x1,n=2",
        "conv2d:c=8,k=16,y=5,x=5,f=3,g=4,p=0",
        "conv2d:c=8,k=8,y=6,x=6,f=3,g=8",
        "matmul:m=5,c=3,k=4,b=2",
        "matmul:m=5,c=3,k=4",
        "maxpool:c=3,y=7,x=7,f=3,s=2,p=1",
    ],
)
def test_an_operator_as_a_model_is_the_same_operator(text: str) -> None:
    from experiments.tiles_build import graph_of

    layer = parse_operator(text)
    (found,), refused = layers_of(graph_of(layer))
    assert found.signature == layer.signature
    assert not refused
