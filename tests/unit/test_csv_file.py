"""A CSV file of somebody else is read as it was meant, or refused with its reason, by every command that takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiments.arguments import UserError
from experiments.csv_file import read_csv

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "name,latency_s\nfirst,1\n"


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "own.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (PLAIN, [(2, "first", "1")]),
        (PLAIN.encode("utf-8-sig"), [(2, "first", "1")]),
        (PLAIN.replace("\n", "\r\n"), [(2, "first", "1")]),
        (PLAIN.replace("\n", "\r"), [(2, "first", "1")]),  # Excel's "CSV (Macintosh)"
        (PLAIN.removesuffix("\n"), [(2, "first", "1")]),
        (" name , latency_s \n first , 1 \n", [(2, "first", "1")]),
        ('name,latency_s\n"first, with ""quotes""",1\n', [(2, 'first, with "quotes"', "1")]),
        ('name,latency_s\n"in two\nlines",1\n\nlast,2\n', [(2, "in two\nlines", "1"), (5, "last", "2")]),
        ("name,latency_s,,\nfirst,1,,\n,,,\nlast,2,,\n", [(2, "first", "1"), (4, "last", "2")]),
        ("\n,\nname,latency_s\n\nfirst;1,2\n", [(5, "first;1", "2")]),
    ],
)
def test_what_a_spreadsheet_writes_is_read(
    content: str | bytes, rows: list[tuple[int, str, str]], tmp_path: Path
) -> None:
    header, lines = read_csv(write(tmp_path, content), needed=("latency_s",))
    assert header == ("name", "latency_s")
    assert [(place, *cells.values()) for place, cells in lines] == rows


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is empty"),
        ("\n ,\n", "is empty"),
        ("name,latency_s\n", "has no rows"),
        ("name,latency_s,name\na,1,b\n", "names a column twice: name"),
        ("name,,latency_s\na,1,2\n", "has a column without a name"),
        ("name,time\na,1\n", "has no column latency_s$"),
        ("name,latency_s\na,1\n\nb\n", "line 4 has 1 cells where the header has 2"),
        ("name,latency_s\na,1,5\n", "line 2 has 3 cells where the header has 2"),
        ("name,latency_s,\na,1,5\n", "line 2 has 3 cells where the header has 2"),
        ("name;latency_s\na;0,5\n", "has semicolons between its columns; save it with commas, and numbers with points"),
        ("name\tlatency_s\na\t0.5\n", "has tabs between its columns"),
        ("näme,latency_s\na,1\n".encode("cp1252"), "is no text in UTF-8; from a spreadsheet, save it as 'CSV UTF-8'"),
        (PLAIN.encode("utf-16"), "is no text in UTF-8"),
        (b"PK\x03\x04\x14\x00\x06\x00\x08\x00\x00\x00\xff", "is no text in UTF-8"),  # a workbook by another name
        ('name,latency_s\na,1\n"b,2\n', "line 3 is no row of a CSV file: unexpected end of data"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(content: str | bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why) as caught:
        read_csv(write(tmp_path, content), needed=("latency_s",))
    assert str(tmp_path / "own.csv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none.csv", "No such file")):
        with pytest.raises(UserError, match=f"cannot read .*{why}"):
            read_csv(path)
