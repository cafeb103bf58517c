"""The NPU model against the vendor's simulator, operator by operator: `benchmarks.tiles {collect,fit,sweep}`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
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
    band_latency_s,
    evaluate_npu,
    layers_of,
    npu_machine,
    search_npu,
)
from partition.tile.validation import OPERATORS, Validation, digest, write_validations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEVICE: Final = "sa8255p"
TRUTH: Final = "the HTP simulator of onnxruntime-qnn 2.7.0 (QAIRT 2.51)"
MODELS: Final = (
    "resnet50", "mobilenet_v2", "efficientnet_lite0", "squeezenet1_1", "inception_v3", "vit_b_16", "yolov5s",
    "regnet_y_400mf", "googlenet",
)  # fmt: skip
PRECISIONS: Final = ("int8", "fp16")
# Free figures of the NPU model, and where the fit starts; what the trace tells directly is not fitted.
FREE: Final = {
    "in_cycles_per_byte": 0.1, "strided_cycles_per_byte": 0.05, "out_cycles_per_byte": 0.15, "fixed_cycles": 500.0,
    "overlap_ratio": 0.5, "macs_per_lane": 0.3, "tile_cycles": 50.0,
}  # fmt: skip
# The figures of the device files are those of the first half; the other halves show how much the error depends on it.
HALVES: Final = (1, 2, 3)
SWEPT: Final = 130
SIZES_MB: Final = (1, 2, 4, 8)
# Two sizes are told apart where their simulated times differ by more.
TOLD_APART: Final = 1.05
# The operators that no fit saw, for tests/unit/test_tile_validation.py.
GOLDEN: Final = Path(__file__).parents[1] / "tests" / "golden" / "tile_operators.json"


def machine_of(precision: str) -> NpuMachine:
    """Return the machine for operators whose ends in DRAM are uint8, or float32 around fp16."""
    machine = npu_machine(load_device(DEVICE), precision)
    return dataclasses.replace(machine, dram_element_bytes=4 if precision == "fp16" else 1)


# --- collecting ----------------------------------------------------------------------------------------------


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
            settings = [(precision, "8") for precision in PRECISIONS]
            settings += [("int8", mb) for mb in "124" if number < SWEPT]
            for precision, vtcm in settings:
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


# --- the model at the vendor's tiles --------------------------------------------------------------------------


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


def samples(path: Path, precision: str, machine: NpuMachine) -> list[Sample]:
    return sorted(_samples(path, precision, machine), key=lambda sample: sample[0]["sig"])


def _samples(path: Path, precision: str, machine: NpuMachine) -> Iterator[Sample]:
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


# --- the fit -------------------------------------------------------------------------------------------------


def fit_figures(machine: NpuMachine, rows: Sequence[Sample], start: Mapping[str, float]) -> dict[str, float]:
    """Minimise the mean absolute log error, capped so that outliers do not steer, one figure at a time."""

    def score(figures: Mapping[str, float]) -> float:
        errors = np.abs(log_ratios(dataclasses.replace(machine, **figures), rows))
        return float(np.minimum(errors, 0.7).mean())

    figures = dict(start)
    least = score(figures)
    for turn in range(14):
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


def halves(rows: Sequence[Sample], seed: int) -> tuple[Sequence[Sample], Sequence[Sample]]:
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - a split, no secret
    return shuffled[: len(rows) // 2], shuffled[len(rows) // 2 :]


def fit(path: Path) -> None:
    """Fit both precisions on three halves; the figures of the first are those for the device files."""
    for precision in PRECISIONS:
        # The fit starts from plain figures, not from those of an earlier fit that the device file holds.
        plain = dataclasses.replace(machine_of(precision), **FREE)
        rows = samples(path, precision, plain)
        for seed in HALVES:
            known, unseen = halves(rows, seed)
            figures = fit_figures(plain, known, FREE)
            report(f"{precision}, half {seed}, held out", precision, dataclasses.replace(plain, **figures), unseen)
            print("    " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))


def errors(path: Path, *, write: bool) -> None:
    """Hold the device file's own figures against the half that they were not fitted to."""
    found, kept = [], []
    for precision in PRECISIONS:
        filed = machine_of(precision)
        _, unseen = halves(samples(path, precision, filed), HALVES[0])
        found.append(report(f"{precision}, the device file, held out", precision, filed, unseen))
        kept += [_short(precision, *sample) for sample in unseen]
    if write:
        write_validations(found)
        GOLDEN.write_text("[\n" + ",\n".join(kept) + "\n]\n", encoding="utf-8")


