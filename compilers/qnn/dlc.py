"""Read a DLC (Qualcomm's deep learning container) of format 4: operators, tensors and their encodings.

`python -m compilers.qnn.dlc FILE` sums one up, `python -m compilers.qnn.dlc FILE OTHER` says how two differ.

A DLC is a zip of stored members whose CRC fields are 0 (so `zipfile` finds the members but refuses to read
them). Member `model` is an 8-byte magic and a FlatBuffer with identifier NETD. The field numbers follow the
schema that netron (MIT) publishes as `dlc.v4`; what it leaves unnamed was identified by writing known graphs
and is named here: where a tensor lives, and its scale and offset.
"""

from __future__ import annotations

import dataclasses
import struct
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from pathlib import Path

# Signature and format; a word follows that is 1 when the weights are in a member of their own.
MAGIC: Final = bytes((0xD5, 0x0A, 4, 0))
IDENTIFIER: Final = b"NETD"

# Qnn_DataType_t of the public QNN headers: the kind in the high byte, the width in the low one.
_DTYPES: Final = {
    0x0008: "int8", 0x0016: "int16", 0x0032: "int32", 0x0064: "int64",
    0x0108: "uint8", 0x0116: "uint16", 0x0132: "uint32", 0x0164: "uint64",
    0x0216: "float16", 0x0232: "float32", 0x0264: "float64",
    0x0304: "sfixed4", 0x0308: "sfixed8", 0x0316: "sfixed16", 0x0332: "sfixed32",
    0x0404: "ufixed4", 0x0408: "ufixed8", 0x0416: "ufixed16", 0x0432: "ufixed32",
    0x0508: "bool",
}  # fmt: skip
# Qnn_TensorType_t.
_ROLES: Final = {0: "input", 1: "output", 2: "inout", 3: "native", 4: "static", 5: "null"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlcTensor:
    """A tensor: `role` is input, output, native (between operators) or static (a weight).

    `scales` and `offsets` are empty for a float; one entry each, or one for each index of `axis`, when
    quantised: real = scale * (stored + offset).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    axis: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlcNode:
    """An operator by its QNN type ("Conv2d"), with the names of its tensors and attributes."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlcGraph:
    """One graph of a DLC."""

    name: str
    nodes: tuple[DlcNode, ...]
    tensors: tuple[DlcTensor, ...]

    def by_role(self, role: str) -> tuple[DlcTensor, ...]:
        """Return the tensors of that role, in the order of the file."""
        return tuple(tensor for tensor in self.tensors if tensor.role == role)

    def operators(self) -> dict[str, int]:
        """Count operators by type, most first."""
        return dict(Counter(node.op_type for node in self.nodes).most_common())


def read_dlc(path: Path) -> tuple[DlcGraph, ...]:
    """Return the graphs of a DLC.

    Raises:
        CompilerError: the file is no DLC of format 4, or is cut short.
    """
    try:
        data = _member(path, "model")
        if data[:4] != MAGIC or data[12:16] != IDENTIFIER:
            raise CompilerError(f"{path} is no DLC of format 4: its model member starts with {data[:16].hex()}")
        root = _Table(data[8:], struct.unpack_from("<I", data, 8)[0])
        return tuple(_graph(table) for table in root.tables(0))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise CompilerError(f"{path} is no DLC: {error}") from error
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CompilerError(f"{path} is a damaged DLC: {error}") from error


def only_graph(path: Path) -> DlcGraph:
    """Return the graph of a DLC that holds one.

    Raises:
        CompilerError: as `read_dlc`, or there are more or fewer.
    """
    graphs = read_dlc(path)
    if len(graphs) != 1:
        raise CompilerError(f"{path.name} holds {len(graphs)} graphs; one is expected")
    return graphs[0]


def _member(path: Path, name: str) -> bytes:
    """Return a stored member by its place in the file; the members' CRC fields are 0, so zipfile cannot."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile(f"member {name!r} is compressed")
        file.seek(info.header_offset + 26)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
        file.seek(name_bytes + extra_bytes, 1)
        content = file.read(info.file_size)
    if len(content) != info.file_size:
        raise zipfile.BadZipFile(f"member {name!r} is cut short")
    return content


def _graph(table: _Table) -> DlcGraph:
    return DlcGraph(
        name=table.text(0),
        nodes=tuple(_node(entry) for entry in table.tables(1)),
        tensors=tuple(_tensor(entry) for entry in table.tables(2)),
    )


def _node(table: _Table) -> DlcNode:
    return DlcNode(
        name=table.text(0),
        op_type=table.text(1),
        inputs=table.texts(2),
        outputs=table.texts(3),
        attributes=tuple(attribute.text(0) for attribute in table.tables(4)),
    )


def _tensor(table: _Table) -> DlcTensor:
    scales, offsets, axis = _encoding(table.child(5))
    dtype, role = table.int32(6), table.int32(2)
    return DlcTensor(
        name=table.text(1),
        shape=table.int32s(3),
        dtype=_DTYPES.get(dtype, f"0x{dtype:04x}"),
        role=_ROLES.get(role, str(role)),
        scales=scales,
        offsets=offsets,
        axis=axis,
    )


def _encoding(info: _Table | None) -> tuple[tuple[float, ...], tuple[int, ...], int | None]:
    """Return scales, offsets and axis: fields 2 and 3 hold one encoding, or one for each index of an axis."""
    if info is None:
        return (), (), None
    whole, by_axis = info.child(2), info.child(3)
    entries = by_axis.tables(1) if by_axis else [whole] if whole else []
    scales = tuple(entry.float32(3) for entry in entries)
    offsets = tuple(entry.int32(4) for entry in entries)
    return scales, offsets, by_axis.int32(0) if by_axis else None


class _Table:
    """A FlatBuffers table: fields by number; every read is checked against the buffer."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - self._unpack("i", position)
        self._vtable_bytes: int = self._unpack("H", self._vtable)

    def int32(self, field: int) -> int:
        place = self._field(field)
        value: int = self._unpack("i", place) if place else 0
        return value

    def float32(self, field: int) -> float:
        place = self._field(field)
        value: float = self._unpack("f", place) if place else 0.0
        return value

    def text(self, field: int) -> str:
        place = self._field(field)
        return self._text_at(place) if place else ""

    def texts(self, field: int) -> tuple[str, ...]:
        return tuple(self._text_at(place) for place in self._elements(field))

    def int32s(self, field: int) -> tuple[int, ...]:
        return tuple(self._unpack("i", place) for place in self._elements(field))

    def child(self, field: int) -> _Table | None:
        place = self._field(field)
        return _Table(self._data, self._follow(place)) if place else None

    def tables(self, field: int) -> list[_Table]:
        return [_Table(self._data, self._follow(place)) for place in self._elements(field)]

    def _field(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot >= self._vtable_bytes:
            return 0
        offset: int = self._unpack("H", self._vtable + slot)
        return self._position + offset if offset else 0

    def _elements(self, field: int) -> range:
        """Return the places of a vector's four-byte elements."""
        place = self._field(field)
        if not place:
            return range(0)
        start = self._follow(place)
        count: int = self._unpack("I", start)
        if start + 4 + 4 * count > len(self._data):
            raise IndexError(f"a vector of {count} elements passes the end")
        return range(start + 4, start + 4 + 4 * count, 4)

    def _text_at(self, place: int) -> str:
        start = self._follow(place)
        length: int = self._unpack("I", start)
        if start + 4 + length > len(self._data):
            raise IndexError(f"a text of {length} bytes passes the end")
        return self._data[start + 4 : start + 4 + length].decode()

    def _follow(self, place: int) -> int:
        return place + int(self._unpack("I", place))

    def _unpack(self, code: str, place: int) -> Any:  # noqa: ANN401 - int or float, as the code says
        if place < 0:
            raise IndexError("an offset points before the start")
        return struct.unpack_from(f"<{code}", self._data, place)[0]


if __name__ == "__main__":
    from compilers.qnn.dlc_report import main

    raise SystemExit(main())
