"""Calibration data: a stream of feeds that can be read again, with its source and a digest.

Memory does not grow with the number of batches: files are read one batch at a time.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.graph import GraphError
from graphs.quantisation.npy import open_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from graphs.graph import Graph, TensorSpec

    Feed = dict[str, npt.NDArray[Any]]

ARRAY_SUFFIXES = (".npy", ".npz")
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
# Per channel, on RGB scaled to 0..1; the figures of the public ImageNet recipes (torchvision, timm).
NORMALISATIONS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "symmetric": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Batches to calibrate with; iterate as often as needed, the feeds are the same every time.

    Attributes:
        source: ``"random"`` or the path that the data came from. Ranges from random data say what the kernels
            and the latency do, nothing about the accuracy of a trained model.
        digest: SHA-256 of the content (files) or of the recipe (random), for cache keys.
        count: Number of feeds.
        preparation: What was done to the data before it became a feed, for the report.
    """

    source: str
    digest: str
    count: int
    preparation: str = "none"
    _open: Callable[[], Iterator[Feed]] = field(repr=False, compare=False)

    def __iter__(self) -> Iterator[Feed]:
        return self._open()

    @property
    def is_random(self) -> bool:
        """Say whether the data is random, which every report of output error has to repeat."""
        return self.source == "random"

    @classmethod
    def random(cls, graph: Graph, count: int = 8, seed: int = 0) -> Calibration:
        """Make ``count`` seeded random feeds in the shapes and dtypes of the graph's inputs.

        Raises:
            GraphError: ``count`` is below 1.
        """
        if count < 1:
            raise GraphError(f"Calibration needs at least one batch, not {count}.")
        from graphs.feeds import random_inputs

        # One independent seed per feed, so that a longer calibration begins with a shorter one.
        seeds = [int(np.random.SeedSequence([seed, index]).generate_state(1)[0]) for index in range(count)]
        recipe = {"random": seeds, "inputs": [_text(spec) for spec in graph.inputs()]}
        return cls(
            source="random",
            digest=hashlib.sha256(json.dumps(recipe).encode()).hexdigest(),
            count=count,
            _open=lambda: (random_inputs(graph, feed_seed) for feed_seed in seeds),
        )

    @classmethod
    def from_path(cls, graph: Graph, path: Path | str, *, normalise: str = "imagenet") -> Calibration:
        """Read a ``.npy`` or ``.npz`` file, a folder of such files, or a folder of images.

        A ``.npz`` holds one array per graph input under its name; a ``.npy`` serves a graph with one input. The
        leading axis counts samples: for an input [B, ...] an array may be [N*B, ...], or [N, B, ...]. Files of a
        folder are read in the order of their names.

        Images (bmp, jpeg, png, webp; for a graph with one [B, 3 or 1, H, W] or [B, H, W, 3 or 1] input) are made
        RGB or grey and resized to exactly H x W (bilinear, no crop); for a float input then scaled to 0..1 and
        normalised: ``imagenet`` (mean and deviation per channel), ``unit`` (0..1) or ``symmetric`` (-1..1). A uint8
        input gets 0..255.

        Raises:
            GraphError: Nothing there, or names, dtypes or shapes that are not those of the graph's inputs.
        """
        path = Path(path)
        files = _files(path)
        if files[0].suffix.lower() in IMAGE_SUFFIXES:
            return _from_images(cls, graph, path, files, normalise)
        counts = [_batches_in(graph, file) for file in files]
        return cls(
            source=str(path),
            digest=_digest(files, "arrays"),
            count=sum(counts),
            _open=lambda: (feed for file in files for feed in _read_arrays(graph, file)),
        )


def check_feed(graph: Graph, feed: Mapping[str, npt.NDArray[Any]], where: str) -> None:
    """Refuse a feed whose names, dtypes or shapes are not those of the graph's inputs.

    Raises:
        GraphError: With both sides of the first difference.
    """
    _check_names(graph, feed, where)
    for spec in graph.inputs():
        array = feed[spec.name]
        found = f"{array.dtype.name}{list(array.shape)}"
        if array.dtype.name != spec.dtype or (spec.shape is not None and array.shape != spec.shape):
            raise GraphError(f"{where} gives {found} for input {spec.name!r}, which is {_text(spec)}.")


