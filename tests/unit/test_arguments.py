"""What a command line refuses, and how a command ends: its exit code and its one sentence."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

from compilers import get_compiler
from experiments.arguments import UserError, exit_code
from experiments.store import StoreError


def ending(error: BaseException) -> int:
    def run() -> NoReturn:
        raise error

    return exit_code(run, refused=(KeyError,), failed=(ZeroDivisionError,))


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("say how"), 2, "error: say how\n"),
        (ZeroDivisionError("no way"), 1, "error: no way\n"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), 1,
         "error: a/b cannot be used (No space left on device)\n"),
        (PermissionError(errno.EACCES, "Permission denied"), 2, "error: the disk cannot be used (Permission denied)\n"),
        (OSError(errno.EROFS, "Read-only file system", "a"), 2, "error: a cannot be used (Read-only file system)\n"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a"), 2, "error: a cannot be used (Not a directory)\n"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a"), 2, "error: a cannot be used (No such file)\n"),
        (FileExistsError(errno.EEXIST, "File exists", "a"), 2, "error: a cannot be used (File exists)\n"),
        (OSError(errno.EFBIG, "File too large"), 1, "error: the disk cannot be used (File too large)\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a"), 2, "error: a cannot be used (File name too long)\n"),
        (StoreError("choose another with --out"), 2, "error: choose another with --out\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_one_sentence_and_a_code(
    error: BaseException, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(error) == code
    assert capsys.readouterr().err == sentence


def test_sigterm_ends_a_command_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def run() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert exit_code(run) == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_fault_of_ours_stays_a_traceback() -> None:
    with pytest.raises(RuntimeError):
        ending(RuntimeError("ours"))
    with pytest.raises(ConnectionRefusedError):
        ending(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))


SCRIPT = """
import time
from experiments.arguments import command, exit_code
command("experiments.one", "says much")
if {interrupted}:
    raise KeyboardInterrupt
raise SystemExit(exit_code(lambda: print("x" * {count}) or 0))
"""


def ended(*, interrupted: bool = False, count: int = 0, out: str = "/dev/null") -> tuple[int, str]:
    script = SCRIPT.format(interrupted=interrupted, count=count)
    command = [sys.executable, "-c", script]
    if out == "head":
        both = f"{shlex.join(command)} | head -c 1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", both], capture_output=True, text=True, check=False)
    else:
        with Path(out).open("w") as sink:
            done = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_ctrl_c_before_a_command_begins_is_no_traceback() -> None:
    assert ended(interrupted=True) == (-signal.SIGINT, "interrupted\n")  # 130 to a shell


def test_output_that_nobody_reads_or_that_does_not_fit_is_no_traceback() -> None:
    assert ended(count=10) == (0, "")
    assert ended(count=10_000_000, out="head") == (1, "")
    assert ended(count=10, out="/dev/full") == (1, "error: the disk cannot be used (No space left on device)\n")


def test_an_unknown_backend_is_a_sentence_without_quotes_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda: bool(get_compiler("corelm")), refused=(KeyError,)) == 2
    assert capsys.readouterr().err.startswith("error: unknown backend 'corelm'; did you mean 'coreml'?")


@pytest.mark.parametrize(
    "command", ["calibrate", "deploy", "guard", "knobs", "pareto", "placement", "splits", "validate"]
)
@pytest.mark.parametrize("limit", ["0", "-1", "nan", "soon"])
def test_a_time_limit_that_is_none_is_refused(command: str, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"experiments.{command}").main(["--time-limit", limit])
    assert ended.value.code == 2
    assert "--time-limit: expected a" in capsys.readouterr().err
