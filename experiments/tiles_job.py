"""What `experiments.tiles` does: layers, searches, crossings, files and the table."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import store
from experiments.arguments import UserError
from experiments.console import open_console, plain_table
from experiments.model import load_model
from experiments.tiles_cross import Crossing, Loss, cross, losses
from experiments.tiles_error import error_sentence, kind_error, own_error, percent, short_error
from experiments.tiles_memory import print_memories, print_operator_memories
from experiments.tiles_plot import draw_frontiers, draw_heat_maps, draw_losses, short_layer
from experiments.units import joules, seconds, size
from graphs import Graph, GraphError
from partition import DeviceError, load_device
from partition.tile import (
    GpuMachine,
    Layer,
    Machine,
    NpuMachine,
    Point,
    TileError,
    frontier_gpu,
    frontier_npu,
    gpu_machine,
    layers_of,
    npu_machine,
    parse_operator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

_MIB: Final = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The command line as values."""

    model: str | None
    operators: Sequence[str]
    gpu: str
    npu: str
    precision: str
    npu_precision: str | None
    objective: str
    vtcm_mb: float | None
    slack: float | None
    simulate: bool
    measure: int | None
    codegen: int
    bindings: Sequence[tuple[str, int]]
    out: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
    name: str
    graph: Graph | None
    layers: Counter[Layer]
    refused: dict[str, str]
    npu: NpuMachine
    gpu: GpuMachine
    folder: Path


def run(options: Options) -> int:
    """Do the whole job and return the exit code.

    Raises:
        UserError: the arguments, the model or the output folder cannot be used.
    """
    console = open_console()
    request = _check(options)
    if not request.layers:
        console.print(f"nothing in {request.name} has tiles: {_why_nothing(request)}")
        return 1
    try:
        crossings = [cross(layer, count, request.npu, request.gpu, options.objective)
                     for layer, count in request.layers.items()]  # fmt: skip
    except TileError as error:
        raise UserError(str(error)) from error
    matrix = losses(crossings)
    _write(request, crossings, matrix)
    _print(request, crossings, matrix, console)
    written = "tiles.csv, losses.csv, frontier.csv"
    if request.graph is None:
        if print_operator_memories([c.layer for c in crossings], request.npu, request.folder, console):
            written += ", memory.csv"
    else:
        from experiments.tiles_plan import Goal, carry

        if print_memories(request.graph, request.npu, request.folder, console):
            written += ", memory.csv"
        goal = Goal(objective=options.objective, slack_ratio=options.slack)
        told = carry(request.graph, options.gpu, options.precision, request.gpu, goal, request.folder)
        console.print(told)
    if options.slack is not None:
        from experiments.tiles_power import print_frugal

        # The crossings are of the fastest tiles, unless they were searched for another objective.
        searched = crossings if options.objective == "latency" else []
        npu_precision = options.npu_precision or options.precision
        machines = (
            (request.npu, load_device(options.npu), "npu", npu_precision, {c.layer: c.npu for c in searched}),
            (request.gpu, load_device(options.gpu), "gpu", options.precision, {c.layer: c.gpu for c in searched}),
        )
        print_frugal(request.layers, machines, options.slack, request.folder, console)
        written += ", frugal.csv"
    if options.codegen:
        _build(options, request, crossings, console)
        written += ", artefacts.csv"
    console.print(f"\nwrote {written} and losses, heat and frontier .png, .svg to {request.folder}")
    if options.measure is not None:
        from experiments.tiles_measure import measure

        assert request.graph is not None, "_check refuses --measure without a model"
        settings = (options.precision, options.measure)
        measure(request.graph, crossings, request.gpu, settings, options.out / "build", request.folder, console)
    if options.simulate:
        from experiments.tiles_simulate import simulate

        assert request.graph is not None, "_check refuses --simulate without a model"
        precision = options.npu_precision or options.precision
        simulate(request.graph, options.npu, precision, options.out / "build", request.folder, console)
    return 0


