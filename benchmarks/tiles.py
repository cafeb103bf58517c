"""Measure the bars of the tiles: `python -m benchmarks.tiles WHAT ...`, where WHAT is one of

    rate      configurations a second on one core, and all operators of ResNet-50 on both hierarchies
    collect   compile operators through ort_qnn and keep the simulator's time, bytes and tiles, one JSON line each
    fit       fit the NPU model's free figures to half of the collected operators, and print its error on the others
    errors    the error of the figures in the device file on the half that they were not fitted to
    passes    fit the passes of whole graphs to half of operators between convolutions, and print the error on others
    sweep     does the model order VTCM sizes as the simulator does, for single operators?
    simulate  compile whole zoo models at each VTCM size, and keep what the simulator says
    models    does the model order VTCM sizes as the simulator does, for whole models?
    cpu       does the static order of CPU tiles agree with measured times?
    tune      MetaSchedule beside the sweep, on the operators of `cpu`: quality against trials and seconds
    gpu       the GPU model against public measured rows (--measured), held out by model

Collecting takes seconds an operator; rows are appended, and an operator that is there is not compiled again. With
`--write`, errors, models and gpu keep what they find in `partition/devices/calibration/tiles.json`, which
`experiments.tiles` prints.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphs import zoo
from partition import load_device
from partition.tile import (
    balanced_space,
    frontier_gpu,
    frontier_npu,
    gpu_machine,
    layers_of,
    npu_machine,
    parse_operator,
    power_space,
    search_gpu,
    search_npu,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE: Final = "sa8255p"
RATE_OPERATORS: Final = (
    "conv2d:c=64,k=64,y=256,x=256,f=3",
    "conv2d:c=256,k=512,y=28,x=28,f=3",
    "matmul:m=196,c=768,k=3072",
)


def load_average() -> str:
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def best_of(run: Callable[[], Any], repeat: int = 5) -> tuple[Any, float]:
    """Return the result and the shortest CPU time of a few runs."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return result, min(times)


def rate() -> None:
    npu, gpu = npu_machine(load_device(DEVICE), "fp16"), gpu_machine(load_device("sm8650"), "fp16")
    print(f"CPU time of one core, best of 5; {load_average()}")
    for text in RATE_OPERATORS:
        layer = parse_operator(text)
        found, took = best_of(lambda layer=layer: search_npu(layer, npu, exhaustive_limit=1 << 60))
        _, front_s = best_of(lambda layer=layer: frontier_npu(layer, npu))
        kernel, gpu_s = best_of(lambda layer=layer: search_gpu(layer, gpu))
        _, gpu_front_s = best_of(lambda layer=layer: frontier_gpu(layer, gpu))
        print(
            f"{text:36s} NPU {found.costed / took / 1e6:5.1f} M/s best, {found.costed / front_s / 1e6:4.1f} M/s "
            "frontier; "
            f"GPU {kernel.costed / gpu_s / 1e6:4.1f} M/s best, {kernel.costed / gpu_front_s / 1e6:4.1f} M/s frontier"
        )
    layers, _ = layers_of(zoo.build("resnet50"))
    distinct = {layer.signature: layer for layer in layers}.values()

    def whole() -> int:
        return sum(search_npu(layer, npu).costed + search_gpu(layer, gpu).costed for layer in distinct)

    costed, took = best_of(whole, 3)
    spaces = sum(balanced_space(layer, npu).size + power_space(layer, gpu).size for layer in distinct)
    print(
        f"ResNet-50: {len(layers)} operators, {len(distinct)} distinct, {spaces} configurations, {costed} costed, "
        f"{took:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiles", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        choices=("rate", "collect", "fit", "errors", "passes", "sweep", "simulate", "models", "cpu", "tune", "gpu"),
    )
    parser.add_argument("--rows", type=Path, default=Path("build/tile_operators.jsonl"))
    parser.add_argument("--models", type=Path, default=Path("build/tile_models.jsonl"))
    parser.add_argument("--passes", type=Path, default=Path("build/tile_passes.jsonl"))
    parser.add_argument("--build", type=Path, default=Path("build/tiles"))
    parser.add_argument("--most", type=int, default=10_000, help="operators to compile")
    parser.add_argument("--measured", type=Path, help="CSV with columns model, unit, runtime, ms")
    parser.add_argument(
        "--write", action="store_true", help="errors, models, gpu: keep the errors for experiments.tiles"
    )
    options = parser.parse_args()
    if options.what == "gpu" and options.measured is None:
        parser.error("gpu needs --measured FILE")
    _run(options)


def _run(options: argparse.Namespace) -> None:
    from benchmarks import tile_cpu, tile_gpu, tile_models, tile_npu, tile_passes, tile_tune

    for path in (options.rows, options.models, options.passes):
        path.parent.mkdir(parents=True, exist_ok=True)
    {
        "rate": rate,
        "collect": lambda: tile_npu.collect(options.rows, options.build, options.most),
        "fit": lambda: tile_npu.fit(options.rows),
        "errors": lambda: tile_npu.errors(options.rows, write=options.write),
        "passes": lambda: tile_passes.passes(options.passes, options.build),
        "sweep": lambda: tile_npu.sweep(options.rows),
        "simulate": lambda: tile_models.simulate(options.models, options.build),
        "models": lambda: tile_models.compare(options.models, write=options.write),
        "cpu": tile_cpu.agreement,
        "tune": tile_tune.peers,
        "gpu": lambda: tile_gpu.against_measured(options.measured, write=options.write),
    }[options.what]()


if __name__ == "__main__":
    main()
