"""Combinations of versions that are known to be bad, refused with their reason instead of crashing (R21)."""

from __future__ import annotations

import functools
import importlib.metadata
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TABLE: Final = Path(__file__).with_name("compatibility.toml")


@functools.cache
def known_bad(backend: str, version: Callable[[str], str] = importlib.metadata.version) -> str | None:
    """Say what is wrong with the versions installed for a backend, and the way out; None when nothing is known.

    Asks the metadata of the packages, imports none.
    """
    for entry in _entries():
        have = _matching(entry["versions"], version) if entry["backend"] == backend else None
        if have:
            return f"known to be bad: {have}: {entry['reason']}; {entry['way_out']} ({entry['source']})"
    return None


@functools.cache
def _entries() -> tuple[dict[str, Any], ...]:
    return tuple(tomllib.loads(_TABLE.read_text(encoding="utf-8"))["known_bad"])


def _matching(wanted: Mapping[str, Any], version: Callable[[str], str]) -> str | None:
    """Name the installed versions when every one is in the range, None otherwise."""
    from packaging.specifiers import SpecifierSet  # 6 ms, of which most backends and every child have no need

    found = []
    for name, span in wanted.items():
        try:
            have = version(name)
        except importlib.metadata.PackageNotFoundError:
            return None
        if not SpecifierSet(span).contains(have, prereleases=True):
            return None
        found.append(f"{name} {have}")
    return " with ".join(found)
