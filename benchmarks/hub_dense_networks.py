"""Public networks with dense outputs (segments, depth, key points) that Qualcomm's table measures, untrained."""

from __future__ import annotations

import torch
from hub_networks import Unit
from torch import nn
from torch.nn.functional import interpolate


class PaddedBlock(nn.Module):
    """Inverted residual whose image is padded before the first convolution, not before the depth-wise one."""

    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        widen = (nn.Conv2d(inputs, width, 1, 1, dilation, bias=False), nn.BatchNorm2d(width), nn.ReLU6())
        self.body = nn.Sequential(
            *(widen if expansion > 1 else ()),
            nn.Conv2d(width, width, 3, stride, 0 if expansion > 1 else dilation, dilation, width, bias=False),
            nn.BatchNorm2d(width), nn.ReLU6(), nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x)
        return x + found if self.skips else found


class DeepLab(nn.Module):
    """DeepLabV3+ (Chen et al. 2018) on MobileNetV2 with an output stride of 16; the class of each pixel."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
        inputs = 32
        for expansion, outputs, count, stride, dilation in (
            (1, 16, 1, 1, 1), (6, 24, 2, 2, 1), (6, 32, 3, 2, 1), (6, 64, 4, 2, 1), (6, 96, 3, 1, 1),
            (6, 160, 3, 1, 1), (6, 320, 1, 1, 2),
        ):  # fmt: skip
            for n in range(count):
                layers.append(PaddedBlock(inputs, outputs, 1 if n else stride, dilation, expansion))
                inputs = outputs
        self.low, self.high = nn.Sequential(*layers[:6]), nn.Sequential(*layers[6:])
        self.pyramid = nn.ModuleList([Unit(320, 256), *(self._dilated(rate) for rate in (6, 12, 18))])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), Unit(320, 256))
        self.join, self.short = Unit(1280, 256), Unit(24, 48)
        self.end = nn.Sequential(Unit(304, 256, 3), Unit(256, 256, 3), nn.Conv2d(256, classes, 1))

    @staticmethod
    def _dilated(rate: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(320, 256, 3, 1, rate, rate, bias=False), nn.BatchNorm2d(256), nn.ReLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        low = self.low(image)
        x = self.high(low)
        pooled = interpolate(self.pooled(x), x.shape[2:], mode="bilinear", align_corners=True)
        x = self.join(torch.cat([*(branch(x) for branch in self.pyramid), pooled], 1))
        x = interpolate(x, low.shape[2:], mode="bilinear", align_corners=True)
        x = self.end(torch.cat([x, self.short(low)], 1))
        return interpolate(x, image.shape[2:], mode="bilinear", align_corners=True).argmax(1).byte()


class Residue(nn.Module):
    """Two convolutions, each after ReLU, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.body = nn.Sequential(*(layer for convolution in convolutions for layer in (nn.ReLU(), convolution)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x


class Fusion(nn.Module):
    """Joins a finer scale to a coarser one and doubles its size."""

    def __init__(self, width: int, outputs: int, *, first: bool = False) -> None:
        super().__init__()
        self.side = None if first else Residue(width)
        self.body, self.end = Residue(width), nn.Conv2d(width, outputs, 1)

    def forward(self, x: torch.Tensor, finer: torch.Tensor | None = None) -> torch.Tensor:
        joined = x if self.side is None else x + self.side(finer)
        return self.end(interpolate(self.body(joined), scale_factor=2, mode="bilinear", align_corners=True))


class Midas(nn.Module):
    """MiDaS v2.1 small (Ranftl et al. 2020) on EfficientNet-Lite3 with TensorFlow's padding."""

    def __init__(self) -> None:
        super().__init__()
        import geffnet

        body = geffnet.create_model("tf_efficientnet_lite3", pretrained=False, exportable=True)
        blocks = body.blocks
        first = nn.Sequential(body.conv_stem, body.bn1, body.act1, *blocks[:2])
        self.stages = nn.ModuleList([first, blocks[2], nn.Sequential(*blocks[3:5]), nn.Sequential(*blocks[5:9])])
        widths = (64, 128, 256, 512)
        self.lateral = nn.ModuleList(
            nn.Conv2d(inputs, width, 3, padding=1, bias=False)
            for inputs, width in zip((32, 48, 136, 384), widths, strict=True)
        )
        ends = zip(widths, (64, 64, 128, 256), strict=True)
        self.fusions = nn.ModuleList(Fusion(width, outputs, first=width == 512) for width, outputs in ends)
        self.head, self.tail = nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.end = nn.Sequential(nn.ReLU(), nn.Conv2d(32, 1, 1), nn.ReLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, found = image, []
        for stage, lateral in zip(self.stages, self.lateral, strict=True):
            x = stage(x)
            found.append(lateral(x))
        x = self.fusions[3](found[3])
        for level in (2, 1, 0):
            x = self.fusions[level](x, found[level])
        x = interpolate(self.head(x), scale_factor=2, mode="bilinear", align_corners=False)
        return self.end(self.tail(x))


class BasicBlock(nn.Module):
    """Basic block of ResNet; the last of a stage may leave its ReLU to what follows."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, *, relu: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(Unit(inputs, outputs, 3, stride), Unit(outputs, outputs, 3, relu=False))
        changes = stride > 1 or inputs != outputs
        self.skip = Unit(inputs, outputs, 1, stride, relu=False) if changes else nn.Identity()
        self.end = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.body(x) + self.skip(x))


class FfNet(nn.Module):
    """FFNet (Mehta et al. 2022) with a slim ResNet of basic blocks and the mobile up-sampling of nearest neighbours.

    `lowres`: 78S of half the image, heads C and C; else 54S, whose first stage halves the image too, heads B and B.
    """

    def __init__(self, *, lowres: bool) -> None:
        super().__init__()
        counts, first = ((6, 12, 12, 8), 1) if lowres else ((5, 8, 8, 5), 2)
        widths = (64, 128, 192, 320)
        middles, ends = ((128,) * 4, (128, 16, 16, 16)) if lowres else ((64, 128, 128, 256), (96, 96, 64, 32))
        self.stem = nn.Sequential(Unit(3, 32, 3, 2), Unit(32, 64, 3, 2))
        inputs, stages = 64, []
        for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
            blocks = [BasicBlock(inputs, width, 2 if stage else first)]
            stages.append(nn.Sequential(*blocks, *(BasicBlock(width, width) for _ in range(count - 1))))
            inputs = width
        self.stages = nn.ModuleList(stages)
        self.adapt = nn.ModuleList(Unit(a, b) for a, b in zip(widths, middles, strict=True))
        self.smooth = nn.ModuleList(Unit(a, b, 3) for a, b in zip(middles, ends, strict=True))
        self.up = nn.ModuleList(Unit(a, b) for a, b in zip(middles[1:], middles, strict=False))
        middle, kernel = (128, 1) if lowres else (256, 3)
        self.head = nn.Sequential(
            nn.Conv2d(sum(ends), middle, kernel, padding=kernel // 2), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, 19, kernel, padding=kernel // 2),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, found = self.stem(image), []
        for stage, adapt in zip(self.stages, self.adapt, strict=True):
            x = stage(x)
            found.append(adapt(x))
        x = found[3]
        smooth = [self.smooth[3](x)]
        for level in (2, 1, 0):
            x = interpolate(self.up[level](x), found[level].shape[2:]) + found[level]
            smooth.insert(0, self.smooth[level](x))
        size = smooth[0].shape[2:]
        return self.head(torch.cat([smooth[0], *(interpolate(y, size) for y in smooth[1:])], 1))


class PreResidual(nn.Module):
    """Residual block of the stacked hourglass: normalises and activates before each convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half, layers = outputs // 2, []
        for a, b, kernel in ((inputs, half, 1), (half, half, 3), (half, outputs, 1)):
            layers += [nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, kernel, padding=kernel // 2)]
        self.body = nn.Sequential(*layers)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.skip(x)


class Hourglass(nn.Module):
    """Hourglass of `depth` halvings."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.side, self.before, self.after = (PreResidual(width, width) for _ in range(3))
        self.inner = Hourglass(depth - 1, width) if depth > 1 else PreResidual(width, width)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        coarse = self.after(self.inner(self.before(self.pool(x))))
        return self.side(x) + interpolate(coarse, x.shape[2:])


class EyeGaze(nn.Module):
    """Landmarks and gaze of an eye (Park et al. 2018): three hourglasses of 32 channels, 34 landmarks, 96 x 160."""

    def __init__(self, stacks: int = 3, width: int = 32, landmarks: int = 34) -> None:
        super().__init__()
        self.first = self._entry(1, 64, 1, width)
        self.gaze = nn.Sequential(self._entry(width, 64, 2, width), nn.Flatten())
        self.glasses = nn.ModuleList(Hourglass(4, width) for _ in range(stacks))
        self.features = nn.ModuleList(
            nn.Sequential(PreResidual(width, width), nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(stacks)
        )
        self.maps = nn.ModuleList(nn.Conv2d(width, landmarks, 1) for _ in range(stacks))
        self.back = nn.ModuleList(nn.Conv2d(n, width, 1) for _ in range(stacks - 1) for n in (landmarks, width))
        self.end = nn.Sequential(nn.Linear(width * 12 * 20 + 2 * landmarks, 256), nn.ReLU(), nn.Linear(256, 2))
        rows, columns = torch.meshgrid(torch.linspace(0, 1, 48), torch.linspace(0, 1, 80), indexing="ij")
        self.register_buffer("rows", rows.reshape(1, -1))
        self.register_buffer("columns", columns.reshape(1, -1))

    @staticmethod
    def _entry(inputs: int, outputs: int, stride: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 7, stride, 3), nn.BatchNorm2d(outputs), nn.ReLU(), PreResidual(outputs, 128),
            nn.MaxPool2d(2), PreResidual(128, 128), PreResidual(128, width),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(image.unsqueeze(1))
        gaze, maps = self.gaze(x), []
        for stack, (glass, features, end) in enumerate(zip(self.glasses, self.features, self.maps, strict=True)):
            feature = features(glass(x))
            maps.append(end(feature))
            if 2 * stack < len(self.back):
                x = x + self.back[2 * stack](maps[-1]) + self.back[2 * stack + 1](feature)
        weights = torch.softmax(100 * maps[-1].reshape(1, -1, 48 * 80), -1)
        places = torch.stack([(47 * weights * self.rows).sum(-1), (79 * weights * self.columns).sum(-1)], -1)
        return torch.stack(maps, 1), places, self.end(torch.cat([gaze, places.flatten(1)], 1))
