"""The few calls of Qualcomm's public QNN C interface that load, compile, simulate and run a DLC, through ctypes.

The function tables and structures are laid out as Qualcomm's published API and its BSD-3 Python bindings give them, for
core API 2.40 and system API 1.15: those of onnxruntime-qnn 2.7. `QnnSystemDlc_composeGraphs` takes the whole table by
value, so one entry more or less moves its last arguments: any other version is refused, not tried. That the layout is
right is tested: the simulated cycles are those of the provider's own compile, for two chips. A wrong one would end the
process, so this belongs into a child process.
"""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError
from compilers.qnn import wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CORE_API: Final = (2, 40)
SYSTEM_API: Final = (1, 15)

# Entries of QnnInterface_t's table that are used here, by position, and their number.
_BACKEND_CREATE: Final = 1
_CONTEXT_CREATE: Final = 9
_GRAPH_FINALIZE: Final = 19
_GRAPH_RETRIEVE: Final = 20
_GRAPH_EXECUTE: Final = 21
_PROFILE_CREATE: Final = 28
_PROFILE_EVENTS: Final = 30
_PROFILE_SUB_EVENTS: Final = 31
_PROFILE_DATA: Final = 32
_DEVICE_CREATE: Final = 40
_ENTRIES: Final = 75
# backendId and padding, providerName, core and backend version of three words each.
_VERSION_OFFSET: Final = 16
_TABLE_OFFSET: Final = 40

# Entries of QnnSystemInterface_t's table: backendId, padding, providerName and one version stand before it.
_DLC_FROM_FILE: Final = 8
_DLC_COMPOSE: Final = 10
_SYSTEM_TABLE_OFFSET: Final = 32

_GRAPH_INFO_V1: Final = 1
_PROFILE_DETAILED: Final = 2
_RAW_MEMORY: Final = 0  # QNN_TENSORMEMTYPE_RAW

# QnnHtpDevice_ConfigOption_t and QnnHtpGraph_ConfigOption_t.
_DEVICE_SOC: Final = 0
_GRAPH_OPTIMISATION: Final = 1
_GRAPH_PRECISION: Final = 2
_GRAPH_VTCM_MB: Final = 3
_FINALIZE_FLAG: Final = 3  # QNN_HTP_GRAPH_OPTIMIZATION_TYPE_FINALIZE_OPTIMIZATION_FLAG
_FLOAT16: Final = 1

_UNITS: Final = {0: "NONE", 1: "US", 2: "BYTES", 3: "CYCLES", 4: "COUNT"}

_POINTER = ctypes.c_void_p
_WORD = ctypes.c_uint32


