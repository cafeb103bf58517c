"""Export public models that Qualcomm's table measures and the zoo lacks, for `experiments.calibrate --models`.

Usage: python benchmarks/export_hub_models.py FOLDER [NAME ...]

Needs the extra `zoo-check` (several GB with torch), for MiDaS `geffnet`; nothing is downloaded, the models start
untrained. Each file is FOLDER/<model id of the table>.onnx with the input size of Qualcomm's AI Hub Models and, where
the hub has it, the normalisation (x - mean) / std inside the graph (github.com/quic/ai-hub-models, BSD-3, read for
this; no code taken).
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import onnx
import torch
import torchvision
from hub_dense_networks import DeepLab, EyeGaze, FfNet, Midas
from hub_networks import (
    BlazeDetector,
    BlazeLandmarks,
    CavaFace,
    DeepBox,
    GpuNet,
    HrNetFace,
    MobileFaceNet,
    OsNet,
    PalmDetector,
    PoseLandmarks,
    PoseNet,
    SesrM5,
    SrResNet,
    Xlsr,
)
from onnx import helper, numpy_helper
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SYMMETRIC = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_YAMNET_WIDTHS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
_YAMNET_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
KINETICS = ((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))


class Normalised(nn.Module):
    """Images of 0..1 in, normalised inside; the first output of the model out."""

    def __init__(self, model: nn.Module, statistics: tuple[tuple[float, ...], ...] | None, rank: int) -> None:
        super().__init__()
        self.model = model
        shape = (1, 3, *[1] * (rank - 2))
        if statistics:
            self.register_buffer("mean", torch.tensor(statistics[0]).reshape(shape))
            self.register_buffer("std", torch.tensor(statistics[1]).reshape(shape))
        self.statistics = statistics

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = self.model((image - self.mean) / self.std if self.statistics else image)
        return found if isinstance(found, torch.Tensor) else found[0]


class Flipped(nn.Module):
    """Images whose channels are turned round before the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model(torch.flip(image, (1,)))


class FlatPool(nn.Module):
    """Global average over all positions in rank 3, as the hub's video models have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], x.shape[1], -1).mean(dim=2)


class Fcn(nn.Module):
    """torchvision's FCN on a ResNet-50; the class of each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model(image)["out"].argmax(1).byte()


class DnCnn(nn.Module):
    """DnCNN for one level of noise (Zhang et al. 2017): 17 convolutions of 64 channels; the noise is subtracted."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
        for _ in range(15):
            layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(64, 1, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x - self.body(x), 0.0, 1.0)


class YamNet(nn.Module):
    """MobileNet-v1 on 96 frames of 64 mel bands, 521 classes (Plakal and Ellis 2020)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU()]
        channels = 32
        for width, stride in zip(_YAMNET_WIDTHS, _YAMNET_STRIDES, strict=True):
            layers += [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, width, 1), nn.ReLU()]
            channels = width
        self.body = nn.Sequential(*layers)
        self.classes = nn.Linear(channels, 521)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        return self.classes(self.body(mel).mean((2, 3)))


class QuickSrNet(nn.Module):
    """QuickSRNet-Large times 4 (Berger et al. 2023): 11 inner convolutions, the input repeated and added at the end."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1), nn.Hardtanh(0, 1)]
        for _ in range(11):
            layers += [nn.Conv2d(64, 64, 3, padding=1), nn.Hardtanh(0, 1)]
        self.body = nn.Sequential(*layers, nn.Conv2d(64, 48, 3, padding=1))
        self.repeat = nn.Conv2d(3, 48, 1, bias=False)
        self.end = nn.Sequential(nn.Hardtanh(0, 1), nn.PixelShuffle(4))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.end(self.body(image) + self.repeat(image))


def main(arguments: list[str]) -> int:
    """Export the named models, or all, into the folder."""
    warnings.simplefilter("ignore")
    folder, names = Path(arguments[0]), arguments[1:] or list(_MODELS)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        build, *shapes = _MODELS[name]
        torch.manual_seed(0)
        path = folder / f"{name}.onnx"
        _export(build().eval(), tuple(torch.rand(shape) for shape in shapes), path)
        if name in _FLAT:
            flatten_products(path)
        print(name, flush=True)
    return 0


def _export(model: nn.Module, images: tuple[torch.Tensor, ...], path: Path) -> None:
    # The fused attention of PyTorch exports to operators that no NPU compiler takes.
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), patch.object(nn.functional, "scaled_dot_product_attention", attention):
        names = ["image", *(f"image{n}" for n in range(2, len(images) + 1))]
        torch.onnx.export(model, images, str(path), input_names=names, opset_version=17, dynamo=False)
    fill_pads(path)


def fill_pads(path: Path) -> None:
    """Leave out the empty name that TorchScript gives a Pad for its value: it keeps the Pad out of the convolution."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Pad" and not node.input[-1]:
            del node.input[2:]
    onnx.save(model, path)


