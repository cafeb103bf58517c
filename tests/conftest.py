"""Fixtures and switches that all tests share."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# How long a draw takes says how busy the machine is, nothing about what is tested.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Tile caches of the tests must not depend on, nor change, the user's own.
os.environ.setdefault("EDGEFRONTIER_CACHE", str(Path(__file__).resolve().parent.parent / "build" / "test-cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def csv_columns() -> dict[str, list[re.Pattern[str]]]:
    """Return the columns of every CSV file as the page describes them."""
    return _documented_columns()


@functools.cache
def _documented_columns() -> dict[str, list[re.Pattern[str]]]:
    """Read docs/csv_files.md: for each file its columns, once for each command that writes one of that name."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "csv_files.md").read_text(encoding="utf-8")
    found: dict[str, list[re.Pattern[str]]] = {}
    for name, columns in re.findall(r"^\| `(\w+\.csv)` \|.*\|.*\| (.*) \|$", page, re.MULTILINE):
        found.setdefault(name, []).append(re.compile(columns.replace("`", "").replace("OPTIONS", r"[\w ]+")))
    return found


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold what any test writes as CSV against the page that describes it."""
    from experiments import store

    write = store.write_csv

    def write_csv(path: Path, header: tuple[str, ...], lines: Iterable[Mapping[str, object]]) -> None:
        known = _documented_columns().get(path.name, [])
        assert any(columns.fullmatch(" ".join(header)) for columns in known), f"docs/csv_files.md: {path.name} {header}"
        write(path, header, lines)

    monkeypatch.setattr(store, "write_csv", write_csv)
