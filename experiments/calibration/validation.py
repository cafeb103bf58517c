"""Predicted against measured: every row by coefficients that its model had no part in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from experiments.calibration.borrowing import Borrowing
from experiments.calibration.fit import percentage_errors, rank_correlation
from experiments.calibration.training import OWN_SIMULATION, Key, Sample, by_device, by_key, predict_each

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from experiments.calibration.features import Simulation
    from experiments.calibration.table import Measurement
    from partition import CalibrationSet


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One measured row, what was predicted for it and what two naive ways would have said.

    `by_macs_s` is the model's MACs over the device's achieved throughput, `by_sibling_s` the same model's measured
    latency on the device `sibling` times a constant; both constants are medians over the other models. `borrowed` tells
    a device with few models of its own, to which others lent theirs.
    """

    row: Measurement
    predicted_s: float
    low_s: float
    high_s: float
    by_macs_s: float | None
    by_sibling_s: float | None
    sibling: str
    in_fit: bool
    borrowed: bool = False

    @property
    def error_ratio(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.row.latency_s - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured latency."""
        return self.low_s <= self.row.latency_s <= self.high_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How good a group of predictions is; errors are absolute and in percent, shares in 0 to 1."""

    count: int
    median: float
    p90: float
    spearman: float
    within_10: float
    covered: float
    macs_median: float | None
    macs_p90: float | None
    sibling_median: float | None
    sibling_p90: float | None


def predict(
    found: Sequence[Sample],
    simulations: Iterable[Simulation],
    calibration: CalibrationSet,
    wanted: Collection[str] | None,
) -> tuple[Prediction, ...]:
    """Predict each sample of the wanted models (None: all), held out by model.

    A model that the calibration never saw is predicted by it as it stands; for one that it was trained on, the
    coefficients are fitted again to the table's rows of the other training models.
    """
    macs = {(s.model, s.precision): s.macs for s in simulations if s.macs is not None}
    groups = by_key(found)
    trained = by_device(sample for sample in found if sample.row.model in calibration.trained_on)
    by_others = {row: known for group in trained.values() for row, known in predict_each(group).items()}
    borrowed = Borrowing(trained).predict_each()
    predictions = []
    for key, group in groups.items():
        for sample in group:
            lent = borrowed.get(sample.row.key)
            known = by_others.get(sample.row.key) or lent or _by_calibration(key, sample, calibration)
            if known is not None and (wanted is None or sample.row.model in wanted):
                made = _prediction(key, sample, known, groups, calibration, macs)
                by_lenders = lent is not None or any(model.lenders for model in calibration.find(*key))
                predictions.append(dataclasses.replace(made, borrowed=by_lenders))
    return tuple(predictions)


def score(predictions: Sequence[Prediction]) -> Score:
    """Sum up a group of at least one prediction."""
    measured = np.array([p.row.latency_s for p in predictions])
    predicted = np.array([p.predicted_s for p in predictions])
    errors = percentage_errors(predicted, measured)
    macs_median, macs_p90 = _naive([(p.by_macs_s, p.row.latency_s) for p in predictions])
    sibling_median, sibling_p90 = _naive([(p.by_sibling_s, p.row.latency_s) for p in predictions])
    return Score(
        count=len(predictions),
        median=float(np.median(errors)),
        p90=float(np.percentile(errors, 90)),
        spearman=rank_correlation(predicted, measured),
        within_10=float(np.mean(errors <= 10)),
        covered=float(np.mean([p.covered for p in predictions])),
        macs_median=macs_median,
        macs_p90=macs_p90,
        sibling_median=sibling_median,
        sibling_p90=sibling_p90,
    )


def is_simulated(device: str) -> bool:
    """Tell a chip that the compiler simulates itself from one that is modelled from its siblings."""
    return device in OWN_SIMULATION


def _prediction(
    key: Key,
    sample: Sample,
    known: tuple[float, float, float],
    groups: Mapping[Key, Sequence[Sample]],
    calibration: CalibrationSet,
    macs: Mapping[tuple[str, str], int],
) -> Prediction:
    predicted_s, low_s, high_s = known
    sibling, by_sibling_s = _sibling(key, sample, groups)
    return Prediction(
        row=sample.row,
        predicted_s=predicted_s,
        low_s=low_s,
        high_s=high_s,
        by_macs_s=_by_macs(sample, groups[key], macs),
        by_sibling_s=by_sibling_s,
        sibling=sibling,
        in_fit=sample.row.model in calibration.trained_on,
    )


def _by_calibration(key: Key, sample: Sample, calibration: CalibrationSet) -> tuple[float, float, float] | None:
    """Predict a model that no fit has seen by the calibration as it stands; None where it has none for the key."""
    if sample.row.model in calibration.trained_on:
        return None
    for model in calibration.find(*key):
        if sample.has(term for term, _ in model.coefficients):
            predicted_s = model.predict(sample.terms)
            lacking = not sample.uncosted.isdisjoint(term for term, _ in model.coefficients)
            return predicted_s, *model.bounds_s(predicted_s, uncosted=lacking)
    return None


def _by_macs(sample: Sample, group: Sequence[Sample], macs: Mapping[tuple[str, str], int]) -> float | None:
    def work(row: Measurement) -> int | None:
        return macs.get((row.model, row.precision))

    own = work(sample.row)
    others = [(s.row, work(s.row)) for s in group if s.row.model != sample.row.model]
    rates = [count / row.latency_s for row, count in others if count]
    return own / float(np.median(rates)) if own and rates else None


def _sibling(key: Key, sample: Sample, groups: Mapping[Key, Sequence[Sample]]) -> tuple[str, float | None]:
    """Scale the same model's latency on the device that shares most models with this one."""
    here = {s.row.model: s.row.latency_s for s in groups[key]}
    best: tuple[int, str, float] | None = None
    for (device, compiler, precision), group in groups.items():
        there = {s.row.model: s.row.latency_s for s in group}
        shared = [m for m in here if m in there and m != sample.row.model]
        same_question = (compiler, precision) == key[1:] and device != key[0] and sample.row.model in there
        if same_question and shared and (best is None or len(shared) > best[0]):
            constant = float(np.median([here[m] / there[m] for m in shared]))
            best = len(shared), device, constant * there[sample.row.model]
    return (best[1], best[2]) if best else ("", None)


def _naive(pairs: Sequence[tuple[float | None, float]]) -> tuple[float | None, float | None]:
    known = [(guess, true) for guess, true in pairs if guess is not None]
    if not known:
        return None, None
    errors = percentage_errors(np.array([guess for guess, _ in known]), np.array([true for _, true in known]))
    return float(np.median(errors)), float(np.percentile(errors, 90))
