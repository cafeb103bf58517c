"""A package is entered by its `__init__`, or by that of a documented subpackage, never by an inner module."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("graphs", "partition", "compilers", "experiments")
DOORS = {
    "graphs",
    "graphs.zoo",
    "partition",
    "partition.search",
    "partition.tile",
    "compilers",
    "experiments",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_packages_use_each_other_by_the_front_door() -> None:
    offences = [
        f"{path.relative_to(ROOT)} imports {module}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in PACKAGES and module.split(".")[0] != package and module not in DOORS
    ]
    assert offences == []


def test_what_is_measured_uses_clocks_that_never_go_back() -> None:
    """The clock of the day may be set while something is timed; it is for the log of `guard` alone."""
    wall = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.time", "time.time_ns", "datetime.now"}
    ]
    assert wall == ["experiments/guard_job.py"]