def _build(options: Options, request: _Request, crossings: Sequence[Crossing], console: Console) -> None:
    from experiments.tiles_build import Targets, build

    targets = Targets(
        gpu=options.gpu, gpu_precision=options.precision, npu=options.npu,
        npu_precision=options.npu_precision or options.precision,
    )  # fmt: skip
    heaviest = sorted(crossings, key=lambda c: -c.layer.macs * c.count)[: options.codegen]
    build(heaviest, request.gpu, targets, options.objective, request.folder, console)


def _check(options: Options) -> _Request:
    if options.objective not in ("latency", "energy"):
        raise UserError(f"unknown objective {options.objective!r}; use latency or energy")
    if options.model is not None and options.operators:
        raise UserError("give a MODEL or --op, not both")
    if options.simulate and options.model is None:
        raise UserError("--simulate compiles a whole MODEL; give one instead of --op")
    if options.measure is not None and options.model is None:
        raise UserError("--measure builds a whole MODEL; give one instead of --op")
    try:
        budget = None if options.vtcm_mb is None else options.vtcm_mb * _MIB
        npu_precision = options.npu_precision or options.precision
        npu = npu_machine(load_device(options.npu), npu_precision, budget_bytes=budget)
        gpu = gpu_machine(load_device(options.gpu), options.precision)
        graph = None if options.model is None else load_model(options.model, options.bindings)
        found, refused = ([parse_operator(t) for t in options.operators], {}) if graph is None else layers_of(graph)
        name = "operators" if graph is None else graph.name
        memory = "" if options.vtcm_mb is None else f"-{options.vtcm_mb:g}mb"
        about = f"{name}-{Path(options.gpu).stem}-{Path(options.npu).stem}-{npu_precision}{memory}"
        folder = options.out / f"tiles-{about}"
        store.open_run(folder)
    except (DeviceError, GraphError, TileError) as error:
        raise UserError(str(error)) from error
    return _Request(
        name=name, graph=graph, layers=_distinct(found), refused=dict(refused), npu=npu, gpu=gpu, folder=folder
    )


def _distinct(layers: Sequence[Layer]) -> Counter[Layer]:
    """Count layers of the same shape together, under the name of the first."""
    first: dict[tuple[object, ...], Layer] = {}
    return Counter(first.setdefault(layer.signature, layer) for layer in layers)


_FIELDS: Final = (
    "operator", "kind", "op_type", "count", "macs", "processor", "tile", "latency_s", "energy_j", "on_chip_bytes",
    "dram_bytes", "amplification_ratio", "lane_ratio", "carried_tile", "carried_latency_s", "loss_ratio",
    "carried_refusal", "configurations", "costed", "statement", "parts", "error_median_ratio",
    "error_median_ratio_of_kind", "error_note",
)  # fmt: skip


def _write(request: _Request, crossings: Sequence[Crossing], matrix: Sequence[Loss]) -> None:
    folder = request.folder
    store.write_csv(folder / "tiles.csv", _FIELDS, _lines(request, crossings))
    header = (*(field.name for field in dataclasses.fields(Loss)), *_error(request.npu))
    rows = ((loss, request.npu if loss.direction.endswith("NPU") else request.gpu) for loss in matrix)
    store.write_csv(folder / "losses.csv", header, (dataclasses.asdict(loss) | _error(on) for loss, on in rows))
    heaviest = max(crossings, key=lambda c: c.layer.macs * c.count).layer
    npu_front, gpu_front = frontier_npu(heaviest, request.npu), frontier_gpu(heaviest, request.gpu)
    lines = [
        *(_point(heaviest, request.npu, point) for point in npu_front),
        *(_point(heaviest, request.gpu, point) for point in gpu_front),
    ]
    store.write_csv(folder / "frontier.csv", tuple(lines[0]), lines)
    draw_losses(matrix, request.npu, request.gpu, folder / "losses")
    draw_heat_maps(heaviest, request.npu, request.gpu, folder / "heat")
    draw_frontiers(heaviest, npu_front, gpu_front, (request.npu, request.gpu), folder / "frontier")


def _point(layer: Layer, machine: Machine, point: Point[Any]) -> dict[str, object]:
    return {
        "operator": layer.name,
        "processor": machine.name,
        "tile": str(point.tile),
        "latency_s": point.latency_s,
        "energy_j": point.energy_j,
        "on_chip_bytes": point.on_chip_bytes,
    } | _error(machine)


