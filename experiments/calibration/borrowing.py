"""Latency models of chips with few measured models: rows of other chips, scaled by one factor, teach beside their own.

A chip with 3 to 9 measured models cannot fill its coefficients. The chips most like it that have enough lend it their
rows: each lender's times one factor, by which the borrower's rows are slower than the lender's. What that is worth is
tried on the chips that have enough: each is cut to as few models, borrows from the others, and predicts models that
neither it nor its lenders have seen.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.training import (
    LEAST_OF_A_KIND,
    OWN_SIMULATION,
    Key,
    RowKey,
    Sample,
    by_key,
    enough,
    intervals,
    lacks,
    latency_model,
    least_models,
    shared_fit,
    term_sets,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from partition import LatencyModel

    Array = npt.NDArray[np.float64]

LEAST: Final = 3  # measured models of its own that a chip needs to borrow
_LENDERS: Final = 3
# What is lent counts as much as so many models of the chip's own. Neither number matters much: 1 to 5 models from 1 to
# all lenders came within two points of each other (benchmarks/README.md).
_LENT_MODELS: Final = 2.0
_DRAWS: Final = 6  # times that a trial draws the few models that a chip keeps
_LEAST_TRIED: Final = 9  # models: of fewer the 80 % interval would end beyond the smallest and the largest
_KEPT_OUT: Final = 5  # a trial predicts one in so many models of a chip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trials:
    """Measured over predicted latency on chips cut to few models; `lacking` tells simulations that lack costs."""

    devices: npt.NDArray[np.str_]
    models: npt.NDArray[np.str_]
    ratios: npt.NDArray[np.float64]
    lacking: npt.NDArray[np.bool_]

    def of(self, kept: npt.NDArray[np.bool_]) -> Trials:
        """Return some of the trials."""
        return Trials(
            devices=self.devices[kept], models=self.models[kept], ratios=self.ratios[kept], lacking=self.lacking[kept]
        )

    def intervals(self, without: str = "") -> tuple[tuple[float, float], tuple[float, float] | None]:
        """Return the intervals of both kinds of graphs, by all models but one."""
        others = self.of(self.models != without)
        rare = len(set(others.models[others.lacking])) < LEAST_OF_A_KIND  # a model comes on every chip, in many draws
        return intervals(others.ratios, np.zeros_like(others.lacking) if rare else others.lacking)


class Borrowing:
    """What the chips of a table lend to those that have too few models for latency models of their own."""

    def __init__(self, groups: Mapping[str, Sequence[Sample]]) -> None:
        """Take the samples of all devices, by device."""
        self._groups = {device: group for device, group in groups.items() if device not in OWN_SIMULATION}
        self._fitted = {device: {key for _, key, _ in enough(group)} for device, group in self._groups.items()}
        self.trials = functools.cache(self._trials)
        self._able = functools.cache(self._able_to_lend)

    def fit_all(self) -> tuple[LatencyModel, ...]:
        """Fit the latency models of all keys that have too few models of their own and enough to borrow."""
        found = []
        for place, key, names, own in self._few():
            rows, lenders = by_key(own)[key], self._lenders(names, own)
            trials = self.trials(place, key[2], len(rows), private=self._are_private(own, lenders))
            coefficients = self._fit(names, own).get(key[1])
            if trials is not None and coefficients is not None:
                errors = np.abs(1 / trials.ratios - 1)
                model = latency_model(names, rows, coefficients, errors, trials.intervals())
                found.append(dataclasses.replace(model, lenders=lenders))
        return tuple(found)

    def predict_each(self) -> dict[RowKey, tuple[float, float, float]]:
        """Predict each row of these keys as `training.predict_each` does: nobody lends or teaches the same model."""
        found: dict[RowKey, tuple[float, float, float]] = {}
        for place, key, names, own in self._few():
            rows, lenders = by_key(own)[key], self._lenders(names, own)
            trials = self.trials(place, key[2], len(rows) - 1, private=self._are_private(own, lenders))
            for sample in rows:
                kept = [other for other in own if other.row.model != sample.row.model]
                coefficients = self._fit(names, kept, {sample.row.model}).get(key[1])
                if trials is None or coefficients is None:
                    continue
                costed, uncosted = trials.intervals(sample.row.model)
                low, high = (lacks(sample, names, coefficients) and uncosted) or costed
                value = float(np.dot(sample.values(names), coefficients))
                found.setdefault(sample.row.key, (value, value * low, value * high))
        return found

    def _few(self) -> Iterator[tuple[int, Key, tuple[str, ...], list[Sample]]]:
        """Yield each key with enough models to borrow and too few to lend, its terms, and the samples that have them.

        The terms come with their place in `term_sets`, the samples of all compilers of the device.
        """
        for device, group in self._groups.items():
            for precision, row in {s.row.precision: s.row for s in group}.items():
                for place, names in enumerate(term_sets(row)):
                    own = [s for s in group if s.row.precision == precision and s.has(names)]
                    for key, rows in by_key(own).items():
                        if key not in self._fitted[device] and len(rows) >= LEAST and self._lenders(names, own):
                            yield place, key, names, own

    def _lenders(self, names: tuple[str, ...], own: Sequence[Sample]) -> tuple[str, ...]:
        """Name the chips most like that of the samples: with as much memory first, then by generation."""
        row = own[0].row

        def unlike(device: str) -> tuple[bool, int, int, str]:
            other = self._groups[device][0].row
            memory, generation = other.vtcm_mb != row.vtcm_mb, abs(other.htp_arch - row.htp_arch)
            return memory, generation, -len(self._groups[device]), device

        able = {d for s in own for d in self._able(names, s.row.compiler, row.precision)} - {row.device}
        return tuple(sorted(able, key=unlike)[:_LENDERS])

    def _able_to_lend(self, names: tuple[str, ...], compiler: str, precision: str) -> tuple[str, ...]:
        """Name the chips that have enough models with these terms."""
        return tuple(
            device
            for device, group in self._groups.items()
            if sum(s.key == (device, compiler, precision) and s.has(names) and _teaches(s, names) for s in group)
            >= least_models(device)
        )

    def _are_private(self, own: Sequence[Sample], lenders: Sequence[str]) -> bool:
        """Tell whether some model of the samples was measured on no lender."""
        lent = {(s.row.model, s.row.precision) for lender in lenders for s in self._groups[lender]}
        return any((s.row.model, s.row.precision) not in lent for s in own)

    def _fit(self, names: tuple[str, ...], own: Sequence[Sample], out: Collection[str] = ()) -> Mapping[str, Array]:
        """Fit the coefficients of each compiler to the samples of one device and precision, and to what is lent to it.

        A graph that its lenders measured, too, is taken to be off by as much here as there: by what a simulation of
        another graph than the measured one is wrong, a few models must not bend the fit. Nothing is lent of the models
        `out`; no coefficients come where nothing is lent at all.
        """
        precision = own[0].row.precision
        loans: list[_Loan] = []
        for device in self._lenders(names, own):
            usable = [s for s in self._groups[device] if s.row.precision == precision and s.has(names)]
            loans += _loan(names, own, [s for s in usable if s.row.model not in out])
        if not loans:
            return {}
        corrected = []
        for s in own:
            known = [loan.corrections[s.row.key] for loan in loans if s.row.key in loan.corrections]
            corrected.append(_times(s, float(np.exp(np.mean(np.log(known)))) if known else 1.0))
        share = _LENT_MODELS * len(own) / len({s.row.model for s in own}) / len(loans)
        lent = [dataclasses.replace(s, weight=share / len(loan.rows)) for loan in loans for s in loan.rows]
        return shared_fit(names, [*corrected, *lent])

    def _trials(self, place: int, precision: str, count: int, *, private: bool) -> Trials | None:
        """Cut each chip with enough models to `count`, let it borrow, and predict a fifth of its other models.

        Of `private` models the lenders know nothing.
        """
        tried = [
            trial
            for device, fitted in self._fitted.items()
            for trial in self._cut(
                [s for s in self._groups[device] if s.key in fitted and s.row.precision == precision],
                place,
                count,
                private=private,
            )
        ]
        if len({model for _, model, _, _ in tried}) < _LEAST_TRIED:
            return None
        devices, models, ratios, lacking = map(np.array, zip(*tried, strict=True))
        return Trials(devices=devices, models=models, ratios=ratios, lacking=lacking)

    def _cut(
        self, group: Sequence[Sample], place: int, count: int, *, private: bool
    ) -> Iterator[tuple[str, str, float, bool]]:
        """Yield device, model, measured over predicted and whether costs lack, for each row of models kept out."""
        names = term_sets(group[0].row)[place] if group else ()
        rows = [s for s in group if s.has(names)]
        models = sorted({s.row.model for s in rows})
        random = np.random.default_rng(0)
        for _ in range(_DRAWS if len(models) >= count + LEAST else 0):
            drawn = [models[i] for i in random.permutation(len(models))]
            kept, out = set(drawn[:count]), set(drawn[count:][: max(1, len(models) // _KEPT_OUT)])
            known = self._fit(names, [s for s in rows if s.row.model in kept], out | kept if private else out)
            for s in rows:
                if s.row.model in out and s.row.compiler in known:
                    coefficients = known[s.row.compiler]
                    ratio = s.row.latency_s / float(np.dot(s.values(names), coefficients))
                    yield s.row.device, s.row.model, ratio, lacks(s, names, coefficients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Loan:
    """The rows of one lender in the borrower's measure, and the factors that correct the borrower's own, by row key."""

    rows: Sequence[Sample]
    corrections: Mapping[RowKey, float]


def _loan(names: Sequence[str], own: Sequence[Sample], lender: Sequence[Sample]) -> tuple[_Loan, ...]:
    """Scale the rows of a lender by the one factor that makes a fit to them fit the borrower's own rows.

    None comes from a lender that has no rows of the borrower's compilers left.
    """
    teachers = [s for s in lender if _teaches(s, names)]
    coefficients = shared_fit(names, teachers) if teachers else {}
    measured = {(s.row.model, s.row.compiler): s.row.latency_s for s in lender}
    corrections, ratios = {}, []
    for s in own:
        if s.row.compiler in coefficients:
            predicted_s = float(np.dot(s.values(names), coefficients[s.row.compiler]))
            there_s = measured.get((s.row.model, s.row.compiler))
            ratios.append(s.row.latency_s / (there_s or predicted_s))
            if there_s is not None:
                corrections[s.row.key] = predicted_s / there_s
    if not ratios:
        return ()
    factor = float(np.median(ratios))
    return (_Loan(rows=[_times(s, factor, own[0].row.device) for s in teachers], corrections=corrections),)


def _teaches(sample: Sample, names: Sequence[str]) -> bool:
    return sample.uncosted.isdisjoint(names)


def _times(sample: Sample, factor: float, device: str | None = None) -> Sample:
    """Return a sample that takes so many times as long, on the device if one is given."""
    row = dataclasses.replace(sample.row, device=device or sample.row.device, latency_s=factor * sample.row.latency_s)
    return dataclasses.replace(sample, row=row)
