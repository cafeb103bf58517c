"""Kernels with several tiles for each operator, timed on this machine's GPU through OpenCL."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any, Final

from compilers import (
    Action,
    Artefact,
    CompilerError,
    KernelTime,
    Limits,
    Source,
    compile_segment,
    get_compiler,
    in_child,
)
from experiments import store
from experiments.plans import write_plan
from experiments.tiles_error import percent
from experiments.tiles_plan import COMPILER, kernel_layers, kernel_space
from experiments.units import seconds
from graphs import random_inputs
from partition import Plan, Segment, Tile, load_device
from partition.tile import GpuTile, TileError, search_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import Console

    from experiments.tiles_cross import Crossing
    from graphs import Graph
    from partition.tile import GpuMachine, GpuSpace, Layer

DEVICE: Final = "host_gpu"
_RUNS: Final = 20
_BEST: Final = "the model's best"
_NPU: Final = "as large as the NPU's"
_OTHER: Final = "the best of a part of the space"
_FIELDS: Final = ("operator", "kind", "count", "tile", "choice", "modelled_s", "measured_s", "source", "measured_on")

Signature = tuple[object, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Proposal:
    tile: GpuTile
    choice: str
    modelled_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    layer: Layer
    count: int
    proposal: _Proposal
    measured_s: float


def measure(
    graph: Graph,
    crossings: Sequence[Crossing],
    gpu: GpuMachine,
    settings: tuple[str, int],
    build: Path,
    folder: Path,
    console: Console,
) -> None:
    """Build the graph once for each of `settings`' number of tiles, time its kernels, write and print what came out.

    `settings` are the precision and that number. A refusal is a sentence, not an end.
    """
    precision, count = settings
    why = get_compiler(COMPILER).why_not(Action.RUN, load_device(DEVICE), "gpu")
    if why is not None:
        console.print(f"\nnot measured: {why}", style="yellow")
        return
    carried = {c.layer.signature: c.npu_tile_on_gpu for c in crossings}
    nodes: dict[Signature, list[str]] = {}
    layers: dict[Signature, Layer] = {}
    for layer in kernel_layers(graph):
        layers.setdefault(layer.signature, layer)
        nodes.setdefault(layer.signature, []).append(layer.name)
    proposals = {key: _proposals(layer, gpu, count, carried.get(key)) for key, layer in layers.items()}
    proposals = {key: found for key, found in proposals.items() if found}
    rows: list[_Row] = []
    where = ""
    for turn in range(max(map(len, proposals.values()), default=0)):
        chosen = {key: found[min(turn, len(found) - 1)] for key, found in proposals.items()}
        segment = _segment(graph, precision, {key: each.tile for key, each in chosen.items()}, nodes)
        try:
            artefact = compile_segment(segment, build, Limits())
            times = in_child(_times, artefact, random_inputs(graph, 0), limits=Limits())
        except CompilerError as error:
            console.print(f"\nnot measured with the tiles number {turn + 1}: {error}", style="yellow")
            continue
        where = artefact.fact("runs_on")
        rows += [
            _Row(layer=layers[key], count=len(nodes[key]), proposal=each, measured_s=_time_s(times, nodes[key]))
            for key, each in chosen.items()
            if turn < len(proposals[key])
        ]
    if rows:
        _write(rows, where, folder)
        _print(rows, where, gpu.name, console)
        _print_plan(graph, precision, rows, nodes, folder, console)


def _times(artefact: Artefact, feed: dict[str, NDArray[Any]]) -> tuple[KernelTime, ...]:
    return get_compiler(artefact.compiler).profile(artefact, feed, _RUNS)


def _proposals(layer: Layer, gpu: GpuMachine, count: int, carried: GpuTile | None) -> tuple[_Proposal, ...]:
    """Return the model's best tile, one as large as the NPU's, and the best of other parts of the space."""
    space = kernel_space(layer, gpu)
    parts = [
        dataclasses.replace(space, staged=(staged,), thread_x=(positions,))
        for staged in space.staged
        for positions in space.thread_x
    ]
    best = _searched(layer, gpu, space, None, _BEST)
    if best is None:
        return ()
    npu = (carried.positions, carried.channels) if carried else None
    like_npu = _searched(layer, gpu, space, npu, _NPU) if npu else None
    others = [found for part in parts if (found := _searched(layer, gpu, part, None, _OTHER))]
    ordered = [best, *filter(None, [like_npu]), *sorted(others, key=lambda found: found.modelled_s)]
    unique = {found.tile: found for found in reversed(ordered)}
    return tuple(found for found in ordered if unique[found.tile] is found)[:count]


def _searched(
    layer: Layer, gpu: GpuMachine, space: GpuSpace, block: tuple[int, int] | None, choice: str
) -> _Proposal | None:
    try:
        found = search_gpu(layer, gpu, space, block=block)
    except TileError:
        return None
    return _Proposal(tile=found.tile, choice=choice, modelled_s=found.cost.latency_s)


def _segment(
    graph: Graph, precision: str, tiles: Mapping[Signature, GpuTile], nodes: Mapping[Signature, list[str]]
) -> Segment:
    asked = tuple(Tile(node=name, sizes=tile.sizes) for key, tile in tiles.items() for name in nodes[key])
    return Segment(
        graph=graph, device=load_device(DEVICE), processor="gpu", compiler=COMPILER, precision=precision, tiles=asked
    )


def _time_s(times: Sequence[KernelTime], names: Sequence[str]) -> float:
    """Return what a node of that layer takes, the median of those that there are, with what fusion put beside it."""
    return statistics.median(sum(kernel.time_s for kernel in times if name in kernel.nodes) for name in names)


def _write(rows: Sequence[_Row], where: str, folder: Path) -> None:
    lines = (
        {
            "operator": row.layer.name, "kind": row.layer.kind, "count": row.count, "tile": str(row.proposal.tile),
            "choice": row.proposal.choice, "modelled_s": row.proposal.modelled_s, "measured_s": row.measured_s,
            "source": Source.MEASURED.value, "measured_on": where,
        }
        for row in rows
    )  # fmt: skip
    store.write_csv(folder / "measured.csv", _FIELDS, lines)


def _print(rows: Sequence[_Row], where: str, machine: str, console: Console) -> None:
    by_layer = _by_layer(rows)
    near = sum(its[0].measured_s <= 1.1 * min(row.measured_s for row in its) for its in by_layer)
    least = sum(its[0].count * min(row.measured_s for row in its) for its in by_layer)
    first = sum(its[0].count * its[0].measured_s for its in by_layer)
    console.print(
        f"\nmeasured on {where}: {len(rows)} kernels of {len(by_layer)} operators, the shortest of {_RUNS} runs by its "
        f"clock, into measured.csv; the model's figures are those of {machine}, another processor",
        style="bold",
    )  # fmt: skip
    console.print(
        f"the model's best tile is within 10 % of the best measured for {near} of {len(by_layer)} operators; in total "
        f"{seconds(first)}, with the best measured {seconds(least)}{_like_npu(by_layer)}",
    )  # fmt: skip


def _like_npu(by_layer: Sequence[Sequence[_Row]]) -> str:
    """Say what blocks as large as the NPU's tiles lose, measured and modelled, where they can be built."""
    pairs = [(its[0], row) for its in by_layer for row in its if row.proposal.choice == _NPU]
    if not pairs:
        return ""
    measured = _loss([(best.measured_s, row.measured_s, row.count) for best, row in pairs])
    modelled = _loss([(best.proposal.modelled_s, row.proposal.modelled_s, row.count) for best, row in pairs])
    return (
        f"; blocks as large as the NPU's tile lose {percent(measured)} (modelled: {percent(modelled)}) on {len(pairs)}"
    )


def _loss(times: Sequence[tuple[float, float, int]]) -> float:
    """Return the throughput lost, of (best seconds, other seconds, count)."""
    return 1 - sum(best * count for best, _, count in times) / sum(other * count for _, other, count in times)


def _by_layer(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Group by operator; the first of each group is the model's best."""
    found: dict[Signature, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.layer.signature, []).append(row)
    return [its for its in found.values() if its[0].proposal.choice == _BEST]


def _print_plan(
    graph: Graph,
    precision: str,
    rows: Sequence[_Row],
    nodes: Mapping[Signature, list[str]],
    folder: Path,
    console: Console,
) -> None:
    best = [min(its, key=lambda row: row.measured_s) for its in _by_layer(rows)]
    segment = _segment(graph, precision, {row.layer.signature: row.proposal.tile for row in best}, nodes)
    path = write_plan(Plan.of(graph, [segment]), folder)
    console.print(
        f"wrote the best measured tiles as the plan {path}: experiments.pareto ... --device {DEVICE} --plan {path}",
    )  # fmt: skip