def _error(machine: Machine) -> dict[str, object]:
    own = own_error(machine)
    return {"error_median_ratio": None if own is None else own.error_median, "error_note": short_error(machine)}


def _lines(request: _Request, crossings: Sequence[Crossing]) -> Iterator[dict[str, object]]:
    for c in crossings:
        about = {"operator": c.layer.name, "kind": c.layer.kind, "op_type": c.layer.op_type, "count": c.count,
                 "macs": c.layer.macs}  # fmt: skip
        for machine, best, tile, carried, loss, reason in (
            (request.npu, c.npu, c.gpu_tile_on_npu, c.on_npu, c.npu_loss_ratio, c.on_npu_reason),
            (request.gpu, c.gpu, c.npu_tile_on_gpu, c.on_gpu, c.gpu_loss_ratio, c.on_gpu_reason),
        ):
            cost: dict[str, Any] = {f.name: getattr(best.cost, f.name) for f in dataclasses.fields(best.cost)}
            yield about | cost | _error(machine) | {
                "processor": machine.name, "tile": str(best.tile), "carried_tile": "" if tile is None else str(tile),
                "error_median_ratio_of_kind": kind_error(machine, c.layer.kind),
                "carried_latency_s": None if carried is None else carried.latency_s, "loss_ratio": loss,
                "carried_refusal": reason, "configurations": best.configurations, "costed": best.costed,
                "statement": best.statement, "parts": "; ".join(f"{n} {v:.4g}" for n, v in best.cost.parts),
            }  # fmt: skip


def _print(request: _Request, crossings: Sequence[Crossing], matrix: Sequence[Loss], console: Console) -> None:
    console.print(
        f"{request.name}: {sum(request.layers.values())} operators with tiles, {len(crossings)} different, on "
        f"{request.npu.name} and {request.gpu.name}; all figures are modelled:",
    )
    for machine in (request.npu, request.gpu):
        console.print(f"  {error_sentence(machine)}")
    if request.refused:
        console.print(f"without tiles: {_refused(request)}", style="dim")
    table = plain_table(
        "operator", "", "NPU tile", "latency", "energy", "on chip", "lanes", "GPU tile", "latency", "energy",
        "GPU tile on NPU", "NPU tile on GPU", no_wrap=True,
    )  # fmt: skip
    for c in sorted(crossings, key=lambda c: -c.layer.macs * c.count):
        table.add_row(
            short_layer(c.layer), f"x{c.count}", str(c.npu.tile), seconds(c.npu.cost.latency_s),
            joules(c.npu.cost.energy_j), size(c.npu.cost.on_chip_bytes), percent(c.npu.cost.lane_ratio),
            str(c.gpu.tile), seconds(c.gpu.cost.latency_s), joules(c.gpu.cost.energy_j),
            _loss(c.npu_loss_ratio, c.on_npu_reason), _loss(c.gpu_loss_ratio, c.on_gpu_reason),
        )  # fmt: skip
    console.print(table)
    console.print("\nthroughput lost when a tile is carried over unchanged", style="bold")
    matrix_table = plain_table("kind", "direction", "shapes", "refused", "median", "in total", "chiefly")
    for loss in matrix:
        matrix_table.add_row(
            loss.kind, loss.direction, str(loss.layers), str(loss.refused), _loss(loss.median_ratio, "-"),
            _loss(loss.total_ratio, "-"), loss.cause,
        )  # fmt: skip
    console.print(matrix_table)


def _refused(request: _Request) -> str:
    kinds = Counter(reason.partition(" has no tiles")[0] for reason in request.refused.values())
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _why_nothing(request: _Request) -> str:
    if request.graph is None or not request.refused:
        return "it has no nodes"
    bodies = any(node.op_type in ("If", "Loop", "Scan") for node in request.graph.nodes())
    return f"it has {_refused(request)}{'; bodies of If, Loop and Scan are not looked into' if bodies else ''}"


def _loss(ratio: float | None, otherwise: str) -> str:
    return otherwise.partition(":")[0] if ratio is None else percent(ratio)