def flatten_products(path: Path) -> None:
    """Write each MatMul by a matrix, with the Add of its bias, as a Gemm of two axes between Reshapes, as the hub does.

    The layers of the table say so: ONNX Runtime has a fusion for it, too, which leaves out attention.
    """
    model = onnx.load(path)
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.value_info)}
    weights = {weight.name: list(weight.dims) for weight in graph.initializer}
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}  # of equal weights
    weights |= {name: weights[weight] for name, weight in same.items() if weight in weights}
    readers = {name: node for node in graph.node for name in node.input}
    taken: set[str] = set()
    nodes = []
    for node in model.graph.node:
        if node.output[0] in taken:
            continue
        if node.op_type != "MatMul" or len(weights.get(node.input[1], ())) != 2 or len(shapes[node.input[0]]) < 3:
            nodes.append(node)
            continue
        assert all(shapes[node.input[0]]), node.name
        (x, weight), after = node.input, readers.get(node.output[0], node)
        bias = [name for name in after.input if after.op_type == "Add" and len(weights.get(name, ())) == 1]
        out = after.output[0] if bias else node.output[0]
        taken.add(out)
        inner, outer = weights[weight]
        for suffix, shape in (("rows", [-1, inner]), ("shape", [*shapes[x][:-1], outer])):
            model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{out}_{suffix}"))
        nodes += [
            helper.make_node("Reshape", [x, f"{out}_rows"], [f"{out}_in"], f"{node.name}_in"),
            helper.make_node("Gemm", [f"{out}_in", weight, *bias], [f"{out}_flat"], node.name),
            helper.make_node("Reshape", [f"{out}_flat", f"{out}_shape"], [out], f"{node.name}_out"),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    *dropped_or_causal: float, scale: float | None = None, **others: float,
) -> torch.Tensor:  # fmt: skip
    """Attention with one scale, where PyTorch's exporter writes one for queries and one for keys."""
    assert not any((*dropped_or_causal, *others.values()))
    scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
    if attn_mask is not None:
        assert attn_mask.is_floating_point()
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


def _tv(name: str) -> Callable[[], nn.Module]:
    return lambda: Normalised(torchvision.models.get_model(name, weights=None), IMAGENET, 4)


def _timm(name: str, statistics: tuple[tuple[float, ...], ...] = IMAGENET) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return Normalised(timm.create_model(name, pretrained=False, scriptable=True, exportable=True), statistics, 4)

    return build


