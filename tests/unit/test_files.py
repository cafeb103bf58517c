"""A file is there wholly or not at all."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from experiments.files import writing

if TYPE_CHECKING:
    from pathlib import Path


def write_half(path: Path, error: BaseException) -> None:
    with writing(path) as scratch:
        assert scratch.suffix == path.suffix  # which some libraries choose a format by
        scratch.write_text("half")
        raise error


@pytest.mark.parametrize("number", [None, errno.ENOSPC])
@pytest.mark.parametrize("before", ["old", None])
def test_what_ends_half_way_leaves_what_was_there(number: int | None, before: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    if before is not None:
        path.write_text(before)
    error = KeyboardInterrupt() if number is None else OSError(number, "No space left on device")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert not isinstance(error, OSError) or error.filename == str(path)
    assert [p.read_text() for p in tmp_path.iterdir()] == ([] if before is None else [before])


def test_what_is_finished_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    for text in ("old", "new"):
        with writing(path) as scratch:
            scratch.write_text(text)
        assert [p.read_text() for p in tmp_path.iterdir()] == [text]


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught, writing(tmp_path / "file" / "out.csv") as scratch:
        scratch.write_text("")
    assert caught.value.filename == str(tmp_path / "file" / "out.csv")


def test_a_link_stays_one_and_a_device_is_written_as_it_is(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.csv", tmp_path / "link.csv", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    with writing(link) as scratch:
        scratch.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    with writing(pipe) as scratch:
        assert scratch == pipe
    assert pipe.is_fifo()
