"""Read the profile CSV of the QNN execution provider: what the HTP compiler's own simulator says.

Only the layout that was checked (onnxruntime-qnn 2.7, QAIRT 2.51; a golden file in the tests) is read. A row
that is new, gone or in another unit is refused by name: a guessed column would be an invented latency.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HEADER: Final = (
    "Msg Timestamp",
    "Message",
    "Time",
    "Unit of Measurement",
    "Timing Source",
    "Event Level",
    "Event Identifier",
)
_BLOCK_START: Final = "Performance Estimates"
# Where operations have no cost, a row for each follows their count; the name, where there is one, is the ONNX node's.
_WITHOUT_COST: Final = re.compile(r"(?:(?P<name>.+) : )?OpId_\d+")

# Row of a block -> (field of HtpEstimate, unit). Rows without a field are headings with the value 0.
_ROWS: Final = {
    "Mode": (None, "US"),
    "Simulated (Accelerator exec cycles)": ("cycles", "CYCLES"),
    "Simulated (Accelerator exec cycles (lower estimate))": ("cycles_low", "CYCLES"),
    "Simulated (Accelerator exec cycles (upper estimate))": ("cycles_high", "CYCLES"),
    "Simulated (Accelerator exec time us)": ("time_us", "US"),
    "Simulated (Accelerator exec time us (lower estimate))": ("time_low_us", "US"),
    "Simulated (Accelerator exec time us (upper estimate))": ("time_high_us", "US"),
    "Bandwidth Stats": (None, "US"),
    "HTP ID": (None, "US"),
    "Input Fill": ("input_fill_bytes", "BYTES"),
    "Intermediate Fill": ("fill_bytes", "BYTES"),
    "Intermediate Spill": ("spill_bytes", "BYTES"),
    "Inter HTP Fill": ("inter_htp_fill_bytes", "BYTES"),
    "Inter HTP Spill": ("inter_htp_spill_bytes", "BYTES"),
    "Output Spill": ("output_spill_bytes", "BYTES"),
    "Missing Ops (Number of Ops with no Costs associated)": ("operations_without_cost", "US"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HtpEstimate:
    """One graph on the simulated accelerator: cycles, whole microseconds, and bytes to and from DRAM.

    `input_fill_bytes` are weights and graph inputs; `fill_bytes` and `spill_bytes` are activations that did
    not fit the VTCM. The runtime's cost of one invocation is not part of it.
    """

    cycles: int
    cycles_low: int
    cycles_high: int
    time_us: int
    time_low_us: int
    time_high_us: int
    input_fill_bytes: int
    fill_bytes: int
    spill_bytes: int
    inter_htp_fill_bytes: int
    inter_htp_spill_bytes: int
    output_spill_bytes: int
    operations_without_cost: int
    names_without_cost: tuple[str, ...] = ()

    @property
    def dram_bytes(self) -> int:
        """All bytes between DRAM and VTCM."""
        return self.input_fill_bytes + self.fill_bytes + self.spill_bytes + self.output_spill_bytes


def read_estimates(text: str, *, partitions: int) -> tuple[HtpEstimate, ...]:
    """Return one estimate per partition, in the order of the file; none when the chip has no simulator.

    Raises:
        CompilerError: the file has another layout than the one this reader was checked with, by name.
    """
    blocks = _blocks(_rows(text))
    return _without_repeats([_estimate(block) for block in blocks], partitions)


def _rows(text: str) -> list[dict[str, str]]:
    lines = list(csv.reader(io.StringIO(text)))
    if not lines or tuple(lines[0]) != HEADER:
        found = ",".join(lines[0]) if lines else "an empty file"
        raise _other_version(f"its header is {found!r}")
    ragged = next((line for line in lines[1:] if len(line) != len(HEADER)), None)
    if ragged is not None:
        raise _other_version(f"row {','.join(ragged)!r} has not {len(HEADER)} columns")
    return [dict(zip(HEADER, line, strict=True)) for line in lines[1:]]


def _blocks(rows: Iterable[Mapping[str, str]]) -> list[list[Mapping[str, str]]]:
    """Collect the rows below each "Performance Estimates" heading, up to the next heading of its level."""
    blocks: list[list[Mapping[str, str]]] = []
    inside = False
    for row in rows:
        if row["Event Level"] == "ROOT":
            inside = row["Event Identifier"] == _BLOCK_START
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(row)
        elif row["Event Identifier"].startswith("Simulated ("):
            raise _other_version(f"row {row['Event Identifier']!r} stands outside a {_BLOCK_START!r} block")
    return blocks


def _estimate(block: Sequence[Mapping[str, str]]) -> HtpEstimate:
    named = [_WITHOUT_COST.fullmatch(row["Event Identifier"]) for row in block]
    rows = [row for row, match in zip(block, named, strict=True) if match is None]
    names = [row["Event Identifier"] for row in rows]
    for what, odd in (
        ("has an unknown row", [name for name in names if name not in _ROWS]),
        ("lacks row", [name for name in _ROWS if name not in names]),
        ("repeats row", [name for name in set(names) if names.count(name) > 1]),
    ):
        if odd:
            raise _other_version(f"it {what} {odd[0]!r}")
    values = {}
    for row in rows:
        field, unit = _ROWS[row["Event Identifier"]]
        if row["Unit of Measurement"] != unit or not row["Time"].isdigit():
            said = f"{row['Time']!r} {row['Unit of Measurement']}"
            raise _other_version(f"row {row['Event Identifier']!r} says {said}, not a count of {unit}")
        if field is not None:
            values[field] = int(row["Time"])
    without_cost = [match["name"] for match in named if match is not None]
    if len(without_cost) > values["operations_without_cost"]:
        count = values["operations_without_cost"]
        raise _other_version(f"it lists {len(without_cost)} operations without cost and counts {count}")
    return HtpEstimate(**values, names_without_cost=tuple(filter(None, without_cost)))


def _without_repeats(estimates: Sequence[HtpEstimate], partitions: int) -> tuple[HtpEstimate, ...]:
    """Undo a defect of the provider: with N partitions it writes 2N-1 blocks, g1 g1 g2 g2 ... gN."""
    if not estimates:
        return ()
    firsts, seconds = estimates[::2], estimates[1::2]
    repeated = len(estimates) == 2 * partitions - 1 and all(
        one == two for one, two in zip(firsts, seconds, strict=False)
    )
    if not repeated:
        raise _other_version(
            f"it holds {len(estimates)} blocks {_BLOCK_START!r} for {partitions} partitions, not "
            f"{2 * partitions - 1} with each but the last one written twice"
        )
    return tuple(firsts)


def _other_version(what: str) -> CompilerError:
    return CompilerError(
        f"the profile CSV is not of the layout that onnxruntime-qnn 2.7 writes: {what}; "
        "install a version that compilers/qnn/profile.py was checked with"
    )
