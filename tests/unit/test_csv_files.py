"""The page of every CSV file: it names each file with its columns, and says what each column is."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from experiments import job, sustained_job, tiles_build, tiles_job, tiles_measure
from experiments.calibration import check
from experiments.explain import report as placement
from experiments.splitting import report as splits

Columns = dict[str, list[re.Pattern[str]]]
ROOT = Path(__file__).resolve().parents[2]


def written() -> set[str]:
    """Find the names of all files that our code writes by `write_csv`."""
    names = set()
    for path in (ROOT / "experiments").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("write_csv"):
                names |= set(re.findall(r"\w+\.csv", ast.unparse(call)))
    return names


def test_every_file_is_described(csv_columns: Columns) -> None:
    assert written() | {"validation.csv"} == set(csv_columns)
    assert len(written()) > 12


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("frontier.csv", job._CSV_HEADER),
        ("plans.csv", splits.PLAN_FIELDS),
        ("verified.csv", splits.VERIFIED_FIELDS),
        ("cuts.csv", splits.CUT_FIELDS),
        ("placement.csv", placement._HEADER),
        ("sustained.csv", sustained_job._CSV_HEADER),
        ("validation.csv", check._HEADER),
        ("tiles.csv", tiles_job._FIELDS),
        ("measured.csv", tiles_measure._FIELDS),
        ("artefacts.csv", tuple(field.name for field in dataclasses.fields(tiles_build.Built))),
    ],
)
def test_columns_are_those_of_the_code(name: str, header: tuple[str, ...], csv_columns: Columns) -> None:
    """What other headers are made of as they are written is held against the page by the tests that write them."""
    assert any(fits.fullmatch(" ".join(header)) for fits in csv_columns[name])


def test_every_column_is_described() -> None:
    """Those that the page of results describes count."""
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("csv_files.md", "results.md")]
    files, columns = pages[0].split("## Columns")
    cells = [row.split("|")[1] for page in (columns, pages[1]) for row in page.splitlines() if row.startswith("| `")]
    described = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    rows = [row.split("|")[4] for row in files.splitlines() if row.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed - described == set()
