"""Work of the MobileNet v1 and v2 variants of MLPerf's power submissions, counted from the architecture.

Sources: Howard et al. 2017 (arXiv 1704.04861, table 1) and Sandler et al. 2018 (arXiv 1801.04381, table 2), with the
rounding of channels to multiples of 8 of the reference implementations.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

_V1_LAYERS: Final = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip
_V2_STAGES: Final = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
_CLASSES: Final = 1001
_NAME: Final = re.compile(r"mobilenet-v(?P<version>[12])-(?:precision_\w+-)?(?P<width>\d\.\d+)-(?P<size>\d+)(?:-|$)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Multiply-accumulates and parameters of one inference."""

    macs: int
    parameters: int


def work_of(model: str) -> Work | None:
    """Return the work of a model by its MLPerf name; None for one whose architecture is not counted here."""
    match = _NAME.match(model)
    if match is None:
        return None
    width, size = float(match["width"]), int(match["size"])
    return _v1(width, size) if match["version"] == "1" else _v2(width, size)


def _v1(width: float, size: int) -> Work:
    side, channels = _halved(size), _rounded(32 * width)
    macs, parameters = 27 * channels * side * side, 27 * channels
    for out, stride in _V1_LAYERS:
        side = _halved(side) if stride == 2 else side
        wide = _rounded(out * width)
        macs += (9 * channels + channels * wide) * side * side
        parameters += 9 * channels + channels * wide
        channels = wide
    return Work(macs=macs + channels * _CLASSES, parameters=parameters + channels * _CLASSES)


def _v2(width: float, size: int) -> Work:
    side, channels = _halved(size), _rounded(32 * width)
    macs, parameters = 27 * channels * side * side, 27 * channels
    for expansion, out, repeats, first_stride in _V2_STAGES:
        wide = _rounded(out * width)
        for repeat in range(repeats):
            inner = channels * expansion
            if expansion > 1:
                macs += channels * inner * side * side
                parameters += channels * inner
            side = _halved(side) if repeat == 0 and first_stride == 2 else side
            macs += (9 * inner + inner * wide) * side * side
            parameters += 9 * inner + inner * wide
            channels = wide
    last = _rounded(1280 * max(1.0, width))
    macs += channels * last * side * side + last * _CLASSES
    return Work(macs=macs, parameters=parameters + channels * last + last * _CLASSES)


def _halved(side: int) -> int:
    return (side + 1) // 2


def _rounded(channels: float) -> int:
    """Round to a multiple of 8, not below 8 nor more than 10 % down."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
