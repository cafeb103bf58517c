"""Public networks that Qualcomm's table measures and no package on PyPI holds, untrained, for `export_hub_models`."""

from __future__ import annotations

import torch
import torchvision
from torch import nn


class Unit(nn.Sequential):
    """Convolution, batch normalisation and, unless told otherwise, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, relu: bool = True) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), *([nn.ReLU()] if relu else []))


class Light(nn.Sequential):
    """Point-wise and then depth-wise 3x3 convolution of OSNet."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(width, width, 1, bias=False),
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )


class Gate(nn.Module):
    """Channels weighed by a sigmoid of their means (squeeze and excitation)."""

    def __init__(self, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 16, 1, bias=bias),
            nn.ReLU(),
            nn.Conv2d(width // 16, width, 1, bias=bias),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weigh(x)


class OmniBlock(nn.Module):
    """Four streams of one to four light convolutions, gated by one shared gate and summed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        middle = outputs // 4
        self.reduce = Unit(inputs, middle)
        self.streams = nn.ModuleList(nn.Sequential(*(Light(middle) for _ in range(n))) for n in (1, 2, 3, 4))
        self.gate = Gate(middle)
        self.expand = Unit(middle, outputs, relu=False)
        self.skip = Unit(inputs, outputs, relu=False) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.reduce(x)
        parts = [self.gate(stream(first)) for stream in self.streams]
        return torch.relu(self.expand(parts[0] + parts[1] + parts[2] + parts[3]) + self.skip(x))


class OsNet(nn.Module):
    """OSNet x1.0 (Zhou et al. 2019), its 512 features normalised to length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1),
            OmniBlock(64, 256), OmniBlock(256, 256), Unit(256, 256), nn.AvgPool2d(2),
            OmniBlock(256, 384), OmniBlock(384, 384), Unit(384, 384), nn.AvgPool2d(2),
            OmniBlock(384, 512), OmniBlock(512, 512), Unit(512, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.body(image))


class FaceBlock(nn.Module):
    """Bottleneck of the improved residual network of ArcFace with squeeze and excitation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.skip = Unit(inputs, outputs, 1, stride, relu=False) if inputs != outputs else nn.MaxPool2d(1, stride)
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            Gate(outputs, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.skip(x)


class CavaFace(nn.Module):
    """IR-SE-100 for 112 pixels (Deng et al. 2019): 3, 13, 30 and 3 blocks; 512 features of length 1."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64)]
        inputs = 64
        for outputs, count in ((64, 3), (128, 13), (256, 30), (512, 3)):
            layers += [FaceBlock(inputs if n == 0 else outputs, outputs, 2 if n == 0 else 1) for n in range(count)]
            inputs = outputs
        head = (nn.BatchNorm2d(512), nn.Flatten(), nn.Linear(512 * 49, 512), nn.BatchNorm1d(512))
        self.body = nn.Sequential(*layers, *head)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = self.body((image * 255 - 127.5) / 128)
        return found / (torch.norm(found, dim=1, keepdim=True) + 1e-9)


class DeepBox(nn.Module):
    """VGG-19 with batch normalisation and three heads (Mousavian et al. 2017); takes RGB of 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torchvision.models.vgg19_bn(weights=None).features
        self.orientation = self._head(256, 4)
        self.confidence = self._head(256, 2)
        self.dimension = self._head(512, 3)
        self.register_buffer("mean", torch.tensor((0.485, 0.456, 0.406)).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor((0.229, 0.224, 0.225)).reshape(1, 3, 1, 1))

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Sequential:
        first, second = nn.Linear(512 * 49, width), nn.Linear(width, width)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.features((torch.flip(image, [1]) - self.mean) / self.std).flatten(1)
        orientation = nn.functional.normalize(self.orientation(found).reshape(-1, 2, 2), dim=2)
        return orientation, self.confidence(found), self.dimension(found)
