"""Measure the bars of the tiles: `python -m benchmarks.tiles {rate,collect,fit,sweep,cpu,gpu} ...`.

    rate      configurations a second on one core, and all operators of ResNet-50 on both hierarchies
    collect   compile operators through ort_qnn and keep the simulator's time, bytes and tiles, one JSON line each
    fit       fit the NPU model's free figures to half of the collected operators, and print its error on the others
    sweep     does the model order VTCM sizes as the simulator does?
    cpu       does the static order of CPU tiles agree with measured times?
    gpu       the GPU model against public measured rows (--measured), held out by model

Collecting takes seconds an operator; rows are appended, and an operator that is there is not compiled again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphs import zoo
from partition import Segment, load_device
from partition.tile import (
    Layer,
    NpuMachine,
    NpuTile,
    TileError,
    balanced_space,
    evaluate_npu,
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

DEVICE: Final = "sa8255p"
MODELS: Final = (
    "resnet50", "mobilenet_v2", "efficientnet_lite0", "squeezenet1_1", "inception_v3", "vit_b_16", "yolov5s",
    "regnet_y_400mf", "googlenet",
)  # fmt: skip
RATE_OPERATORS: Final = (
    "conv2d:c=64,k=64,y=256,x=256,f=3",
    "conv2d:c=256,k=512,y=28,x=28,f=3",
    "matmul:m=196,c=768,k=3072",
)
# Free figures of the NPU model, and where the fit starts; what the trace tells directly is not fitted.
FREE: Final = {
    "in_cycles_per_byte": 0.1, "padded_cycles_per_byte": 0.07, "strided_cycles_per_byte": 0.1,
    "out_cycles_per_byte": 0.15, "fixed_cycles": 500.0, "overlap_ratio": 0.5, "macs_per_lane": 1.0, "tile_cycles": 50.0,
}  # fmt: skip


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


# --- the simulator's truth -----------------------------------------------------------------------------------


def distinct_layers() -> list[tuple[str, Layer]]:
    """Return every distinct layer of the models that one compile can hold, in a fixed random order."""
    seen: dict[str, tuple[str, Layer]] = {}
    for model in MODELS:
        for layer in layers_of(zoo.build(model))[0]:
            alone = layer.kind == "norm" or (layer.kind == "matmul" and layer.groups > 1)
            if not alone:
                seen.setdefault(repr(layer.signature), (model, layer))
    items = [seen[key] for key in sorted(seen)]
    random.Random(0).shuffle(items)  # noqa: S311 - an order, no secret
    return items


def collect(path: Path, build: Path, most: int) -> None:
    done = {(row["sig"], row["prec"], row["vtcm"]) for row in read(path)}
    with path.open("a", encoding="utf-8") as out:
        for number, (model, layer) in enumerate(distinct_layers()[:most]):
            for precision, vtcm in [("int8", "8"), *([("fp16", "8")] if number < 60 else []),
                                    *(("int8", mb) for mb in "124" if number < 30)]:  # fmt: skip
                if (repr(layer.signature), precision, vtcm) not in done:
                    row = simulated(layer, precision, vtcm, build)
                    out.write(json.dumps({"model": model, **row}) + "\n")
                    out.flush()


def simulated(layer: Layer, precision: str, vtcm: str, build: Path) -> dict[str, Any]:
    from benchmarks.tile_operators import operator_graph
    from compilers import CompilerError, Limits, compile_segment, get_compiler, trace_by_node
    from compilers.qnn.profile import read_estimates

    row = {"sig": repr(layer.signature), "layer": dataclasses.asdict(layer), "prec": precision, "vtcm": vtcm}
    options = (("vtcm_mb", vtcm), ("profiling_level", "optrace"))
    segment = Segment(
        graph=operator_graph(layer, precision), device=load_device(DEVICE), processor="npu", compiler="ort_qnn",
        precision=precision, options=options,
    )  # fmt: skip
    try:
        artefact = compile_segment(segment, build, Limits(time_s=120))
        (profile,) = read_estimates((artefact.directory / "profile.csv").read_text(), partitions=1)
        trace = get_compiler("ort_qnn").trace(artefact)
    except CompilerError as error:
        return {**row, "error": str(error)}
    tiles = [node.tiles for node in trace_by_node(trace, ["layer"]) if node.node == "layer"]
    slices = [event.unit for event in trace.events if event.operation.startswith("*InputSlice") and event.cycles]
    return {
        **row, "slices": max(map(slices.count, slices), default=0), "cycles": profile.cycles, "tiles": tiles,
        "spill": profile.spill_bytes, "fill": profile.input_fill_bytes,
        "busy": {unit: trace.busy_ratio(unit) for unit in ("hmx", "hvx", "dma")},
    }  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def layer_of(row: Mapping[str, Any]) -> Layer:
    return Layer(**{key: tuple(value) if isinstance(value, list) else value for key, value in row["layer"].items()})


def vendor_tile(row: Mapping[str, Any], layer: Layer, machine: NpuMachine) -> NpuTile | None:
    """Return the tile that the vendor's compiler chose most of, in our terms; None when the trace shows none."""
    shown = [tile for node in row["tiles"] for tile in node if len(tile[0]) == 4]
    if not shown:
        return None
    (_, y, x, k), _ = max(shown, key=lambda tile: tile[1] * np.prod(tile[0]))
    if layer.kind == "matmul":
        y, x = 1, y * x
    if layer.kind == "pool" and row["slices"]:
        y = -(-layer.y // row["slices"])  # a pool's own tiles are others than those that bring its input in
    if machine.uses_matrix(layer):
        k = -(-k // machine.columns) * machine.columns
    sizes = {axis: min(getattr(layer, axis), max(1, size)) for axis, size in (("y", y), ("x", x), ("k", k))}
    return NpuTile(**sizes, c=layer.c, resident=True)


Sample = tuple[dict[str, Any], Layer, NpuTile]


def samples(path: Path, precision: str, machine: NpuMachine) -> Iterator[Sample]:
    for row in read(path):
        if row["prec"] == precision and row["vtcm"] == "8" and "error" not in row:
            layer = layer_of(row)
            tile = vendor_tile(row, layer, machine)
            if tile is not None:
                yield row, layer, tile


def log_ratios(machine: NpuMachine, rows: Sequence[Sample]) -> np.ndarray[Any, Any]:
    """Return ln(model / simulator) of each operator at the vendor's own tile; one that does not fit counts as 2."""
    found = []
    for row, layer, tile in rows:
        try:
            cycles = evaluate_npu(layer, machine, tile).latency_s * machine.clock_hz
        except TileError:
            cycles = 2 * row["cycles"]
        found.append(np.log(cycles / row["cycles"]))
    return np.array(found)


def fit_figures(machine: NpuMachine, rows: Sequence[Sample], start: Mapping[str, float]) -> dict[str, float]:
    """Minimise the mean absolute log error, capped so that outliers do not steer, one figure at a time."""

    def score(figures: Mapping[str, float]) -> float:
        errors = np.abs(log_ratios(dataclasses.replace(machine, **figures), rows))
        return float(np.minimum(errors, 0.7).mean())

    figures = dict(start)
    least = score(figures)
    for turn in range(12):
        step = 1 + 1.6 * 0.75**turn
        for name in start:
            for factor in (step, 1 / step):
                value = figures[name] * factor
                trial = {**figures, name: min(value, 1.0) if name == "overlap_ratio" else value}
                found = score(trial)
                if found < least:
                    figures, least = trial, found
    return figures


def rank_correlation(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def fit(path: Path) -> None:
    """Fit int8 on three halves; fp16, whose graph outputs the simulator times oddly, is only compared."""
    device = load_device(DEVICE)
    # The fit starts from plain figures, not from those of an earlier fit that the device file holds.
    machine = dataclasses.replace(npu_machine(device, "int8"), **FREE)
    rows = sorted(samples(path, "int8", machine), key=lambda sample: sample[0]["sig"])
    for seed in (1, 2, 3):
        shuffled = list(rows)
        random.Random(seed).shuffle(shuffled)  # noqa: S311 - as above
        half = len(rows) // 2
        figures = fit_figures(machine, shuffled[:half], FREE)
        fitted = dataclasses.replace(machine, **figures)
        report(f"int8, half {seed}: fitted on {half} operators, held out", fitted, shuffled[half:])
        print("    " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    for precision in ("int8", "fp16"):
        filed = npu_machine(device, precision)
        report(
            f"{precision}, figures of the device file (fitted to int8 rows among these)",
            filed,
            list(samples(path, precision, filed)),
        )


def report(title: str, machine: NpuMachine, rows: Sequence[Sample]) -> None:
    errors = log_ratios(machine, rows)
    truth = np.log([row["cycles"] for row, _, _ in rows])
    percent = 100 * np.abs(np.expm1(errors))
    print(
        f"{title}; on {len(rows)} operators: median error {np.median(percent):.1f} %, 90th percentile "
        f"{np.quantile(percent, 0.9):.0f} %, rank correlation {rank_correlation(truth, truth + errors):.3f}"
    )
    for kind in dict.fromkeys(layer.kind for _, layer, _ in rows):
        of_kind = [p for p, (_, layer, _) in zip(percent, rows, strict=True) if layer.kind == kind]
        print(f"    {kind:10s} {len(of_kind):3d} operators, median error {statistics.median(of_kind):.1f} %")


def sweep(path: Path) -> None:
    """Compare the order of memory sizes; operators that the simulator finds equally fast in all sizes do not count."""
    device, by_layer = load_device(DEVICE), {}
    for row in read(path):
        if row["prec"] == "int8" and "error" not in row:
            by_layer.setdefault(row["sig"], {})[float(row["vtcm"])] = row
    right = counted = 0
    for rows in by_layer.values():
        if len(rows) < 4:
            continue
        sizes = sorted(rows)
        truth = [rows[size]["cycles"] for size in sizes]
        layer = layer_of(rows[sizes[0]])
        model = [
            search_npu(layer, npu_machine(device, "int8", budget_bytes=size * 2**20)).cost.latency_s for size in sizes
        ]
        if max(truth) > 1.05 * min(truth):
            counted += 1
            right += all((a > 1.02 * b) == (c > 1.02 * d) for a, b, c, d in
                         zip(truth, truth[1:], model, model[1:], strict=False))  # fmt: skip
            print(
                f"    {layer.kind} k{layer.k} c{layer.c} {layer.y}x{layer.x}: simulated cycles {truth}, "
                f"modelled us {[round(m * 1e6) for m in model]}"
            )
    print(f"VTCM order right for {right} of {counted} operators that the size matters to, of {len(by_layer)} simulated")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiles", description=__doc__)
    parser.add_argument("what", choices=("rate", "collect", "fit", "sweep", "cpu", "gpu"))
    parser.add_argument("--rows", type=Path, default=Path("build/tile_operators.jsonl"))
    parser.add_argument("--build", type=Path, default=Path("build/tiles"))
    parser.add_argument("--most", type=int, default=10_000, help="operators to compile")
    parser.add_argument("--measured", type=Path, help="CSV with columns model, unit, runtime, ms")
    options = parser.parse_args()
    if options.what == "rate":
        rate()
    elif options.what == "collect":
        options.rows.parent.mkdir(parents=True, exist_ok=True)
        collect(options.rows, options.build, options.most)
    elif options.what == "fit":
        fit(options.rows)
    elif options.what == "sweep":
        sweep(options.rows)
    elif options.what == "cpu":
        from benchmarks.tile_cpu import agreement

        agreement()
    elif options.measured is None:
        parser.error("gpu needs --measured FILE")
    else:
        from benchmarks.tile_gpu import against_measured

        against_measured(options.measured)


if __name__ == "__main__":
    main()
