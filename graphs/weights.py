"""The constants of a model: one `Weight` each, its bytes held once, in memory or mapped from a file beside it."""

from __future__ import annotations

import hashlib
import math
import mmap
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np
import onnx

from graphs.graph import DTYPES, GraphError, TensorSpec, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Data = bytes | memoryview

# 2**62 elements is far beyond any file; past it a product of dimensions only shows that bits are wrong.
_MOST_ELEMENTS = 2**62


class Weight:
    """One constant tensor, immutable and shared by every graph cut from the same model."""

    __slots__ = ("_data", "_digest", "_header", "spec")

    def __init__(self, header: onnx.TensorProto, data: Data | None, spec: TensorSpec) -> None:
        self._header = header
        """The tensor without its bytes; strings and the location of external data stay in it."""
        self._data = data
        """Little-endian raw bytes; None for strings, which the header holds."""
        self._digest: bytes | None = None
        self.spec = spec

    @property
    def external(self) -> bool:
        """Return whether the bytes live in a file beside the model."""
        return self._header.data_location == onnx.TensorProto.EXTERNAL

    @property
    def data(self) -> Data:
        """Return the raw bytes without copying them; strings have none."""
        return self._data if self._data is not None else b""

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the values take: what `data` holds, or the length of all strings."""
        return len(self._data) if self._data is not None else sum(len(text) for text in self._header.string_data)

    @property
    def elements(self) -> int:
        """Return the number of values."""
        return math.prod(self._header.dims)

    def digest(self) -> bytes:
        """Return the SHA-256 of dtype, shape and values, the same however the tensor is stored."""
        if self._digest is None:
            head = f"{self._header.data_type}{list(self._header.dims)}".encode()
            content = hashlib.sha256(head)
            content.update(self.data)
            for text in self._header.string_data:
                content.update(len(text).to_bytes(8, "little") + text)
            self._digest = content.digest()
        return self._digest

    def tensor(self) -> onnx.TensorProto:
        """Return a TensorProto with the bytes in it; it is the caller's."""
        copy = self.header()
        if self._data is not None:
            copy.ClearField("data_location")
            copy.ClearField("external_data")
            copy.raw_data = bytes(self._data)
        return copy

    def reference(self) -> onnx.TensorProto:
        """Return a TensorProto that points to the file when the bytes are external, else holds them."""
        return self.header() if self.external else self.tensor()

    def header(self) -> onnx.TensorProto:
        """Return a copy of the tensor without its bytes."""
        copy = onnx.TensorProto()
        copy.CopyFrom(self._header)
        return copy

    def array(self) -> np.ndarray:
        """Return the values, read-only; packed and string dtypes are unpacked into a copy."""
        dtype = self.spec.dtype
        if dtype == "string" or size_of(dtype, (8,)) != 8 * _numpy_dtype(dtype).itemsize:
            values = np.asarray(onnx.numpy_helper.to_array(self.tensor()))
            values.setflags(write=False)
            return values
        return np.frombuffer(self.data, dtype=_numpy_dtype(dtype)).reshape(tuple(self._header.dims))


def _numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """Return numpy's dtype object of a name, ml_dtypes' for what numpy lacks."""
    number = next(key for key, name in DTYPES.items() if name == dtype)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))


