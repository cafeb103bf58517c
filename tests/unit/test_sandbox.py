from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

import psutil
import pytest
from onnx import TensorProto, helper

from compilers import Artefact, CompilerError, Limits, PassingError, compile_segment, in_child, read_artefact, sandbox
from compilers.adapter import library_hash
from graphs import from_proto, zoo
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
LIMITS = Limits(time_s=20.0)


def test_the_value_comes_back() -> None:
    assert in_child(operator.add, 2, 3, limits=LIMITS) == 5


def test_a_child_knows_the_hashes_of_libraries_that_its_parent_has_read(tmp_path: Path) -> None:
    library = tmp_path / "libvendor.so"
    library.write_bytes(b"first")
    stat = library.stat()
    known = library_hash(library)
    library.write_bytes(b"other")
    assert in_child(library_hash, library, limits=LIMITS) != known  # another time of change
    os.utime(library, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert in_child(library_hash, library, limits=LIMITS) == known


def test_a_hang_ends_at_its_limit() -> None:
    start = time.monotonic()
    with pytest.raises(CompilerError, match=r"stopped at its time limit of 0.5 s"):
        in_child(time.sleep, 60, limits=Limits(time_s=0.5))
    assert time.monotonic() - start < 5


def test_a_crash_is_named_by_its_signal_and_leaves_the_trace() -> None:
    with pytest.raises(CompilerError, match="crashed with SIGABRT") as caught:
        in_child(os.abort, limits=LIMITS)
    assert "Fatal Python error" in caught.value.log


def test_memory_beyond_the_limit_ends_the_child() -> None:
    with pytest.raises(CompilerError, match=r"memory limit of 0.5 GiB"):
        in_child(operator.mul, b"x" * 1024, 8 << 20, limits=Limits(time_s=60, memory_bytes=1 << 29))


def test_a_python_error_is_one_line_with_the_traceback_in_the_log() -> None:
    with pytest.raises(CompilerError, match=r"^ValueError: math domain error|expected a nonnegative input") as caught:
        in_child(math.sqrt, -1.0, limits=LIMITS)
    assert "Traceback" in caught.value.log


def test_leaving_without_an_answer_is_an_error() -> None:
    with pytest.raises(CompilerError, match="ended without an answer"):
        in_child(os._exit, 0, limits=LIMITS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(tmp_path: Path, number: int) -> None:
    script = f"""
import os, pathlib, time
from compilers import Limits, in_child
from tests_of_the_sandbox import sleep
in_child(sleep, {str(tmp_path / "pid")!r}, limits=Limits(time_s=60))
"""
    (tmp_path / "tests_of_the_sandbox.py").write_text(
        "import os, pathlib, time\n"
        "def sleep(file):\n    pathlib.Path(file).write_text(str(os.getpid()))\n    time.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    parent = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path})
    try:
        child = int(eventually((tmp_path / "pid").read_text, until=str.isdecimal))
        parent.send_signal(number)
        parent.wait(20)
        eventually(lambda: psutil.pid_exists(child) and psutil.Process(child).status(), until=lambda s: s in _ENDED)
    finally:
        parent.kill()


_ENDED = (False, psutil.STATUS_ZOMBIE)


def eventually(look: Callable[[], T], *, until: Callable[[T], bool]) -> T:
    for _ in range(400):
        with contextlib.suppress(OSError, psutil.Error):
            found = look()
            if until(found):
                return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that in 20 s")


def test_what_the_child_prints_goes_to_the_log_and_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    in_child(print, "words of a vendor", limits=LIMITS, log=tmp_path / "log")
    assert (tmp_path / "log").read_text().strip() == "words of a vendor"
    assert capfd.readouterr().out == ""


def test_files_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported by mistake')")
    assert in_child(operator.add, 1, 1, limits=LIMITS, cwd=tmp_path) == 2


def test_running_out_of_memory_may_pass() -> None:
    with pytest.raises(PassingError, match="out of memory"):
        in_child(bytearray, 1 << 62, limits=LIMITS)


def segment() -> Segment:
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [next(ends)], [next(ends)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return Segment(
        graph=from_proto(model), device=load_device("host"), processor="cpu", compiler="ort_cpu", precision="fp32"
    )


def test_an_artefact_that_lost_bytes_is_compiled_again(tmp_path: Path) -> None:
    made = compile_segment(segment(), tmp_path, LIMITS)
    content = made.main_file.read_bytes()
    assert compile_segment(segment(), tmp_path, LIMITS) == made
    made.main_file.write_bytes(content[:-1])
    assert read_artefact(made.directory) is None
    again = compile_segment(segment(), tmp_path, LIMITS)
    assert again.main_file == made.main_file
    assert len(again.main_file.read_bytes()) == len(content)


def test_an_option_that_states_its_default_is_no_second_compile(tmp_path: Path) -> None:
    made = compile_segment(segment(), tmp_path, LIMITS)
    stated = dataclasses.replace(segment(), options=(("threads", "1"),))
    assert compile_segment(stated, tmp_path, LIMITS) == made
    assert compile_segment(dataclasses.replace(stated, options=(("threads", "2"),)), tmp_path, LIMITS) != made


def test_another_figure_of_the_device_is_another_artefact(tmp_path: Path) -> None:
    one = dataclasses.replace(segment(), device=load_device("sm8650"))
    other = dataclasses.replace(one, device=dataclasses.replace(one.device, dram_bytes_per_s=None))
    assert sandbox.artefact_dir(other, tmp_path) != sandbox.artefact_dir(one, tmp_path)


def test_what_failed_does_not_take_the_place_of_what_another_run_published(tmp_path: Path) -> None:
    made = compile_segment(segment(), tmp_path, LIMITS)
    scratch = tmp_path / "scratch.tmp"
    scratch.mkdir()
    sandbox._take_place(scratch, made.directory, instead_of=None)
    assert read_artefact(made.directory) == made
    assert not scratch.exists()


def refused(*_: object, **__: object) -> Artefact:
    raise CompilerError("no such operator")


def test_a_refusal_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "in_child", refused)
        with pytest.raises(CompilerError, match="no such operator"):
            compile_segment(segment(), tmp_path, LIMITS)
    with pytest.raises(CompilerError, match="no such operator"):
        compile_segment(segment(), tmp_path, LIMITS)


def test_on_a_full_disk_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "in_child", refused)
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(PassingError, match=r"the disk of .* was full .*no such operator"):
            compile_segment(segment(), tmp_path, LIMITS)
    assert compile_segment(segment(), tmp_path, LIMITS).main_file.exists()


@pytest.mark.parametrize(
    ("device", "processor", "compiler", "precision"),
    [
        ("host", "cpu", "ort_cpu", "fp16"),
        ("host", "cpu", "ort_cpu", "int8"),
        ("host", "cpu", "tvm", "fp16"),
        ("sa8255p", "npu", "ort_qnn", "fp32"),
        ("sa8255p", "npu", "snpe", "fp32"),
        ("a17_pro", "npu", "coreml", "fp32"),
    ],
)
def test_what_the_request_rules_out_starts_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, processor: str, compiler: str, precision: str
) -> None:
    monkeypatch.setattr(sandbox, "in_child", lambda *_, **__: pytest.fail("a child was started"))
    segment = Segment(
        graph=zoo.build("squeezenet1_1"),
        device=load_device(device),
        processor=processor,
        compiler=compiler,
        precision=precision,
    )
    with pytest.raises(CompilerError, match=r"ask for|quantise it first"):
        compile_segment(segment, tmp_path, LIMITS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "counts"),
    [("compilers/a.py", True), ("graphs/shapes.py", True), ("partition/tile/search.py", True),
     ("partition/search/a.py", False), ("graphs/zoo/a.py", False)],
)  # fmt: skip
def test_the_code_behind_a_compile_is_part_of_its_key(
    file: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_ROOT", tmp_path)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("1")
    before = sandbox.adapters_hash.__wrapped__()
    (tmp_path / file).write_text("2")
    assert (sandbox.adapters_hash.__wrapped__() != before) == counts
