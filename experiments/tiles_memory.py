"""What the size of the NPU's memory does to a whole model, by our own model: a table and `memory.csv`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from experiments import store
from experiments.tiles_error import own_error, percent
from experiments.tiles_plot import short_layer
from experiments.units import seconds, size
from partition.tile import MODELS, NORM, TileError, band_latency_s, largest_tile, row_space, rows_fetched, whole_cost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from graphs import Graph
    from partition.tile import Layer, NpuMachine, WholeCost

_MIB: Final = 1 << 20
_SIZES_MB: Final = (1, 2, 4, 8)
_ATTENTION: Final = (
    "  this graph has attention: the error is that of convolutional networks, and transformers simulated blind were "
    "far outside it (benchmarks/README.md, Tiles); do not choose by these times"
)


def print_memories(graph: Graph, machine: NpuMachine, folder: Path, console: Console) -> bool:
    """Cost the whole graph at each size up to the machine's, print and write it; False, and why, where it cannot be."""
    console.print(f"\nthe whole model on {machine.name} by memory size, modelled: {_error(machine)}", style="bold")
    try:
        costs = {mb: whole_cost(graph, dataclasses.replace(machine, budget_bytes=mb * _MIB)) for mb in _sizes(machine)}
    except TileError as why:
        console.print(f"  not modelled: {why}")
        return False
    if _attends(graph):
        console.print(_ATTENTION, style="yellow")
    for mb, cost in costs.items():
        console.print(f"  {mb:g} MB: {_told(cost)}")
    _write(costs, machine, folder)
    return True


def print_operator_memories(layers: Sequence[Layer], machine: NpuMachine, folder: Path, console: Console) -> bool:
    """Print and write what each size of memory does to each operator alone, in bands; False where none has any."""
    layers = [layer for layer in layers if layer.kind != NORM]
    if not layers:
        return False
    console.print(
        f"\neach operator alone on {machine.name} by memory size, in bands as the vendor's compiler lays them out in "
        "its int8 traces (how often the order is right: benchmarks/README.md, Tiles); under it the largest legal band "
        "of whole rows with weights resident and one buffer, how many there are, and the input rows that all fetch:",
        style="bold",
    )  # fmt: skip
    rows = []
    for layer in layers:
        machines = {mb: dataclasses.replace(machine, budget_bytes=mb * _MIB) for mb in _sizes(machine)}
        times = {mb: band_latency_s(layer, of_size) for mb, of_size in machines.items()}
        bands = {mb: _largest_band(layer, of_size) for mb, of_size in machines.items()}
        rows += [
            {"operator": layer.name, "memory_bytes": mb * _MIB, "latency_s": s} | bands[mb] for mb, s in times.items()
        ]
        told = ", ".join(f"{mb:g} MB {seconds(s)}" for mb, s in times.items())
        console.print(f"  {short_layer(layer)}: {told}")
        if layer.y > 1:
            console.print(f"    {_told_bands(bands)}", style="dim")
    store.write_csv(folder / "memory.csv", tuple(rows[0]), rows)
    return True


def _largest_band(layer: Layer, machine: NpuMachine) -> dict[str, int | None]:
    """Return the largest legal band of whole rows, how many there are, and the input rows that all of them fetch."""
    tile = largest_tile(layer, machine, row_space(layer))
    if tile is None:
        return {"band_rows": None, "bands": None, "input_rows_fetched": None}
    return {
        "band_rows": tile.y,
        "bands": layer.batch * layer.groups * math.ceil(layer.y / tile.y),
        # Each group fetches its own channels of the same rows.
        "input_rows_fetched": layer.batch * rows_fetched(layer, tile.y),
    }


def _told_bands(bands: dict[float, dict[str, int | None]]) -> str:
    told = [
        f"{mb:g} MB {band['band_rows']} rows, {band['bands']} times, {band['input_rows_fetched']} fetched"
        if band["bands"]
        else f"{mb:g} MB no band fits"
        for mb, band in bands.items()
    ]
    return "; ".join(told)


def _attends(graph: Graph) -> bool:
    """Tell whether softmaxes weigh products of computed tensors; a softmax alone is a classifier's end."""
    kinds = {node.op_type for node in graph.nodes()}
    products = (node for node in graph.nodes() if node.op_type == "MatMul")
    return "Softmax" in kinds and any(not graph.initializers().keys() & set(node.inputs) for node in products)


def _sizes(machine: NpuMachine) -> list[float]:
    return sorted({mb for mb in _SIZES_MB if mb * _MIB <= machine.budget_bytes} | {machine.budget_bytes / _MIB})


def _told(cost: WholeCost) -> str:
    return f"{seconds(cost.latency_s)}, DRAM {size(cost.dram_bytes)}, spilled {size(cost.spilled_bytes)}"


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
