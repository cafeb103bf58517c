"""The best kernels of a model's operators as a plan, which `experiments.pareto --plan` compiles and costs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from compilers import Action, get_compiler
from experiments.plans import write_plan
from partition import Plan, Segment, Tile, load_device
from partition.tile import CONV, DEPTHWISE, MATMUL, POOL, GpuTile, TileError, buildable_space, layers_of, search_gpu

if TYPE_CHECKING:
    from pathlib import Path

    from graphs import Graph
    from partition.tile import GpuMachine, GpuSpace, Layer

COMPILER: Final = "tvm"
# What is one kernel; a normalisation is several.
_KINDS: Final = (CONV, DEPTHWISE, MATMUL, POOL)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What a tile is chosen for; with `slack_ratio` the least traffic within that share of the fastest."""

    objective: str = "latency"
    slack_ratio: float | None = None


def carry(graph: Graph, device: str, precision: str, gpu: GpuMachine, goal: Goal, folder: Path) -> str:
    """Write the plan and return a sentence with its path, or one that says why there is none."""
    chip = load_device(device)
    why = get_compiler(COMPILER).why_not(Action.COMPILE, chip, "gpu")
    if why is not None:
        return f"no plan with these tiles: {why}"
    tiles = best_tiles(graph, gpu, goal)
    if not tiles:
        return "no plan with these tiles: no operator is one kernel that can be told its tile"
    segment = Segment(
        graph=graph, device=chip, processor="gpu", compiler=COMPILER, precision=precision, tiles=tiles
    )  # fmt: skip
    path = write_plan(Plan.of(graph, [segment]), folder)
    return f"wrote {len(tiles)} GPU tiles as the plan {path}: experiments.pareto ... --device {device} --plan {path}"


def best_tiles(graph: Graph, gpu: GpuMachine, goal: Goal) -> tuple[Tile, ...]:
    """Return the best tile of each operator among those that a kernel can be written with."""
    known: dict[tuple[object, ...], GpuTile | None] = {}
    tiles = []
    for layer in kernel_layers(graph):
        if layer.signature not in known:
            known[layer.signature] = buildable_tile(layer, gpu, goal)
        found = known[layer.signature]
        if found is not None:
            tiles.append(Tile(node=layer.name, sizes=found.sizes))
    return tuple(tiles)


def kernel_layers(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers of a graph that become one kernel each."""
    return tuple(layer for layer in layers_of(graph)[0] if layer.kind in _KINDS)


def kernel_space(layer: Layer, gpu: GpuMachine) -> GpuSpace:
    """Return the tiles that a kernel of the layer can be written with."""
    space = buildable_space(layer, gpu)
    # Blocks of channels cross the groups, each with data of its own.
    grouped = layer.kind == CONV and layer.groups > 1
    return dataclasses.replace(space, staged=(False,)) if grouped else space


def buildable_tile(layer: Layer, gpu: GpuMachine, goal: Goal) -> GpuTile | None:
    """Return the best tile that a kernel can be written with, None where there is none."""
    try:
        space = kernel_space(layer, gpu)
        if goal.slack_ratio is None:
            return search_gpu(layer, gpu, space, objective=goal.objective).tile
        at_most_s = (1.0 + goal.slack_ratio) * search_gpu(layer, gpu, space).cost.latency_s
        return search_gpu(layer, gpu, space, objective="traffic", at_most_s=at_most_s).tile
    except TileError:
        return None
