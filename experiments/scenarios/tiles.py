"""R4, bytes against bandwidth, R5, a GPU's tile on the reported NPU, and R6, the stalls of its scheduler."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments import published
from experiments.scenarios.given import origin
from experiments.scenarios.study import Study
from experiments.units import quantity, seconds, size
from partition import load_device
from partition.tile import (
    BandwidthBound,
    NpuMachine,
    NpuTile,
    evaluate_npu,
    npu_machine,
    operand_conflicts,
    parse_operator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.scenarios.given import Given
    from partition.tile import Cost

_NPU: Final = Path(published.__file__).parent / "report_npu.toml"
_SINGLE: Final = (False, False, False)
# x 16, y 8: 128 positions for 128 lanes; a matrix product has its rows along x. x 32, y 32, z 1: one output channel
# at a time, with no channels blocked. Here as (y, x, k). The report gives no shapes; these are of the size it is about.
_KERNELS: Final = {
    "GEMM": ("matmul:m=2048,c=2048,k=1024", (1, 128, 32), (1, 1024, 1)),
    "Conv2D": ("conv2d:c=128,k=128,y=56,x=56,f=3", (8, 16, 32), (32, 32, 1)),
}
_CAUSES: Final = ("operand conflicts", "weight-buffer conflict", "not overlapped")


def reported_npu() -> NpuMachine:
    """Return the NPU of the report, with the figures that it lacks assumed."""
    return npu_machine(load_device(str(_NPU)), "fp16")


def r4(given: Given) -> Study:
    """Hold bytes x passes / bandwidth against compute, and say what fewer passes or a wider bus would change."""
    table = given.table("R4")
    lines, cases = [], {}
    for case, moved, passes, bandwidth, stated_s, compute_s in table.rows:
        bound = BandwidthBound(moved_bytes=moved, passes=passes, bytes_per_s=bandwidth, compute_s=compute_s)
        once = dataclasses.replace(bound, passes=1)
        balanced = moved * passes / compute_s
        stated = "" if math.isnan(stated_s) else f" ({origin(table)} {seconds(stated_s)})"
        longer, shorter = max(bound.memory_s, bound.compute_s), min(bound.memory_s, bound.compute_s)
        still = " still" if once.bound == bound.bound else ""
        lines += [
            (
                f"{case}: {size(moved)} x {passes:g} passes / {size(bandwidth)}/s = {seconds(bound.memory_s)}{stated}"
                f" against {seconds(compute_s)} of compute: {bound.bound} is the limit, by {longer / shorter:.1f} times"
            ),
            (
                f"amplification {passes:g}: each byte moved once takes {seconds(once.memory_s)}, and {once.bound} is"
                f" the limit{still}"
            ),
            f"compute would be the limit from {size(balanced)}/s on",
        ]
        cases[str(case)] = {
            "latency_s": bound.latency_s, "once_s": once.latency_s, "balanced_bytes_per_s": balanced,
        }  # fmt: skip
    return Study(
        name="R4",
        title="latency by memory bandwidth: the longer of moving and computing",
        lines=tuple(lines),
        figures=cases,
    )


def r5(given: Given) -> Study:
    """Run both kernels of R5 in the NPU's own tile and in the GPU's, on the reported NPU."""
    table, machine = given.table("R5"), reported_npu()
    lines, figures = [], {}
    for name, (operator, own, carried) in _KERNELS.items():
        layer, row = parse_operator(operator), table.row(name)
        mine = NpuTile(y=own[0], x=own[1], k=own[2], c=layer.c, resident=True)
        gpus = NpuTile(y=carried[0], x=carried[1], k=carried[2], c=layer.c, double=_SINGLE, blocked=False)
        costs = (evaluate_npu(layer, machine, mine), evaluate_npu(layer, machine, gpus))
        flops = [2 * layer.macs / cost.latency_s for cost in costs]
        stated = [row["own_tile_flops_per_s"], row["gpu_tile_flops_per_s"]]
        tiles = (f"its own tile {_sizes(mine)}", f"the GPU's tile {_sizes(gpus)}")
        for tile, rate, theirs in zip(tiles, flops, stated, strict=True):
            lines.append(f"{name} ({operator}), {tile}: {quantity(rate, 'FLOP/s')} ({quantity(theirs, 'FLOP/s')})")
        loss, published_loss = 1 - flops[1] / flops[0], 1 - stated[1] / stated[0]
        lines.append(f"  throughput lost: {loss:.0%} ({published_loss:.0%}); {_why(costs[1])}")
        figures[name] = {"own_flops_per_s": flops[0], "carried_flops_per_s": flops[1], "loss_ratio": loss}
    conflicts = operand_conflicts(8)
    lines.append(
        f"three operands in any of 8 register banks: {conflicts:.0%} of extra cycles"
        f" ({table.fact('bank_conflict_ratio'):.0%}), where channels are not blocked"
    )
    return Study(
        name="R5",
        title="a GPU's tile on an NPU of 128 lanes: modelled (published)",
        lines=tuple(lines),
        figures={**figures, "conflict_ratio": conflicts},
        assumptions=(
            "the shapes, which the report does not give",
            "a clock of 1 GHz, 56 multiply-adds a lane and 8 register banks come near its GEMM and its conflicts",
        ),
    )


def _sizes(tile: NpuTile) -> str:
    return f"x {tile.x}, y {tile.y}, k {tile.k}"


def _why(cost: Cost) -> str:
    parts = ", ".join(f"{cause} {seconds(cost.part(cause))}" for cause in _CAUSES if cost.part(cause))
    return f"of {seconds(cost.latency_s)}: {parts}"


def r6(given: Given) -> Study:
    """Cause both stalls on the reported NPU, and add the jitters of the cache's coherence up."""
    table, machine = given.table("R6"), reported_npu()
    layer = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3")
    conflict_s = evaluate_npu(layer, machine, NpuTile(y=32, x=32, k=1, c=64, double=_SINGLE)).part(
        "weight-buffer conflict"
    )
    wide, tile = parse_operator("conv2d:c=4,k=256,y=56,x=56,f=1"), NpuTile(y=8, x=16, k=256, c=4, resident=True)
    calm = evaluate_npu(wide, dataclasses.replace(machine, fifo_full_s=0.0), tile).latency_s
    fifo_s = evaluate_npu(wide, machine, tile).latency_s - calm
    jitters = [row for row in table.rows if str(row[0]).startswith("cache-coherence")]
    mean_s, spread_s = sum(row[1] for row in jitters), math.hypot(*(row[2] for row in jitters))
    stated: Mapping[str, float] = {row[0]: row[1] for row in table.rows}
    blocks = 2 * layer.c * 9
    return Study(
        name="R6",
        title="stalls in the NPU's scheduler: modelled (published)",
        lines=(
            (
                f"weight blocks of {size(blocks)}, no multiple of 4096 B: one kernel waits {seconds(conflict_s)}"
                f" ({seconds(stated['weight-buffer bank conflict, one kernel'])}); aligned blocks wait for none"
            ),
            (
                f"256 channels out of 4, each tile faster than it can be written: the pipeline waits {seconds(fifo_s)}"
                f" ({seconds(stated['activation FIFO full, across the pipeline'])}) of {seconds(calm + fifo_s)}"
            ),
            (
                f"cache coherence, one access through directory, bus and write-back: {seconds(mean_s)} +-"
                f" {seconds(spread_s)}; the bus has {_share(jitters):.0%} of the variance"
            ),
        ),
        figures={"conflict_s": conflict_s, "fifo_s": fifo_s, "coherence_s": mean_s, "coherence_spread_s": spread_s},
        assumptions=(
            "how long each stall is comes from the report; the model says which tiles meet it",
            "the three jitters are independent",
        ),
    )


def _share(jitters: list[tuple[object, float, float]]) -> float:
    variances = {str(row[0]): row[2] ** 2 for row in jitters}
    return variances["cache-coherence bus"] / sum(variances.values())