class ExternalFiles:
    """Map the files that hold a model's external data, each once and only from inside the model's folder.

    A link out of the folder could make any file of the user's a weight, so it is refused. But Hugging Face's cache
    has nothing but links, of the model and of its data, into one folder of blobs: where the model itself is a link,
    its data may also lie in the folder that it leads to. That opens no folder but the one of the file asked for.
    """

    def __init__(self, base_dir: Path | None, model: Path | None = None) -> None:
        """Take the folder that locations are relative to, and the model file if there is one."""
        self.base_dir = base_dir
        self._allowed = tuple(folder.resolve() for folder in (base_dir, model and model.resolve().parent) if folder)
        self._maps: dict[str, memoryview] = {}

    def view(self, tensor: onnx.TensorProto, size_bytes: int) -> memoryview:
        """Return the `size_bytes` that `tensor` points to.

        Raises:
            GraphError: The location is missing, leaves the folder, is not there, or is too small.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        offset = _integer(tensor.name, "offset", entries.get("offset", "0"))
        length = _integer(tensor.name, "length", entries.get("length", str(size_bytes)))
        if length != size_bytes:
            raise GraphError(
                f"'{tensor.name}' needs {size_bytes} bytes but its external data states {length}: export it again"
            )
        content = self._file(tensor.name, location)
        if offset + length > len(content):
            raise GraphError(
                f"'{location}' has {len(content)} bytes, but '{tensor.name}' needs bytes {offset} to "
                f"{offset + length}: copy the whole file again"
            )
        return content[offset : offset + length]

    def _file(self, tensor: str, location: str) -> memoryview:
        """Return the mapped content of a file; the map outlives a rename over the file."""
        if location not in self._maps:
            path = self._resolve(tensor, location)
            try:
                with path.open("rb") as file:
                    empty = path.stat().st_size == 0
                    mapped = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    self._maps[location] = memoryview(mapped)
            except OSError as error:
                raise GraphError(
                    f"'{tensor}' keeps its data in {path}, which cannot be read ({error.strerror}): "
                    "copy that file beside the model"
                ) from error
        return self._maps[location]

    def _resolve(self, tensor: str, location: str) -> Path:
        """Return the path of a location, or refuse one that could reach outside the model's folder."""
        if self.base_dir is None:
            raise GraphError(f"'{tensor}' has external data, but no folder is known: pass `base_dir`")
        parts = PureWindowsPath(location)  # splits at both kinds of slash and knows drive letters
        escapes = not location or "\0" in location or parts.drive or parts.root or ".." in parts.parts
        base = self.base_dir.resolve()
        path = base / location
        if escapes:
            raise GraphError(
                f"'{tensor}' has external data at '{location}', outside the model's folder {base}: "
                "copy the file beside the model and export with a relative location"
            )
        if not any(path.resolve().is_relative_to(folder) for folder in self._allowed):
            raise GraphError(
                f"'{tensor}' has external data at '{location}', a link to outside the model's folder {base}: "
                f"put the file itself there, as with `cp -L {path} FOLDER`"
            )
        return path


def _integer(tensor: str, key: str, text: str) -> int:
    """Return a non-negative number of an external data entry."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise GraphError(f"'{tensor}' has the external data {key} '{text}', which is no number: export it again")
    return int(text)


def read_weight(tensor: onnx.TensorProto, data: Data | None, files: ExternalFiles) -> Weight:
    """Take ownership of `tensor` as a weight; `data` is its raw bytes where the reader kept them apart.

    Raises:
        GraphError: The dtype is not one, a dimension is negative, or the bytes do not fit the shape.
    """
    spec = _spec(tensor)
    if spec.dtype == "string":
        _expect(tensor.name, "strings", len(tensor.string_data), math.prod(tensor.dims))
        return Weight(tensor, None, spec)
    size = spec.size_bytes
    assert size is not None
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return Weight(tensor, files.view(tensor, size), spec)
    if data is None:
        data = tensor.raw_data if tensor.HasField("raw_data") else _typed_bytes(tensor)
    _expect(tensor.name, "bytes", len(data), size)
    return Weight(_header_of(tensor), data, spec)


def _header_of(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return name, dtype and dims alone, in a message of its own so that the bytes can be freed."""
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _spec(tensor: onnx.TensorProto) -> TensorSpec:
    if tensor.data_type not in DTYPES:
        raise GraphError(f"'{tensor.name}' has no valid dtype (number {tensor.data_type}): export the model again")
    if any(dim < 0 for dim in tensor.dims) or math.prod(tensor.dims) > _MOST_ELEMENTS:
        raise GraphError(f"'{tensor.name}' has the impossible shape {list(tensor.dims)}: export the model again")
    return TensorSpec(name=tensor.name, shape=tuple(tensor.dims), dtype=DTYPES[tensor.data_type])


def _typed_bytes(tensor: onnx.TensorProto) -> bytes:
    """Return the raw bytes of a tensor that keeps its values in a typed field."""
    try:
        values = onnx.numpy_helper.to_array(tensor)
        return onnx.numpy_helper.from_array(values).raw_data
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphError(f"'{tensor.name}' has values that do not fit its shape {list(tensor.dims)}") from error


def _expect(name: str, what: str, found: int, needed: int) -> None:
    if found != needed:
        raise GraphError(f"'{name}' holds {found} {what} where its shape and dtype need {needed}: the file is damaged")


def held_bytes(weights: Mapping[str, Weight]) -> int:
    """Return the bytes of the weights that live in memory rather than in a mapped file."""
    return sum(weight.size_bytes for weight in weights.values() if not weight.external)
