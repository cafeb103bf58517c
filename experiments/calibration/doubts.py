"""What is odd about a user's own measurements: rows that teach nothing, other units, too few models."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.borrowing import LEAST
from experiments.calibration.table import RUNTIME_NAMES
from experiments.calibration.training import least_models
from experiments.units import counted
from partition import DRAM_BYTES, MACS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from experiments.calibration.table import Measurement
    from experiments.calibration.training import Sample
    from partition import LatencyModel

# Rows of the public table take 0.15 to 33 times the median of their simulations, all but two of one graph in w8a16.
_ANOTHER_UNIT: Final = 50.0


def unused(
    own: Sequence[Measurement], found: Collection[Sample], refused: Mapping[tuple[str, str, str], str]
) -> Iterator[str]:
    """Name the rows of own tables that no simulation belongs to; what was simulated and refused is said elsewhere."""
    known = {s.row.key for s in found}
    models = {s.row.model for s in found}
    for row in own:
        if row.key in known or (row.model, row.precision, row.compiler) in refused:
            continue
        close = difflib.get_close_matches(row.model, models - {row.model}, n=1)
        hint = f"did you mean {close[0]!r}? Else " if close else ""
        yield (
            f"not used: {row.model} {row.precision} {RUNTIME_NAMES[row.compiler]} on {row.device}, which is not "
            f"simulated: {hint}put its float graph into a folder as {row.model.replace('/', '__')}.onnx and give "
            "--models FOLDER"
        )


def doubts(own: Sequence[Measurement], found: Collection[Sample]) -> Iterator[str]:
    """Name the own rows that are so far from every simulation that another unit is likely."""
    measured = {row.key for row in own}
    for s in found:
        simulated = [value for name, value in s.terms.items() if name not in {DRAM_BYTES, MACS}]
        if s.row.key not in measured or not simulated:
            continue
        ratio = s.row.latency_s / float(np.median(simulated))
        if not 1 / _ANOTHER_UNIT < ratio < _ANOTHER_UNIT:
            yield (
                f"look again: {s.row.model} {s.row.precision} takes {s.row.latency_s * 1e3:g} ms on {s.row.device}, "
                f"and is simulated at about {np.median(simulated) * 1e3:g} ms; latency_ms is in milliseconds"
            )


def too_few(found: Collection[Sample], fitted: Sequence[LatencyModel]) -> Iterator[str]:
    """Name what was measured of a device and has no latency model, and what it takes to get one."""
    counts = Counter(s.key for s in found)
    for key in sorted(counts.keys() - {model.key for model in fitted}):
        device, compiler, precision = key
        needed = f"{LEAST} are needed to borrow, {least_models(device)} not to"
        why = needed if counts[key] < LEAST else "no chip like it can lend its rows"
        what = f"{device} {RUNTIME_NAMES[compiler]} {precision}"
        yield f"no latency model: {what} has {counted(counts[key], 'measured model')}; {why}"
