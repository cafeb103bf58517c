"""Laws of the fit and of its intervals, whatever the numbers."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.calibration.borrowing import Borrowing
from experiments.calibration.features import REFERENCES
from experiments.calibration.fit import (
    fit_relative,
    interval,
    leave_one_out,
    non_negative_least_squares,
    rank_correlation,
)
from experiments.calibration.table import Measurement
from experiments.calibration.training import Sample, fit_all, predict_each
from partition import DRAM_BYTES, MACS

SEEDS = st.integers(0, 2**32 - 1)


def best_of_all_subsets(matrix: np.ndarray, target: np.ndarray) -> float:
    """The squared error of the best non-negative solution, by trying every set of columns."""
    columns = range(matrix.shape[1])
    best = float(target @ target)
    for size in range(1, matrix.shape[1] + 1):
        for chosen in combinations(columns, size):
            part = matrix[:, chosen]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            if (solution >= 0).all():
                best = min(best, float(np.sum((part @ solution - target) ** 2)))
    return best


@given(SEEDS, st.integers(2, 20), st.integers(1, 5))
def test_the_solution_is_the_best_of_all_that_are_not_negative(seed: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.random((rows, columns)) * random.choice([1e-9, 1.0, 1e6], columns)
    target = random.standard_normal(rows) + 0.5
    solution = non_negative_least_squares(matrix, target)
    assert (solution >= 0).all()
    error = float(np.sum((matrix @ solution - target) ** 2))
    assert error <= best_of_all_subsets(matrix, target) * (1 + 1e-6) + 1e-9


@settings(deadline=None)
@given(SEEDS, st.integers(6, 30))
def test_a_true_linear_law_is_found_and_predicts_what_was_kept_out(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    terms = np.column_stack([np.ones(rows), random.uniform(1e-4, 1e-1, (rows, 2))])
    truth = np.array([2e-4, 0.9, 0.3])
    latency = terms @ truth
    np.testing.assert_allclose(fit_relative(terms, latency), truth, rtol=1e-6)
    np.testing.assert_allclose(leave_one_out(terms, latency), latency, rtol=1e-6)


@settings(deadline=None)
@given(SEEDS, st.integers(3, 8))
def test_columns_that_add_nothing_leave_no_division_by_zero(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    column = random.uniform(0.1, 1.0, rows)
    matrix = np.column_stack([column, 2 * column, np.zeros(rows), column + 1e-13])
    with np.errstate(divide="raise", invalid="raise"):
        solution = non_negative_least_squares(matrix, 3 * column)
    np.testing.assert_allclose(matrix @ solution, 3 * column, rtol=1e-6)


@given(SEEDS, st.floats(2.0, 20.0))
def test_one_row_of_another_graph_does_not_bend_the_fit_to_the_others(seed: int, factor: float) -> None:
    """Where the odd row is the smallest model, it may move the overhead, which counts at that row alone."""
    random = np.random.default_rng(seed)
    terms = np.column_stack([np.ones(20), random.uniform(1e-4, 1e-2, 20)])
    latency = terms @ np.array([2e-4, 0.9]) * random.normal(1, 0.03, 20)
    others = np.delete(terms, 7, axis=0)
    clean = others @ fit_relative(terms, latency)
    latency[7] *= factor
    np.testing.assert_allclose(others @ fit_relative(terms, latency), clean, rtol=0.2)


@given(SEEDS, st.integers(9, 60))
def test_an_interval_holds_the_prediction_and_most_of_its_own_ratios(seed: int, rows: int) -> None:
    ratios = np.exp(np.random.default_rng(seed).normal(0, 0.2, rows))
    low, high = interval(ratios, 0.8)
    assert 0 < low <= 1 <= high
    assert np.mean((ratios >= low) & (ratios <= high)) >= 0.75


@given(SEEDS, st.integers(2, 40))
def test_ranks_know_no_scale(seed: int, rows: int) -> None:
    values = np.random.default_rng(seed).random(rows)
    assert rank_correlation(values, np.exp(3 * values)) == pytest.approx(1.0)
    assert rank_correlation(values, -values) == pytest.approx(-1.0)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.floats(0.01, 100.0))
def test_a_device_that_is_so_many_times_slower_is_predicted_so_many_times_slower(seed: int, factor: float) -> None:
    """Over two runtimes and two precisions that share their coefficients, and with intervals as wide."""
    random = np.random.default_rng(seed)
    group = []
    for compiler, precision in (("ort_qnn", "int8"), ("snpe", "int8"), ("ort_qnn", "w8a16")):
        for model, time_s in enumerate(random.uniform(1e-4, 1e-1, 10)):
            latency_s = (2e-4 + 0.9 * time_s) * random.normal(1, 0.1)
            row = Measurement(
                model=f"net{model}",
                precision=precision,
                device="qcs9075",
                compiler=compiler,
                latency_s=latency_s,
                htp_arch=73,
                vtcm_mb=8,
            )
            group.append(Sample(row=row, terms={"qcs9075": time_s}))
    slower = [dataclasses.replace(s, row=dataclasses.replace(s.row, latency_s=factor * s.row.latency_s)) for s in group]
    known, scaled = predict_each(group), predict_each(slower)
    assert known.keys() == scaled.keys() == {sample.row.key for sample in group}
    for key, prediction in known.items():
        np.testing.assert_allclose(scaled[key], np.array(prediction) * factor, rtol=1e-6)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(8, 12), st.integers(8, 12))
def test_16_bit_activations_take_both_runtimes_the_same_times_longer(seed: int, ours: int, theirs: int) -> None:
    """Whatever was measured, and however many models each runtime has: it is one silicon."""
    random = np.random.default_rng(seed)
    group = []
    for compiler, precision, models in (
        ("ort_qnn", "int8", 12), ("snpe", "int8", 12), ("ort_qnn", "w8a16", ours), ("snpe", "w8a16", theirs),
    ):  # fmt: skip
        for model, time_s in enumerate(random.uniform(1e-4, 1e-1, models)):
            row = Measurement(
                model=f"net{model}",
                precision=precision,
                device="qcs9075",
                compiler=compiler,
                latency_s=(2e-4 + 0.9 * time_s) * random.lognormal(0, 0.5),
                htp_arch=73,
                vtcm_mb=8,
            )
            group.append(Sample(row=row, terms={"qcs9075": time_s}))
    terms = {"qcs9075": 1e-2}
    found = {model.key[1:]: model.predict(terms) for model in fit_all(group)}
    slower = [found[compiler, "w8a16"] / found[compiler, "int8"] for compiler in ("ort_qnn", "snpe")]
    assert slower[0] == pytest.approx(slower[1], rel=1e-4)


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.floats(0.05, 20.0), st.integers(3, 9))
def test_few_models_of_a_chip_that_is_so_many_times_another_tell_its_factor(
    seed: int, factor: float, count: int
) -> None:
    """Whatever the law, as long as the lenders follow it: all else comes from them, to the last digit."""
    random = np.random.default_rng(seed)
    truth = random.uniform(0.05, 1.0, 3)
    group: dict[str, list[Sample]] = {}
    for device, (scale, models) in {"one": (1.0, 20), "two": (3.0, 20), "few": (factor, count)}.items():
        group[device] = []
        for model in range(models):
            of_model = np.random.default_rng(model)
            terms = dict(zip(REFERENCES, of_model.uniform(1e-4, 1e-2, 3), strict=True))
            row = Measurement(
                model=f"net{model}", precision="int8", device=device, compiler="snpe", htp_arch=73, vtcm_mb=8,
                latency_s=scale * (1e-4 + float(np.dot(truth, [*terms.values()]))),
            )  # fmt: skip
            group[device].append(Sample(row=row, terms={**terms, DRAM_BYTES: 1e7, MACS: of_model.uniform(1e8, 1e10)}))
    model = Borrowing(group).fit_all()[0]
    assert (model.key, model.models, set(model.lenders)) == (("few", "snpe", "int8"), count, {"one", "two"})
    for sample in group["one"]:
        assert model.predict(sample.terms) == pytest.approx(factor * sample.row.latency_s, rel=1e-3)
