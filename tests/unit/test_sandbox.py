from __future__ import annotations

import math
import operator
import os
import time
from typing import TYPE_CHECKING

import pytest

from compilers import CompilerError, Limits, in_child

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(time_s=20.0)


def test_the_value_comes_back() -> None:
    assert in_child(operator.add, 2, 3, limits=LIMITS) == 5


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


def test_what_the_child_prints_goes_to_the_log_and_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    in_child(print, "words of a vendor", limits=LIMITS, log=tmp_path / "log")
    assert (tmp_path / "log").read_text().strip() == "words of a vendor"
    assert capfd.readouterr().out == ""


def test_files_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported by mistake')")
    assert in_child(operator.add, 1, 1, limits=LIMITS, cwd=tmp_path) == 2
