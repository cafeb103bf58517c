"""TVM's RPC over loopback: a real tracker and a real server, and what a user reads when one of them fails."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import (
    Action,
    Artefact,
    CompilerError,
    Limits,
    PassingError,
    compile_segment,
    get_compiler,
    read_artefact,
    reference_session,
)
from experiments.pareto import main
from graphs import Graph, from_proto, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partition import Address

TVM = get_compiler("tvm")
START_S = 60
BOARD = """
title = "another x86-64 machine"
os = "linux"
[processors.cpu]
title = "its CPU"
[processors.cpu.ids.tvm]
kind = "llvm"
mtriple = "x86_64-linux-gnu"
mcpu = "x86-64-v2"
"""

pytestmark = pytest.mark.skipif(
    not TVM.available(Action.COMPILE, load_device("host"), "cpu")
    or any(importlib.util.find_spec(name) is None for name in ("cloudpickle", "tornado")),
    reason="needs TVM, and for its tracker cloudpickle and tornado",
)


def perceptron() -> onnx.ModelProto:
    weights = np.random.default_rng(7).normal(0, 0.1, (64, 32)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def graph() -> Graph:
    return from_proto(perceptron())


@contextlib.contextmanager
def process(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1", *arguments]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        end(started)


def end(started: subprocess.Popen[bytes]) -> None:
    """End a process with the children that it serves its sessions from."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in (*psutil.Process(started.pid).children(recursive=True), psutil.Process(started.pid)):
            one.send_signal(signal.SIGKILL)
    started.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], None]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(CompilerError):
            condition()
            return
        time.sleep(0.2)
    raise TimeoutError


@pytest.fixture(scope="module")
def tracker() -> Iterator[int]:
    from compilers.tvm import remote
    from partition import Address

    port = free_port()
    with process("rpc_tracker", "--port", str(port), "--port-end", str(port + 1)):
        until(lambda: remote._knock(Address(host="127.0.0.1", port=port, key="")))
        yield port


@contextlib.contextmanager
def server(tracker: int, key: str) -> Iterator[subprocess.Popen[bytes]]:
    from tvm import rpc

    port = free_port()
    where = ("--tracker", f"127.0.0.1:{tracker}", "--port", str(port), "--port-end", str(port + 1))
    with process("rpc_server", *where, "--key", key) as started:

        def registered() -> None:
            queues = rpc.connect_tracker("127.0.0.1", tracker).summary()["queue_info"]
            if not queues.get(key, {}).get("free"):
                raise CompilerError("not yet")

        until(registered)
        yield started


def compiled(tracker: int, key: str, folder: Path) -> Artefact:
    device = load_device(f"rpc://127.0.0.1:{tracker}/{key}?device=host")
    segment = Segment(graph=graph(), device=device, processor="cpu", compiler="tvm", precision="fp32")
    return compile_segment(segment, folder, Limits(time_s=300))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path_factory.getbasetemp() / "rpc-cache"))


def test_the_main_job_measures_by_the_clock_of_the_device(tracker: int, tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "perceptron.onnx")
    address = f"rpc://127.0.0.1:{tracker}/board?device=host"
    with server(tracker, "board"):
        asked = ["--device", address, "--precisions", "fp32", "--out", str(tmp_path / "out")]
        assert main([str(tmp_path / "perceptron.onnx"), *asked]) == 0
    (file,) = tmp_path.glob("out/perceptron-*/outcomes.jsonl")
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]  # no other backend reaches it
    assert (row["status"], row["device"], row["backend"], row["latency_source"]) == ("ok", address, "tvm", "measured")
    assert row["runs_on"] == f"rpc://127.0.0.1:{tracker}/board"
    assert row["cosine"] > 0.999999
    assert row["peak_memory_bytes"] is None


def test_tiles_are_timed_on_the_device_once(tracker: int, tmp_path: Path) -> None:
    board = tmp_path / "board.toml"
    board.write_text(BOARD)
    device = load_device(f"rpc://127.0.0.1:{tracker}/x86?device={board}")
    options = (("threads", "1"),)
    asked = Segment(graph=graph(), device=device, processor="cpu", compiler="tvm", precision="fp32", options=options)
    folder = tmp_path / "build"
    alone = compile_segment(asked, folder, Limits(time_s=300))
    assert "the model's first" in alone.fact("schedules")
    assert "has no server under 'x86'" in alone.provisional
    made = alone.main_file.stat().st_mtime_ns
    assert compile_segment(asked, folder, Limits(time_s=300)) == alone  # still nobody answers: nothing is made anew
    assert alone.main_file.stat().st_mtime_ns == made
    with server(tracker, "x86"):
        timed = compile_segment(asked, folder, Limits(time_s=300))
        assert timed.directory == alone.directory
        assert re.search(r"/x86 \(board \w{8}\), for 1 of 1 functions$", timed.fact("schedules"))
        assert not timed.provisional
    assert compile_segment(asked, folder, Limits(time_s=300)) == timed
    rows = json.loads((timed.directory / "functions.json").read_text())
    assert [(row["build"], row["time_s"] > 0) for row in rows] == [("tiled", True)]
    again = compile_segment(asked, tmp_path / "again", Limits(time_s=300))  # nobody answers, and nothing is asked
    assert json.loads((again.directory / "functions.json").read_text()) == rows


