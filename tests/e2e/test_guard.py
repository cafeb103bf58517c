"""A plan in a child process with the CPU behind it: real hangs and crashes, by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import CompilerError, Limits, compile_segment
from experiments.evaluator.child_session import ChildSession, EndedError, steps_of
from experiments.evaluator.fallback import Breaker, NotReadyError, State
from experiments.guard import main
from experiments.guard_job import guard
from experiments.plans import write_plan
from graphs import extract, from_proto
from partition import Plan, Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.evaluator.fallback import Event

FEED = {"x": np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)}  # more than a pipe holds


@pytest.fixture
def plan() -> Plan:
    """Two segments on the host, the second one reading what the first gives and the graph gives out, too."""
    value = helper.make_tensor_value_info
    weights = np.random.default_rng(5).standard_normal((512, 4)).astype(np.float32)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["t"], name="front"),
            helper.make_node("Relu", ["t"], ["y"], name="back"),
        ],
        "two",
        [value("x", TensorProto.FLOAT, [512, 512])],
        [value("t", TensorProto.FLOAT, [512, 4]), value("y", TensorProto.FLOAT, [512, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    graph = from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    place = {"device": load_device("host"), "processor": "cpu", "compiler": "ort_cpu", "precision": "fp32"}
    return Plan.of(graph, [Segment(graph=extract(graph, [part]), **place) for part in ("front", "back")])  # type: ignore[arg-type]


def child(plan: Plan, tmp_path: Path, limit_s: float = 5.0) -> ChildSession:
    artefacts = [compile_segment(segment, tmp_path / "build", Limits()) for segment in plan.segments]
    return ChildSession(steps_of(plan, artefacts), [spec.name for spec in plan.outputs], time_limit_s=limit_s)


def answered(session: ChildSession) -> dict[str, np.ndarray]:
    """Call until the process has loaded."""
    for _ in range(1000):
        try:
            return session.run(FEED)
        except NotReadyError:
            time.sleep(0.02)
    pytest.fail("it never loaded")


def test_a_process_that_hangs_is_ended_and_one_that_crashed_is_started_anew(plan: Plan, tmp_path: Path) -> None:
    with child(plan, tmp_path, limit_s=5.0) as session:
        first = answered(session)
        assert list(first) == ["t", "y"]
        np.testing.assert_array_equal(first["y"], np.maximum(first["t"], 0))
        for number, message in ((signal.SIGSEGV, "crashed with SIGSEGV"), (signal.SIGSTOP, "no answer within 0.3 s")):
            pid = session.pid
            assert pid is not None
            session._limit_s = 0.3 if number == signal.SIGSTOP else 5.0
            os.kill(pid, number)
            begin = time.monotonic()
            with pytest.raises(EndedError, match=message):
                session.run(FEED)
            assert time.monotonic() - begin < 3.0
            assert session.pid is None
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            with pytest.raises(NotReadyError):
                session.run(FEED)
            session._limit_s = 5.0
            np.testing.assert_array_equal(answered(session)["y"], first["y"])


_HOLDS: Final = """
import sys, threading, time
from pathlib import Path
from experiments.evaluator.child_session import ChildSession
from experiments.guard_job import _compiled
from experiments.plans import read_plan
from compilers import Limits

