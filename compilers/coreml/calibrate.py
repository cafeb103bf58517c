"""Ranges of a float program's activations, seen by our executor: what W8A8 needs and the vendor needs a Mac for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.package import Program, Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compilers.coreml.session import EmulatedSession

Array = np.ndarray[Any, Any]
Range = tuple[float, float]


def activation_ranges(session: EmulatedSession, feeds: Iterable[Mapping[str, Array]]) -> dict[str, Range]:
    """Return (least, greatest) of each float tensor by its MIL name, over all feeds (by ONNX input name).

    The operands and the result of a concat get one range, so that it can run on the quantised values.

    Raises:
        CompilerError: no feed, or an activation that is not finite.
    """
    ranges: dict[str, Range] = {}

    def watch(name: str, value: Array) -> None:
        if value.dtype.kind != "f" or not value.size:
            return
        low, high = float(value.min()), float(value.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise CompilerError(f"activation {name} is not finite on the calibration data, so it has no range")
        before = ranges.get(name, (low, high))
        ranges[name] = (min(before[0], low), max(before[1], high))

    for feed in feeds:
        session.run_watched(feed, watch)
    if not ranges:
        raise CompilerError("calibration needs at least one feed")
    return _joined(ranges, concats(session.program))


def concats(program: Program) -> list[set[str]]:
    """Return the tensors that each concat joins, its result included."""
    return [
        {str(v) for v in o.inputs["values"] if isinstance(v, Ref)} | {t.name for t in o.outputs}
        for o in program.operations
        if o.type == "concat"
    ]


def _joined(ranges: dict[str, Range], groups: list[set[str]]) -> dict[str, Range]:
    """Give all tensors of a group their common range, and groups that share a tensor one."""
    merged: list[set[str]] = []
    for group in groups:
        apart = [m for m in merged if not m & group]
        merged = [*apart, group.union(*(m for m in merged if m & group))]
    for group in merged:
        known = [ranges[name] for name in group if name in ranges]
        common = (min(low for low, _ in known), max(high for _, high in known)) if known else (0.0, 0.0)
        ranges.update({name: common for name in group if name in ranges})
    return ranges
