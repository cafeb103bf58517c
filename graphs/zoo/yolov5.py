"""YOLOv5s (Ultralytics, release 7.0) with the decoded head of its public export; no suppression of overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphs.graph import GraphError
from graphs.zoo import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphs.zoo.builder import Net, Value

ANCHORS = (
    (8, ((10, 13), (16, 30), (33, 23))),
    (16, ((30, 61), (62, 45), (59, 119))),
    (32, ((116, 90), (156, 198), (373, 326))),
)
"""Stride of each level and the width and height of its anchors, in pixels."""


def yolov5s(net: Net, *, batch: int = 1, size: int = 640, classes: int = 80) -> dict[str, Value]:
    """Add `yolov5s`: (batch, 3, size, size) to (batch, boxes, 5 + classes); size is a multiple of 32.

    A box is centre, width and height in pixels, an objectness and one score for each class.
    """
    if size % 32:
        raise GraphError(f"yolov5s halves the image five times: size {size} is no multiple of 32")
    image = net.input("images", (batch, 3, size, size))
    fine, middle, coarse = _backbone(net, image)
    levels = _neck(net, fine, middle, coarse)
    boxes = [
        _detect(net, x, level, stride, anchors, classes)
        for level, (x, (stride, anchors)) in enumerate(zip(levels, ANCHORS, strict=True))
    ]
    return {"output0": blocks.concat(net, boxes, axis=1)}


def _backbone(net: Net, image: Value) -> tuple[Value, Value, Value]:
    x = blocks.conv(net, image, 32, 6, name="model.0.conv", stride=2, padding=2, act="silu")
    x = _conv(net, x, 64, 1)
    x = _c3(net, x, 64, 2, repeats=1)
    x = _conv(net, x, 128, 3)
    fine = _c3(net, x, 128, 4, repeats=2)
    x = _conv(net, fine, 256, 5)
    middle = _c3(net, x, 256, 6, repeats=3)
    x = _conv(net, middle, 512, 7)
    x = _c3(net, x, 512, 8, repeats=1)
    return fine, middle, _sppf(net, x)


def _neck(net: Net, fine: Value, middle: Value, coarse: Value) -> tuple[Value, Value, Value]:
    top = blocks.conv(net, coarse, 256, name="model.10.conv", act="silu")
    x = blocks.concat(net, [_upsample(net, top), middle])
    x = _c3(net, x, 256, 13, repeats=1, shortcut=False)
    lateral = blocks.conv(net, x, 128, name="model.14.conv", act="silu")
    x = blocks.concat(net, [_upsample(net, lateral), fine])
    first = _c3(net, x, 128, 17, repeats=1, shortcut=False)
    x = blocks.concat(net, [_conv(net, first, 128, 18), lateral])
    second = _c3(net, x, 256, 20, repeats=1, shortcut=False)
    x = blocks.concat(net, [_conv(net, second, 256, 21), top])
    return first, second, _c3(net, x, 512, 23, repeats=1, shortcut=False)


def _conv(net: Net, x: Value, channels: int, index: int) -> Value:
    return blocks.conv(net, x, channels, 3, name=f"model.{index}.conv", stride=2, act="silu")


def _c3(net: Net, x: Value, channels: int, index: int, *, repeats: int, shortcut: bool = True) -> Value:
    half = channels // 2
    with net.scope(f"model.{index}"):
        deep = blocks.conv(net, x, half, name="cv1.conv", act="silu")
        for repeat in range(repeats):
            with net.scope(f"m.{repeat}"):
                y = blocks.conv(net, deep, half, name="cv1.conv", act="silu")
                y = blocks.conv(net, y, half, 3, name="cv2.conv", act="silu")
                deep = blocks.add(net, deep, y) if shortcut else y
        side = blocks.conv(net, x, half, name="cv2.conv", act="silu")
        return blocks.conv(net, blocks.concat(net, [deep, side]), channels, name="cv3.conv", act="silu")


def _sppf(net: Net, x: Value) -> Value:
    with net.scope("model.9"):
        pyramid = [blocks.conv(net, x, x.shape[1] // 2, name="cv1.conv", act="silu")]
        for _ in range(3):
            pyramid.append(blocks.pool(net, pyramid[-1], "max", 5, stride=1, padding=2))
        return blocks.conv(net, blocks.concat(net, pyramid), x.shape[1], name="cv2.conv", act="silu")


def _upsample(net: Net, x: Value) -> Value:
    batch, channels, height, width = x.shape
    return net.node(
        "Resize",
        [x, "", net.constant(np.array([1, 1, 2, 2], np.float32))],
        (batch, channels, 2 * height, 2 * width),
        like=x,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        cubic_coeff_a=-0.75,
        nearest_mode="floor",
    )


def _detect(net: Net, x: Value, level: int, stride: int, anchors: Sequence[tuple[int, int]], classes: int) -> Value:
    """Predict and decode the boxes of one level: (batch, anchors * height * width, 5 + classes)."""
    batch, _, height, width = x.shape
    count, values = len(anchors), 5 + classes
    with net.scope("model.24"):
        x = blocks.conv(net, x, count * values, name=f"m.{level}", batch_norm=False)
        x = blocks.reshape(net, x, (batch, count, values, height, width))
        x = blocks.activation(net, blocks.transpose(net, x, (0, 1, 3, 4, 2)), "sigmoid")
        centre, extent, scores = blocks.split(net, x, (2, 2, classes + 1), axis=4)
        grid, sizes = _grids(height, width, anchors)
        doubled = net.node("Mul", [centre, net.scalar(2.0)], centre.shape)
        placed = net.node("Add", [doubled, net.constant(grid, "grid")], centre.shape)
        placed = net.node("Mul", [placed, net.scalar(float(stride))], centre.shape)
        squared = net.node("Mul", [extent, net.scalar(2.0)], extent.shape)
        squared = net.node("Pow", [squared, net.scalar(2.0)], extent.shape)
        sized = net.node("Mul", [squared, net.constant(sizes, "anchor_grid")], extent.shape)
        decoded = blocks.concat(net, [placed, sized, scores], axis=4)
        return blocks.reshape(net, decoded, (batch, count * height * width, values))


def _grids(
    height: int, width: int, anchors: Sequence[tuple[int, int]]
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Return the cells' corners less a half and the anchors' sizes, both (1, anchors, height, width, 2)."""
    shape = (1, len(anchors), height, width, 2)
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    grid = np.broadcast_to(np.stack([columns, rows], axis=-1) - 0.5, shape)
    sizes = np.broadcast_to(np.array(anchors).reshape(1, -1, 1, 1, 2), shape)
    return grid.astype(np.float32), sizes.astype(np.float32)