def _check_names(graph: Graph, names: Mapping[str, object], where: str) -> None:
    wanted = sorted(spec.name for spec in graph.inputs())
    if sorted(names) != wanted:
        raise GraphError(f"{where} has the names {sorted(names)}, but the graph's inputs are {wanted}.")


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} of unknown shape" if spec.shape is None else f"{spec.dtype}{list(spec.shape)}"


def _files(path: Path) -> tuple[Path, ...]:
    """List the calibration files at a path; one kind only, or the order and meaning would be a guess."""
    if path.is_file():
        if path.suffix.lower() not in ARRAY_SUFFIXES:
            raise GraphError(f"Calibration file {path} is neither .npy nor .npz; images are taken from a folder.")
        return (path,)
    if not path.is_dir():
        raise GraphError(f"There is no calibration data at {path}.")
    files = sorted(file for file in path.iterdir() if file.is_file())
    images = tuple(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)
    arrays = tuple(file for file in files if file.suffix.lower() in ARRAY_SUFFIXES)
    if images and arrays:
        raise GraphError(f"Calibration folder {path} holds arrays and images; give each a folder of its own.")
    if not images and not arrays:
        raise GraphError(f"Calibration folder {path} holds no {', '.join((*ARRAY_SUFFIXES, *IMAGE_SUFFIXES))} file.")
    return images or arrays


def _digest(files: Sequence[Path], preparation: str) -> str:
    """Hash contents in order, not names: the same data elsewhere is the same calibration."""
    digest = hashlib.sha256(preparation.encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _batches_in(graph: Graph, file: Path) -> int:
    """Count the feeds in a file from the array headers alone, and refuse what does not fit the inputs."""
    with open_arrays(file, _only_input(graph, file)) as arrays:
        _check_names(graph, arrays, str(file))
        counts = {
            spec.name: _batches(spec, arrays[spec.name].shape, arrays[spec.name].dtype, file) for spec in graph.inputs()
        }
    if len(set(counts.values())) > 1:
        raise GraphError(f"{file} holds a different number of batches for each input: {counts}.")
    return next(iter(counts.values()))


def _only_input(graph: Graph, file: Path) -> str | None:
    """Name the input that a .npy file, which carries no name, stands for."""
    if file.suffix.lower() == ".npz":
        return None
    names = [spec.name for spec in graph.inputs()]
    if len(names) != 1:
        raise GraphError(f"{file} holds one array without a name, but the graph has the inputs {names}; use .npz.")
    return names[0]


def _batches(spec: TensorSpec, shape: tuple[int, ...], dtype: np.dtype[Any], file: Path) -> int:
    found = f"{file} holds {dtype.name}{list(shape)} for input {spec.name!r}, which is {_text(spec)}"
    if spec.shape is None:
        raise GraphError(f"{found}; bind its shape first.")
    if dtype.name != spec.dtype:
        raise GraphError(f"{found}.")
    if shape[1:] == spec.shape and shape[0]:
        return shape[0]
    merged = bool(spec.shape) and len(shape) == len(spec.shape) and shape[1:] == spec.shape[1:]
    if merged and shape[0] and shape[0] % spec.shape[0] == 0:
        return shape[0] // spec.shape[0]
    raise GraphError(f"{found}; the leading axis must count samples or batches.")


def _read_arrays(graph: Graph, file: Path) -> Iterator[Feed]:
    count = _batches_in(graph, file)
    with open_arrays(file, _only_input(graph, file)) as arrays:
        for _ in range(count):
            yield {spec.name: arrays[spec.name].read(spec.shape or ()) for spec in graph.inputs()}


def _from_images(
    cls: type[Calibration], graph: Graph, path: Path, files: Sequence[Path], normalise: str
) -> Calibration:
    from graphs.quantisation.images import image_batches, layout_of

    layout = layout_of(graph, path)
    if normalise not in NORMALISATIONS:
        raise GraphError(f"There is no normalisation {normalise!r}; there are {sorted(NORMALISATIONS)}.")
    if len(files) % layout.batch:
        raise GraphError(f"{path} holds {len(files)} images, which do not fill batches of {layout.batch}.")
    preparation = layout.preparation(normalise)
    return cls(
        source=str(path),
        digest=_digest(files, preparation),
        count=len(files) // layout.batch,
        preparation=preparation,
        _open=lambda: image_batches(files, layout, NORMALISATIONS[normalise]),
    )
