"""Argument types that the commands share; cheap to import, because --help imports it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    Errors = tuple[type[Exception], ...]


INTERRUPTED: Final = 130
KEPT: Final = "what is compiled is kept, the same command goes on from there"
_EXAMPLES: Final = "examples:"
_TIMES: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}  # the longer ends first
# A disk fails on the way; another path is for the user to give.
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})
_PATH: Final = frozenset({
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT,
    errno.ENAMETOOLONG,  # of a model whose name is that of a file already
    errno.ENOTDIR, errno.EEXIST, errno.EISDIR,  # a file where a folder is needed, or the other way round
})  # fmt: skip


class UserError(ValueError):
    """Something the user can mend; the message is the one sentence that says what and how."""


def exit_code(run: Callable[[], int], *, refused: Errors = (), failed: Errors = (), kept: str = "") -> int:
    """Run a command and return its exit code: 2 for arguments that it refused, 1 for what failed after that.

    A UserError is a refusal, and so are any of `refused` and a path that cannot be used. Both print the error's
    sentence; an error of both kinds has failed, and so has a disk that is full. On Ctrl-C it says what is `kept`.
    """
    refusals: Errors = (UserError, *refused)
    try:
        with _terminated_as_interrupted():
            code = run()
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        print(f"interrupted; {kept}" if kept else "interrupted", file=sys.stderr)
        return INTERRUPTED
    except failed as error:
        code, sentence = 1, str(error)
    except refusals as error:
        code, sentence = 2, str(error)
    except BrokenPipeError:  # whoever reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in _DISK | _PATH:
            raise
        code = 1 if error.errno in _DISK else 2
        sentence = f"{error.filename or 'the disk'} cannot be used ({error.strerror})"
    print(f"error: {sentence}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """End on SIGTERM, with which `timeout` and CI end a command, as on Ctrl-C: children too, and results kept."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command(module: str, description: str, *examples: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m module`, whose help ends with the examples as they stand.

    From here on Ctrl-C is no traceback, also before `exit_code`, while libraries are imported.
    """
    sys.excepthook = _told
    shown = "\n".join([_EXAMPLES, *(f"  python -m {module} {example}" for example in examples)])
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, epilog=shown, formatter_class=_Help
    )


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say what ended Python, which then exits with 130 on Ctrl-C."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


class _Help(argparse.HelpFormatter):
    """Wrap all but the examples, which are for copying."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES) else super()._fill_text(text, width, indent)


def add_bind(parser: argparse.ArgumentParser) -> None:
    """Add --bind, which gives symbolic dimensions their sizes."""
    parser.add_argument(
        "--bind", type=binding, action="append", default=[], dest="bindings", metavar="NAME=SIZE",
        help="give a symbolic dimension its size, may be repeated",
    )  # fmt: skip


def add_build(parser: argparse.ArgumentParser) -> None:
    """Add --build, the folder that all runs share."""
    parser.add_argument(
        "--build", type=Path, default=Path("results/build"), metavar="DIR", help="compiled files (default: %(default)s)"
    )


def add_latencies(parser: argparse.ArgumentParser) -> None:
    """Add --latencies, a calibration of the user's own."""
    parser.add_argument(
        "--latencies", type=Path, default=None, metavar="FILE",
        help="latency models of Qualcomm NPUs that experiments.calibrate wrote (default: those that ship)",
    )  # fmt: skip


def names(text: str) -> tuple[str, ...]:
    """Read a comma-separated list, each name once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise argparse.ArgumentTypeError("expected a comma-separated list")
    return names


def binding(text: str) -> tuple[str, int]:
    """Read NAME=SIZE of a symbolic dimension."""
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"expected NAME=SIZE with a size of at least 1, got {text!r}")
    return name, int(number)


def option(text: str) -> tuple[str, str]:
    """Read KEY=VALUE of a backend's option."""
    key, _, value = text.partition("=")
    if not key or not value:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def backend_option(text: str) -> tuple[str, tuple[str, str]]:
    """Read BACKEND.KEY=VALUE."""
    backend, dot, rest = text.partition(".")
    if not backend or not dot or "=" in backend:
        raise argparse.ArgumentTypeError(f"expected BACKEND.KEY=VALUE, got {text!r}")
    return backend, option(rest)


def count(text: str) -> int:
    """Read a whole number of at least 0."""
    return _integer(text, 0)


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _integer(text, 1)


def number(accept: Callable[[float], bool], what: str) -> Callable[[str], float]:
    """Make the type of an argument that is a finite number which `accept` takes; `what` says which those are."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accept(value)):
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
        return value

    return parse


def ends(parse: Callable[[str], float]) -> Callable[[str], tuple[float, float]]:
    """Make the type of an argument that is one value, or LOW:HIGH between which it swings."""

    def read(text: str) -> tuple[float, float]:
        low, colon, high = text.partition(":")
        found = parse(low), parse(high if colon else low)
        if found[0] > found[1]:
            raise argparse.ArgumentTypeError(f"expected LOW:HIGH with the lower end first, got {text!r}")
        return found

    return read


positive_number = number(lambda n: n > 0, "a number above 0")
least_0 = number(lambda n: n >= 0, "a number of at least 0")
share = number(lambda n: 0 <= n < 1, "a share of at least 0 and below 1, for example 0.05 for 5 %")
# What is simulated is on Earth: numbers beyond are of another unit, kelvin for one.
celsius = number(lambda n: -90 <= n <= 200, "a temperature of -90 to 200 degC")
altitude = number(lambda n: -500 <= n <= 10_000, "-500 to 10000 metres above the sea")
supply_ratio = number(lambda n: 0.5 <= n <= 1.5, "a share of the nominal voltage, 0.5 to 1.5")
minutes = number(lambda n: 1e-3 <= n <= 44_640, "0.001 to 44640 minutes (31 days)")


def time(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Make the type of an argument that is a time with its unit, or in seconds, whose number `parse` takes."""

    def read(text: str) -> float:
        unit = next((unit for unit in _TIMES if text.endswith(unit)), "")
        try:
            return parse(text.removesuffix(unit)) * _TIMES.get(unit, 1.0)
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(f"expected a time such as 20ms or 0.02, got {text!r}") from None

    return read


duration = time(positive_number)


def _integer(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
    return int(text)
