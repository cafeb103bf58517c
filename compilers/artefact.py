"""What a compiler leaves behind: Artefact, Estimate, Latency, Placement, and the layout on disk.

    build/<graph>-<digest12>/<plan-digest12>/<index>-<compiler>-<device>/
        segment.onnx  request.json  compile.log  <vendor files>  artefact.json

`artefact.json` is written last, by rename, so its presence means success.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ARTEFACT_FILE: Final = "artefact.json"
PROVISIONAL: Final = "provisional"
_SIZES: Final = "file_sizes_bytes"


class Source(enum.StrEnum):
    """Where a cost came from."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    MODELLED = "modelled"
    PUBLISHED = "published"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Seconds for one inference, with the interval its source allows."""

    typical_s: float
    low_s: float
    high_s: float
    source: Source

    def __post_init__(self) -> None:
        if not 0 < self.low_s <= self.typical_s <= self.high_s < float("inf"):
            raise ValueError(
                f"a latency needs 0 < low <= typical <= high, got {self.low_s}, {self.typical_s}, {self.high_s}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A cost without a clock: latency, DRAM traffic in bytes, and the nodes it says nothing about.

    `note` says how good such an estimate is, where that is known.
    """

    latency: Latency
    dram_bytes: int | None = None
    spill_bytes: int | None = None
    uncosted_nodes: tuple[str, ...] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where each node will run or did run ("cpu", "gpu", "npu"), and why not where it was asked."""

    units: Mapping[str, str]
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Count nodes by unit, most first."""
        return dict(Counter(self.units.values()).most_common())

    def elsewhere(self, processor: str) -> tuple[str, ...]:
        """List the nodes that are not on `processor`."""
        return tuple(node for node, unit in self.units.items() if unit != processor)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Artefact:
    """One compiled segment on disk; `files` are relative to `directory`, the main one first.

    `precision` is that of the arithmetic: an option can make it another than its segment's.
    """

    compiler: str
    compiler_version: str
    segment_digest: str
    device: str
    processor: str
    precision: str
    directory: Path
    files: tuple[str, ...]
    size_bytes: int
    compile_s: float
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def main_file(self) -> Path:
        """The file that a runtime loads."""
        return self.directory / self.files[0]

    @property
    def provisional(self) -> str:
        """Why a later compile may come to something better (a device that did not answer), "" where none may."""
        return self.fact(PROVISIONAL)

    def fact(self, key: str, default: str = "") -> str:
        """Return what the compiler noted under `key`."""
        return dict(self.facts).get(key, default)


def write_artefact(artefact: Artefact) -> None:
    """Publish the artefact: check that its files exist, then write `artefact.json` by rename."""
    missing = [name for name in artefact.files if not (artefact.directory / name).exists()]
    if missing or not artefact.files:
        raise FileNotFoundError(f"{artefact.compiler} reported files that it did not write: {missing}")
    fields = {f.name: getattr(artefact, f.name) for f in dataclasses.fields(artefact) if f.name != "directory"}
    fields[_SIZES] = _sizes(artefact.directory, artefact.files)
    scratch = artefact.directory / f".{ARTEFACT_FILE}.{os.getpid()}"
    scratch.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    scratch.replace(artefact.directory / ARTEFACT_FILE)


def read_artefact(directory: Path) -> Artefact | None:
    """Read a published artefact; None when there is none, or when a file of it is gone or has another size."""
    try:
        fields = json.loads((directory / ARTEFACT_FILE).read_text(encoding="utf-8"))
        fields["files"] = tuple(fields["files"])
        fields["facts"] = tuple((k, v) for k, v in fields["facts"])
        sizes = fields.pop(_SIZES)
        artefact = Artefact(directory=directory, **fields)
        complete = sizes == _sizes(directory, artefact.files)
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
        return None
    return artefact if complete else None


def _sizes(directory: Path, files: Iterable[str]) -> list[int]:
    return [tree_size_bytes(directory / name) for name in files]


def tree_size_bytes(path: Path) -> int:
    """Add up the bytes of a file, or of all files below a folder."""
    if not path.is_dir():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
