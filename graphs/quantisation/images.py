"""Image files as feeds of a graph with one image input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.graph import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from graphs.graph import Graph

    Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayout:
    """How the graph takes its images: [batch, channels, height, width] or channels last."""

    name: str
    batch: int
    channels: int
    height: int
    width: int
    channels_last: bool
    dtype: str

    def preparation(self, normalise: str) -> str:
        """Say in one line what is done to every image; part of the digest and of the report."""
        values = f"scaled to 0..1, {normalise} normalisation" if self.dtype == "float32" else "0..255"
        colours = "RGB" if self.channels == 3 else "grey"
        order = "NHWC" if self.channels_last else "NCHW"
        return f"{colours}, bilinear resize to {self.height}x{self.width} without crop, {values}, {order}"


def layout_of(graph: Graph, path: Path) -> ImageLayout:
    """Find the image input of a graph.

    Raises:
        GraphError: More than one input, or an input that is no image.
    """
    specs = graph.inputs()
    if len(specs) != 1:
        names = [spec.name for spec in specs]
        raise GraphError(f"{path} holds images, but the graph has the inputs {names}; use .npz files instead.")
    spec = specs[0]
    if spec.dtype in {"float32", "uint8"} and spec.shape is not None and len(spec.shape) == 4:
        batch, first, second, last = spec.shape
        channels_last = first not in {1, 3}
        channels, height, width = (last, first, second) if channels_last else (first, second, last)
        if channels in {1, 3}:
            return ImageLayout(
                name=spec.name,
                batch=batch,
                channels=channels,
                height=height,
                width=width,
                channels_last=channels_last,
                dtype=spec.dtype,
            )
    raise GraphError(
        f"{path} holds images, but input {spec.name!r} ({spec.dtype}{spec.shape}) is not float32 or uint8 in "
        f"[batch, 3 or 1, height, width] or channels last; use .npz files instead."
    )


def image_batches(
    files: Sequence[Path], layout: ImageLayout, normalisation: Normalisation
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Read, resize and stack the images, one batch in memory at a time."""
    for start in range(0, len(files), layout.batch):
        images = [_read(file, layout, normalisation) for file in files[start : start + layout.batch]]
        yield {layout.name: np.stack(images)}


def _read(file: Path, layout: ImageLayout, normalisation: Normalisation) -> npt.NDArray[Any]:
    from PIL import Image  # comes with matplotlib

    try:
        with Image.open(file) as image:
            coloured = image.convert("RGB" if layout.channels == 3 else "L")
            sized = coloured.resize((layout.width, layout.height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise GraphError(f"{file} is not a readable image: {error}.") from error
    pixels = np.asarray(sized).reshape(layout.height, layout.width, layout.channels)
    if layout.dtype == "float32":
        mean, deviation = (np.asarray(row[: layout.channels], np.float32) for row in normalisation)
        pixels = (pixels.astype(np.float32) / 255 - mean) / deviation
    return pixels if layout.channels_last else np.ascontiguousarray(pixels.transpose(2, 0, 1))
