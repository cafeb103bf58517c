"""Protobuf framing: read and write an ONNX file one initialiser at a time.

`onnx.load` holds a model twice (the file's bytes and the parsed message) and python protobuf copies a tensor's
bytes at every access. Here the message structure is walked on the mapped file, and each initialiser's raw bytes
are read once, straight into the object that keeps them.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no stubs

from graphs.graph import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from graphs.weights import Data

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """Where one field of a message lies in the file."""

    number: int
    kind: int
    start: int
    """Of the tag."""
    value: int
    """Of the value, past the tag and the length."""
    end: int


class RawTensor(NamedTuple):
    """An initialiser as read: the message without its raw bytes, and these."""

    header: onnx.TensorProto
    data: bytes | None


def read_model(path: Path) -> tuple[onnx.ModelProto, list[RawTensor]]:
    """Return the model without its top-level initialisers, and these.

    Raises:
        GraphError: The file cannot be read or is not a whole protobuf.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, path).model()
    except OSError as error:
        raise GraphError(f"{path} cannot be read ({error.strerror}): give the path of an ONNX file") from error
    except (DecodeError, UnicodeDecodeError) as error:
        raise GraphError(f"{path} is not an ONNX file or is damaged ({error}): download or export it again") from error


class _Reader:
    """Walk one file; offsets are absolute."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = path.stat().st_size
        if self._size == 0:
            raise GraphError(f"{path} is empty: download or export it again")
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def model(self) -> tuple[onnx.ModelProto, list[RawTensor]]:
        model = onnx.ModelProto()
        tensors: list[RawTensor] = []
        with self._map:
            rest, graphs = self._split(0, self._size, _MODEL_GRAPH)
            model.MergeFromString(rest)
            for field in graphs:
                body, initializers = self._split(field.value, field.end, _GRAPH_INITIALIZER)
                model.graph.MergeFromString(body)
                tensors.extend(self._tensor(one) for one in initializers)
        return model, tensors

    def _tensor(self, field: Field) -> RawTensor:
        header, raw = self._split(field.value, field.end, _TENSOR_RAW_DATA)
        data = self._read(raw[-1].value, raw[-1].end) if raw else None
        return RawTensor(onnx.TensorProto.FromString(header), data)

    def _split(self, start: int, end: int, number: int) -> tuple[bytes, list[Field]]:
        """Return the bytes of a message without its fields of that number, and those fields."""
        apart: list[Field] = []
        rest: list[bytes] = []
        kept_from = start
        for field in self._fields(start, end):
            if field.number == number and field.kind == _BYTES:
                rest.append(self._read(kept_from, field.start))
                kept_from = field.end
                apart.append(field)
        rest.append(self._read(kept_from, end))
        return b"".join(rest), apart

    def _read(self, start: int, end: int) -> bytes:
        # Reading (not slicing the map) keeps the file's pages out of this process's memory.
        self._file.seek(start)
        return self._file.read(end - start) if end > start else b""

    def _fields(self, start: int, end: int) -> Iterator[Field]:
        position = start
        while position < end:
            tag, value = self._varint(position, end)
            kind = tag & 7
            if kind == _BYTES:
                length, value = self._varint(value, end)
                stop = value + length
            elif kind == _VARINT:
                _, stop = self._varint(value, end)
            elif kind in (_FIXED32, _FIXED64):
                stop = value + (4 if kind == _FIXED32 else 8)
            else:
                raise GraphError(f"{self._path} is not an ONNX file (no protobuf at byte {position}): give another one")
            if stop > end:
                raise GraphError(
                    f"{self._path} is cut off or not an ONNX file (byte {position} announces {stop - end} bytes more "
                    "than there are): download or export it again"
                )
            yield Field(tag >> 3, kind, position, value, stop)
            position = stop

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return the number at `position` and where it ends."""
        number = shift = 0
        while position < end and shift < 64:
            byte = self._map[position]
            number |= (byte & 0x7F) << shift
            position += 1
            if byte < 0x80:
                return number, position
            shift += 7
        raise GraphError(f"{self._path} is cut off or not an ONNX file (byte {position}): download or export it again")


def write_model(
    file: BinaryIO, model: onnx.ModelProto, weights: Iterable[tuple[onnx.TensorProto, Data | None]]
) -> None:
    """Write `model` with `weights` as its graph's initialisers: headers, and raw bytes where these are apart.

    The result is one plain message (a single graph field), of any size.
    """
    frames = [_frame(header, data) for header, data in weights]
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    graph = shell.graph.SerializeToString()
    shell.ClearField("graph")
    file.write(shell.SerializeToString())
    inner = len(graph) + sum(len(head) + len(data) for head, data in frames)
    file.write(_key(_MODEL_GRAPH) + _encode(inner) + graph)
    for head, data in frames:
        file.write(head)
        file.write(data)


def _frame(header: onnx.TensorProto, data: Data | None) -> tuple[bytes, Data]:
    """Return what stands before a tensor's raw bytes in the graph message, and these."""
    fields = header.SerializeToString()
    if data is None:
        return _key(_GRAPH_INITIALIZER) + _encode(len(fields)) + fields, b""
    fields += _key(_TENSOR_RAW_DATA) + _encode(len(data))
    return _key(_GRAPH_INITIALIZER) + _encode(len(fields) + len(data)) + fields, data


def _key(number: int) -> bytes:
    return _encode(number << 3 | _BYTES)


def _encode(number: int) -> bytes:
    """Return the varint of a number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