def test_boards_of_two_kinds_behind_one_key_share_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which server answers is the tracker's choice, so the one that times is asked again what it is."""
    from compilers.tvm import remote, there
    from partition import Address

    class Server:
        def __init__(self, **files: bytes) -> None:
            self.files = files

        def download(self, path: str) -> bytearray:
            name = path.rpartition("/")[2]
            if name not in self.files:
                raise AttributeError(path)
            return bytearray(self.files[name].ljust(4096, b"\0"))

    fast, slow = (
        Server(modalias=b"cpu:type:aarch64", possible=b"0-7"),
        Server(modalias=b"cpu:type:aarch64", possible=b"0-3"),
    )
    assert remote.board_of(fast) == remote.board_of(Server(**fast.files)) != remote.board_of(slow)
    assert remote.board_of(Server()) == ""
    address = Address(host="127.0.0.1", port=1, key="two")
    with pytest.raises(PassingError, match="no RPC tracker answers"):
        there.board_at(address, ["a", "b"])
    assert there.board_at(address, ["a"]) == "a"  # silent: the only one that was ever there
    monkeypatch.setattr(remote, "connect", lambda _: slow)
    assert there.board_at(address, ["a"]) == remote.board_of(slow)
    with pytest.raises(PassingError, match=r"boards of two kinds answer .* a key of its own"):
        remote.kernel_times_s(address, remote.board_of(fast), Path("unread.so"), {})


def test_a_tile_cache_that_cannot_be_written_is_not_taken_for_a_silent_device(
    tracker: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "file" / "cache"))
    board = tmp_path / "board.toml"
    board.write_text(BOARD)
    device = load_device(f"rpc://127.0.0.1:{tracker}/full?device={board}")
    asked = Segment(graph=graph(), device=device, processor="cpu", compiler="tvm", precision="fp32")
    with server(tracker, "full"), pytest.raises(PassingError, match=r"tile cache .* cannot be written"):
        compile_segment(asked, tmp_path / "build", Limits(time_s=300))


def test_what_was_timed_with_untimed_tiles_says_so_and_is_timed_again(tracker: int, tmp_path: Path) -> None:
    """The device is silent for the compile, answers for the run, is silent again, and then answers throughout."""
    onnx.save(perceptron(), tmp_path / "perceptron.onnx")
    board = tmp_path / "board.toml"
    board.write_text(BOARD)
    asked = ["--device", f"rpc://127.0.0.1:{tracker}/late?device={board}", "--precisions", "fp32"]
    asked += ["--objectives", "latency,size", "--processes", "1", "--out", str(tmp_path / "out")]
    asked.insert(0, str(tmp_path / "perceptron.onnx"))

    def run() -> tuple[int, list[dict[str, object]]]:
        code = main(asked)
        (file,) = tmp_path.glob("out/perceptron-*/outcomes.jsonl")
        return code, [json.loads(line) for line in file.read_text().splitlines()]

    assert run()[0] == 1
    (artefact,) = (read_artefact(path.parent) for path in tmp_path.glob("out/build/*/*/artefact.json"))
    assert artefact is not None
    with server(tracker, "late"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(TVM), "is_outdated", lambda *_: False)  # as if it had been taken until now
        code, (silent, untimed) = run()
    assert (code, silent["passing"], untimed["status"]) == (0, True, "ok")
    assert "tiles were not timed on the device" in str(untimed["notes"])
    assert run() == (0, [silent, untimed])  # no answer: what is known is shown, and no failure takes its place
    with server(tracker, "late"):
        code, (*_, timed) = run()
    assert (code, timed["status"], "not timed" in str(timed["notes"])) == (0, "ok", False)


