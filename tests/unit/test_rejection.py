from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.evaluator.fidelity import broken, integers_off, output_error
from experiments.evaluator.rejection import Kind, rejection

if TYPE_CHECKING:
    from numpy.typing import NDArray

RNG = np.random.default_rng(0)
REFERENCE = RNG.standard_normal((2, 6, 5, 4)).astype(np.float32)


def nhwc(a: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(a.transpose(0, 2, 3, 1)).reshape(a.shape)


def with_nan(a: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.arange(a.size).reshape(a.shape) == 7, np.nan, a)


CASES = {
    Kind.SHAPE: (REFERENCE[:, :3], "has shape (2, 3, 5, 4) instead of (2, 6, 5, 4)"),
    Kind.TYPE: (REFERENCE.astype(np.int64), "is int64 instead of float32"),
    Kind.NOT_FINITE: (with_nan(REFERENCE), "holds 1 NaN"),
    Kind.CONSTANT: (np.zeros_like(REFERENCE), "is 0 everywhere"),
    Kind.REPEATED_BATCH: (np.repeat(REFERENCE[:1], 2, axis=0), "repeats its first item for all 2"),
    Kind.SWAPPED_CHANNELS: (REFERENCE[:, [0, 2, 1, 3, 4, 5]], "2 of 6 slices of axis 1"),
    Kind.LAYOUT: (nhwc(REFERENCE), "NHWC under an NCHW shape"),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_is_found_and_named(kind: Kind) -> None:
    got, words = CASES[kind]
    found = rejection(REFERENCE, got)
    assert found is not None
    assert found.kind is kind
    assert words in found.reason


def test_tiny_values_flushed_to_zero() -> None:
    small = (REFERENCE * 1e-5).astype(np.float32)
    flushed = np.where(np.abs(small) < 5e-6, 0.0, small).astype(np.float32)
    found = rejection(small, flushed)
    assert found is not None
    assert found.kind is Kind.FLUSHED


def test_infinity_is_not_finite_and_an_integer_output_is_left_alone() -> None:
    found = rejection(REFERENCE, np.full_like(REFERENCE, np.inf))
    assert found is not None
    assert found.kind is Kind.NOT_FINITE
    assert rejection(np.arange(4), np.arange(4)[::-1]) is None


def test_the_infinities_of_a_mask_hide_no_nan_beside_them() -> None:
    masked = np.where(np.arange(REFERENCE.size).reshape(REFERENCE.shape) % 3 == 0, -np.inf, REFERENCE)
    assert rejection(masked, masked) is None
    found = rejection(masked, with_nan(masked))
    assert found is not None
    assert found.reason == "holds 1 NaN or infinite values where the reference has none"


@pytest.mark.parametrize(
    ("equal", "verdict"),
    [
        (np.arange(3), "exact"),
        (np.zeros((0, 4), np.float32), "empty"),
        (np.zeros(4, np.float32), "zero reference"),
        (np.array(["cat"], object), "exact"),
    ],
)
def test_an_output_without_error_hides_none_of_the_output_beside_it(equal: NDArray[Any], verdict: str) -> None:
    """It stood as "exact" in the table when a class number came out right, however far off the scores were."""
    off = REFERENCE + np.float32(0.5)
    assert output_error({"class": equal}, {"class": equal}).verdict == verdict
    for names in (("class", "score"), ("score", "class")):
        reference = {name: {"class": equal, "score": REFERENCE}[name] for name in names}
        found = output_error(reference, {"class": equal, "score": off})
        assert found == output_error({"score": REFERENCE}, {"score": off})


def test_integers_that_differ_stand_beside_the_figures_of_the_floats() -> None:
    reference = {"class": np.array([1, 2, 3, 4]), "score": REFERENCE}
    outputs = {"class": np.array([1, 2, 3, 5]), "score": REFERENCE + np.float32(0.5)}
    assert output_error(reference, outputs).verdict == "compared"
    assert integers_off(reference, outputs) == ("25.00% of output 'class' differ from the reference",)
    assert output_error(reference, {**outputs, "score": REFERENCE}).verdict == "integer"
    assert integers_off(reference, reference) == ()


def test_a_missing_output_is_named() -> None:
    assert broken({"y": REFERENCE}, {"z": REFERENCE}) == "output 'y' is missing; it gave z"
    assert broken({"y": REFERENCE}, {"y": REFERENCE}) is None
    assert "output 'y' is 0 everywhere" in str(broken({"y": REFERENCE}, {"y": 0 * REFERENCE}))


shapes = st.sampled_from([(1, 10), (2, 1000), (1, 16, 7, 7), (3, 4, 8), (1, 3, 32, 32), (4, 2)])


@given(st.integers(0, 10_000), shapes, st.sampled_from([4, 6, 8, 16]), st.floats(1e-6, 1e3))
@settings(deadline=None, max_examples=150)
def test_coarse_rounding_is_never_taken_for_a_broken_output(
    seed: int, shape: tuple[int, ...], bits: int, scale: float
) -> None:
    reference = np.random.default_rng(seed).standard_normal(shape) * scale
    if bits == 16:
        rounded = reference.astype(np.float16).astype(np.float64)
    else:
        step = np.abs(reference).max() / (2 ** (bits - 1) - 1)
        rounded = np.round(reference / step) * step
    if np.ptp(rounded) == 0:
        return  # constant is constant, whoever rounded
    found = rejection(reference, rounded)
    assert found is None or (found.kind is Kind.FLUSHED and bits == 16 and scale < 1e-4)


@given(st.integers(0, 10_000), st.floats(0.0, 0.5))
@settings(deadline=None, max_examples=60)
def test_noise_is_never_taken_for_a_reordering(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((1, 8, 6, 6))
    assert rejection(reference, reference + noise * rng.standard_normal(reference.shape)) is None
