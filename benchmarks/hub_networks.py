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


class GroupBlock(nn.Sequential):
    """Grouped 3x3 and point-wise convolution of XLSR."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Conv2d(width, width, 3, padding=1, groups=4), nn.ReLU(), nn.Conv2d(width, width, 1))


class Xlsr(nn.Module):
    """XLSR times 4 (Ayazoglu 2021): three grouped blocks, a convolved copy of the input joined on."""

    def __init__(self) -> None:
        super().__init__()
        self.residual = nn.Conv2d(3, 16, 3, padding=1)
        head = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 1))
        self.body = nn.Sequential(*head, *(GroupBlock(32) for _ in range(3)))
        self.tail = nn.Sequential(nn.Conv2d(48, 32, 1), nn.ReLU(), nn.Conv2d(32, 48, 3, padding=1))
        self.end = nn.Sequential(nn.PixelShuffle(4), nn.Hardtanh(0, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.end(self.tail(torch.cat((self.body(image), self.residual(image)), 1)))


class LinearBlock(nn.Sequential):
    """A wide and a point-wise convolution without anything between, as SESR is before it is collapsed."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        wide = nn.Conv2d(inputs, 256, kernel, padding=kernel // 2, bias=False)
        super().__init__(wide, nn.Conv2d(256, outputs, 1))


class SesrM5(nn.Module):
    """SESR-M5 times 4 (Bhardwaj et al. 2021), not collapsed; the input repeated and added at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.repeat = nn.Conv2d(3, 48, 1)
        self.first = LinearBlock(3, 16, 5)
        self.blocks = nn.ModuleList(LinearBlock(16, 16, 3) for _ in range(5))
        self.last = LinearBlock(16, 48, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = x = torch.relu(self.first(image))
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return nn.functional.pixel_shuffle(self.last(x + first) + self.repeat(image), 4)


class SrBlock(nn.Module):
    """Residual block of SRResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Unit(64, 64, 3, relu=False), nn.PReLU(), Unit(64, 64, 3, relu=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x


class SrResNet(nn.Module):
    """The generator of SRGAN times 4 (Ledig et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 64, 9, padding=4), nn.PReLU())
        self.body = nn.Sequential(*(SrBlock() for _ in range(16)), Unit(64, 64, 3, relu=False))
        grow = [layer for _ in range(2) for layer in (nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())]
        self.end = nn.Sequential(*grow, nn.Conv2d(64, 3, 9, padding=4), nn.Hardtanh(0, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image)
        return self.end(first + self.body(first))


class PoseNet(nn.Module):
    """PoseNet on MobileNet-v1 (Papandreou et al. 2018) with an output stride of 16; the last blocks are dilated."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6()]
        inputs = 32
        for outputs, stride, dilation in (
            (64, 1, 1), (128, 2, 1), (128, 1, 1), (256, 2, 1), (256, 1, 1), (512, 2, 1), *[(512, 1, 1)] * 5,
            (1024, 1, 1), (1024, 1, 2),
        ):  # fmt: skip
            layers += [nn.Conv2d(inputs, inputs, 3, stride, dilation, dilation, inputs), nn.ReLU6()]
            layers += [nn.Conv2d(inputs, outputs, 1), nn.ReLU6()]
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Conv2d(1024, outputs, 1) for outputs in (17, 34, 32, 32))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.body(image * 2.0 - 1.0)
        heat, *others = (head(x) for head in self.heads)
        return torch.sigmoid(heat), *others


class FaceUnit(nn.Module):
    """Inverted residual of MobileFaceNet, ReLU6 after the first two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.skips else self.body(x)


class MobileFaceNet(nn.Module):
    """MobileFaceNet (Chen et al. 2018) on two faces and their mirror images; one vector for each face."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6(),
            nn.Conv2d(64, 64, 3, 1, 1, groups=64, bias=False), nn.BatchNorm2d(64), nn.ReLU(), Unit(64, 64),
        ]  # fmt: skip
        inputs = 64
        for expansion, outputs, count, stride in (
            (2, 64, 5, 2),
            (4, 128, 1, 2),
            (2, 128, 6, 1),
            (4, 128, 1, 2),
            (2, 128, 2, 1),
        ):
            layers += [
                FaceUnit(inputs if n == 0 else outputs, outputs, stride if n == 0 else 1, expansion)
                for n in range(count)
            ]
            inputs = outputs
        layers += [nn.Conv2d(128, 512, 1, bias=False), nn.BatchNorm2d(512), nn.ReLU6()]
        layers += [
            nn.Conv2d(512, 512, 7, groups=512, bias=False),
            nn.BatchNorm2d(512),
            nn.Conv2d(512, 128, 1),
            nn.BatchNorm2d(128),
        ]
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.register_buffer("mean", torch.tensor((0.485, 0.456, 0.406)).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor((0.229, 0.224, 0.225)).reshape(1, 3, 1, 1))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        images = [(face - self.mean) / self.std for face in (first, second)]
        found = self.body(torch.cat([view for image in images for view in (image, torch.flip(image, (-1,)))]))
        return torch.stack((found[0:1] + found[1:2], found[2:3] + found[3:4]), 1).reshape(2, -1)


