"""The two published rules for choosing a processor (R15), which disagree; sizes in 1e9 parameters."""

from __future__ import annotations


def density_rule(parameters: float, batch: int, *, fits: bool = True) -> str:
    """Choose by density = parameters x batch: "cpu", "igpu" or "npu"."""
    density = parameters * batch
    if density < 0.8:
        return "igpu" if batch > 2 else "cpu"
    if density <= 3.2:
        return "npu" if parameters > 4.0 else "cpu"
    return "npu" if fits else "cpu"


def flow_chart(parameters: float) -> str:
    """Choose by parameters alone: "igpu" below 2, "cpu" up to 6, "npu" above."""
    if parameters < 2.0:
        return "igpu"
    return "cpu" if parameters <= 6.0 else "npu"
