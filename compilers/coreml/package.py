"""Read a saved `.mlpackage` without any converter code: manifest, protobuf, weight file -> Program.

The only thing taken from coremltools is its generated protobuf schema. A package that is damaged, or holds
something this reader does not know, is refused with the place; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.vendor import schema

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Array = np.ndarray[Any, Any]

BLOB_SENTINEL: Final = 0xDEADBEEF
_BLOB_RECORD: Final = struct.Struct("<IIQQ")  # sentinel, element type, bytes, offset of the data
_BLOB_TYPES: Final = {
    1: "FLOAT16", 2: "FLOAT32", 3: "UINT8", 4: "INT8", 6: "INT16", 7: "UINT16", 8: "INT4", 9: "UINT1", 10: "UINT2",
    11: "UINT4", 12: "UINT3", 13: "UINT6", 14: "INT32", 15: "UINT32",
}  # fmt: skip
_MODEL_PATH: Final = "@model_path/"

# MIL's DataType by name -> numpy.
_DTYPES: Final = {
    "BOOL": "bool",
    "STRING": "str",
    "FLOAT16": "float16",
    "FLOAT32": "float32",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    # Below a byte: handed out one element a byte.
    "INT4": "int8",
    "UINT1": "uint8",
    "UINT2": "uint8",
    "UINT3": "uint8",
    "UINT4": "uint8",
    "UINT6": "uint8",
}
_PACKED_BITS: Final = {"INT4": 4, "UINT1": 1, "UINT2": 2, "UINT3": 3, "UINT4": 4, "UINT6": 6}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A named tensor as the program declares it; `dtype` is a numpy name (a byte for what is narrower)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Ref(str):
    """The name of an earlier result, as against an immediate string."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One MIL operation: its arguments are names of earlier results or immediate values."""

    type: str
    name: str
    inputs: Mapping[str, tuple[Ref | str | Array, ...]]
    outputs: tuple[Tensor, ...]
    value: Array | str | None  # of a const


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The main function of a package."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    opset: str
    specification_version: int
    metadata: Mapping[str, str]


def read_package(path: Path) -> Program:
    """Read the main function of an `.mlpackage`.

    Raises:
        CompilerError: the package is damaged, or holds something unknown; the sentence names the place.
    """
    model_file = _model_file(path)
    spec = _specification(model_file)
    if spec.WhichOneof("Type") != "mlProgram":
        raise CompilerError(f"{path} holds a {spec.WhichOneof('Type')}, not an ML program")
    functions = spec.mlProgram.functions
    if list(functions) != ["main"]:
        raise CompilerError(f"{path} holds functions {sorted(functions)}; only a single main is handled")
    function = functions["main"]
    block = function.block_specializations[function.opset]
    reader = _Reader(path, model_file.parent)
    return Program(
        inputs=tuple(reader.tensor(i) for i in function.inputs),
        outputs=tuple(block.outputs),
        operations=tuple(reader.operation(o) for o in block.operations),
        opset=function.opset,
        specification_version=spec.specificationVersion,
        metadata=dict(spec.description.metadata.userDefined),
    )


def model_file_of(path: Path) -> Path:
    """Return the protobuf file that the package's manifest names."""
    return _model_file(path)


