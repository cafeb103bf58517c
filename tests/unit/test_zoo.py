"""The zoo against the published figures, and that its models compute something."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime
import pytest

from graphs import GraphError, random_inputs, zoo

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from graphs import Graph


class Published(NamedTuple):
    """What a public source states about a model."""

    parameters: float
    macs: float
    folded: int
    """Elements that folding saves: one a channel, two where the convolution had a bias of its own."""
    source: str
    options: Mapping[str, int] = MappingProxyType({})


TORCHVISION = "torchvision 0.29 weights, meta: num_params and _ops (GFLOPS there are 1e9 multiply-accumulates)"


def _whisper_encoder() -> Published:
    """Count by hand from the published dimensions: no source gives the two halves apart."""
    width, hidden, frames = 384, 1536, 1500
    attention = 4 * width**2 + 3 * width
    layer = attention + 2 * width * hidden + hidden + width + 4 * width
    parameters = (80 + width) * width * 3 + 2 * width + frames * width + 4 * layer + 2 * width
    convolutions = 3000 * width * 80 * 3 + frames * width * width * 3
    macs = convolutions + 4 * (frames * (4 * width**2 + 2 * width * hidden) + 2 * frames**2 * width)
    return Published(parameters, macs, 0, "openai/whisper-tiny config.json, by hand")


def _whisper_prompt() -> Published:
    width, hidden, audio, vocabulary, tokens = 384, 1536, 1500, 51865, 4
    layer = 2 * (4 * width**2 + 3 * width) + 2 * width * hidden + hidden + width + 6 * width
    parameters = (vocabulary + 448) * width + 4 * layer + 2 * width
    products = tokens * (6 * width**2 + 2 * width * hidden) + 2 * audio * width**2
    macs = 4 * (products + 2 * tokens * (tokens + audio) * width) + tokens * width * vocabulary
    return Published(parameters, macs, 0, "openai/whisper-tiny config.json, by hand", {"cache": False})


PUBLISHED = {
    "convnext_tiny": Published(28589128, 4.456e9, 0, TORCHVISION),
    "densenet121": Published(7978856, 2.834e9, 7488, TORCHVISION),
    "efficientformer_l1": Published(12.29e6, 1.30e9, 31920, "timm results/benchmark-infer-amp-nhwc"),
    "efficientnet_lite0": Published(4.652e6, 0.385e9, 21008, "github.com/d-li14/efficientnet-lite.pytorch README"),
    "googlenet": Published(6624904, 1.498e9, 7280, TORCHVISION),
    # num_params counts the auxiliary head, which inference does not run and the export does not have.
    "inception_v3": Published(27161264 - 3326696, 5.713e9, 17216, TORCHVISION),
    "mobilenet_v2": Published(3504872, 0.301e9, 17056, TORCHVISION),
    "mobilenet_v3_large": Published(5483032, 0.217e9, 12200, TORCHVISION),
    "mobilenet_v3_small": Published(2542856, 0.057e9, 6056, TORCHVISION),
    "mobilevit_v2": Published(4.90e6, 1.8e9, 7776, "Mehta and Rastegari 2022, MobileViTv2-1.0; timm: 4.90 M"),
    "regnet_y_400mf": Published(4344144, 0.402e9, 13576, TORCHVISION),
    "resnet18": Published(11689512, 1.814e9, 4800, TORCHVISION),
    "resnet50": Published(25557032, 4.089e9, 26560, TORCHVISION),
    "shufflenet_v2": Published(2278604, 0.145e9, 8090, TORCHVISION),
    "squeezenet1_1": Published(1235496, 0.349e9, 0, TORCHVISION),
    "swin_tiny": Published(28288354, 4.491e9, 0, TORCHVISION),
    "vit_b_16": Published(86567656, 17.564e9, 0, TORCHVISION),
    "whisper_tiny_decoder": _whisper_prompt(),
    "whisper_tiny_encoder": _whisper_encoder(),
    # The README says 7.2 M and 16.5 GFLOPs, two to a multiply-accumulate; the exact count is in its model summary.
    "yolov5s": Published(7235389, 16.5e9 / 2, 9504, "github.com/ultralytics/yolov5 v7.0 README and model summary"),
}
WHISPER_TINY_PARAMETERS = 37_760_640
"""Both halves, as transformers counts them (OpenAI's table says 39 M)."""

# Stored at another size than trained: biases looked up for every pair of positions.
LOOKED_UP = {
    "swin_tiny": sum(depth * heads * (49**2 - 13**2) for depth, heads in ((2, 3), (2, 6), (6, 12), (2, 24))),
    "efficientformer_l1": 8 * (49**2 - 49),
}
# Positions that the prompt does not reach are not stored.
CUT_OFF = {"whisper_tiny_decoder": (448 - 4) * 384}


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def model(request: pytest.FixtureRequest) -> tuple[str, Graph]:
    name: str = request.param
    return name, zoo.build(name, **PUBLISHED[name].options)


def test_every_name_is_compared() -> None:
    assert zoo.names() == tuple(sorted(PUBLISHED))


def test_parameters_are_the_published_ones(model: tuple[str, Graph]) -> None:
    name, graph = model
    published = PUBLISHED[name]
    stored = _trained_elements(graph.proto()) - LOOKED_UP.get(name, 0) + CUT_OFF.get(name, 0)
    assert stored + published.folded == pytest.approx(published.parameters, rel=1e-3)
    assert _facts(graph)["published_parameters"] == str(stored + published.folded)


def test_macs_are_the_published_ones(model: tuple[str, Graph]) -> None:
    name, graph = model
    assert graph.macs == pytest.approx(PUBLISHED[name].macs, rel=1e-2)


def test_outputs_are_finite_and_tell_inputs_apart(model: tuple[str, Graph]) -> None:
    name, graph = model
    session = _session(graph)
    first, second = (session.run(None, random_inputs(graph, seed)) for seed in (1, 2))
    for one, other in zip(first, second, strict=True):
        assert np.isfinite(one).all()
        # Rows of a class vector, a token or a box; every one must carry something.
        assert one.std(axis=-1).min() > 0.05
        # Logits of order 1, also in 8 bits; boxes are in pixels.
        assert np.abs(one).max() < (2000 if name == "yolov5s" else 30)
        assert np.abs(one - other).mean() > 0.01 * one.std()


def test_file_says_that_weights_are_random(model: tuple[str, Graph]) -> None:
    _, graph = model
    assert "Random weights, seed 0" in graph.proto().doc_string
    assert _facts(graph)["weights"] == "random"


def test_whisper_halves_make_the_published_whole() -> None:
    assert _whisper_encoder().parameters + _whisper_prompt().parameters == WHISPER_TINY_PARAMETERS


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "mobilevit_v2"])
def test_seed_decides_the_bytes(name: str) -> None:
    first, again, other = (zoo.build_proto(name, seed=seed).SerializeToString(deterministic=True) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mobilenet_v3_small", {"size": 64}),
        ("shufflenet_v2", {"size": 64}),
        ("efficientformer_l1", {"size": 64}),
        ("mobilevit_v2", {"size": 64}),
        ("whisper_tiny_encoder", {"seconds": 1}),
        ("yolov5s", {"size": 64}),
    ],
)
def test_opsets_compute_the_same(name: str, options: dict[str, int], opset: int) -> None:
    reference, graph = zoo.build(name, **options), zoo.build(name, opset=opset, **options)
    feed = random_inputs(reference, 5)
    (expected,), (output,) = (_session(item).run(None, feed) for item in (reference, graph))
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)


