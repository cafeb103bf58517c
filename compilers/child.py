"""The other end of `sandbox.in_child`: read one call from stdin, make it, leave the answer in a file."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

from compilers.adapter import LIBRARY_HASHES, CompilerError, DiedError

_PR_SET_PDEATHSIG: Final = 1

serving = False
"""Whether this process is such a child: what it is asked for is all that it will do."""


def main() -> NoReturn:
    """Answer one call and leave without the vendor's teardown, which may crash after good work."""
    global serving  # noqa: PLW0603 - of the process, like what it says
    serving = True
    faulthandler.enable()
    end_with_parent()
    function, args, answer, hashes = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own parent wrote it
    LIBRARY_HASHES.update(hashes)
    value: object = None
    error: CompilerError | None = None
    try:
        value = function(*args)
    except CompilerError as refused:
        error = refused
    except MemoryError:
        error = DiedError("out of memory")
    except Exception as failed:  # noqa: BLE001 - the one place where vendor errors become ours
        error = CompilerError(_one_line(failed), log=traceback.format_exc())
    scratch = Path(answer).with_suffix(".part")
    scratch.write_bytes(pickle.dumps((value, error)))
    scratch.replace(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def end_with_parent() -> None:
    """Have the system end this process when its parent is killed, who could not do it then; Linux only.

    To the system the parent is the thread that started this process, so that one must live as long as it is wanted.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _one_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
