"""Where the time of one inference goes: the kernels in the order in which they run, joined to ONNX nodes."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """One call of a kernel: the shortest of the runs in seconds, and the nodes of the graph that it computes.

    No node for what the backend put in itself, such as a change of layout.
    """

    kernel: str
    nodes: tuple[str, ...]
    time_s: float


def shortest(runs: tuple[tuple[KernelTime, ...], ...]) -> tuple[KernelTime, ...]:
    """Take, of runs of the same kernels, the shortest time of each.

    Raises:
        ValueError: the runs are not of the same kernels.
    """
    first = runs[0]
    if any([k.kernel for k in run] != [k.kernel for k in first] for run in runs):
        raise ValueError("two runs of one model called different kernels")
    return tuple(
        dataclasses.replace(call, time_s=min(run[index].time_s for run in runs)) for index, call in enumerate(first)
    )
