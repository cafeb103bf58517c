"""Measured rows and simulations together: fit the latency models, and predict what a fit has not seen."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.features import OPTIONS, REFERENCES, Simulation
from experiments.calibration.fit import fit_relative, interval, leave_one_out, percentage_errors
from partition import DRAM_BYTES, MACS, OVERHEAD, LatencyModel, load_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from experiments.calibration.table import Measurement

Key = tuple[str, str, str]  # device, compiler, precision

# A chip with a simulator of its own -> the reference that was simulated in its place: soc_model 77 and 52 are one
# silicon and gave identical numbers for all that was tried (benchmarks/qnn_validation.py tries again).
OWN_SIMULATION: Final = {"sa8255p": "sa8255p", "qcs9075": "sa8255p"}
DRAM_REFERENCE: Final = REFERENCES[0]
_MIDDLE_ARCH: Final = 73
SHARE: Final = 0.8
# Coefficients from fewer models would be memory, not a fit: two for a chip with its own simulation, four or five
# for one that is modelled from its siblings.
_LEAST_MODELS: Final = {True: 8, False: 10}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A measured row with the terms of its latency model."""

    row: Measurement
    terms: Mapping[str, float]

    def has(self, names: Iterable[str]) -> bool:
        """Tell whether the sample has all these terms."""
        return self.terms.keys() >= set(names) - {OVERHEAD}


def samples(
    rows: Iterable[Measurement], simulations: Iterable[Simulation]
) -> tuple[tuple[Sample, ...], dict[tuple[str, str, str], str]]:
    """Join rows with simulations; also return why a (model, precision, compiler) that was simulated is no sample.

    A sample has the terms that could be simulated: a chip whose simulator refused the graph is not among them. A row
    that ran partly on the CPU or GPU of its device is no sample: the simulator knows the NPU alone.
    """
    by_case: dict[tuple[str, str, str], dict[str, Simulation]] = defaultdict(dict)
    for simulation in simulations:
        by_case[simulation.model, simulation.precision, simulation.compiler][simulation.chip] = simulation
    found, refused = [], {}
    for row in rows:
        case = by_case.get((row.model, row.precision, row.compiler))
        if case is None:
            continue
        terms = _terms(row.device, case)
        sample = Sample(row=row, terms=terms)
        if not any(sample.has(names) for names in term_sets(row.device, row.precision)):
            refused[row.model, row.precision, row.compiler] = _refusal(case)
        elif row.elsewhere_layers:
            on_device = f"{row.elsewhere_layers} layers ran on the device's CPU or GPU"
            refused[row.model, row.precision, row.compiler] = on_device
        else:
            found.append(sample)
    return tuple(found), refused


def by_key(found: Iterable[Sample]) -> dict[Key, tuple[Sample, ...]]:
    """Group samples by what has a latency model of its own: device, compiler and precision."""
    groups: dict[Key, list[Sample]] = defaultdict(list)
    for sample in found:
        groups[sample.row.device, sample.row.compiler, sample.row.precision].append(sample)
    return {key: tuple(sorted(group, key=lambda s: s.row.model)) for key, group in sorted(groups.items())}


def fit_all(key: Key, group: Sequence[Sample]) -> tuple[LatencyModel, ...]:
    """Fit the latency models of one device, compiler and precision, best first; none from too few samples."""
    return tuple(fit(key, names, usable) for names, usable in _enough(key, group))


def training_rows(key: Key, group: Sequence[Sample]) -> list[Measurement]:
    """List the rows that `fit_all` learns from."""
    taught = {s.row.model for _, usable in _enough(key, group) for s in usable}
    return [sample.row for sample in group if sample.row.model in taught]


def predict_each(key: Key, group: Sequence[Sample]) -> dict[str, tuple[float, float, float]]:
    """Predict each model of a group by the others: latency and the interval's bounds in seconds, by model name.

    A model that the best terms cannot describe is predicted by the next ones. The interval comes from the held-out
    ratios of the other models.
    """
    found: dict[str, tuple[float, float, float]] = {}
    for names, usable in _enough(key, group):
        measured = _measured(usable)
        predicted = leave_one_out(_matrix(usable, names), measured)
        for index, sample in enumerate(usable):
            low, high = interval(np.delete(measured / predicted, index), SHARE)
            value = float(predicted[index])
            found.setdefault(sample.row.model, (value, value * low, value * high))
    return found