def test_a_server_that_dies_in_the_middle_is_told(tracker: int, tmp_path: Path) -> None:
    artefact = compiled(tracker, "mortal", tmp_path)
    feed = random_inputs(graph(), 0)
    with server(tracker, "mortal") as started, TVM.load(artefact) as session:
        np.testing.assert_allclose(session.run(feed)["y"], reference_session(graph()).run(feed)["y"], atol=1e-5)
        with pytest.raises(CompilerError, match="are taken; try again"):
            TVM.load(artefact)
        threading.Timer(0.5, end, [started]).start()
        began = time.monotonic()
        with pytest.raises(PassingError, match="could not time the model, or died over it"):
            session.device_times_s(feed, samples=100, calls=10_000_000)
        assert time.monotonic() - began < 20
        with pytest.raises(PassingError, match="died over it"):
            session.run(feed)


def test_what_a_server_refuses_is_no_lost_connection(tracker: int, tmp_path: Path) -> None:
    """A library for another machine, or none, is refused the next time too; a full memory need not be."""
    from compilers.tvm import remote
    from partition import Address

    with server(tracker, "alive"):
        artefact = compiled(tracker, "alive", tmp_path)
        arm = bytearray(artefact.main_file.read_bytes())
        arm[18:20] = (183).to_bytes(2, "little")  # e_machine: aarch64
        artefact.main_file.write_bytes(arm)
        with pytest.raises(CompilerError, match=r"refuses to load the library: .*cannot open shared object") as refused:
            TVM.load(artefact)
        assert not isinstance(refused.value, PassingError)
    with server(tracker, "again"):
        address = Address(host="127.0.0.1", port=tracker, key="again")
        session = remote.connect(address)
        with pytest.raises(CompilerError, match="refuses to find it: Module has no fun") as lacking, _asking(address):
            session.get_function("device_api.opencl")
        assert not isinstance(lacking.value, PassingError)
        with pytest.raises(PassingError, match="bad_alloc"), _asking(address):
            tvm_runtime().empty((1 << 46,), "float32", session.cpu(0))


def _asking(address: Address) -> contextlib.AbstractContextManager[None]:
    from compilers.tvm import remote

    return remote._calling(address, "find it")


def tvm_runtime() -> Any:
    import tvm

    return tvm.runtime


def test_a_key_without_a_server_is_answered_with_those_there_are(tracker: int) -> None:
    from compilers.tvm import remote
    from partition import Address

    with pytest.raises(CompilerError, match=r"no server under 'nobody' \(keys: .*start one with"):
        remote.connect(Address(host="127.0.0.1", port=tracker, key="nobody"))


def test_a_tracker_that_listens_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from compilers.tvm import remote
    from partition import Address

    monkeypatch.setattr(remote, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(host="127.0.0.1", port=mute.getsockname()[1], key="board")
        began = time.monotonic()
        with pytest.raises(CompilerError, match="gave no session: timed out"):
            remote.connect(address)
        assert time.monotonic() - began < 10


def test_where_nobody_listens_the_command_that_starts_a_tracker_is_named() -> None:
    from compilers.tvm import remote
    from partition import Address

    with pytest.raises(CompilerError, match=r"start one with `python -m tvm\.exec\.rpc_tracker"):
        remote.connect(Address(host="127.0.0.1", port=free_port(), key="board"))


def test_only_tvm_reaches_a_device_over_rpc() -> None:
    device = load_device("rpc://127.0.0.1:1/phone?device=sm8650")
    assert TVM.why_not(Action.RUN, device, "cpu") is None
    assert "sends nothing to rpc://127.0.0.1:1/phone" in (
        get_compiler("ort_cpu").why_not(Action.RUN, device, "cpu") or ""
    )
    assert "sends nothing to rpc://127.0.0.1:1/phone" in (get_compiler("snpe").why_not(Action.RUN, device, "npu") or "")


def test_a_gpu_over_rpc_is_refused_for_what_the_wheel_lacks_there(tracker: int) -> None:
    """Once a server of the wheel has a runtime for OpenCL, its kernels can be sent: then the refusal has to go."""
    from compilers.tvm import remote
    from partition import Address

    reason = TVM.why_not(Action.RUN, load_device("rpc://127.0.0.1:1/phone?device=sm8650"), "gpu") or ""
    assert "not sent over RPC: TVM's wheels have no runtime for OpenCL" in reason
    with server(tracker, "plain"):
        session = remote.connect(Address(host="127.0.0.1", port=tracker, key="plain"))
        assert not session.get_function("runtime.RuntimeEnabled")("opencl")
        assert session.get_function("device_api.cpu") is not None
        with pytest.raises(AttributeError, match=r"device_api\.opencl"):
            session.get_function("device_api.opencl")
