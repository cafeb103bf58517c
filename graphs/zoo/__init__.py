"""The models of the field, built in code from a seed: `names()` lists them, `build(name)` makes one.

Weights are random by design; nothing here says anything about accuracy. Architectures, tensor shapes, parameter
and multiply-accumulate counts are those of the public implementations (tests/unit/test_zoo.py has the figures).
Batch norms are folded into the convolutions before them.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnx import ModelProto

    from graphs.graph import Graph

OPSETS = range(13, 25)
"""Opsets that the families can be written in."""


class _Entry(NamedTuple):
    module: str
    source: str


_TORCHVISION = "torchvision.models"
_TIMM = "timm.models"
_TRANSFORMERS = "transformers.models"
_CATALOGUE = {
    "convnext_tiny": _Entry("convnext", _TORCHVISION),
    "densenet121": _Entry("densenet", _TORCHVISION),
    "efficientformer_l1": _Entry("efficientformer", _TIMM),
    "efficientnet_lite0": _Entry("efficientnet_lite", _TIMM),
    "googlenet": _Entry("inception", _TORCHVISION),
    "inception_v3": _Entry("inception", _TORCHVISION),
    "mobilenet_v2": _Entry("mobilenet_v2", _TORCHVISION),
    "mobilenet_v3_large": _Entry("mobilenet_v3", _TORCHVISION),
    "mobilenet_v3_small": _Entry("mobilenet_v3", _TORCHVISION),
    "mobilevit_v2": _Entry("mobilevit", _TIMM),
    "regnet_y_400mf": _Entry("regnet", _TORCHVISION),
    "resnet18": _Entry("resnet", _TORCHVISION),
    "resnet50": _Entry("resnet", _TORCHVISION),
    "shufflenet_v2": _Entry("shufflenet_v2", _TORCHVISION),
    "squeezenet1_1": _Entry("squeezenet", _TORCHVISION),
    "swin_tiny": _Entry("swin", _TORCHVISION),
    "vit_b_16": _Entry("vit", _TORCHVISION),
    "whisper_tiny_decoder": _Entry("whisper", _TRANSFORMERS),
    "whisper_tiny_encoder": _Entry("whisper", _TRANSFORMERS),
    "yolov5s": _Entry("yolov5", "github.com/ultralytics/yolov5 v7.0"),
}


def names() -> tuple[str, ...]:
    """Return the names that `build` knows, sorted."""
    return tuple(sorted(_CATALOGUE))


def build(name: str, *, seed: int = 0, opset: int = 17, **options: int | bool) -> Graph:
    """Build a model by name: the same name, seed and options give the same bytes.

    Args:
        name: One of `names()`.
        seed: Seed of the random weights.
        opset: Version of the default ONNX domain, 13 to 24.
        options: What the family's function takes: `batch`, `size` (pixels) and `classes` for image models.

    Raises:
        GraphError: An unknown name or option, or a value that the architecture cannot take.
    """
    from graphs.onnx_io import from_proto

    return from_proto(build_proto(name, seed=seed, opset=opset, **options), name=name)


def build_proto(name: str, *, seed: int = 0, opset: int = 17, **options: int | bool) -> ModelProto:
    """Build a model as `build` does, without checking it or inferring the shapes inside."""
    from graphs.graph import GraphError
    from graphs.zoo.builder import Net

    if name not in _CATALOGUE:
        raise GraphError(f"no zoo model is called {name!r}: choose one of {', '.join(names())}")
    if opset not in OPSETS:
        raise GraphError(f"zoo models are written in opset {OPSETS[0]} to {OPSETS[-1]}, not {opset}")
    entry = _CATALOGUE[name]
    family = getattr(importlib.import_module(f"graphs.zoo.{entry.module}"), name)
    known = list(inspect.signature(family).parameters)[1:]
    for option, value in options.items():
        if option not in known:
            raise GraphError(f"zoo model {name} has no option {option!r}: it takes {', '.join(known)}")
        if not isinstance(value, int) or value < 0:
            raise GraphError(f"option {option} of zoo model {name} must be a whole number, not {value!r}")
    net = Net(name, seed=seed, opset=opset)
    return net.finish(family(net, **options), source=f"{entry.source} {name}")