class _Interface(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * ((_TABLE_OFFSET + 8 * _ENTRIES) // 8)),)


class _TensorV1(ctypes.Structure):
    """Qnn_TensorV1_t."""

    _fields_ = (
        ("id", _WORD),
        ("name", ctypes.c_char_p),
        ("kind", _WORD),
        ("format", _WORD),
        ("dtype", _WORD),
        ("quantisation", ctypes.c_uint64 * 5),
        ("rank", _WORD),
        ("dimensions", ctypes.POINTER(_WORD)),
        ("memory", _WORD),
        ("data", _POINTER),
        ("data_bytes", _WORD),
    )


class _Tensor(ctypes.Structure):
    """Qnn_Tensor_t: a version and one of several forms, of which the first is the start of all."""

    _fields_ = (("version", _WORD), ("v1", _TensorV1), ("rest", ctypes.c_uint64 * 3))


class _GraphInfo(ctypes.Structure):
    """QnnSystemContext_GraphInfo_t in its version 1."""

    _fields_ = (
        ("version", _WORD),
        ("name", ctypes.c_char_p),
        ("input_count", _WORD),
        ("inputs", _POINTER),
        ("output_count", _WORD),
        ("outputs", _POINTER),
    )


class _EventData(ctypes.Structure):
    """QnnProfile_EventData_t."""

    _fields_ = (("kind", _WORD), ("unit", _WORD), ("value", ctypes.c_uint64), ("name", ctypes.c_char_p))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of a profile: `depth` 0 is a heading, deeper ones belong to the one before."""

    depth: int
    name: str
    value: int
    unit: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GraphTensor:
    """An input or output of a composed graph; `form` is the library's own memory."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    form: _TensorV1


class Qnn:
    """The HTP backend for one chip, ready to compose graphs."""

    def __init__(self, soc_model: int) -> None:
        htp, system = (
            ctypes.CDLL(str(wheel.library(name)), mode=ctypes.RTLD_GLOBAL)
            for name in (wheel.HTP_LIBRARY, wheel.SYSTEM_LIBRARY)
        )
        self._table = _provider(htp.QnnInterface_getProviders, CORE_API, "core")
        self._system = _provider(system.QnnSystemInterface_getProviders, SYSTEM_API, "system")
        self._keep: list[object] = []
        self._backend, self._context = _POINTER(), _POINTER()
        self._call(_BACKEND_CREATE, None, None, ctypes.addressof(self._backend))
        device = _POINTER()
        chosen = self._list([self._config(_DEVICE_SOC, soc_model)])
        self._call(_DEVICE_CREATE, None, chosen, ctypes.addressof(device))
        self._call(_CONTEXT_CREATE, self._backend, device, None, ctypes.addressof(self._context))

    def compose(self, dlc: Path, graph: str, *, vtcm_mb: int, optimisation_mode: int) -> ComposedGraph:
        """Load the DLC and compose its graph on the backend, floats lowered to float16.

        Raises:
            CompilerError: the library refused the file or an operator of it.
        """
        level = struct.unpack("<I", struct.pack("<f", optimisation_mode))[0]
        configs = [
            self._config(_GRAPH_OPTIMISATION, _FINALIZE_FLAG, level),
            self._config(_GRAPH_VTCM_MB, vtcm_mb),
            self._config(_GRAPH_PRECISION, _FLOAT16),
        ]
        handle, graphs, count = _POINTER(), _POINTER(), _WORD()
        opened = self._entry(self._system, _SYSTEM_TABLE_OFFSET, _DLC_FROM_FILE, _POINTER, ctypes.c_char_p, _POINTER)
        _check(opened(None, str(dlc).encode(), ctypes.addressof(handle)), "QnnSystemDlc_createFromFile")
        self._keep.append(name := ctypes.create_string_buffer(graph.encode()))
        options = self._array(1, ctypes.addressof(name), self._list(configs), len(configs))
        compose = self._entry(
            self._system, _SYSTEM_TABLE_OFFSET, _DLC_COMPOSE,
            _POINTER, _POINTER, _WORD, _POINTER, _POINTER, _Interface, _WORD, _POINTER, _POINTER,
        )  # fmt: skip
        table = _Interface.from_buffer_copy(ctypes.string_at(self._table, ctypes.sizeof(_Interface)))
        code = compose(
            handle, self._list([options]), 1, self._backend, self._context, table, _GRAPH_INFO_V1,
            ctypes.addressof(graphs), ctypes.addressof(count),
        )  # fmt: skip
        _check(code, "QnnSystemDlc_composeGraphs")
        if count.value != 1 or graphs.value is None:
            raise CompilerError(f"{dlc.name} holds {count.value} graphs; one is expected")
        return ComposedGraph(self, graphs.value)

    def finalize(self, handle: _Handle) -> tuple[Event, ...]:
        """Compile a composed graph and return the profile that its compiler leaves."""
        profile = _POINTER()
        self._call(_PROFILE_CREATE, self._backend, _WORD(_PROFILE_DETAILED), ctypes.addressof(profile))
        self._call(_GRAPH_FINALIZE, handle, profile, None)
        return tuple(self._events(profile, 0))

    def retrieve(self, name: bytes) -> _Handle:
        """Return the handle of a composed graph."""
        handle, text = _POINTER(), ctypes.create_string_buffer(name)
        self._call(_GRAPH_RETRIEVE, self._context, ctypes.addressof(text), ctypes.addressof(handle))
        return handle

    def execute(self, handle: _Handle, inputs: ctypes.Array[_Tensor], outputs: ctypes.Array[_Tensor]) -> None:
        """Run a finalised graph on its tensors."""
        arguments = [part for array in (inputs, outputs) for part in (ctypes.addressof(array), _WORD(len(array)))]
        self._call(_GRAPH_EXECUTE, handle, *arguments, None, None)

    def _events(self, parent: _Handle | int, depth: int) -> Sequence[Event]:
        found, count = _POINTER(), _WORD()
        if isinstance(parent, int):
            ask = self._entry(self._table, _TABLE_OFFSET, _PROFILE_SUB_EVENTS, ctypes.c_uint64, _POINTER, _POINTER)
        else:
            ask = self._entry(self._table, _TABLE_OFFSET, _PROFILE_EVENTS, _POINTER, _POINTER, _POINTER)
        if ask(parent, ctypes.addressof(found), ctypes.addressof(count)) != 0 or not found.value:
            return ()
        numbers = (ctypes.c_uint64 * count.value).from_address(found.value)
        return [event for number in numbers for event in (self._event(number, depth), *self._events(number, depth + 1))]

    def _event(self, number: int, depth: int) -> Event:
        data = _EventData()
        ask = self._entry(self._table, _TABLE_OFFSET, _PROFILE_DATA, ctypes.c_uint64, _POINTER)
        _check(ask(number, ctypes.addressof(data)), "QnnProfile_getEventData")
        name = (data.name or b"").decode(errors="replace")
        return Event(depth=depth, name=name, value=data.value, unit=_UNITS.get(data.unit, str(data.unit)))

    def _call(self, entry: int, *arguments: Any) -> None:  # noqa: ANN401 - whatever C takes
        kinds = [type(a) if isinstance(a, ctypes._SimpleCData) else _POINTER for a in arguments]  # noqa: SLF001
        function = self._entry(self._table, _TABLE_OFFSET, entry, *kinds)
        _check(function(*arguments), f"entry {entry} of the QNN interface")

    def _entry(self, base: int, offset: int, index: int, *kinds: Any) -> Any:  # noqa: ANN401 - ctypes' own types
        address = ctypes.c_uint64.from_address(base + offset + 8 * index).value
        return ctypes.CFUNCTYPE(ctypes.c_uint64, *kinds)(address)

    def _config(self, option: int, *words: int) -> int:
        """Make a QnnDevice_Config_t or QnnGraph_Config_t of option CUSTOM around an HTP one; return its address."""
        # The HTP structure is an option and, aligned to 8 bytes, a union.
        self._keep.append(custom := (_WORD * 8)(option, 0, *words))
        return self._array(0, ctypes.addressof(custom))

    def _list(self, addresses: Sequence[int]) -> int:
        """Make an array of pointers that ends with NULL; return its address."""
        return self._array(*addresses, 0)

    def _array(self, *words: int) -> int:
        self._keep.append(array := (ctypes.c_uint64 * len(words))(*words))
        return ctypes.addressof(array)


_Handle = ctypes.c_void_p


class ComposedGraph:
    """A graph on the backend; `profile` is what its compile left, filled by `finalize`."""

    def __init__(self, qnn: Qnn, address: int) -> None:
        info = _GraphInfo.from_address(address)
        if info.version != _GRAPH_INFO_V1:
            raise CompilerError(f"QnnSystemDlc_composeGraphs returned graph info of version {info.version}, not 1")
        self._qnn = qnn
        self._inputs = (_Tensor * info.input_count).from_address(info.inputs or 0)
        self._outputs = (_Tensor * info.output_count).from_address(info.outputs or 0)
        self._handle = qnn.retrieve(info.name)

    def inputs(self) -> tuple[GraphTensor, ...]:
        """List the graph's inputs."""
        return tuple(map(_graph_tensor, self._inputs))

    def outputs(self) -> tuple[GraphTensor, ...]:
        """List the graph's outputs."""
        return tuple(map(_graph_tensor, self._outputs))

    def finalize(self) -> tuple[Event, ...]:
        """Compile the graph and return the profile that its compiler leaves."""
        return self._qnn.finalize(self._handle)

    def execute(self) -> None:
        """Run once on the buffers that `set_buffer` gave the inputs and outputs."""
        self._qnn.execute(self._handle, self._inputs, self._outputs)


def set_buffer(tensor: GraphTensor, address: int, size_bytes: int) -> None:
    """Let a tensor read from, or write to, raw memory that the caller keeps alive."""
    tensor.form.memory, tensor.form.data, tensor.form.data_bytes = _RAW_MEMORY, address, size_bytes


def _graph_tensor(tensor: _Tensor) -> GraphTensor:
    form = tensor.v1
    return GraphTensor(name=form.name.decode(), dtype=form.dtype, shape=tuple(form.dimensions[: form.rank]), form=form)


def _provider(get_providers: Any, expected: tuple[int, int], what: str) -> int:  # noqa: ANN401 - a ctypes function
    """Return the address of the interface that the library provides, if it is of the version known here."""
    found, count = _POINTER(), _WORD()
    get_providers.argtypes, get_providers.restype = [_POINTER, _POINTER], ctypes.c_uint64
    _check(get_providers(ctypes.addressof(found), ctypes.addressof(count)), f"the {what} interface's getProviders")
    if count.value != 1 or not found.value:
        raise CompilerError(f"Qualcomm's library offers {count.value} {what} interfaces; one is expected")
    address = ctypes.c_uint64.from_address(found.value).value
    version = struct.unpack("<II", ctypes.string_at(address + _VERSION_OFFSET, 8))
    if version != expected:
        raise CompilerError(
            f"this wheel has QNN {what} API {version[0]}.{version[1]}, and compilers/qnn/api.py knows the layout of "
            f"{expected[0]}.{expected[1]} (onnxruntime-qnn 2.7); install that version to load a DLC"
        )
    return address


def _check(code: int, what: str) -> None:
    if code != 0:
        raise CompilerError(f"{what} of Qualcomm's library failed with error {code & 0xFFFFFFFF}")