def _enough(key: Key, group: Sequence[Sample]) -> Iterator[tuple[tuple[str, ...], list[Sample]]]:
    """Yield each set of terms with the samples that have them, if there are enough to fit."""
    for names in term_sets(key[0], key[2]):
        usable = [sample for sample in group if sample.has(names)]
        if len(usable) >= least_models(key[0]):
            yield names, usable


def fit(key: Key, names: Sequence[str], group: Sequence[Sample]) -> LatencyModel:
    """Fit the latency model of one device, compiler and precision; its errors and interval are held out by model."""
    terms, measured = _matrix(group, names), _measured(group)
    coefficients = fit_relative(terms, measured)
    held_out = leave_one_out(terms, measured)
    errors = percentage_errors(held_out, measured) / 100
    low, high = interval(measured / held_out, SHARE)
    return LatencyModel(
        device=key[0],
        compiler=key[1],
        precision=key[2],
        coefficients=tuple(
            (name, float(f"{value:.6g}")) for name, value in zip(names, coefficients, strict=True) if value > 0
        ),
        low_ratio=round(low, 4),
        high_ratio=round(high, 4),
        models=len(group),
        error_median=round(float(np.median(errors)), 4),
        error_p90=round(float(np.percentile(errors, 90)), 4),
    )


def term_sets(device: str, precision: str) -> tuple[tuple[str, ...], ...]:
    """Name the terms of a device's latency models, best first.

    A chip with a simulator has its own simulation, in float with the MACs, which take a point off the error on models
    kept out (benchmarks/README.md); in INT8 they add error. Another has those of all three generations of silicon, the
    DRAM traffic and the MACs; then, for graphs that one of the three cannot simulate, fewer: the chips next to its own
    generation (v68 before v73, v73 and v81 from there on), and v73 alone.
    """
    if device in OWN_SIMULATION:
        alone = (OVERHEAD, device)
        return ((*alone, MACS), alone) if precision == "fp16" else (alone,)
    middle, older, newer = REFERENCES
    arch = int(load_device(device).processor("npu").ids["qnn"]["htp_arch"])
    near = (older,) if arch < _MIDDLE_ARCH else (middle, newer)
    return tuple((OVERHEAD, *chips, DRAM_BYTES, MACS) for chips in (REFERENCES, near, (middle,)))


def least_models(device: str) -> int:
    """Return how many models a latency model of the device needs."""
    return _LEAST_MODELS[device in OWN_SIMULATION]


def versions() -> dict[str, str]:
    """Return the versions of the compilers that simulate."""
    from compilers import get_compiler

    return {name: get_compiler(name).version() for name in OPTIONS}


def _terms(device: str, case: Mapping[str, Simulation]) -> dict[str, float]:
    """Return what is known of the terms of a device's models."""
    own = OWN_SIMULATION.get(device)
    known = {chip: s.simulated_s for chip, s in case.items() if s.simulated_s is not None}
    terms = ({device: known[own]} if own in known else {}) if own else known
    reference = case.get(DRAM_REFERENCE)
    if reference is not None and reference.dram_bytes is not None and reference.macs is not None:
        terms = {**terms, DRAM_BYTES: float(reference.dram_bytes), MACS: float(reference.macs)}
    return terms


def _refusal(case: Mapping[str, Simulation]) -> str:
    refused = [f"{chip}: {s.refusal}" for chip, s in sorted(case.items()) if s.refusal]
    missing = [f"not simulated on {chip}" for chip in REFERENCES if chip not in case]
    return (refused or missing or ["its work or its DRAM traffic is not known"])[0]


def _matrix(group: Sequence[Sample], names: Sequence[str]) -> npt.NDArray[np.float64]:
    return np.array([[1.0 if name == OVERHEAD else sample.terms[name] for name in names] for sample in group])


def _measured(group: Sequence[Sample]) -> npt.NDArray[np.float64]:
    return np.array([sample.row.latency_s for sample in group])