plan = read_plan(Path(sys.argv[1]))
session = ChildSession(_compiled(plan, Path(sys.argv[2]), Limits()), ["t", "y"], time_limit_s=60.0)
session._end()
# As after a crash: from the thread of a call, which then ends.
again = threading.Thread(target=lambda: (session._start(), session.wait()))
again.start()
again.join()
time.sleep(0.2)
assert session._process.poll() is None
print(session.pid, flush=True)
time.sleep(60.0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with its parent")
def test_a_process_that_hangs_does_not_outlive_a_program_that_is_killed(plan: Plan, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDS, str(write_plan(plan, tmp_path)), str(tmp_path / "build")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child_process = psutil.Process(int(program.stdout.readline()))
        child_process.suspend()  # it hangs, so it cannot see that the pipe was closed
        time.sleep(0.2)
        assert child_process.status() == psutil.STATUS_STOPPED
        program.kill()
    try:
        for _ in range(1000):
            if child_process.status() == psutil.STATUS_ZOMBIE:  # dead, where nobody asks for what orphans left
                return
            time.sleep(0.01)
        child_process.kill()
        pytest.fail("the plan's process is left over")
    except psutil.NoSuchProcess:
        pass


def test_a_plan_that_does_not_load_and_a_call_that_is_refused_say_why(plan: Plan, tmp_path: Path) -> None:
    with child(plan, tmp_path) as session:
        session.wait()
        pid = session.pid
        with pytest.raises(CompilerError, match="x"):
            session.run({"z": FEED["x"]})
        assert session.pid == pid  # a refusal does not end the process
        session._limits = Limits(memory_bytes=1 << 20)
        session._next_look_s = 0.0
        with pytest.raises(EndedError, match="more memory than its limit"):
            session.run(FEED)
        assert session.pid is None
    artefact = compile_segment(plan.segments[0], tmp_path / "build", Limits())
    artefact.main_file.write_bytes(b"x" * artefact.main_file.stat().st_size)  # of another size it would be made anew
    with child(plan, tmp_path) as session, pytest.raises(CompilerError):
        session.wait()


def test_from_a_plan_file_every_call_is_answered_through_a_hang_and_a_crash(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plan(plan, tmp_path)
    faults = ["--fault", "hang@3", "--fault", "crash@25"]
    limits = ["--runs", "50", "--every", "0.1", "--time-limit", "1.0", "--build", str(tmp_path / "build")]
    assert main([str(path), *faults, *limits]) == 0
    out = capsys.readouterr().out
    assert "before call 3: SIGSTOP" in out
    assert "50 calls: " in out
    assert "0 unanswered" in out
    assert "the plan's answers are the same as the CPU's" in out
    events = [json.loads(line) for line in (tmp_path / f"guard-{plan.digest[:12]}.jsonl").read_text().splitlines()]
    assert "no answer within 1 s" in events[0]["reason"]
    if "before call 25: SIGSEGV" in out:  # unless the machine was so slow that it was still starting then
        assert any("crashed with SIGSEGV" in event["reason"] for event in events)


def test_a_plan_that_always_crashes_is_left_alone_after_the_failures_allowed(plan: Plan, tmp_path: Path) -> None:
    heard: list[Event] = []
    with guard(plan, tmp_path / "build", breaker=Breaker(failures=2), on_event=heard.append) as session:
        for call in range(2):
            child_session = session._first
            assert isinstance(child_session, ChildSession)
            if call:
                child_session._start()
                child_session.wait()
            assert child_session.pid is not None
            os.kill(child_session.pid, signal.SIGKILL)
            np.testing.assert_array_equal(session.run(FEED)["y"].shape, (512, 4))
        assert session.state is State.OPEN
        session.run(FEED)
        assert session._first.pid is None  # type: ignore[attr-defined]
    assert [event.what for event in heard] == ["failure", "failure", "open"]
    assert all("SIGKILL" in event.reason for event in heard)


def test_outputs_that_are_no_floats_are_compared_and_a_log_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text, an empty output, and infinities of the model's own: none of them is a failure of the plan."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING),
            helper.make_node("Slice", ["x", "none", "none"], ["empty"]),
            helper.make_node("Relu", ["x"], ["positive"]),
            helper.make_node("Log", ["positive"], ["masked"]),
        ],
        "odd",
        [value("x", TensorProto.FLOAT, [4, 4])],
        [
            value("text", TensorProto.STRING, [4, 4]),
            value("empty", TensorProto.FLOAT, [0, 4]),
            value("masked", TensorProto.FLOAT, [4, 4]),
        ],
        [numpy_helper.from_array(np.array([0]), "none")],
    )
    graph = from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    place = {"device": load_device("host"), "processor": "cpu", "compiler": "ort_cpu", "precision": "fp32"}
    path = write_plan(Plan.of(graph, [Segment(graph=graph, **place)]), tmp_path)  # type: ignore[arg-type]
    calls = [str(path), "--runs", "3", "--every", "0.01", "--build", str(tmp_path / "build")]
    assert main(calls) == 0
    out = capsys.readouterr().out
    assert "3 calls: 3 by the plan" in out
    assert "the plan's answers are the same as the CPU's" in out
    assert main([*calls, "--log", str(tmp_path / "no" / "guard.jsonl")]) == 2
    assert "guard.jsonl cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["PLAN", "--fault", "melt@3"], "hang@CALL"),
        (["PLAN", "--fault", "hang@0"], "at least 1"),
        (["none.json"], "plan"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err
