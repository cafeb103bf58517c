"""What the vendor's compiler and simulator say of the same model: memory sizes, spills, and every node's tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compilers import (
    Action,
    CompilerError,
    Limits,
    NodeTrace,
    Trace,
    compile_segment,
    get_compiler,
    trace_by_node,
)
from experiments import store
from experiments.console import plain_table
from experiments.model import calibration_for, variant
from experiments.units import seconds, significant, size
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from compilers import Artefact
    from graphs import Graph

_VTCM_MB: Final = (1, 2, 4, 8)
_MODES: Final = ("2", "1", "3")  # 2 is the compiler's default
_MODE: Final = "htp_graph_finalization_optimization_mode"
_SHOWN: Final = 20


def simulate(graph: Graph, device_name: str, precision: str, build: Path, folder: Path, console: Console) -> None:
    """Compile at each memory size and optimisation mode, print time and spills, and write and print each node's trace.

    A refusal is a line of the table, not an end.
    """
    device = load_device(device_name)
    why = get_compiler("ort_qnn").why_not(Action.ESTIMATE, device, "npu")
    if why is not None:
        console.print(f"\nnot simulated: {why}", style="yellow")
        return
    if precision == "int8":
        graph = variant(graph, "int8", calibration_for(graph, None, 0), build)
    most = int(device.processor("npu").ids["qnn"]["vtcm_mb"])
    console.print(f"\nsimulated by the vendor's compiler for {device.title}, {precision}", style="bold")
    settings = [(mb, "2") for mb in _VTCM_MB if mb <= most] + [(most, mode) for mode in _MODES[1:]]
    traced: Artefact | None = None
    for vtcm_mb, mode in settings:
        options = (("vtcm_mb", str(vtcm_mb)), (_MODE, mode), ("profiling_level", "optrace"))
        segment = Segment(
            graph=graph, device=device, processor="npu", compiler="ort_qnn", precision=precision, options=options
        )
        try:
            artefact = compile_segment(segment, build, Limits())
            _print_setting(artefact, vtcm_mb, mode, console)
        except CompilerError as error:
            console.print(f"  VTCM {vtcm_mb} MB, mode {mode}: {error}")
            continue
        if (vtcm_mb, mode) == (most, "2"):
            traced = artefact
    if traced is not None:
        _print_trace(traced, graph, folder, console)


def _print_setting(artefact: Artefact, vtcm_mb: int, mode: str, console: Console) -> None:
    estimate = get_compiler("ort_qnn").estimate(artefact)
    latency = estimate.latency
    console.print(
        f"  VTCM {vtcm_mb} MB, mode {mode}: {seconds(latency.typical_s)} ({seconds(latency.low_s)} to "
        f"{seconds(latency.high_s)}), DRAM {size(estimate.dram_bytes)}, spilled {size(estimate.spill_bytes)}",
    )


def _print_trace(artefact: Artefact, graph: Graph, folder: Path, console: Console) -> None:
    try:
        trace = get_compiler("ort_qnn").trace(artefact)
    except CompilerError as error:
        console.print(f"  no trace: {error}")
        return
    nodes = trace_by_node(trace, [node.name for node in graph.nodes()])
    _write(nodes, trace, folder)
    busy = ", ".join(f"{unit} {significant(100 * trace.busy_ratio(unit), 2)} %" for unit in ("hmx", "hvx", "dma"))
    console.print(f"\nunits busy: {busy}; the nodes that the chip spent most time on:")
    table = plain_table("node", "tiles", "hmx", "hvx", "dma", "DRAM", "chain", no_wrap=True)
    for node in sorted(nodes, key=lambda node: -node.chain_cycles)[:_SHOWN]:
        table.add_row(
            node.node, _tiles(node), *(_cycles(node, unit) for unit in ("hmx", "hvx", "dma")),
            size(node.dram_read_bytes + node.dram_write_bytes),
            f"{significant(100 * node.chain_cycles / trace.cycles, 2)} %",
        )  # fmt: skip
    console.print(table)
    console.print("chain: share of the time, walking back from the end to what ended last before", style="dim")
    console.print(f"wrote nodes.csv to {folder}")


def _write(nodes: tuple[NodeTrace, ...], trace: Trace, folder: Path) -> None:
    header = (
        "node", "tiles", "hmx_s", "hvx_s", "dma_s", "scalar_s", "dram_read_bytes", "dram_write_bytes", "first_s",
        "last_s", "chain_s",
    )  # fmt: skip
    per_cycle = 1 / trace.chip.core_hz
    store.write_csv(
        folder / "nodes.csv",
        header,
        (
            {
                "node": node.node, "tiles": _tiles(node), "dram_read_bytes": node.dram_read_bytes,
                "dram_write_bytes": node.dram_write_bytes, "first_s": node.first_cycle * per_cycle,
                "last_s": node.last_cycle * per_cycle, "chain_s": node.chain_cycles * per_cycle,
                **{f"{unit}_s": node.cycles.get(unit, 0) * per_cycle for unit in ("hmx", "hvx", "dma", "scalar")},
            }
            for node in nodes
        ),
    )  # fmt: skip


def _tiles(node: NodeTrace) -> str:
    by_count = sorted(node.tiles, key=lambda tile: -tile[1])
    shown = ", ".join(f"{count} x {'x'.join(map(str, dims[1:] or dims))}" for dims, count in by_count[:2])
    return shown + (", ..." if len(by_count) > 2 else "")


def _cycles(node: NodeTrace, unit: str) -> str:
    return str(node.cycles.get(unit, "-"))
