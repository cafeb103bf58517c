from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from graphs.error import OutputError, Verdict, compare, output_error

FLOATS = npst.arrays(
    np.float32,
    npst.array_shapes(max_dims=3, max_side=5),
    elements=st.floats(-(2.0**99), 2.0**99, width=32),
)


def test_known_figures() -> None:
    error = output_error(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert error.verdict is Verdict.COMPARED
    assert error.max_abs == 0.5
    assert error.relative_max == 0.125
    assert error.mismatch_ratio == 0.5
    assert error.sqnr_db == pytest.approx(20.0)  # 25 / 0.25 is a factor of 100
    assert error.cosine == pytest.approx((9 + 18) / (5 * math.sqrt(29.25)))


def test_same_arrays_are_exact_without_an_sqnr() -> None:
    error = output_error(np.ones(3), np.ones(3))
    assert error == OutputError(
        verdict=Verdict.EXACT, max_abs=0.0, relative_max=0.0, cosine=1.0, sqnr_db=None, mismatch_ratio=0.0
    )


def test_all_zero_reference_has_no_relative_figures() -> None:
    error = output_error(np.zeros(4), np.full(4, 0.5))
    assert error == OutputError(verdict=Verdict.ZERO_REFERENCE, max_abs=0.5, mismatch_ratio=1.0)
    # Exact, but nothing that a good score could be read from.
    assert output_error(np.zeros(4), np.zeros(4)).verdict is Verdict.ZERO_REFERENCE


def test_all_zero_output_has_no_cosine_and_0_db() -> None:
    error = output_error(np.array([1.0, 2.0]), np.zeros(2))
    assert error.cosine is None
    assert error.sqnr_db == pytest.approx(0.0)
    assert error.relative_max == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_output_that_is_not_finite_has_no_figures(value: float) -> None:
    assert output_error(np.ones(2), np.array([1.0, value])) == OutputError(verdict=Verdict.NOT_FINITE)
    assert output_error(np.array([1.0, value]), np.ones(2)) == OutputError(verdict=Verdict.NOT_FINITE)


def test_nan_on_both_sides_is_not_agreement() -> None:
    assert output_error(np.array([np.nan]), np.array([np.nan])).verdict is Verdict.NOT_FINITE


def test_infinities_of_a_mask_are_left_out_when_both_sides_have_them() -> None:
    error = output_error(np.array([-np.inf, 2.0]), np.array([-np.inf, 1.0]))
    assert (error.verdict, error.max_abs, error.relative_max) == (Verdict.COMPARED, 1.0, 0.5)
    assert output_error(np.array([-np.inf, 2.0]), np.array([np.inf, 2.0])).verdict is Verdict.NOT_FINITE
    assert output_error(np.array([np.inf]), np.array([np.inf])).verdict is Verdict.NOT_FINITE


def test_a_difference_beyond_float64_is_not_finite() -> None:
    assert output_error(np.array([1.7e308]), np.array([-1.7e308])).verdict is Verdict.NOT_FINITE


def test_integers_count_mismatches_exactly() -> None:
    big = 2**63 - 1
    error = output_error(np.array([big, 5, 7, -big - 1]), np.array([big, 5, 9, big]))
    assert error.verdict is Verdict.INTEGER
    assert error.mismatch_ratio == 0.5
    assert error.max_abs == float(2**64 - 1)
    assert error.cosine is None
    assert error.sqnr_db is None
    assert output_error(np.array([True, False]), np.array([True, False])).verdict is Verdict.EXACT


def test_neighbouring_large_integers_differ() -> None:
    error = output_error(np.array([2**53]), np.array([2**53 + 1]))
    assert (error.verdict, error.max_abs) == (Verdict.INTEGER, 1.0)


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        (np.ones((2, 1), np.float32), Verdict.SHAPE),
        (np.ones(2, np.int64), Verdict.DTYPE),
        (np.array(["a", "b"]), Verdict.DTYPE),
        (np.ones(2, np.complex64), Verdict.DTYPE),
        (np.ones(2, np.float16), Verdict.EXACT),
    ],
)
def test_what_cannot_be_compared(output: np.ndarray, verdict: Verdict) -> None:
    assert output_error(np.ones(2, np.float32), output).verdict is verdict


def test_texts_are_the_same_or_not() -> None:
    texts = np.array(["cat", "dog", "a longer one"], dtype=object)
    assert output_error(texts, texts.copy()) == OutputError(verdict=Verdict.EXACT, mismatch_ratio=0.0)
    other = np.array(["cat", "dog", "cat"])
    assert output_error(texts, other) == OutputError(verdict=Verdict.INTEGER, mismatch_ratio=pytest.approx(1 / 3))
    assert output_error(np.zeros((0,), object), np.zeros((0,), object)).verdict is Verdict.EMPTY


def test_nothing_to_compare() -> None:
    assert output_error(np.ones((0, 3)), np.ones((0, 3))) == OutputError(verdict=Verdict.EMPTY)


def test_bfloat16_is_a_float() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert output_error(np.ones(3, np.float32), np.ones(3, bfloat16)).verdict is Verdict.EXACT


def test_scalars_and_very_small_values_have_figures() -> None:
    error = output_error(np.array(1e-200), np.array(1.1e-200))
    assert error.sqnr_db == pytest.approx(20.0)
    assert error.cosine == pytest.approx(1.0)


def test_compare_names_what_one_side_lacks() -> None:
    errors = compare({"a": np.ones(2), "b": np.ones(2)}, {"c": np.ones(2), "a": np.ones(2)})
    assert {name: error.verdict for name, error in errors.items()} == {
        "a": Verdict.EXACT,
        "b": Verdict.MISSING,
        "c": Verdict.MISSING,
    }
    assert list(errors) == ["a", "b", "c"]


@given(FLOATS, st.integers(0, 2**32 - 1))
def test_figures_are_sound(reference: np.ndarray, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=reference.shape).astype(np.float32)
    error = output_error(reference, reference + noise)
    if error.verdict is not Verdict.COMPARED:
        return
    assert error.max_abs is not None
    assert error.max_abs > 0
    assert error.cosine is None or -1 <= error.cosine <= 1
    assert error.sqnr_db is not None
    assert math.isfinite(error.sqnr_db)


@given(FLOATS, st.sampled_from([1e-6, 0.5, 3.0, 1e6]))
def test_scale_changes_no_relative_figure(reference: np.ndarray, scale: float) -> None:
    left = reference.astype(np.float64)
    right = left + np.sin(np.arange(left.size)).reshape(left.shape)
    one, other = output_error(left, right), output_error(left * scale, right * scale)
    if one.sqnr_db is None or other.sqnr_db is None or abs(one.sqnr_db) > 200:
        return  # rounding decides the noise there
    assert other.sqnr_db == pytest.approx(one.sqnr_db, abs=1e-3)
