"""Write a file so that nobody reads half of it, whatever ends the command."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give a path beside `path`, with the same suffix, for what takes its place at the end of the block.

    A link's target is what is replaced; a device or a pipe (`/dev/null`) is written as it stands.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        with naming(path):
            yield path
        return
    scratch = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with naming(path, scratch):
            yield scratch
            scratch.replace(path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


@contextlib.contextmanager
def naming(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Name the file in what is raised when it cannot be written: a full disk tells no name, and a scratch says none."""
    try:
        yield
    except OSError as error:
        if error.filename in {None, str(scratch)}:
            error.filename, error.filename2 = str(path), None
        raise
