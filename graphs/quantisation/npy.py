"""Read .npy and .npz arrays batch by batch; ``numpy.load`` reads a whole .npz member into memory."""

from __future__ import annotations

import contextlib
import math
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from graphs.graph import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayStream:
    """One stored array, read from its start to its end."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    file: Path
    stream: IO[bytes]

    def read(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Read the next array of this shape.

        Raises:
            GraphError: The file ends before.
        """
        size = math.prod(shape) * self.dtype.itemsize
        try:
            content = self.stream.read(size)
        except (OSError, zipfile.BadZipFile) as error:
            raise GraphError(f"{self.file} cannot be read: {error}.") from error
        if len(content) != size:
            raise GraphError(f"{self.file} ends before its last sample; it is truncated.")
        # A copy in native byte order: a view of bytes is read-only.
        return np.frombuffer(content, self.dtype).reshape(shape).astype(self.dtype.newbyteorder("="))


@contextlib.contextmanager
def open_arrays(file: Path, name: str | None) -> Iterator[Mapping[str, ArrayStream]]:
    """Open every array of a file: a .npz by its own names, a .npy under ``name``.

    Raises:
        GraphError: Not such a file, or an array that cannot be read in parts.
    """
    with contextlib.ExitStack() as stack:
        try:
            arrays = {key: _stream(file, stack.enter_context(part)) for key, part in _parts(file, name, stack)}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            if isinstance(error, GraphError):
                raise
            raise GraphError(f"{file} is not a readable {file.suffix} file: {error}.") from error
        yield arrays


def _parts(file: Path, name: str | None, stack: contextlib.ExitStack) -> Iterator[tuple[str, IO[bytes]]]:
    if name is not None:
        yield name, file.open("rb")
        return
    archive = stack.enter_context(zipfile.ZipFile(file))
    for member in archive.namelist():
        yield member.removesuffix(".npy"), archive.open(member)


def _stream(file: Path, stream: IO[bytes]) -> ArrayStream:
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise GraphError(f"{file} has the .npy version {version}; there are readers for 1.0 and 2.0.")
    shape, fortran_order, dtype = read_header(stream)
    if dtype.hasobject:
        raise GraphError(f"{file} holds Python objects, which would run code when read; save plain numbers.")
    if fortran_order and len(shape) > 1:
        raise GraphError(f"{file} is stored column by column; save it again through numpy.ascontiguousarray.")
    return ArrayStream(shape=shape, dtype=dtype, file=file, stream=stream)
