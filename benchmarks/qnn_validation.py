"""Measure the bars of issue 4 on predictions of Qualcomm NPU latency.

Usage: python benchmarks/qnn_validation.py TABLE.csv [--models FOLDER] [--build DIR] [--out DIR]

Takes the arguments of `python -m experiments.validate`, runs it, and compares its validation.csv with the bars. Before,
it simulates a few models for SA8255P and QCS9075: calibration takes one chip's simulation for both.
Exits 1 when a bar is missed or the two chips differ.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compilers import Limits, compile_segment, get_compiler
from experiments import validate
from experiments.calibration.features import OPTIONS, segment_precision
from experiments.calibration.fit import rank_correlation
from experiments.calibration.subjects import variant, zoo_subjects
from experiments.calibration.validation import is_simulated
from partition import Segment, load_device

if TYPE_CHECKING:
    from graphs import Graph

LEAST_DEVICES = 12
LEAST_ROWS = 5


class Bars(NamedTuple):
    """Percentages and a correlation that a precision must reach; None where the issue sets none."""

    median: float
    p90: float | None
    spearman: float | None
    others_median: float | None


BARS = {"fp16": Bars(7.0, 20.0, 0.98, 7.5), "int8": Bars(8.0, 25.0, 0.94, 10.0), "w8a16": Bars(15.0, None, None, None)}
COVERAGE = (75.0, 90.0)
ONE_SILICON = ("sa8255p", "qcs9075")


def main(arguments: list[str]) -> int:
    out = Path(_argument(arguments, "--out", "results/validation"))
    met = [_same_silicon(Path(_argument(arguments, "--build", "results/build")))]
    code = validate.main(arguments)
    if code:
        return code
    with (out / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    print("\nbars (each on rows that took no part in their own fit):")
    met += [_check(*line) for precision in BARS for line in _lines(precision, rows)]
    met.append(_check("all precisions: in the 80 % interval", _covered(rows), COVERAGE[0], ">="))
    met.append(_check("all precisions: in the 80 % interval", _covered(rows), COVERAGE[1], "<="))
    return 0 if all(met) else 1


def _argument(arguments: list[str], name: str, default: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else default


def _same_silicon(build: Path) -> bool:
    """Simulate three zoo models in float and INT8 on both chips; every pair must agree to the microsecond."""
    same = True
    for subject in zoo_subjects(["mobilenet_v2", "resnet18", "squeezenet1_1"]):
        graph = subject.load()
        for precision in ("fp16", "int8"):
            times = [_simulated_s(variant(graph, precision, build), precision, chip, build) for chip in ONE_SILICON]
            same = same and times[0] == times[1]
            print(
                f"{subject.model} {precision}: "
                + ", ".join(f"{c} {t * 1e6:.0f} us" for c, t in zip(ONE_SILICON, times, strict=True))
            )
    return same


def _simulated_s(graph: Graph, precision: str, chip: str, build: Path) -> float:
    segment = Segment(
        graph=graph,
        device=load_device(chip),
        processor="npu",
        compiler="ort_qnn",
        precision=segment_precision(precision),
        options=OPTIONS["ort_qnn"],
    )
    return get_compiler("ort_qnn").estimate(compile_segment(segment, build, Limits())).latency.typical_s


def _lines(precision: str, rows: list[dict[str, str]]) -> list[tuple[str, float, float, str]]:
    bars, lines = BARS[precision], []
    own = [r for r in rows if r["precision"] == precision and is_simulated(r["device"])]
    if own:
        name = f"{precision}, chips with a simulator"
        errors = _errors(own)
        lines.append((f"{name}: median error %", float(np.median(errors)), bars.median, "<="))
        if bars.p90 is not None:
            lines.append((f"{name}: 90th percentile %", float(np.percentile(errors, 90)), bars.p90, "<="))
        if bars.spearman is not None:
            measured, predicted = (np.array([float(r[f"{w}_s"]) for r in own]) for w in ("measured", "predicted"))
            lines.append((f"{name}: Spearman", rank_correlation(predicted, measured), bars.spearman, ">="))
    others = [r for r in rows if r["precision"] == precision and not is_simulated(r["device"])]
    medians = _medians(others)
    if medians:
        devices = len({device for device, _ in medians})
        borrowed = _medians([r for r in others if r["borrowed"] == "True"])
        name = f"{precision}, other chips"
        if borrowed:
            name += f" ({len({device for device, _ in borrowed})} of them borrow)"
            for kind, found in (("chips that borrow", borrowed), ("the rest", _without(medians, borrowed))):
                print(f"         {precision}, {kind}: mean of the medians {np.mean([*found.values()]):.3g} %")
        mean = float(np.mean(list(medians.values())))
        if bars.others_median is not None:
            lines.append((f"{name}: distinct devices", devices, LEAST_DEVICES, ">="))
        lines.append((f"{name}: mean of the medians %", mean, bars.others_median or bars.median, "<="))
    return lines


def _medians(rows: list[dict[str, str]]) -> dict[tuple[str, str], float]:
    """Return the median error of each device and runtime with enough rows."""
    groups = defaultdict(list)
    for r in rows:
        groups[r["device"], r["runtime"]].append(r)
    return {key: float(np.median(_errors(group))) for key, group in groups.items() if len(group) >= LEAST_ROWS}


def _without(medians: dict[tuple[str, str], float], left_out: dict[tuple[str, str], float]) -> dict[object, float]:
    return {key: value for key, value in medians.items() if key not in left_out}


def _errors(rows: list[dict[str, str]]) -> np.ndarray:
    return 100 * np.abs([float(r["error_ratio"]) for r in rows])


def _covered(rows: list[dict[str, str]]) -> float:
    return 100 * float(np.mean([float(r["low_s"]) <= float(r["measured_s"]) <= float(r["high_s"]) for r in rows]))


def _check(name: str, value: float, bar: float, relation: str) -> bool:
    met = value <= bar if relation == "<=" else value >= bar
    print(f"  {'met   ' if met else 'MISSED'} {name}: {value:.3g} (bar {relation} {bar:g})")
    return met


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
