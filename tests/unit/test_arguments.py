"""What a command line refuses, and how a command ends: its exit code and its one sentence."""

from __future__ import annotations

import errno
import os
import signal
from importlib import import_module
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
        (PermissionError(errno.EACCES, "Permission denied"), 1, "error: the disk cannot be used (Permission denied)\n"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a"), 1, "error: a cannot be used (Not a directory)\n"),
        (FileExistsError(errno.EEXIST, "File exists", "a"), 1, "error: a cannot be used (File exists)\n"),
        (OSError(errno.EFBIG, "File too large"), 1, "error: the disk cannot be used (File too large)\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a"), 1, "error: a cannot be used (File name too long)\n"),
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
    with pytest.raises(FileNotFoundError):
        ending(FileNotFoundError(errno.ENOENT, "No such file", "a"))


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