def _model_file(path: Path) -> Path:
    manifest = path / "Manifest.json"
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        entry = content["itemInfoEntries"][content["rootModelIdentifier"]]
        model_file = path / "Data" / str(entry["path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompilerError(f"{manifest} is missing or damaged: {type(error).__name__}: {error}") from error
    if not model_file.is_file():
        raise CompilerError(f"{path} has no {entry['path']}, which its manifest names")
    return model_file


def _specification(model_file: Path) -> Any:  # noqa: ANN401 - a protobuf message
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types

    spec = schema()[0].Model()
    try:
        spec.ParseFromString(model_file.read_bytes())
    except DecodeError as error:
        raise CompilerError(f"{model_file} is no Core ML model: {error}") from error
    return spec


class _Reader:
    """Turns protobuf messages into values; keeps the weight files open as memory maps."""

    def __init__(self, package: Path, folder: Path) -> None:
        self._package = package
        self._folder = folder
        self._type_names = {number: name for name, number in schema()[1].DataType.items()}
        self._files: dict[str, Array] = {}

    def tensor(self, named: Any) -> Tensor:  # noqa: ANN401 - a protobuf message
        mil_type, shape = self._type(named.type, named.name)
        return Tensor(name=named.name, dtype=_DTYPES[mil_type], shape=shape)

    def operation(self, message: Any) -> Operation:  # noqa: ANN401 - a protobuf message
        if message.blocks:
            raise CompilerError(f"{self._package}: operation {message.type} has inner blocks, which are not handled")
        attributes = {key: self._value(value, key) for key, value in message.attributes.items()}
        outputs = tuple(self.tensor(o) for o in message.outputs)
        name = attributes.pop("name", outputs[0].name if outputs else message.type)
        value = attributes.pop("val", None)
        inputs = {key: tuple(self._argument(b, key) for b in arg.arguments) for key, arg in message.inputs.items()}
        # The constexpr operations keep their arguments as attributes.
        inputs.update({key: (attribute,) for key, attribute in attributes.items()})
        return Operation(type=message.type, name=str(name), inputs=inputs, outputs=outputs, value=value)

    def _argument(self, binding: Any, where: str) -> Ref | str | Array:  # noqa: ANN401
        return Ref(binding.name) if binding.WhichOneof("binding") == "name" else self._value(binding.value, where)

    def _type(self, message: Any, where: str) -> tuple[str, tuple[int, ...]]:  # noqa: ANN401
        if message.WhichOneof("type") != "tensorType":
            raise CompilerError(f"{self._package}: {where} is a {message.WhichOneof('type')}, not a tensor")
        tensor = message.tensorType
        name = self._type_names.get(tensor.dataType, str(tensor.dataType))
        if name not in _DTYPES:
            raise CompilerError(f"{self._package}: {where} has element type {name}, which is not handled")
        if any(d.WhichOneof("dimension") != "constant" for d in tensor.dimensions):
            raise CompilerError(f"{self._package}: {where} has a dynamic shape, which is not handled")
        return name, tuple(int(d.constant.size) for d in tensor.dimensions)

    def _value(self, message: Any, where: str) -> Any:  # noqa: ANN401 - an array or a string
        mil_type, shape = self._type(message.type, where)
        if message.WhichOneof("value") == "blobFileValue":
            return self._blob(message.blobFileValue, mil_type, shape, where)
        return self._immediate(message.immediateValue, mil_type, shape, where)

    def _immediate(self, message: Any, mil_type: str, shape: tuple[int, ...], where: str) -> Any:  # noqa: ANN401
        if message.WhichOneof("value") != "tensor":
            raise CompilerError(f"{self._package}: the value of {where} is no tensor, which is not handled")
        tensor = message.tensor
        kind = tensor.WhichOneof("value")
        values = getattr(tensor, kind).values
        if mil_type == "STRING":
            return str(values[0]) if not shape else np.array(values).reshape(shape)
        if kind == "bytes":
            array = _elements(np.frombuffer(values, np.uint8), mil_type, shape)
        else:
            array = np.array(values, _DTYPES[mil_type])
        if array.size != math.prod(shape):
            raise CompilerError(f"{self._package}: {where} holds {array.size} values for shape {shape}")
        return array.reshape(shape)

    def _blob(self, blob: Any, mil_type: str, shape: tuple[int, ...], where: str) -> Array:  # noqa: ANN401
        data = self._file(str(blob.fileName))
        start = int(blob.offset)
        if start + _BLOB_RECORD.size > data.size:
            raise CompilerError(f"{self._package}: {where} points behind the end of {blob.fileName}")
        sentinel, code, size, offset = _BLOB_RECORD.unpack(data[start : start + _BLOB_RECORD.size].tobytes())
        if sentinel != BLOB_SENTINEL:
            raise CompilerError(f"{self._package}: {where}: bad sentinel {sentinel:#x} at byte {start}")
        if _BLOB_TYPES.get(code) != mil_type or size != _stored_bytes(mil_type, shape) or offset + size > data.size:
            raise CompilerError(f"{self._package}: {where}: the weight record at byte {start} is not {mil_type}{shape}")
        return _elements(data[offset : offset + size], mil_type, shape).reshape(shape)

    def _file(self, name: str) -> Array:
        if name not in self._files:
            path = (self._folder / name.removeprefix(_MODEL_PATH)).resolve()
            if not name.startswith(_MODEL_PATH) or not path.is_relative_to(self._package.resolve()):
                raise CompilerError(f"{self._package}: weight file {name} lies outside the package")
            if not path.is_file():
                raise CompilerError(f"{self._package} has no weight file {path.name}")
            self._files[name] = np.memmap(path, np.uint8, "r")
        return self._files[name]


def _stored_bytes(mil_type: str, shape: tuple[int, ...]) -> int:
    bits = _PACKED_BITS.get(mil_type, 8 * np.dtype(_DTYPES[mil_type]).itemsize)
    return -(-math.prod(shape) * bits // 8)


def _elements(stored: Array, mil_type: str, shape: tuple[int, ...]) -> Array:
    """Return stored bytes as elements in a row."""
    if mil_type not in _PACKED_BITS:
        return stored.view(_DTYPES[mil_type])
    codes = unpack_bits(stored, _PACKED_BITS[mil_type], math.prod(shape))
    # Two's complement of four bits: 8 to 15 stand for -8 to -1.
    return ((codes ^ 8).astype(np.int8) - 8).astype(np.int8) if mil_type == "INT4" else codes


def unpack_bits(stored: Array, bits: int, count: int) -> Array:
    """Return `count` unsigned codes of `bits` bits each, packed from the least significant bit up."""
    flat = np.unpackbits(np.asarray(stored), count=count * bits, bitorder="little")
    return np.packbits(flat.reshape(count, bits), axis=1, bitorder="little").reshape(count)
