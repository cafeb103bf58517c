"""The error beside a modelled latency: it belongs to the figures it was found with, and the shipped ones hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.tiles_error import error_sentence, kind_error, own_error, short_error
from partition import load_device
from partition.tile import Layer, NpuTile, Validation, evaluate_npu, gpu_machine, npu_machine, validations
from partition.tile.validation import MODELS, digest, read_validations, write_validations

# Operators that the figures of sa8255p were not fitted to: the vendor's tile and its simulated cycles.
SIMULATED = json.loads((Path(__file__).parents[1] / "golden" / "tile_operators.json").read_text())


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_the_model_tells_the_simulators_cycles_of_operators_it_was_not_fitted_to(precision: str) -> None:
    machine = npu_machine(load_device("sa8255p"), precision)
    machine = dataclasses.replace(machine, dram_element_bytes=4 if precision == "fp16" else 1)
    rows = [row for row in SIMULATED if row["precision"] == precision]
    modelled = [evaluate_npu(layer_of(row), machine, tile_of(row)).latency_s * machine.clock_hz for row in rows]
    cycles = np.array([row["cycles"] for row in rows])
    # These are the samples that the shipped error was found on, so a change of the model has to bring a new one.
    shipped = own_error(machine)
    assert shipped is not None
    assert len(rows) == shipped.samples
    assert np.median(np.abs(np.array(modelled) / cycles - 1)) == pytest.approx(shipped.error_median, abs=1e-4)
    ranks = [np.argsort(np.argsort(values)) for values in (modelled, cycles)]
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(shipped.rank_correlation, abs=1e-3)


def layer_of(row: dict[str, Any]) -> Layer:
    return Layer(name="", **{k: tuple(v) if isinstance(v, list) else v for k, v in row["layer"].items()})


def tile_of(row: dict[str, Any]) -> NpuTile:
    return NpuTile(**row["tile"], resident=True)


@pytest.mark.parametrize("device", ["sa8255p", "qcs9075"])
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_every_npu_with_geometry_has_an_error_within_the_bar(device: str, precision: str) -> None:
    machine = npu_machine(load_device(device), precision)
    found, whole = own_error(machine), own_error(machine, MODELS)
    assert found is not None
    assert whole is not None
    assert found.precision == whole.precision == precision
    assert whole.samples == 64
    assert found.error_median <= 0.15
    assert found.rank_correlation >= 0.95
    assert found.samples >= 100


def test_the_gpu_has_an_error_for_each_device_with_rows_within_the_bar() -> None:
    found = validations(gpu_machine(load_device("sm8650"), "fp16"))
    assert len(found) == 8
    assert max(entry.error_median for entry in found) <= 0.25
    assert all(entry.samples == 8 and entry.fitted for entry in found)


def test_a_changed_figure_has_no_error_and_says_so() -> None:
    machine = npu_machine(load_device("sa8255p"), "int8")
    changed = dataclasses.replace(machine, fixed_cycles=machine.fixed_cycles + 1)
    assert validations(changed) == ()
    assert "error not known" in error_sentence(changed)
    assert short_error(changed) == "error not known"
    assert kind_error(changed, "conv") is None


def test_another_memory_size_or_energy_keeps_the_error() -> None:
    machine = npu_machine(load_device("sa8255p"), "int8")
    assert validations(dataclasses.replace(machine, budget_bytes=1 << 20, mac_j=0.0)) == validations(machine)


def test_the_sentence_names_error_samples_truth_and_where_it_was_found() -> None:
    said = error_sentence(npu_machine(load_device("qcs9075"), "int8"))
    for part in ("qcs9075 npu, int8: median error", "140 single operators", "the HTP simulator", "on sa8255p npu",
                 "depthwise"):  # fmt: skip
        assert part in said
    gpu = error_sentence(gpu_machine(load_device("sm8650"), "fp16"))
    assert "absolute error not known" in gpu
    assert "on 8 other processors" in gpu
    assert kind_error(npu_machine(load_device("sa8255p"), "int8"), "norm") is None


def test_what_is_written_is_read_and_replaces_its_own_kind(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    machine = npu_machine(load_device("sa8255p"), "int8")
    first = Validation(
        figures=digest(machine), processor="x npu", precision="int8", truth="t", held_out="operators", samples=3,
        error_median=0.1, error_p90=0.2, rank_correlation=0.9, fitted=(("scale", 2.0),), kinds=(("conv", 0.1),),
    )  # fmt: skip
    other = dataclasses.replace(first, precision="fp16")
    write_validations([first, other], path)
    better = dataclasses.replace(first, error_median=0.05)
    write_validations([better], path)
    assert read_validations(path) == (other, better)