def test_options_set_the_shapes() -> None:
    graph = zoo.build("resnet18", batch=2, size=96, classes=7)
    assert [spec.shape for spec in graph.inputs()] == [(2, 3, 96, 96)]
    assert [spec.shape for spec in graph.outputs()] == [(2, 7)]
    assert zoo.build("yolov5s", size=224).outputs()[0].shape == (1, 3 * (28**2 + 14**2 + 7**2), 85)
    assert zoo.build("whisper_tiny_encoder", seconds=1).outputs()[0].shape == (1, 50, 384)


def test_decoder_step_with_cache() -> None:
    graph = zoo.build("whisper_tiny_decoder", past=10, seconds=2)
    shapes = {spec.name: spec.shape for spec in (*graph.inputs(), *graph.outputs())}
    assert shapes["input_ids"] == (1, 1)
    assert shapes["past_key_values.3.decoder.value"] == (1, 6, 10, 64)
    assert shapes["past_key_values.0.encoder.key"] == (1, 6, 100, 64)
    assert shapes["present.3.decoder.value"] == (1, 6, 11, 64)
    outputs = _session(graph).run(None, random_inputs(graph, 0))
    assert outputs[0].shape == (1, 1, 51865)
    assert all(np.isfinite(output).all() for output in outputs)


def test_decoder_prompt_cannot_see_the_future() -> None:
    graph = zoo.build("whisper_tiny_decoder", cache=False, tokens=5, seconds=1)
    feed = random_inputs(graph, 0)
    changed = feed | {"input_ids": feed["input_ids"] + np.array([[0, 0, 0, 0, 9]])}
    session = _session(graph)
    (before, after) = (session.run(["logits"], item)[0] for item in (feed, changed))
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-4)
    assert np.abs(before[:, 4] - after[:, 4]).max() > 0.1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet19", {}, "no zoo model is called 'resnet19'"),
        ("resnet18", {"width": 2}, "no option 'width': it takes batch, size, classes"),
        ("resnet18", {"batch": -1}, "must be a whole number"),
        ("resnet18", {"batch": 0}, "is too small"),
        ("resnet18", {"opset": 7}, "opset 13 to 24, not 7"),
        ("inception_v3", {"size": 32}, "is too small"),
        ("yolov5s", {"size": 100}, "no multiple"),
        ("vit_b_16", {"size": 100}, "no multiple"),
        ("swin_tiny", {"size": 256}, "no multiple of 224"),
        ("mobilevit_v2", {"size": 224}, "no multiple of 64"),
        ("whisper_tiny_encoder", {"seconds": 31}, "1 to 30 seconds"),
        ("whisper_tiny_decoder", {"past": 448}, "1 to 448 tokens"),
    ],
)
def test_refusals(name: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        zoo.build(name, **options)


def _trained_elements(proto: onnx.ModelProto) -> int:
    """Count the elements of the tensors that carry a name of a PyTorch state dict and are trained."""
    untrained = ("constant", "grid", "anchor_grid", "attention_mask", "causal_mask")
    return sum(
        math.prod(tensor.dims)
        for tensor in proto.graph.initializer
        if not tensor.name.startswith(untrained) and ".running_" not in tensor.name
    )


def _facts(graph: Graph) -> dict[str, str]:
    return {item.key: item.value for item in graph.proto().metadata_props}


def _session(graph: Graph) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph.proto().SerializeToString(), options, providers=["CPUExecutionProvider"])