def _video(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = torchvision.models.get_model(name, weights=None)
        model.avgpool = FlatPool()
        return Normalised(model, KINETICS, 5)

    return build


def _hugging_face(name: str, *, normalised: bool, **config: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        settings = getattr(transformers, f"{name}Config")(**config)  # with the attention that the hub's has by default
        model = getattr(transformers, f"{name}ForImageClassification")(settings).eval()
        _fold_norms(model)
        return Normalised(model, IMAGENET if normalised else None, 4)

    return build


def _fold_norms(model: nn.Module) -> None:
    """Let LeViT's products contain the norms behind them, of which the table has no layers."""
    for part in model.modules():
        if type(part).__name__ == "MLPLayerWithBN":
            part.linear = nn.utils.fuse_linear_bn_eval(part.linear, part.batch_norm)
            part.forward = part.linear.forward


_IMAGE = (1, 3, 224, 224)
_CLIP = (1, 3, 16, 112, 112)
_FACE = (1, 3, 112, 112)
_SMALL = (1, 3, 128, 128)
# Transformers whose layers show that their products are of two axes there.
_FLAT = ("levit",)
# How to build it, and the shape of each input.
_MODELS: dict[str, tuple[Callable[[], nn.Module], *tuple[tuple[int, ...], ...]]] = {
    "efficientnet_b0": (_tv("efficientnet_b0"), _IMAGE),
    "regnet": (_tv("regnet_x_3_2gf"), _IMAGE),
    "wideresnet50": (_tv("wide_resnet50_2"), _IMAGE),
    "resnext101": (_tv("resnext101_32x8d"), _IMAGE),
    "levit": (
        _hugging_face(
            "Levit", normalised=True, hidden_sizes=[128, 256, 384], num_attention_heads=[4, 6, 8],
            depths=[2, 3, 4], key_dim=[16, 16, 16], num_labels=1000,
            down_ops=[["Subsample", 16, 8, 4, 2, 2], ["Subsample", 16, 16, 4, 2, 2]],
        ),
        _IMAGE,
    ),
    "mobile_vit": (
        lambda: Flipped(_hugging_face("MobileViT", normalised=False, num_labels=1000)()), (1, 3, 256, 256),
    ),
    "dncnn": (DnCnn, (1, 1, 256, 256)),
    "mobilenet_v4": (_timm("mobilenetv4_conv_medium"), _IMAGE),
    "repvit": (_timm("repvit_m2_3"), _IMAGE),
    "resnet_mixed": (_video("mc3_18"), _CLIP),
    "resnet_2plus1d": (_video("r2plus1d_18"), _CLIP),
    "beit": (
        _hugging_face(
            "Beit", normalised=False, num_labels=1000, use_relative_position_bias=True,
            use_absolute_position_embeddings=False, use_mask_token=False,
        ),
        _IMAGE,
    ),
    "inception_v4": (_timm("inception_v4", SYMMETRIC), (1, 3, 299, 299)),
    "quicksrnetlarge": (QuickSrNet, (1, 3, 128, 128)),
    "yamnet": (YamNet, (1, 1, 96, 64)),
    "nasnet": (_timm("nasnetalarge", SYMMETRIC), (1, 3, 331, 331)),
    "osnet": (lambda: Normalised(OsNet(), IMAGENET, 4), (1, 3, 256, 128)),
    "cavaface": (CavaFace, (1, 3, 112, 112)),
    "deepbox__vgg_3d_detection": (DeepBox, _IMAGE),
    "xlsr": (Xlsr, _SMALL),
    "sesr_m5": (SesrM5, _SMALL),
    "srgan": (SrResNet, _SMALL),
    "posenet_mobilenet": (PoseNet, (1, 3, 513, 257)),
    "mobile_facenet": (MobileFaceNet, _FACE, _FACE),
    "mediapipe_face__face_detector": (lambda: BlazeDetector(faces=True), (1, 3, 256, 256)),
    "mediapipe_face__face_landmark_detector": (BlazeLandmarks, (1, 3, 192, 192)),
    "mediapipe_pose__pose_detector": (lambda: BlazeDetector(faces=False), _SMALL),
    "mediapipe_pose__pose_landmark_detector": (PoseLandmarks, (1, 3, 256, 256)),
    "mediapipe_hand_gesture__palm_detector": (PalmDetector, (1, 3, 256, 256)),
    "deeplabv3_plus_mobilenet": (lambda: Normalised(DeepLab(), IMAGENET, 4), (1, 3, 520, 520)),
    "fcn_resnet50": (lambda: Normalised(Fcn(), IMAGENET, 4), (1, 3, 520, 520)),
    "midas": (lambda: Normalised(Midas(), IMAGENET, 4), (1, 3, 256, 256)),
    "ffnet_78s_lowres": (lambda: Normalised(FfNet(lowres=True), IMAGENET, 4), (1, 3, 512, 1024)),
    "ffnet_54s": (lambda: Normalised(FfNet(lowres=False), IMAGENET, 4), (1, 3, 1024, 2048)),
    "eyegaze": (EyeGaze, (1, 96, 160)),
    "gpunet": (lambda: Normalised(GpuNet(), IMAGENET, 4), _IMAGE),
    "hrnet_face": (lambda: Normalised(HrNetFace(), IMAGENET, 4), (1, 3, 256, 256)),
    "swin_small": (_tv("swin_s"), _IMAGE),
    "swin_base": (_tv("swin_b"), _IMAGE),
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
