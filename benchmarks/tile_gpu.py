"""The analytic GPU model against public measured rows, held out by model: `benchmarks.tiles gpu --measured FILE`.

For each device, latency = a x (sum of the best kernels' modelled times) + b x (number of nodes) + c, all from all
models but one, error on that one. c is what a run costs whatever it computes: the submission, and a clock that has to
rise first (Mali-G720: 11 of its 12 to 17 ms). The kernels are those of the one GPU whose device file has tile
geometry; what is tested is whether the model tells layers apart, not the absolute speed of a device.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.tile_npu import rank_correlation
from graphs import zoo
from partition import load_device
from partition.tile import gpu_machine, layers_of, search_gpu
from partition.tile.validation import MODELS as WHOLE
from partition.tile.validation import Validation, digest, write_validations

if TYPE_CHECKING:
    from pathlib import Path

    from partition.tile import GpuMachine

# What the rows call a model -> the zoo's name; only those with the zoo's input size (SqueezeNet: 227 for 224).
MODELS: Final = {
    "googlenet": "googlenet", "mobilenet_v2": "mobilenet_v2", "mobilenet_v3": "mobilenet_v3_large",
    "regnety_400m": "regnet_y_400mf", "resnet18": "resnet18", "resnet50": "resnet50",
    "shufflenet_v2": "shufflenet_v2", "squeezenet": "squeezenet1_1",
}  # fmt: skip
TRUTH: Final = "ncnn with Vulkan, published rows (Tencent/ncnn benchmark/README.md)"
UNITS: Final = (
    "Adreno 740", "NVIDIA Tegra Orin (nvgpu)", "Mali-G720-Immortalis MC12", "Apple M1", "Adreno 660", "Adreno 620",
    "Adreno 640", "Intel(R) UHD Graphics 770",
)  # fmt: skip


FITTED: Final = ("scale_ratio", "node_s", "run_s")


def against_measured(path: Path, *, write: bool) -> None:
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    machine = gpu_machine(load_device("sm8650"), "fp16")
    features = {name: _features(name, machine) for name in MODELS.values()}
    found = []
    for unit in UNITS:
        measured: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row["unit"] == unit and row["runtime"].startswith("ncnn") and row["model"] in MODELS:
                measured[MODELS[row["model"]]].append(float(row["ms"]) * 1e-3)
        names = sorted(measured)
        known, truth = np.array([features[name] for name in names]), np.array([np.median(measured[n]) for n in names])
        predicted = _held_out(known, truth)
        errors = predicted / truth - 1
        without = np.median(np.abs(_held_out(known[:, 1:], truth) / truth - 1))
        told = ", ".join(f"{name} {100 * error:+.0f}" for name, error in zip(names, errors, strict=True))
        fitted = tuple(zip(FITTED, map(_rounded, _non_negative(known, truth)), strict=True))
        print(
            f"{unit:26s} {len(names)} models, median error {100 * np.median(np.abs(errors)):.1f} %, without the "
            f"kernels' times {100 * without:.1f} %: {told}; "
            f"{', '.join(f'{name} {value:.3g}' for name, value in fitted)}",
            flush=True,
        )
        found.append(Validation(
            figures=digest(machine), processor=unit, precision="fp16", truth=TRUTH, held_out=WHOLE,
            samples=len(names), error_median=_rounded(np.median(np.abs(errors))),
            error_p90=_rounded(np.quantile(np.abs(errors), 0.9)),
            rank_correlation=_rounded(rank_correlation(truth, predicted)), fitted=fitted,
        ))  # fmt: skip
    if write:
        write_validations(found)


def _features(name: str, machine: GpuMachine) -> tuple[float, float, float]:
    graph = zoo.build(name)
    layers, _ = layers_of(graph)
    counts = Counter(layer.signature for layer in layers)
    distinct = {layer.signature: layer for layer in layers}
    busy_s = sum(
        count * (search_gpu(distinct[key], machine).cost.latency_s - machine.launch_s) for key, count in counts.items()
    )
    return busy_s, float(len(graph.nodes())), 1.0


def _held_out(features: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each model what the others' fit says of it."""
    predicted = []
    for left in range(len(truth)):
        others = np.arange(len(truth)) != left
        predicted.append(features[left] @ _non_negative(features[others], truth[others]))
    return np.array(predicted)


def _non_negative(features: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Least relative squares with all weights at least 0: the best of all subsets of features whose weights are."""
    relative = features / truth[:, None]
    best, least = np.zeros(features.shape[1]), float("inf")
    every = range(features.shape[1])
    for columns in itertools.chain.from_iterable(itertools.combinations(every, size) for size in (1, 2, 3)):
        weights = np.zeros(features.shape[1])
        weights[list(columns)] = np.linalg.lstsq(relative[:, columns], np.ones(len(truth)), rcond=None)[0]
        error = float(((relative @ weights - 1) ** 2).sum())
        if (weights >= 0).all() and error < least:
            best, least = weights, error
    return best


def _rounded(value: Any) -> float:  # noqa: ANN401 - numpy's
    return float(f"{value:.4g}")
