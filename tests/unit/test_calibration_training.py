"""Which terms a latency model takes, and that a prediction knows nothing of what it predicts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.calibration.table import Measurement
from experiments.calibration.training import Sample, fit_all, predict_each, training_rows
from partition import DRAM_BYTES, MACS, OVERHEAD

KEY = ("qcs9075", "ort_qnn", "fp16")
MODELS = 16


def samples(overhead_s: float, ratio: float, s_per_mac: float, *, noise: float = 0.0) -> list[Sample]:
    """Models that follow one law of the simulated time and the MACs, up to `noise`."""
    random = np.random.default_rng(0)
    found = []
    for index in range(MODELS):
        simulated_s, macs = random.uniform(1e-3, 1e-2), random.uniform(1e8, 1e10)
        latency_s = (overhead_s + ratio * simulated_s + s_per_mac * macs) * (1 + noise * random.standard_normal())
        row = Measurement(model=f"net{index}", precision="fp16", device=KEY[0], compiler=KEY[1], latency_s=latency_s)
        found.append(Sample(row=row, terms={KEY[0]: simulated_s, MACS: macs, DRAM_BYTES: 1e7}))
    return found


def test_a_simulated_chip_takes_the_macs_in_float_only() -> None:
    first, second = fit_all(KEY, samples(1e-4, 0.9, 5e-13))
    assert dict(first.coefficients) == pytest.approx({OVERHEAD: 1e-4, KEY[0]: 0.9, MACS: 5e-13}, rel=1e-4)
    assert [name for name, _ in second.coefficients if name == MACS] == []
    (only,) = fit_all((*KEY[:2], "int8"), samples(1e-4, 0.9, 0.0))
    assert dict(only.coefficients) == pytest.approx({OVERHEAD: 1e-4, KEY[0]: 0.9})


def test_a_prediction_does_not_depend_on_the_latency_that_it_predicts() -> None:
    group = samples(1e-4, 0.9, 5e-13, noise=0.2)
    before = predict_each(KEY, group)
    for index in (0, 7):
        row = group[index].row
        wrong = dataclasses.replace(group[index], row=dataclasses.replace(row, latency_s=30 * row.latency_s))
        after = predict_each(KEY, [*group[:index], wrong, *group[index + 1 :]])
        assert after[row.model][0] == pytest.approx(before[row.model][0])
        assert after["net3"][0] != before["net3"][0]


def test_a_model_without_its_macs_is_predicted_by_the_simulation_alone() -> None:
    group = samples(1e-4, 0.9, 0.0)
    group[3] = dataclasses.replace(group[3], terms={KEY[0]: group[3].terms[KEY[0]]})
    assert predict_each(KEY, group)["net3"][0] == pytest.approx(group[3].row.latency_s)


def test_too_few_models_give_no_fit_and_teach_nothing() -> None:
    few = samples(1e-4, 0.9, 0.0)[:7]
    assert fit_all(KEY, few) == ()
    assert predict_each(KEY, few) == {}
    assert training_rows(KEY, few) == []
