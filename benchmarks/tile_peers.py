"""The NPU model beside ZigZag on its own TPU-like hardware, ResNet-18: `python -m benchmarks.tile_peers [LIMIT]`.

`pip install -e .[peers]`. Both see the same layers, array, memory and DRAM port, read from ZigZag's own files.
LIMIT is ZigZag's `lpf_limit` (its default is 6; fewer make it faster). Cycles; CPU seconds of one core.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.tiles import best_of, load_average
from graphs import zoo
from partition.tile import Layer, NpuMachine, NpuResult, layers_of, search_npu

MODEL: Final = "resnet18"
HARDWARE: Final = "tpu_like"


def main() -> None:
    import zigzag

    inputs = Path(zigzag.__file__).parent / "inputs"
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    graph = zoo.build(MODEL)
    layers = {layer.name: layer for layer in layers_of(graph)[0]}
    machine = _machine(yaml.safe_load((inputs / "hardware" / f"{HARDWARE}.yaml").read_text()))
    start = time.process_time()
    theirs = _zigzag(graph.proto(), inputs, limit)
    peer_s = time.process_time() - start
    print(f"zigzag-dse {importlib.metadata.version('zigzag-dse')}, lpf_limit {limit}; {load_average()}")
    print(f"{'layer':38s} {'ours':>9s} {'ZigZag':>9s} {'diff':>6s}   "
          "ours: compute + rest; ZigZag: compute + stall + load + unload")  # fmt: skip
    ours = [(_compare(layers[evaluation.layer.name], evaluation, machine)) for evaluation in theirs]
    cycles, peer = sum(o.cost.latency_s for o, _ in ours), sum(float(e.latency_total2) for e in theirs)
    spent = sum(took for _, took in ours)
    energy, peer_energy = sum(o.cost.energy_j for o, _ in ours), sum(float(e.energy_total) for e in theirs)
    # Ours has no registers: what ZigZag counts in the array's own is told apart.
    registers = sum(float(e.mem_energy_breakdown[operand][0]) for e in theirs for operand in e.mem_energy_breakdown
                    if str(operand) in ("O", "W"))  # fmt: skip
    print(f"energy {energy / 1e6:.0f} and {peer_energy / 1e6:.0f} uJ, of which {registers / 1e6:.0f} in registers")
    each_ms, each_s = spent / len(ours) * 1e3, peer_s / len(ours)
    print(
        f"in total {cycles:.0f} and {peer:.0f} cycles ({100 * (cycles / peer - 1):+.1f} %); CPU time "
        f"{spent * 1e3:.0f} ms ({each_ms:.1f} ms a layer) and {peer_s:.1f} s ({each_s:.2f} s a layer): "
        f"{peer_s / spent:.0f} x"
    )


def _machine(hardware: dict[str, Any]) -> NpuMachine:
    """Return ZigZag's accelerator in our terms: its bits are bytes here, a cycle is a second, a picojoule a joule.

    ZigZag keeps the weights of a layer in the registers of the array; here they share the scratchpad, so the
    registers count to it.
    """
    memories, array = hardware["memories"], hardware["operational_array"]
    columns, depth = array["sizes"]
    scratchpad = memories["sram_2MB"]["size"] + memories["rf_128B"]["size"] * columns * depth
    dram_bytes, sram_bytes = (memories[name]["ports"][0]["bandwidth_max"] / 8 for name in ("dram", "sram_2MB"))
    return NpuMachine(
        name=f"ZigZag {HARDWARE}", element_bytes=1, dram_element_bytes=1, clock_hz=1.0, mac_j=array["unit_energy"],
        dram_j_per_byte=memories["dram"]["r_cost"] / dram_bytes, active_w=0.0,
        on_chip_j_per_byte=memories["sram_2MB"]["r_cost"] / sram_bytes, budget_bytes=scratchpad / 8,
        alignment_bytes=1, lanes=1, macs_per_lane=1.0, dma_bytes=dram_bytes, block_y=1, block_x=1, columns=columns,
        depth=depth, step_cycles=1.0, block_cycles=0.0, vector_threads=1, in_cycles_per_byte=0.0,
        padded_wait_ratio=0.0, strided_cycles_per_byte=0.0, out_cycles_per_byte=0.0, transfer_cycles=0.0,
        tile_cycles=0.0, fixed_cycles=0.0, overlap_ratio=1.0, conflict_ratio=0.0, weight_conflict_s=0.0,
        fifo_full_s=0.0,
    )  # fmt: skip


def _zigzag(proto: Any, inputs: Path, limit: int) -> list[Any]:  # noqa: ANN401 - onnx's
    from zigzag.api import get_hardware_performance_zigzag

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        *_, evaluations = get_hardware_performance_zigzag(
            proto, str(inputs / "hardware" / f"{HARDWARE}.yaml"), str(inputs / "mapping" / f"{HARDWARE}.yaml"),
            opt="latency", dump_folder=folder, pickle_filename=os.fspath(Path(folder) / "all.pickle"),
            lpf_limit=limit, loma_show_progress_bar=False,
        )  # fmt: skip
    return [evaluation for evaluation, _ in evaluations[0][1]]


def _compare(layer: Layer, peer: Any, machine: NpuMachine) -> tuple[NpuResult, float]:  # noqa: ANN401 - ZigZag's
    found, took = best_of(lambda: search_npu(layer, machine))
    compute = found.cost.part("compute")
    total, stalled, loaded = (float(getattr(peer, f"latency_total{i}")) for i in (2, 0, 1))
    ideal = float(peer.ideal_temporal_cycle)
    latency = found.cost.latency_s
    print(
        f"{layer.name:38s} {latency:9.0f} {total:9.0f} {100 * (latency / total - 1):+5.1f} %   {compute:.0f} + "
        f"{latency - compute:.0f}; {ideal:.0f} + {stalled - ideal:.0f} + {loaded - stalled:.0f} + {total - loaded:.0f}"
    )
    return found, took


if __name__ == "__main__":
    main()
