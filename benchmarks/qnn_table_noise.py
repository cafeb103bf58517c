"""How far one measured latency of the AI Hub table tells another: a floor for any prediction from the network alone.

Usage: python benchmarks/qnn_table_noise.py TABLE.csv

Two pairs of columns measure nearly the same thing. SA8255P and QCS9075 are one silicon (they simulate alike to the
microsecond) on two boards. `qnn_dlc` and `tflite` are one compiler, one chip and one channels-last model through two
converters. Each is predicted from the other by one factor, the median ratio of all other models.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

BOARDS = (("SA8255P ADP", "qnn_dlc"), ("Dragonwing IQ-9075 EVK", "qnn_dlc"))


def main(arguments: list[str]) -> int:
    with Path(arguments[0]).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] == "NPU"]
    for precision in ("float", "w8a8", "w8a16"):
        found = _column(rows, precision)
        _print(f"{precision}: {BOARDS[0][0]} from {BOARDS[1][0]}, both qnn_dlc", found, [BOARDS])
        devices = sorted({device for device, _ in found})
        pairs = [((device, "qnn_dlc"), (device, "tflite")) for device in devices]
        _print(f"{precision}: qnn_dlc from tflite on the same device", found, pairs)
    return 0


def _column(rows: list[dict[str, str]], precision: str) -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    """Give the latency by (device, runtime) and then by (model, component)."""
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in rows:
        if row["precision"] == precision:
            measured = found.setdefault((row["device"], row["runtime"]), {})
            measured[row["model"], row["component"]] = float(row["latency_ms"])
    return found


def _print(name: str, found: dict, pairs: list) -> None:
    errors = np.concatenate([_errors(found.get(a, {}), found.get(b, {})) for a, b in pairs])
    if len(errors):
        print(
            f"{name}: {len(errors)} rows, median error {np.median(errors):.1f} %, "
            f"90th percentile {np.percentile(errors, 90):.1f} %"
        )


def _errors(here: dict[tuple[str, str], float], there: dict[tuple[str, str], float]) -> np.ndarray:
    """Predict each model of `here` by `there` times the median ratio of the other models; errors in percent."""
    ratios = np.array([here[model] / there[model] for model in sorted(here.keys() & there.keys())])
    if len(ratios) < 5:
        return np.empty(0)
    return np.array([100 * abs(np.median(np.delete(ratios, i)) / ratio - 1) for i, ratio in enumerate(ratios)])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
