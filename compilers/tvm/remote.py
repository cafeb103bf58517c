"""An artefact on another machine: TVM's RPC tracker hands out a server, which loads, runs and times the library.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

import tvm
from tvm import relax, rpc

from compilers.adapter import CompilerError, PassingError, Session
from compilers.ort_session import first_line, last_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from compilers.artefact import Artefact
    from partition import Address

    Array = np.ndarray[Any, Any]

ANSWER_S: Final = 10.0
"""How long a tracker may take for each answer."""
_FREE_S: Final = 4.0
_CALLS: Final = 3
_REPEATS: Final = 3
# Below /sys: the CPUs' make and features, how many, clock and core of the first, and what the board calls itself.
_OF_BOARDS: Final = (
    "devices/system/cpu/modalias", "devices/system/cpu/possible", "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
    "devices/system/cpu/cpu0/regs/identification/midr_el1", "devices/soc0/machine", "firmware/devicetree/base/model",
)  # fmt: skip
_REFUSALS: Final = (tvm.error.RPCError, AttributeError)  # what is lost is an InternalError
_EXHAUSTED: Final = ("bad_alloc", "Cannot allocate memory", "out of memory", "No space left")
_SESSION_S: Final = 900  # a server ends a session that is older, so that a client that hangs does not keep it


def connect(address: Address) -> Any:  # noqa: ANN401
    """Return an RPC session on a server that the tracker has registered under the key.

    Raises:
        PassingError: nobody listens, what listens is no tracker, no server is there or free, or it does not answer;
            all of which another process mends, at the same address.
    """
    _knock(address)
    default = socket.getdefaulttimeout()
    socket.setdefaulttimeout(ANSWER_S)  # of the tracker's connection; a server's is made in C++ and not by this
    try:
        tracker = rpc.connect_tracker(address.host, address.port)
        _see_free_server(tracker.summary, address)
        return tracker.request(address.key, session_timeout=_SESSION_S, max_retry=1)
    except CompilerError:
        raise
    except Exception as error:  # sockets, struct and TVM raise what they like
        raise PassingError(f"the RPC tracker of {address} gave no session: {first_line(error)}") from error
    finally:
        socket.setdefaulttimeout(default)


def _knock(address: Address) -> None:
    """See that somebody listens: TVM itself tries for a minute."""
    try:
        socket.create_connection((address.host, address.port), timeout=ANSWER_S).close()
    except OSError as error:
        raise PassingError(
            f"no RPC tracker answers at {address.host}:{address.port} ({error}); start one with "
            f"`python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {address.port}`"
        ) from error


def _see_free_server(ask: Callable[[], Mapping[str, Any]], address: Address) -> None:
    """Wait a little for a free server: one whose session has just ended tells the tracker a moment later."""
    deadline = time.monotonic() + _FREE_S
    while not _is_free(ask(), address):
        if time.monotonic() > deadline:
            raise PassingError(f"all servers of {address} are taken; try again when one is free")
        time.sleep(_FREE_S / 20)


def _is_free(summary: Mapping[str, Any], address: Address) -> bool:
    queues = summary["queue_info"]
    servers = [server for server in summary["server_info"] if server["key"] == f"server:{address.key}"]
    if not servers:
        keys, tracker = ", ".join(sorted(queues)) or "none", f"{address.host}:{address.port}"
        raise PassingError(
            f"the tracker at {tracker} has no server under {address.key!r} (keys: {keys}); start one with "
            f"`python -m tvm.exec.rpc_server --tracker {tracker} --key {address.key}`"
        )
    return bool(queues[address.key]["free"])


def board_of(remote: Any) -> str:  # noqa: ANN401
    """Name the kind of board that a server runs on by what its system says; "" where it says nothing.

    Boards of one kind, which may well share what was timed, have one name. A server can only read files whose size
    the system tells, which leaves `/proc/cpuinfo` out.
    """
    told = []
    for file in _OF_BOARDS:
        try:
            told.append(bytes(remote.download(f"/sys/{file}")).rstrip(b"\0").strip())
        except _REFUSALS:
            told.append(b"")
    return hashlib.sha256(b"\n".join(told)).hexdigest()[:8] if any(told) else ""


def see_board(address: Address) -> str:
    """Return the kind of the board that answers now.

    Raises:
        PassingError: none does.
    """
    remote = connect(address)
    with _calling(address, "tell what it is"):
        return board_of(remote)


def kernel_times_s(
    address: Address, board: str, library: Path, arrays: Mapping[str, Sequence[Array]]
) -> dict[str, float]:
    """Return the seconds of each function of a library by the server's clock, the shortest of a few means.

    `arrays` are the arguments of each function by its name, results included.

    Raises:
        PassingError: the device does not answer, or one of another kind than `board` does.
        CompilerError: it refuses to load or to run the functions.
    """
    remote = connect(address)
    with _calling(address, "tell what it is"):
        other = board_of(remote)
    if other != board:
        raise PassingError(f"boards of two kinds answer at {address}, {board} and {other}: give each a key of its own")
    with _calling(address, "time kernels"):
        remote.upload(bytearray(library.read_bytes()), target=library.name)
        module, device = remote.load_module(library.name), remote.cpu(0)
        times = {}
        for name, each in arrays.items():
            tensors = [tvm.runtime.tensor(array, device) for array in each]
            evaluator = module.time_evaluator(name, device, number=_CALLS, repeat=_REPEATS)
            times[name] = min(float(seconds) for seconds in evaluator(*tensors).results)
        return times


class RemoteSession(Session):
    """A Relax virtual machine on the server."""

    here: ClassVar[bool] = False

    def __init__(self, artefact: Artefact, address: Address) -> None:
        self._address = address
        self._outputs: list[str] = json.loads(artefact.fact("outputs"))
        self._inputs: list[tuple[str, list[int], str]] = json.loads(artefact.fact("inputs"))
        self._machine: Any = None
        if artefact.main_file.suffix not in (".so", ".tar"):
            raise CompilerError(f"{artefact.main_file.name} cannot be sent; a library needs a C++ compiler on the PATH")
        remote = connect(address)
        with self._calling("load the library"):
            remote.upload(bytearray(artefact.main_file.read_bytes()), target=artefact.main_file.name)
            self._device = remote.cpu(0)
            self._machine = relax.VirtualMachine(remote.load_module(artefact.main_file.name), self._device)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once: arrays by input name in, arrays by output name out."""
        machine = self._ready(inputs)
        with self._calling("run the model"):
            machine.invoke_stateful("main")
            found = machine.get_outputs("main")
            arrays = [found] if isinstance(found, tvm.runtime.Tensor) else list(found)
            return {name: array.numpy() for name, array in zip(self._outputs, arrays, strict=True)}

    def device_times_s(self, inputs: Mapping[str, Array], *, samples: int, calls: int = 1) -> tuple[float, ...]:
        """Return seconds by the server's clock: each sample the mean of `calls` runs."""
        machine = self._ready(inputs)
        with self._calling("time the model"):
            evaluator = machine.time_evaluator("invoke_stateful", self._device, number=calls, repeat=samples)
            return tuple(float(seconds) for seconds in evaluator("main").results)

    def close(self) -> None:
        """Let go of the server; a second call does nothing."""
        self._machine = None

    def _ready(self, inputs: Mapping[str, Array]) -> Any:  # noqa: ANN401
        if self._machine is None:
            raise CompilerError("the TVM session is closed; load the artefact again")
        with self._calling("take the inputs"):
            tensors = [tvm.runtime.tensor(inputs[name].astype(dtype), self._device) for name, _, dtype in self._inputs]
            self._machine.set_input("main", *tensors)
        return self._machine

    def _calling(self, what: str) -> contextlib.AbstractContextManager[None]:
        return _calling(self._address, what)


@contextlib.contextmanager
def _calling(address: Address, what: str) -> Iterator[None]:
    """Tell a refusal, which the server sends back or which it has no function for, from the end of the connection."""
    try:
        yield
    except Exception as error:  # TVM raises a type of its own for every way in which a connection ends
        told = last_line(error)
        if isinstance(error, _REFUSALS) and not any(word in told for word in _EXHAUSTED):
            raise CompilerError(f"the server of {address} refuses to {what}: {told}") from error
        raise PassingError(f"the server of {address} could not {what}, or died over it: {told}") from error
