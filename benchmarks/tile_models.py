"""Whole models: does ours order memory sizes as the vendor's simulator does? `benchmarks.tiles {simulate,models}`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.tile_npu import DEVICE, TRUTH, rank_correlation, read
from graphs import Calibration, Graph, quantise, zoo
from partition import Segment, load_device
from partition.tile import npu_machine, whole_cost
from partition.tile.validation import MODELS as WHOLE
from partition.tile.validation import Validation, digest, write_validations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MODELS: Final = (
    "squeezenet1_1", "mobilenet_v2", "resnet18", "shufflenet_v2", "googlenet", "mobilenet_v3_small", "resnet50",
    "regnet_y_400mf", "efficientnet_lite0", "mobilenet_v3_large", "inception_v3", "densenet121", "yolov5s",
    "mobilevit_v2", "efficientformer_l1", "convnext_tiny",
)  # fmt: skip
SIZES_MB: Final = (1, 2, 4, 8)
CALIBRATION_BATCHES: Final = 2
# Two sizes are told apart where their simulated times differ by more than this.
TOLD_APART: Final = 0.05


def simulate(path: Path, build: Path, precisions: tuple[str, ...] = ("fp16", "int8")) -> None:
    """Compile each model at each memory size, one JSON line each; what is there is not compiled again."""
    done = {(row["model"], row["prec"], row["vtcm"]) for row in read(path)}
    with path.open("a", encoding="utf-8") as out:
        for precision in precisions:
            for model in MODELS:
                left = [mb for mb in SIZES_MB if (model, precision, mb) not in done]
                graph = _graph(model, precision) if left else None
                for mb in left:
                    assert graph is not None
                    row = {"model": model, "prec": precision, "vtcm": mb, **_simulated(graph, precision, mb, build)}
                    out.write(json.dumps(row) + "\n")
                    out.flush()


def _graph(model: str, precision: str) -> Graph:
    graph = zoo.build(model)
    if precision == "int8":
        return quantise(graph, "int8", Calibration.random(graph, CALIBRATION_BATCHES, 0))
    return graph


def _simulated(graph: Graph, precision: str, mb: int, build: Path) -> dict[str, Any]:
    from compilers import CompilerError, Limits, compile_segment
    from compilers.qnn.profile import read_estimates

    segment = Segment(
        graph=graph, device=load_device(DEVICE), processor="npu", compiler="ort_qnn", precision=precision,
        options=(("vtcm_mb", str(mb)),),
    )  # fmt: skip
    try:
        artefact = compile_segment(segment, build, Limits(time_s=300))
        (profile,) = read_estimates((artefact.directory / "profile.csv").read_text(), partitions=1)
    except (CompilerError, ValueError) as error:
        return {"error": str(error)}
    return dataclasses.asdict(profile)


# --- the comparison ------------------------------------------------------------------------------------------


def compare(path: Path, *, write: bool) -> None:
    """Print both orders, and how often ours has right every pair of sizes that the simulator tells apart.

    It tells them apart when its own intervals do not meet, or, stricter, when its times differ by more than 5 %.
    "Larger is faster" is what one would say without any model; the model also has to say where size stops to matter.
    """
    rows = [row for row in read(path) if "error" not in row]
    found = []
    for precision in dict.fromkeys(row["prec"] for row in rows):
        tables = [[row for row in rows if (row["prec"], row["model"]) == (precision, model)] for model in MODELS]
        tables = [sorted(table, key=lambda row: row["vtcm"]) for table in tables if len(table) == len(SIZES_MB)]
        ours = [_modelled(table[0]["model"], precision) for table in tables]
        for table, cycles in zip(tables, ours, strict=True):
            print(f"{precision} {table[0]['model']:20s} simulated {_us([r['cycles'] for r in table])} us, "
                  f"modelled {_us(cycles)} us")  # fmt: skip
        _print_orders(precision, tables, ours)
        found.append(_validation(precision, tables, ours))
    if write:
        write_validations(found)


def _modelled(model: str, precision: str) -> list[float]:
    graph, device = zoo.build(model), load_device(DEVICE)
    machines = [npu_machine(device, precision, budget_bytes=mb * 2**20) for mb in SIZES_MB]
    return [whole_cost(graph, machine).latency_s * machine.clock_hz for machine in machines]


def _us(cycles: Sequence[float]) -> str:
    return ", ".join(f"{1e6 * value / npu_machine(load_device(DEVICE), 'int8').clock_hz:.0f}" for value in cycles)


Table = list[dict[str, Any]]


def _by_bounds(a: dict[str, Any], b: dict[str, Any]) -> int:
    return int(a["cycles_low"] > b["cycles_high"]) - int(b["cycles_low"] > a["cycles_high"])


def _by_ratio(a: float, b: float) -> int:
    return int(a > (1 + TOLD_APART) * b) - int(b > (1 + TOLD_APART) * a)


def _print_orders(precision: str, tables: Sequence[Table], ours: Sequence[Sequence[float]]) -> None:
    ways: tuple[tuple[str, Callable[[dict[str, Any], dict[str, Any]], int]], ...] = (
        ("its own bounds do not meet", _by_bounds),
        ("its times differ by over 5 %", lambda a, b: _by_ratio(a["cycles"], b["cycles"])),
    )
    for title, way in ways:
        right = plain = counted = 0
        for table, cycles in zip(tables, ours, strict=True):
            pairs = [(way(table[i], table[j]), cycles[i] - cycles[j])
                     for i, j in itertools.combinations(range(len(table)), 2)]  # fmt: skip
            told = [(sign, difference) for sign, difference in pairs if sign]
            counted += bool(told)
            right += bool(told) and all(sign * difference > 0 for sign, difference in told)
            plain += bool(told) and all(sign > 0 for sign, _ in told)
        print(f"{precision}, sizes apart where {title}: order right for {right} of {counted} models that have such "
              f"({len(tables)} in all); larger is faster: {plain}")  # fmt: skip
    steps = [(_by_ratio(a["cycles"], b["cycles"]), _by_ratio(x, y)) for table, cycles in zip(tables, ours, strict=True)
             for (a, x), (b, y) in itertools.pairwise(zip(table, cycles, strict=True))]  # fmt: skip
    print(f"{precision}, doublings that gain over 5 %, lose it, or neither: {sum(a == b for a, b in steps)} of "
          f"{len(steps)} told right; every one gains: {sum(a == 1 for a, _ in steps)}")  # fmt: skip


def _validation(precision: str, tables: Sequence[Table], ours: Sequence[Sequence[float]]) -> Validation:
    truth = np.array([row["cycles"] for table in tables for row in table], dtype=float)
    modelled = np.array([value for cycles in ours for value in cycles])
    ratios = np.abs(modelled / truth - 1)
    print(f"{precision}, {len(truth)} times: median error {100 * np.median(ratios):.1f} %, rank correlation "
          f"{rank_correlation(truth, modelled):.3f}")  # fmt: skip
    return Validation(
        figures=digest(npu_machine(load_device(DEVICE), precision)), processor=f"{DEVICE} npu", precision=precision,
        truth=TRUTH, held_out=WHOLE, samples=len(truth), error_median=round(float(np.median(ratios)), 4),
        error_p90=round(float(np.quantile(ratios, 0.9)), 4),
        rank_correlation=round(rank_correlation(truth, modelled), 4),
    )  # fmt: skip
