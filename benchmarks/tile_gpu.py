"""The analytic GPU model against public measured rows, held out by model: `benchmarks.tiles gpu --measured FILE`.

For each device, latency = a x (sum of the best kernels' modelled times) + b x (number of nodes), a and b from all
models but one, error on that one. The kernels are those of the one GPU whose device file has tile geometry; what
is tested is whether the model tells layers apart, not the absolute speed of a device.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphs import zoo
from partition import load_device
from partition.tile import gpu_machine, layers_of, search_gpu

if TYPE_CHECKING:
    from pathlib import Path

# What the rows call a model -> the zoo's name; only those with the zoo's input size (SqueezeNet: 227 for 224).
MODELS: Final = {
    "googlenet": "googlenet", "mobilenet_v2": "mobilenet_v2", "mobilenet_v3": "mobilenet_v3_large",
    "regnety_400m": "regnet_y_400mf", "resnet18": "resnet18", "resnet50": "resnet50",
    "shufflenet_v2": "shufflenet_v2", "squeezenet": "squeezenet1_1",
}  # fmt: skip
UNITS: Final = (
    "Adreno 740", "NVIDIA Tegra Orin (nvgpu)", "Mali-G720-Immortalis MC12", "Apple M1", "Adreno 660", "Adreno 620",
    "Adreno 640", "Intel(R) UHD Graphics 770",
)  # fmt: skip


def against_measured(path: Path) -> None:
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    features = {name: _features(name) for name in MODELS.values()}
    for unit in UNITS:
        measured: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row["unit"] == unit and row["runtime"].startswith("ncnn") and row["model"] in MODELS:
                measured[MODELS[row["model"]]].append(float(row["ms"]) * 1e-3)
        names = sorted(measured)
        errors = _held_out(
            np.array([features[name] for name in names]), np.array([np.median(measured[name]) for name in names])
        )
        told = ", ".join(f"{name} {100 * error:+.0f}" for name, error in zip(names, errors, strict=True))
        print(
            f"{unit:26s} {len(names)} models, median error {100 * np.median(np.abs(errors)):.1f} %: {told}", flush=True
        )


def _features(name: str) -> tuple[float, float]:
    graph, machine = zoo.build(name), gpu_machine(load_device("sm8650"), "fp16")
    layers, _ = layers_of(graph)
    counts = Counter(layer.signature for layer in layers)
    distinct = {layer.signature: layer for layer in layers}
    busy_s = sum(
        count * (search_gpu(distinct[key], machine).cost.latency_s - machine.launch_s) for key, count in counts.items()
    )
    return busy_s, 1e-5 * len(graph.nodes())


def _held_out(features: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    errors = []
    for left in range(len(truth)):
        others = np.arange(len(truth)) != left
        weights = _non_negative(features[others], truth[others])
        errors.append(features[left] @ weights / truth[left] - 1)
    return np.array(errors)


def _non_negative(features: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Least relative squares with both weights at least 0."""
    relative = features / truth[:, None]
    best, least = np.zeros(2), float("inf")
    for columns in ([0, 1], [0], [1]):
        found = np.linalg.lstsq(relative[:, columns], np.ones(len(truth)), rcond=None)[0]
        weights = np.zeros(2)
        weights[columns] = found
        error = float(((relative @ weights - 1) ** 2).sum())
        if (found >= 0).all() and error < least:
            best, least = weights, error
    return best
