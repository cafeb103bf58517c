"""MLPerf Inference's edge power runs: read the pairs, fit each platform, judge on models kept out."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.csv_file import read_csv
from experiments.evaluator.power.fit import FitError, Pair, PowerModel, fit
from experiments.evaluator.power.mobilenets import work_of
from experiments.files import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEAST_MODELS: Final = 20
_SHIPPED: Final = Path(__file__).parent / "mlperf_power.csv"
_COLUMNS: Final = (
    "platform", "device", "unit", "framework", "precision", "mlperf_version", "models", "active_w", "j_per_mac",
    "j_per_byte", "low_ratio", "high_ratio", "held_out_error_ratio", "source",
)  # fmt: skip
_NEEDED: Final = (
    "platform", "device", "unit", "framework", "precision", "mlperf_version", "source", "model", "scenario",
    "latency_ms_or_samples_per_s", "mJ_per_inference",
)  # fmt: skip
_WEIGHT_BYTES: Final = {"fp32": 4, "int8": 1}


class PairsError(ValueError):
    """The file of pairs cannot be used; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One board with one framework at one precision, and its measured single-stream pairs."""

    name: str
    device: str
    unit: str
    framework: str
    precision: str
    version: str
    source: str
    pairs: tuple[Pair, ...]

    @property
    def models(self) -> int:
        """The number of different models."""
        return len({pair.model for pair in self.pairs})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Errors on models that the fit had not seen: |predicted / measured - 1|, and which intervals held."""

    platform: Platform
    errors: tuple[float, ...]
    covered: tuple[bool, ...]

    @property
    def median_error(self) -> float:
        """The median error of the platform."""
        return float(np.median(self.errors))


def read_platforms(path: Path) -> tuple[Platform, ...]:
    """Read the platforms with enough single-stream pairs of models whose work can be counted.

    Raises:
        UserError: it is no CSV file, or lacks a column.
        PairsError: it holds a bad number, or has no such platform.
    """
    groups: dict[tuple[str, str, str], list[tuple[dict[str, str], Pair]]] = {}
    _, lines = read_csv(path, needed=_NEEDED)
    for place, row in lines:
        try:
            pair = _pair(row)
        except ValueError as error:
            raise PairsError(f"{path}, line {place} holds a bad number: {error}") from error
        if pair is not None:
            groups.setdefault((row["platform"], row["precision"], row["mlperf_version"]), []).append((row, pair))
    platforms = tuple(_platform(key, entries) for key, entries in sorted(groups.items()))
    kept = tuple(platform for platform in platforms if platform.models >= LEAST_MODELS)
    if not kept:
        raise PairsError(f"{path} has no platform with {LEAST_MODELS} models whose work is known")
    return kept


def _pair(row: Mapping[str, str]) -> Pair | None:
    if row["scenario"] != "SingleStream" or not row["mJ_per_inference"] or row["precision"] not in _WEIGHT_BYTES:
        return None
    work = work_of(row["model"])
    if work is None:
        return None
    return Pair(
        model=row["model"],
        latency_s=float(row["latency_ms_or_samples_per_s"]) * 1e-3,
        energy_j=float(row["mJ_per_inference"]) * 1e-3,
        macs=work.macs,
        weight_bytes=work.parameters * _WEIGHT_BYTES[row["precision"]],
    )


def _platform(key: tuple[str, str, str], entries: list[tuple[dict[str, str], Pair]]) -> Platform:
    name, precision, version = key
    about = entries[0][0]
    return Platform(
        name=name,
        device=about["device"],
        unit=about["unit"],
        framework=about["framework"],
        precision=precision,
        version=version,
        source=about["source"],
        pairs=tuple(pair for _, pair in entries),
    )


def hold_out(platform: Platform, seed: int) -> HeldOut:
    """Fit on a random half of the platform's models and judge on the other half.

    Raises:
        FitError: half of the models is too little.
    """
    models = sorted({pair.model for pair in platform.pairs})
    np.random.default_rng(seed).shuffle(models)
    seen = set(models[: len(models) // 2])
    model = fit([pair for pair in platform.pairs if pair.model in seen])
    unseen = [pair for pair in platform.pairs if pair.model not in seen]
    predictions = [(pair.energy_j, *model.predict(pair)) for pair in unseen]
    return HeldOut(
        platform=platform,
        errors=tuple(abs(typical / measured - 1.0) for measured, typical, _, _ in predictions),
        covered=tuple(low <= measured <= high for measured, _, low, high in predictions),
    )


def write_coefficients(platforms: Iterable[Platform], errors: Mapping[Platform, float], path: Path) -> None:
    """Fit each platform on all of its pairs and write the coefficients with their provenance."""
    with writing(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for platform in platforms:
            model = fit(platform.pairs)
            figures = (model.active_w, model.j_per_mac, model.j_per_byte, model.low_ratio, model.high_ratio)
            writer.writerow(
                [platform.name, platform.device, platform.unit, platform.framework, platform.precision,
                 platform.version, platform.models, *(f"{figure:.4g}" for figure in figures),
                 f"{errors[platform]:.4f}", platform.source]
            )  # fmt: skip


def shipped_models(path: Path = _SHIPPED) -> dict[tuple[str, str, str], PowerModel]:
    """Return the shipped coefficients by (platform, precision, MLPerf version).

    Raises:
        FitError: the file is damaged.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {
                (row["platform"], row["precision"], row["mlperf_version"]): PowerModel(
                    active_w=float(row["active_w"]),
                    j_per_mac=float(row["j_per_mac"]),
                    j_per_byte=float(row["j_per_byte"]),
                    low_ratio=float(row["low_ratio"]),
                    high_ratio=float(row["high_ratio"]),
                )
                for row in csv.DictReader(file)
            }
    except (KeyError, ValueError) as error:
        raise FitError(f"{path} is damaged: {error}") from error
