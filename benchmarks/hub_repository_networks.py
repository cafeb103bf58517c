"""Networks of the repositories that Qualcomm's model definitions name, written anew for `export_hub_definitions.py`.

AOT-GAN (Zeng et al. 2021) and YOLOv4-tiny (Wang et al. 2021), with the sizes of the repositories; no code is taken.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class AotBlock(nn.Module):
    """Four dilated branches, fused and mixed with the input by a normalised gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(_reflected(width, width // 4, d), nn.ReLU()) for d in (1, 2, 4, 8))
        self.fuse, self.gate = _reflected(width, width, 1), _reflected(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fused = self.fuse(torch.cat([branch(x) for branch in self.branches], 1))
        gate = self.gate(x)
        mean = gate.mean((2, 3), keepdim=True)
        count = gate.shape[2] * gate.shape[3]
        # as the hub's patch has it, for torch.std has no export
        std = torch.sqrt(torch.sum((gate - mean) ** 2 / (count - 1), (2, 3), keepdim=True)) + 1e-9
        mask = torch.sigmoid(5 * (2 * (gate - mean) / std - 1))
        return x * (1 - mask) + fused * mask


class InpaintGenerator(nn.Module):
    """AOT-GAN's generator."""

    def __init__(self, settings: object) -> None:
        super().__init__()
        del settings  # the hub gives the repository's defaults
        self.encoder = nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(4, 64, 7), nn.ReLU(),
            nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, 256, 4, 2, 1), nn.ReLU(),
        )  # fmt: skip
        self.middle = nn.Sequential(*(AotBlock(256) for _ in range(8)))
        up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.decoder = nn.Sequential(
            up, nn.Conv2d(256, 128, 3, 1, 1), nn.ReLU(), up, nn.Conv2d(128, 64, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(64, 3, 3, 1, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.middle(self.encoder(torch.cat([image, mask], 1))))


class TinyStage(nn.Module):
    """A stage of CSPDarknet53-tiny: all channels for the next one, and the features before the last Concat."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = _leaky(width, width, 3), _leaky(width, width, 1)
        self.inner = nn.ModuleList(_leaky(width // 2, width // 2, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        route = self.first(x)
        one = self.inner[0](torch.chunk(route, 2, 1)[1])
        features = self.last(torch.cat([self.inner[1](one), one], 1))
        return functional.max_pool2d(torch.cat([route, features], 1), 2), features


class YoloBody(nn.Module):
    """YOLOv4-tiny without attention: the coarse and the fine head."""

    def __init__(self, anchors: list[list[int]], classes: int) -> None:
        super().__init__()
        outputs = [len(mask) * (5 + classes) for mask in anchors]
        self.stem = nn.Sequential(_leaky(3, 32, 3, 2), _leaky(32, 64, 3, 2))
        self.stages = nn.ModuleList(TinyStage(width) for width in (64, 128, 256))
        self.neck = nn.Sequential(_leaky(512, 512, 3), _leaky(512, 256, 1))
        self.coarse = nn.Sequential(_leaky(256, 512, 3), nn.Conv2d(512, outputs[0], 1))
        self.up = nn.Sequential(_leaky(256, 128, 1), nn.Upsample(scale_factor=2))
        self.fine = nn.Sequential(_leaky(384, 256, 3), nn.Conv2d(256, outputs[1], 1))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(image)
        for stage in self.stages:
            x, features = stage(x)
        x = self.neck(x)
        return self.coarse(x), self.fine(torch.cat([self.up(x), features], 1))


def _reflected(channels: int, width: int, dilation: int) -> nn.Module:
    return nn.Sequential(nn.ReflectionPad2d(dilation), nn.Conv2d(channels, width, 3, dilation=dilation))


def _leaky(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.LeakyReLU(0.1))
