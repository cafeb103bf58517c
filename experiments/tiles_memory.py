"""What the size of the NPU's memory does to a whole model, by our own model: a table and `memory.csv`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from experiments import store
from experiments.tiles_error import own_error, percent
from experiments.units import seconds, size
from partition.tile import MODELS, TileError, whole_cost

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from graphs import Graph
    from partition.tile import NpuMachine, WholeCost

_MIB: Final = 1 << 20
_SIZES_MB: Final = (1, 2, 4, 8)


def print_memories(graph: Graph, machine: NpuMachine, folder: Path, console: Console) -> bool:
    """Cost the whole graph at each size up to the machine's, print and write it; False, and why, where it cannot be."""
    sizes = sorted({mb for mb in _SIZES_MB if mb * _MIB <= machine.budget_bytes} | {machine.budget_bytes / _MIB})
    console.print(f"\nthe whole model on {machine.name} by memory size, modelled: {_error(machine)}", style="bold",
                  highlight=False, markup=False)  # fmt: skip
    try:
        costs = {mb: whole_cost(graph, dataclasses.replace(machine, budget_bytes=mb * _MIB)) for mb in sizes}
    except TileError as why:
        console.print(f"  not modelled: {why}", highlight=False, markup=False)
        return False
    for mb, cost in costs.items():
        console.print(f"  {mb:g} MB: {_told(cost)}", highlight=False, markup=False)
    _write(costs, machine, folder)
    return True


def _told(cost: WholeCost) -> str:
    return (
        f"{seconds(cost.latency_s)}, DRAM {size(cost.dram_bytes)}, spilled {size(cost.spilled_bytes)}, "
        f"{cost.windows} groups of operators that fit the memory together"
    )


def _error(machine: NpuMachine) -> str:
    own = own_error(machine, MODELS)
    if own is None:
        return "error not known"
    return (
        f"median error {percent(own.error_median)} (90th percentile {percent(own.error_p90)}, rank correlation "
        f"{own.rank_correlation:.2f}) on {own.samples} whole models and sizes, against {own.truth}"
    )


def _write(costs: dict[float, WholeCost], machine: NpuMachine, folder: Path) -> None:
    own = own_error(machine, MODELS)
    error = None if own is None else own.error_median
    rows = [{"memory_bytes": mb * _MIB} | dataclasses.asdict(cost) | {"error_median_ratio": error}
            for mb, cost in costs.items()]  # fmt: skip
    store.write_csv(folder / "memory.csv", tuple(rows[0]), rows)
