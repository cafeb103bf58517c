"""Non-negative robust regression on relative errors, and the cross-validation that says how far to believe it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

_ITERATIONS_PER_TERM = 10
# Huber's constant: 95 % as efficient as least squares where the errors are normal (Huber 1964).
_HUBER = 1.345
_REWEIGHTINGS = 20
_EXACT = 1e-9
_SETTLED = 1e-4


def fit_relative(terms: Array, latency_s: Array, weights: Array | None = None) -> Array:
    """Return the coefficients [k], none negative, that make the relative errors of [n, k] @ [k] small.

    A latency of 1 ms and one of 100 ms count the same; a negative coefficient would promise that more work takes
    less time. Small errors count by their square and large ones by their size (Huber's loss): a model whose measured
    graph is another than ours, by the quantiser or the export, must not bend the fit to all the others. A row of
    weight 0.1 counts as much as a tenth of one.
    """
    relative, weight = terms / latency_s[:, None], np.ones(len(latency_s)) if weights is None else weights
    root = np.sqrt(weight)
    coefficients = non_negative_least_squares(relative * root[:, None], root)
    for _ in range(_REWEIGHTINGS):
        errors = np.abs(relative @ coefficients - 1)
        deviation = 1.4826 * float(np.median(errors))
        if deviation < _EXACT:
            break
        root = np.sqrt(weight * np.minimum(1.0, _HUBER * deviation / np.maximum(errors, _EXACT)))
        before, coefficients = coefficients, non_negative_least_squares(relative * root[:, None], root)
        if np.allclose(before, coefficients, rtol=_SETTLED, atol=0.0):
            break
    return coefficients


def non_negative_least_squares(matrix: Array, target: Array) -> Array:
    """Solve min |matrix @ x - target| with x >= 0 by the active-set method of Lawson and Hanson (1974)."""
    # Columns of one size, or the tolerance would mean another thing for bytes than for seconds.
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    solution = np.zeros(matrix.shape[1])
    active = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(_ITERATIONS_PER_TERM * matrix.shape[1]):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[active] = -np.inf
        if active.all() or gradient.max() < 1e-12 * len(target):
            break
        active[gradient.argmax()] = True
        solution = _feasible(scaled, target, solution, active)
    result: Array = solution / scale
    return result


def _feasible(matrix: Array, target: Array, solution: Array, active: npt.NDArray[np.bool_]) -> Array:
    """Move to the least squares of the active columns, dropping those that would turn negative."""
    while True:
        wish = np.zeros_like(solution)
        wish[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
        negative = active & (wish <= 0)
        if not negative.any():
            return wish
        # A column that stands at zero and wishes to stay there allows no step at all (0 / 0 would make it NaN).
        down = solution[negative] - wish[negative]
        step = np.min(np.divide(solution[negative], down, out=np.zeros_like(down), where=down > 0))
        solution = solution + step * (wish - solution)
        active &= solution > 1e-12
        solution[~active] = 0.0


def leave_one_out(terms: Array, latency_s: Array) -> Array:
    """Return the prediction [n] of each row by a fit to the others; rows are one model each."""
    kept = ~np.eye(len(latency_s), dtype=bool)
    return np.array([row @ fit_relative(terms[mask], latency_s[mask]) for row, mask in zip(terms, kept, strict=True)])


def interval(ratios: Array, share: float) -> tuple[float, float]:
    """Return the ratios measured / predicted between which the next one lies with probability `share`.

    The order statistics that hold this for any distribution, if the next model is drawn like the others: of n
    ratios the next is below the i-th with probability i / (n + 1). Never narrower than the prediction itself.
    """
    ordered = np.sort(ratios)
    positions = np.array([(1 - share) / 2, (1 + share) / 2]) * (len(ordered) + 1) - 1
    low, high = np.interp(positions, np.arange(len(ordered)), ordered)
    return float(min(low, 1.0)), float(max(high, 1.0))


def percentage_errors(predicted: Array, measured: Array) -> Any:  # noqa: ANN401 - a numpy array of the same shape
    """Return |predicted - measured| / measured, in percent."""
    return 100 * np.abs(predicted - measured) / measured


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank. NaN below two values."""
    if len(first) < 2:
        return float("nan")
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: Array = last - (counts - 1) / 2
    return mean_rank[inverse]