def _short(precision: str, row: Mapping[str, Any], layer: Layer, tile: NpuTile) -> str:
    """Return one line of the test's samples, without what a layer is by default."""
    own = {f.name: getattr(layer, f.name) for f in dataclasses.fields(layer) if f.name != "name"}
    shape = {name: value for name, value in own.items() if name == "k" or value not in (1, (1, 1))}
    line = {"precision": precision, "cycles": row["cycles"], "tile": dict(tile.sizes), "layer": shape}
    return json.dumps(line, separators=(",", ":"))


def report(title: str, precision: str, machine: NpuMachine, rows: Sequence[Sample]) -> Validation:
    errors = log_ratios(machine, rows)
    truth = np.log([row["cycles"] for row, _, _ in rows])
    ratios = np.abs(np.expm1(errors))
    by_kind = {kind: [r for r, (_, layer, _) in zip(ratios, rows, strict=True) if layer.kind == kind]
               for kind in sorted({layer.kind for _, layer, _ in rows})}  # fmt: skip
    found = Validation(
        figures=digest(machine), processor=f"{DEVICE} npu", precision=precision, truth=TRUTH,
        held_out=OPERATORS, samples=len(rows), error_median=_rounded(np.median(ratios)),
        error_p90=_rounded(np.quantile(ratios, 0.9)),
        rank_correlation=_rounded(rank_correlation(truth, truth + errors)),
        kinds=tuple((kind, _rounded(np.median(values))) for kind, values in by_kind.items()),
    )  # fmt: skip
    kinds = ", ".join(f"{len(by_kind[kind])} {kind} {100 * median:.1f} %" for kind, median in found.kinds)
    print(
        f"{title}: {len(rows)} operators, median error {100 * found.error_median:.1f} %, 90th percentile "
        f"{100 * found.error_p90:.0f} %, rank correlation {found.rank_correlation:.3f}; {kinds}",
        flush=True,
    )
    return found


def _rounded(value: Any) -> float:  # noqa: ANN401 - numpy's
    return round(float(value), 4)


# --- memory sizes --------------------------------------------------------------------------------------------


def sweep(path: Path) -> None:
    """Compare the order of memory sizes for the operators that the size matters to.

    An order is right when every two sizes whose simulated times are over 5 % apart come out the right way round. The
    rules of `partition/tile/bands.py` were made from the first half, whose order was looked at; the other was not.
    """
    device, swept = load_device(DEVICE), _swept(path)
    order = sorted(swept)
    random.Random(1).shuffle(order)  # noqa: S311 - a split, no secret
    for title, part in (("looked at", order[: len(order) // 2]), ("not looked at", order[len(order) // 2 :])):
        right = dict.fromkeys(("bands", "search", "larger is faster"), 0)
        counted = level = calm = 0
        for sig in part:
            truth = [swept[sig][size]["cycles"] for size in SIZES_MB]
            layer = layer_of(swept[sig][SIZES_MB[0]])
            machines = [npu_machine(device, "int8", budget_bytes=size * 2**20) for size in SIZES_MB]
            bands = [band_latency_s(layer, machine) for machine in machines]
            if max(truth) <= TOLD_APART * min(truth):
                level += 1
                calm += max(bands) <= TOLD_APART * min(bands)
                continue
            counted += 1
            right["bands"] += in_order(truth, bands)
            right["search"] += in_order(truth, [search_npu(layer, m).cost.latency_s for m in machines])
            right["larger is faster"] += in_order(truth, [-size for size in SIZES_MB])
            print(f"    {title}: {layer.kind} k{layer.k} c{layer.c} {layer.y}x{layer.x}: simulated cycles {truth}, "
                  f"bands {[round(b * machines[0].clock_hz) for b in bands]}")  # fmt: skip
        print(f"{title}: {len(part)} operators, {counted} that the size matters to; order right by {right}; of the "
              f"{level} others {calm} come out level")  # fmt: skip


def _swept(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the rows of each operator that was simulated at every size, by size."""
    by_layer: dict[str, dict[int, dict[str, Any]]] = {}
    for row in read(path):
        if row["prec"] == "int8" and "error" not in row:
            by_layer.setdefault(row["sig"], {})[int(row["vtcm"])] = row
    return {sig: rows for sig, rows in by_layer.items() if len(rows) == len(SIZES_MB)}


def in_order(truth: Sequence[float], modelled: Sequence[float]) -> bool:
    """Tell whether the model orders every two sizes that the simulator tells apart."""
    pairs = itertools.combinations(zip(truth, modelled, strict=True), 2)
    return all((a - b) * (x - y) > 0 for (a, x), (b, y) in pairs if max(a, b) > TOLD_APART * min(a, b))
