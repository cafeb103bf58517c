"""Read the trace that the HTP compiler's simulator writes with `profiling_level=optrace`: tiles, units, bytes, time.

Two files come with it. `profile_qnn.log` holds, after a short binary header, a Chrome trace in JSON: one event for
each tiled operation with its start and duration in simulated cycles, the unit it ran on and the bytes it moved,
and the configuration of the simulated chip. `*_schematic.bin` is text, and says which QNN node an operation came
from. Neither has a public schema: only the layout that was checked (QAIRT 2.51; golden files in the tests) is
read, and anything else is refused by the name of what differs.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError
from compilers.trace import Chip, Event, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKED_SDK: Final = "v2.51."
LOG_SUFFIX: Final = "_qnn.log"
SCHEMATIC_SUFFIX: Final = "_schematic.bin"

# An event carries one of these flags; "for_hvx_dma" is a transfer that a vector thread started and waits for.
_UNITS: Final = {
    "uses_hmx": "hmx", "for_hvx": "hvx", "for_dma": "dma", "for_hvx_dma": "dma", "scalar": "scalar",
}  # fmt: skip
_EVENT_KEYS: Final = frozenset({"name", "ph", "tid", "pid", "ts", "dur", "args"})
_ARGUMENT_KEYS: Final = frozenset({"id", "opcode", "flags", "input_dims", "dims", "dmabytes"})
_NAMES_START: Final = "qnn_name_translations = {"
_NAME: Final = re.compile(r"^\s*(0x[0-9a-f]+): '(.*)',$", re.MULTILINE)
_TOKEN: Final = re.compile(r"_token_\d+$")
_START: Final = re.compile(rb'\{\s*"traceEvents"\s*:')


def trace_files(directory: Path) -> tuple[Path, Path]:
    """Return the log and the schematic of the one graph that was compiled in the folder.

    Raises:
        CompilerError: there is none, or there are several because the graph fell into partitions.
    """
    logs = sorted(directory.glob(f"*{LOG_SUFFIX}"))
    schematics = sorted(directory.glob(f"*{SCHEMATIC_SUFFIX}"))
    if len(logs) != 1 or len(schematics) != 1:
        raise CompilerError(
            f"{directory} holds {len(logs)} optrace logs and {len(schematics)} schematics instead of one of each; "
            "compile one NPU partition with profiling_level=optrace"
        )
    return logs[0], schematics[0]


def read_trace(log: bytes, schematic: bytes, *, sdk: str = "") -> Trace:
    """Return the trace of one graph; `sdk` is the compiler's own version where it is known.

    Raises:
        CompilerError: another version wrote the files, or they have another layout, with what differs.
    """
    if sdk and not sdk.startswith(CHECKED_SDK):
        raise _other_version(f"it was written by {sdk}")
    start = _START.search(log)
    if start is None:
        raise _other_version("there is no traceEvents in the log")
    try:
        # raw_decode ends with the JSON; binary follows it.
        content, _ = json.JSONDecoder().raw_decode(log[start.start() :].decode("utf-8", errors="replace"))
    except json.JSONDecodeError as error:
        raise _other_version(f"its JSON ends in {error.msg}") from error
    counted: set[str] = set()
    events = tuple(_event(entry, counted) for entry in content["traceEvents"] if entry.get("ph") == "X")
    if not events:
        raise _other_version("it has no events with a duration")
    return Trace(chip=_chip(content), events=events, names=_names(schematic))


def _event(entry: Mapping[str, Any], counted: set[str]) -> Event:
    missing = _EVENT_KEYS - entry.keys() or _ARGUMENT_KEYS - entry["args"].keys()
    if missing:
        raise _other_version(f"an event lacks {min(missing)!r}")
    args = entry["args"]
    unit = next((_UNITS[flag] for flag in args["flags"] if flag in _UNITS), None)
    if unit is None:
        raise _other_version(f"an event has the unknown unit {args['flags']!r}")
    # An operation that several units share is listed for each, with the same bytes; they count once, where it runs.
    starts = unit == "scalar" and entry["name"].startswith("default_")
    moved = {} if starts or args["id"] in counted else args.get("bw_info", {})
    if moved:
        counted.add(args["id"])
    dims = args["dims"]
    return Event(
        unit=unit,
        thread=entry["tid"],
        operation=args["opcode"].partition("@")[0] or entry["name"],
        node=int(args["id"], 16) & 0xFFFFFFFF,
        start=entry["ts"],
        cycles=entry["dur"],
        dims=tuple(dims[0]) if dims and isinstance(dims[0], list) else tuple(dims),
        dram_read_bytes=moved.get("dram_read", 0),
        dram_write_bytes=moved.get("dram_write", 0),
    )


def _chip(content: Mapping[str, Any]) -> Chip:
    try:
        told = content["Hextimate Configuration"]
        # Double data rate: two transfers for each clock.
        ddr = told["sim_ddr_freq"] * 1e6 * told["sim_ddr_width"] * told["sim_ddr_channels"] * 2
        return Chip(
            name=told["soc_type"],
            core_hz=told["sim_core_freq"] * 1e6,
            ddr_bytes_per_s=ddr * told["sim_ddr_efficiency"],
            hvx_threads=told["hvx_threads"],
            vtcm_bytes=told["vtcm_size_in_bytes"],
        )
    except KeyError as error:
        raise _other_version(f"its chip lacks {error}") from error


def _names(schematic: bytes) -> Mapping[int, str]:
    text = schematic.decode("utf-8", errors="replace")
    start = text.find(_NAMES_START)
    if start < 0:
        raise _other_version("the schematic has no qnn_name_translations")
    table = text[start : text.index("\n}", start)]
    # Where the compiler made several nodes of one, it tells them apart by a suffix.
    return {int(key, 16): _TOKEN.sub("", name) for key, name in _NAME.findall(table)}


def _other_version(what: str) -> CompilerError:
    return CompilerError(
        f"the optrace is not of the layout that QAIRT {CHECKED_SDK.strip('v.')} writes: {what}; "
        "install a version that compilers/qnn/optrace.py was checked with"
    )
