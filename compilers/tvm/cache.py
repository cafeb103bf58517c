"""What the tile sweep found, shared between models and processes: one small JSON file for each structure.

A file for each entry needs no lock: it is written beside its place and renamed, so a reader sees an old entry,
a new one or none, and two processes that sweep the same function at once both write a right answer.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Final, Literal

from compilers.adapter import PassingError
from compilers.tvm.tiles import TileConfig

ENVIRONMENT: Final = "EDGEFRONTIER_CACHE"
_SCHEMA: Final = 1

Build = Literal["tiled", "flat", "tuned", "plain", "safe"]
"""tiled: a register tile around a reduction. flat: a vector loop. tuned: the best schedule that MetaSchedule found.
plain: as TVM lowers it. safe: plain, and for the baseline CPU (see `targets`)."""
BUILDS: Final[tuple[Build, ...]] = ("tiled", "flat", "tuned", "plain", "safe")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How one fused function is built, with its time where it was measured.

    `reason` tells why it is not scheduled; `miscompiled` lists the builds that computed wrong values. A
    function with a shape known only at run time is neither timed nor checked: `time_s` is None.
    """

    build: Build
    config: TileConfig | None = None
    time_s: float | None = None
    reason: str = ""
    miscompiled: tuple[str, ...] = ()


class TileCache:
    """Decisions by structure, below one folder for each (TVM build, code, machine, threads, sweep)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def for_build(cls, *parts: str) -> TileCache:
        """Open the cache for a combination of names that may not share entries."""
        return cls(cache_root() / "tvm" / "-".join(_file_safe(part) for part in parts))

    @property
    def folder(self) -> Path:
        """Where the entries are; nothing is made there before the first."""
        return self._folder

    def part(self, name: str) -> TileCache:
        """Return the cache of one part of these entries, in a folder inside."""
        return TileCache(self._folder / f"of-{name}")

    def parts(self) -> list[str]:
        """Name the parts that have entries."""
        return sorted(path.name.removeprefix("of-") for path in self._folder.glob("of-*"))

    def get(self, key: str) -> Decision | None:
        """Return the decision, or None when there is none or its file is not one that this version wrote."""
        try:
            return _decision(json.loads(self._path(key).read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
            return None

    def put(self, key: str, decision: Decision) -> None:
        """Write the decision by rename.

        Raises:
            PassingError: the cache folder cannot be written, which says nothing about the graph.
        """
        scratch = self._folder / f".{key}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(_entry(decision), indent=1), encoding="utf-8")
            scratch.replace(self._path(key))
        except OSError as error:
            raise PassingError(
                f"the tile cache {self._folder} cannot be written ({error.strerror}); set {ENVIRONMENT} to another "
                "folder"
            ) from error

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def cache_root() -> Path:
    """Return the user's cache folder of this project: `$EDGEFRONTIER_CACHE`, else `~/.cache/edgefrontier`."""
    set_by_user = os.environ.get(ENVIRONMENT)
    return Path(set_by_user).expanduser() if set_by_user else Path.home() / ".cache" / "edgefrontier"


def _entry(decision: Decision) -> dict[str, Any]:
    return {"schema": _SCHEMA, **dataclasses.asdict(decision)}


def _decision(entry: dict[str, Any]) -> Decision:
    if entry.pop("schema") != _SCHEMA or entry["build"] not in BUILDS:
        raise ValueError("another version's entry")
    config = TileConfig.from_json(entry.pop("config")) if entry["config"] else entry.pop("config")
    if (config is None) == (entry["build"] == "tiled"):
        raise ValueError("a tiled function has tiles, and no other has")
    return Decision(config=config, miscompiled=tuple(entry.pop("miscompiled")), **entry)


def _file_safe(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._+" else "_" for c in text)