class Blaze(nn.Module):
    """Block of MediaPipe: depth-wise and point-wise convolution beside a skip that is pooled and widened by zeros."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, end: nn.Module | None = None
    ) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inputs, kernel, stride, padding, groups=inputs), nn.Conv2d(inputs, outputs, 1)
        )
        self.pads = (0, 2, 0, 2) if kernel == 3 else (1, 2, 1, 2)
        self.pool = nn.MaxPool2d(2) if stride == 2 else None
        self.project = nn.Conv2d(inputs, outputs, 1) if kernel == 5 and stride == 2 else None
        self.wider = 0 if self.project else outputs - inputs
        self.end = end or nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(x, self.pads) if self.pool else x
        skip = self.pool(x) if self.pool else x
        skip = self.project(skip) if self.project else skip
        skip = nn.functional.pad(skip, (0, 0, 0, 0, 0, self.wider)) if self.wider else skip
        return self.end(self.body(before) + skip)


def blazes(inputs: int, outputs: int, more: int) -> nn.Sequential:
    """Return a block that halves the image and `more` that follow it."""
    return nn.Sequential(Blaze(inputs, outputs, stride=2), *(Blaze(outputs, outputs) for _ in range(more)))


class BlazeDetector(nn.Module):
    """Detector of faces (256 pixels, 16 numbers a box) or of people (128 pixels, 12 numbers a box) of MediaPipe."""

    def __init__(self, *, faces: bool) -> None:
        super().__init__()
        kernel, widths, numbers = (3, (24, 24, 48, 96), 16) if faces else (5, (48, 64, 96, 128), 12)
        counts = (7, 7, 7, 7) if faces else (3, 3, 6, 7)
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 5, 2 if faces else 1, 0 if faces else 2), nn.ReLU()]
        for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
            layers += [Blaze(widths[stage - 1], width, kernel, 2)] if stage else []
            layers += [Blaze(width, width, kernel) for _ in range(count)]
        self.fine = nn.Sequential(*layers)
        if faces:
            self.coarse = nn.Sequential(
                nn.ZeroPad2d((0, 2, 0, 2)), nn.Conv2d(96, 96, 3, 2, groups=96), nn.Conv2d(96, 96, 1), nn.ReLU()
            )
        else:
            self.coarse = nn.Sequential(Blaze(128, 256, 5, 2), *(Blaze(256, 256, 5) for _ in range(6)))
        self.numbers, self.first = numbers, (2, 2, 2, 2) if faces else (1, 2, 2, 2)
        wide = 96 if faces else 256
        self.boxes = nn.ModuleList((nn.Conv2d(widths[3], 2 * numbers, 1), nn.Conv2d(wide, 6 * numbers, 1)))
        self.scores = nn.ModuleList((nn.Conv2d(widths[3], 2, 1), nn.Conv2d(wide, 6, 1)))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fine = self.fine(nn.functional.pad(image, self.first))
        scales = (fine, self.coarse(fine))
        heads = ((self.boxes, self.numbers), (self.scores, 1))
        return tuple(
            head(x).permute(0, 2, 3, 1).reshape(1, -1, n)
            for found, n in heads
            for head, x in zip(found, scales, strict=True)
        )


class BlazeLandmarks(nn.Module):
    """MediaPipe's 468 landmarks of a face and whether there is one."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2), nn.PReLU(16)]
        inputs = 16
        for outputs, stride in zip((16, 16, 32, 32, 32, 64, 64, 64, *[128] * 6), (1, 1, 2) * 4 + (1, 1), strict=True):
            layers.append(Blaze(inputs, outputs, stride=stride, end=nn.PReLU(outputs)))
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.points, self.flag = self._head(3, 1404), self._head(1, 1)

    @staticmethod
    def _head(blocks: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            *(Blaze(128, 128, stride=1 if n else 2, end=nn.PReLU(128)) for n in range(blocks)),
            nn.Conv2d(128, 32, 1), nn.PReLU(32), Blaze(32, 32, end=nn.PReLU(32)), nn.Conv2d(32, outputs, 3),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.body(nn.functional.pad(image, (0, 1, 0, 1)))
        return torch.sigmoid(self.flag(x)).view(-1), self.points(x).view(-1, 468, 3) / 192


class PoseLandmarks(nn.Module):
    """MediaPipe's 31 landmarks of a body and whether there is one, of which 25 are kept; its mask is left out."""

    def __init__(self) -> None:
        super().__init__()
        widths, counts = (24, 48, 96, 192, 288), (2, 3, 4, 5, 6)
        first = nn.Sequential(nn.Conv2d(3, 24, 3, 2), nn.ReLU(), Blaze(24, 24), Blaze(24, 24))
        stages = [blazes(a, b, n) for a, b, n in zip(widths, widths[1:], counts[1:], strict=False)]
        self.down = nn.ModuleList([first, *stages])
        self.lateral = nn.ModuleList(self._side(width, 48) for width in widths[1:])
        self.again = nn.ModuleList(blazes(a, b, n) for a, b, n in ((48, 96, 4), (96, 192, 5), (192, 288, 6)))
        self.beside = nn.ModuleList(self._side(width, width) for width in widths[2:])
        self.end = nn.Sequential(blazes(288, 288, 7), blazes(288, 288, 6), Blaze(288, 288))
        self.flag, self.points = nn.Conv2d(288, 1, 2), nn.Conv2d(288, 124, 2)

    @staticmethod
    def _side(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, inputs, 3, 1, 1, groups=inputs), nn.Conv2d(inputs, outputs, 1), nn.ReLU()
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, found = nn.functional.pad(image, (0, 1, 0, 1)), []
        for stage in self.down:
            x = stage(x)
            found.append(x)
        sides = [side(y) for side, y in zip(self.lateral, found[1:], strict=True)]
        x = sides[-1]
        for side in reversed(sides[:-1]):
            x = side + nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
        for blocks, beside, y in zip(self.again, self.beside, found[2:], strict=True):
            x = blocks(x) + beside(y)
        x = self.end(x)
        return torch.sigmoid(self.flag(x).view(-1)), (self.points(x).view(1, 31, 4) / 256)[:, :25]


class PalmDetector(nn.Module):
    """MediaPipe's detector of palms: 2,944 boxes with 7 points each, put into pixels by their anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), *(Blaze(32, 32) for _ in range(7)))
        self.fine = nn.Sequential(self.first, blazes(32, 64, 7), blazes(64, 128, 7))
        self.middle, self.coarse = blazes(128, 256, 7), blazes(256, 256, 7)
        self.up = nn.ModuleList(nn.Sequential(nn.ConvTranspose2d(256, n, 2, 2), nn.ReLU()) for n in (256, 128))
        self.merge = nn.ModuleList(Blaze(n, n) for n in (256, 128))
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(n, boxes * numbers, 1) for n, boxes in ((128, 2), (256, 2), (256, 6)))
            for numbers in (18, 1)
        )
        anchors = torch.rand(2944, 2, 2)
        self.register_buffer("scale", anchors[:, 1:])
        self.register_buffer("offset", 256 * anchors[:, :1] * (torch.arange(9) != 1).view(9, 1))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fine = self.fine(nn.functional.pad(image, (0, 1, 0, 1)))
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.merge[0](middle + self.up[0](coarse))
        fine = self.merge[1](fine + self.up[1](middle))
        numbers, scores = (
            torch.cat([
                head(x).permute(0, 2, 3, 1).reshape(1, -1, n)
                for head, x in zip(heads, (fine, middle, coarse), strict=True)
            ], 1)
            for heads, n in zip(self.heads, (18, 1), strict=True)
        )  # fmt: skip
        points = (numbers.view(1, -1, 9, 2) * self.scale + self.offset).view(1, -1, 18)
        middles, half = points[..., :2], points[..., 2:4] / 2
        boxes = torch.cat([middles - half, middles + half, points[..., 4:]], -1)
        return boxes, torch.sigmoid(torch.clamp(scores, -100.0, 100.0)).reshape(1, -1)


class HrNetFace(nn.Module):
    """HRNetV2-W18 (Sun et al. 2019) for the 29 landmarks of COFW; its branches are those of timm, joined bilinearly."""

    def __init__(self) -> None:
        super().__init__()
        import timm

        body = timm.create_model("hrnet_w18", pretrained=False)
        for module in body.modules():
            if isinstance(module, nn.Upsample):
                module.mode, module.align_corners = "bilinear", False
        self.body = body
        self.head = nn.Sequential(nn.Conv2d(270, 270, 1), nn.BatchNorm2d(270), nn.ReLU(), nn.Conv2d(270, 29, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.body.act1(self.body.bn1(self.body.conv1(image)))
        found = self.body.stages(self.body.act2(self.body.bn2(self.body.conv2(x))))
        size = found[0].shape[2:]
        return self.head(
            torch.cat([found[0], *(nn.functional.interpolate(y, size, mode="bilinear") for y in found[1:])], 1)
        )


class GpuNet(nn.Module):
    """GPUNet-0 of 0.65 ms on a GV100 (Wang et al. 2022) out of timm's blocks."""

    def __init__(self) -> None:
        super().__init__()
        from functools import partial

        from timm.models._efficientnet_blocks import ConvBnAct, EdgeResidual, InvertedResidual, SqueezeExcite

        gate = partial(SqueezeExcite, rd_ratio=0.05)
        wide = partial(InvertedResidual, dw_kernel_size=3, exp_ratio=5)
        fused = partial(EdgeResidual, exp_kernel_size=3, exp_ratio=5, act_layer=nn.ReLU, pad_type="same")
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(),
            *(ConvBnAct(32, 32, 3, act_layer=nn.ReLU) for _ in range(2)),
            *(fused(i, o, stride=s) for i, o, s in ((32, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1))),
            *(wide(i, o, stride=s, act_layer=nn.SiLU) for i, o, s in ((64, 256, 2), (256, 256, 1), (256, 256, 1))),
            *(wide(i, 704, stride=s, act_layer=nn.ReLU, se_layer=gate) for i, s in ((256, 2), (704, 1))),
            nn.Conv2d(704, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.body(image)
