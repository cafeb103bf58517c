"""TVM's GPU kernels, costed by the facts of their code, against measured rows: `benchmarks.tvm_gpu CSV [--write]`.

For each device, latency = a x (modelled time within kernels) + b x (number of kernels) + c, all from all models but
one, error on that one. The kernels are built for the GPU of the unit's own device file, else of one whose figures are
assumed: what is tested is whether the facts tell models apart, not the absolute speed of a device. The rows are ncnn's
(Vulkan, float16): another runtime's kernels. Rows of one model on one device, several runs or copies, count once, by
their median.

`--write` keeps the fits of devices that have a file of their own: what TVM's artefacts are estimated with.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.tile_gpu import MODELS, UNITS
from compilers.tvm.gpu_code import BUSY, FIT_FILE, LAUNCHES, Work
from experiments.calibration.fit import fit_relative, interval, leave_one_out
from graphs import zoo
from partition import OVERHEAD, CalibrationSet, LatencyModel, Segment, load_device, save_calibration
from partition.tile import gpu_machine

# Units of the rows that are the GPU of a device file with figures of it.
DEVICES: Final = {"Adreno 740": "sm8550", "Adreno X1-85": "x_elite"}
_KERNELS_OF: Final = "sm8550"
_PRECISION: Final = "fp16"
_SHARE: Final = 0.8
SOURCE: Final = "Tencent/ncnn benchmark/README.md (BSD-3-Clause), ncnn-vulkan"

Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tvm_gpu", description=__doc__)
    parser.add_argument("measured", type=Path, metavar="CSV", help="columns model, unit, runtime, ms")
    parser.add_argument("--write", action="store_true", help="keep the fits")
    options = parser.parse_args()
    text = options.measured.read_text(encoding="utf-8")
    measured, fits = _measured(text), []
    for unit in (*UNITS, *(unit for unit in DEVICES if unit not in UNITS)):
        names, device = sorted(measured[unit]), DEVICES.get(unit, _KERNELS_OF)
        terms, truth = (
            np.array([_built(n, device) for n in names]),
            np.array([np.median(measured[unit][n]) for n in names]),
        )
        errors = leave_one_out(terms, truth) / truth - 1
        told = ", ".join(f"{name} {100 * error:+.0f}" for name, error in zip(names, errors, strict=True))
        print(f"{unit:26s} {len(names)} models, median error {100 * np.median(np.abs(errors)):.1f} %: {told}")
        if unit in DEVICES:
            fits.append(_fit(DEVICES[unit], terms, truth))
    if options.write:
        _write(fits, measured, text)


def _measured(text: str) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each model by unit; int8 rows are other models."""
    measured: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(text.splitlines()):
        if row["runtime"].startswith("ncnn") and row["model"] in MODELS:
            measured[row["unit"]][MODELS[row["model"]]].append(float(row["ms"]) * 1e-3)
    return measured


@functools.cache
def _built(name: str, on: str) -> tuple[float, float, float]:
    from compilers.tvm import gpu

    device = load_device(on)
    segment = Segment(graph=zoo.build(name), device=device, processor="gpu", compiler="tvm", precision=_PRECISION)
    work = Work.of(gpu.build(segment).functions, gpu_machine(device, _PRECISION))
    return work.busy_s, float(work.launches), 1.0


def _fit(device: str, terms: Array, truth: Array) -> LatencyModel:
    held_out = leave_one_out(terms, truth)
    low, high = interval(truth / held_out, _SHARE)
    errors = np.abs(held_out / truth - 1)
    coefficients = fit_relative(terms, truth)
    return LatencyModel(
        device=device,
        compiler="tvm",
        precision=_PRECISION,
        coefficients=tuple(zip((BUSY, LAUNCHES, OVERHEAD), (float(f"{c:.6g}") for c in coefficients), strict=True)),
        low_ratio=round(low, 4),
        high_ratio=round(high, 4),
        models=len(truth),
        error_median=round(float(np.median(errors)), 4),
        error_p90=round(float(np.quantile(errors, 0.9)), 4),
    )


def _write(fits: list[LatencyModel], measured: dict[str, dict[str, list[float]]], text: str) -> None:
    rows = sum(len(times) for unit in DEVICES for times in measured[unit].values())
    save_calibration(
        CalibrationSet(
            models=tuple(fits), options={}, dram_reference="", trained_on=tuple(sorted(MODELS.values())),
            rows_hash=hashlib.sha256(text.encode()).hexdigest()[:16], rows=rows,
            versions={"tvm": version("apache-tvm")}, source=SOURCE,
        ),
        FIT_FILE,
    )  # fmt: skip
    for fit in fits:
        print(f"wrote {FIT_FILE.name}: {fit}")


if __name__ == "__main__":
    main()
