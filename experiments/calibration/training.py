"""Measured rows and simulations together: fit the latency models, and predict what a fit has not seen."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.features import OPTIONS, REFERENCES, VTCM_MB, Simulation, Sizes, options
from experiments.calibration.fit import fit_relative, interval, percentage_errors
from experiments.contradiction import WITNESS, contradiction
from partition import DRAM_BYTES, MACS, OVERHEAD, LatencyModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from experiments.calibration.table import Measurement

    Array = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

Key = tuple[str, str, str]  # device, compiler, precision
RowKey = tuple[str, str, str, str]  # Measurement.key

# A chip with a simulator of its own -> the reference that was simulated in its place: soc_model 77 and 52 are one
# silicon and gave identical numbers for all that was tried (benchmarks/qnn_validation.py tries again).
OWN_SIMULATION: Final = {"sa8255p": "sa8255p", "qcs9075": "sa8255p"}
DRAM_REFERENCE: Final = REFERENCES[0]
_MIDDLE_ARCH: Final = 73
SHARE: Final = 0.8
# Precision -> the one whose coefficients it takes times one factor. Few models are measured with 8 bit weights and 16
# bit activations, and those scatter most: held out, five numbers of their own are worse (benchmarks/README.md).
FOLLOWS: Final = {"w8a16": "int8"}
# Coefficients from fewer models would be memory, not a fit: two for a chip with its own simulation, four or five
# for one that is modelled from its siblings.
_LEAST_MODELS: Final = {True: 8, False: 10}
# Of fewer the 80 % interval is what the two farthest models say: 10 or 11 of a kind in w8a16 made it wider than one
# interval of all, and no truer (benchmarks/README.md).
LEAST_OF_A_KIND: Final = 15


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A measured row with the terms of its latency model; `uncosted` names those from simulations that lack costs.

    The simulations had `vtcm_mb` of VTCM. A row that another device lends (`borrowing`) has a `weight` below 1.
    """

    row: Measurement
    terms: Mapping[str, float]
    uncosted: frozenset[str] = frozenset()
    vtcm_mb: int = VTCM_MB
    weight: float = 1.0

    @property
    def key(self) -> Key:
        """What has a latency model of its own: device, compiler and precision."""
        return self.row.device, self.row.compiler, self.row.precision

    def has(self, names: Iterable[str]) -> bool:
        """Tell whether the sample has all these terms."""
        return self.terms.keys() >= set(names) - {OVERHEAD}

    def values(self, names: Iterable[str]) -> list[float]:
        """Return the values of these terms, 1 for the overhead."""
        return [1.0 if name == OVERHEAD else self.terms[name] for name in names]


def samples(
    rows: Iterable[Measurement], simulations: Iterable[Simulation]
) -> tuple[tuple[Sample, ...], dict[tuple[str, str, str], str]]:
    """Join rows with simulations; also return why a (model, precision, compiler) that was simulated is no sample.

    A sample has the terms that could be simulated: a chip whose simulator refused the graph is not among them. A row
    that ran partly on the CPU or GPU of its device is no sample: the simulator knows the NPU alone.
    """
    known = believed(simulations)
    sizes = Sizes(known)
    by_case: dict[tuple[str, str, str, int], dict[str, Simulation]] = defaultdict(dict)
    for s in known:
        by_case[_case(s)][s.chip] = s
    found, refused = [], {}
    for row in rows:
        size = sizes.of(row)
        case = by_case.get((row.model, row.precision, row.compiler, size))
        if case is None:
            continue
        terms = _terms(row.device, case)
        sample = Sample(row=row, terms=terms, uncosted=_uncosted(row.device, case), vtcm_mb=size)
        if not any(sample.has(names) for names in term_sets(row)):
            refused[row.model, row.precision, row.compiler] = _refusal(case)
        elif row.elsewhere_layers:
            on_device = f"{row.elsewhere_layers} layers ran on the device's CPU or GPU"
            refused[row.model, row.precision, row.compiler] = on_device
        else:
            found.append(sample)
    return tuple(found), refused


def believed(simulations: Iterable[Simulation]) -> tuple[Simulation, ...]:
    """Turn simulated times that the simulation of the next generation contradicts into refusals."""
    known = tuple(simulations)
    witnesses = {_case(s): s.simulated_s for s in known if s.chip == WITNESS and s.simulated_s is not None}
    found = []
    for s in known:
        reason = s.simulated_s and _case(s) in witnesses and contradiction(s.chip, s.simulated_s, witnesses[_case(s)])
        found.append(dataclasses.replace(s, simulated_s=None, refusal=reason) if reason else s)
    return tuple(found)


def _case(simulation: Simulation) -> tuple[str, str, str, int]:
    return simulation.model, simulation.precision, simulation.compiler, simulation.vtcm_mb


def by_key(found: Iterable[Sample]) -> dict[Key, tuple[Sample, ...]]:
    """Group samples by what has a latency model of its own: device, compiler and precision."""
    groups: dict[Key, list[Sample]] = defaultdict(list)
    for sample in found:
        groups[sample.key].append(sample)
    return {key: tuple(sorted(group, key=lambda s: s.row.model)) for key, group in sorted(groups.items())}


def by_device(found: Iterable[Sample]) -> dict[str, tuple[Sample, ...]]:
    """Group samples by device: its latency models are fitted together."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for group in by_key(found).values():
        groups[group[0].row.device].extend(group)
    return {device: tuple(group) for device, group in groups.items()}


def fit_all(group: Sequence[Sample]) -> tuple[LatencyModel, ...]:
    """Fit the latency models of one device, best first for each compiler and precision; none from too few samples."""
    found: dict[Key, list[LatencyModel]] = defaultdict(list)
    for names, key, usable in enough(group):
        found[key].append(_model(names, key, usable))
    return tuple(model for _, models in sorted(found.items()) for model in models)


def training_rows(group: Sequence[Sample]) -> list[Measurement]:
    """List the rows that `fit_all` learns from."""
    taught = {sample.row.key for _, key, usable in enough(group) for sample in _of(key, usable)}
    return [sample.row for sample in group if sample.row.key in taught]


def predict_each(group: Sequence[Sample]) -> dict[RowKey, tuple[float, float, float]]:
    """Predict each row of a device by its other models: latency and the interval's bounds in seconds, by row key.

    A model that the best terms cannot describe is predicted by the next ones. The interval comes from the held-out
    ratios of the other models, and of the same kind (`intervals`).
    """
    found: dict[RowKey, tuple[float, float, float]] = {}
    for names, key, usable in enough(group):
        rows = _of(key, usable)
        predicted, lacking = _held_out(names, key, usable)
        ratios = _measured(rows) / predicted
        for index, sample in enumerate(rows):
            costed, uncosted = intervals(np.delete(ratios, index), np.delete(lacking, index))
            low, high = (lacking[index] and uncosted) or costed
            value = float(predicted[index])
            found.setdefault(sample.row.key, (value, value * low, value * high))
    return found


def enough(group: Sequence[Sample]) -> Iterator[tuple[tuple[str, ...], Key, list[Sample]]]:
    """Yield each set of terms and each key that has enough samples with them, with all such samples of the device."""
    for precision, row in {sample.row.precision: sample.row for sample in group}.items():
        for names in term_sets(row):
            groups = by_key(sample for sample in group if sample.has(names))
            kept = {key: rows for key, rows in groups.items() if len(rows) >= least_models(row.device)}
            usable = [sample for rows in kept.values() for sample in rows]
            yield from ((names, key, usable) for key in kept if key[2] == precision)


def _model(names: Sequence[str], key: Key, usable: Sequence[Sample]) -> LatencyModel:
    """Fit the latency model of one device, compiler and precision; its errors and interval are held out by model."""
    rows = _of(key, usable)
    held_out, lacking = _held_out(names, key, usable)
    errors = percentage_errors(held_out, _measured(rows)) / 100
    known = intervals(_measured(rows) / held_out, lacking)
    return latency_model(names, rows, _coefficients(names, key, usable), errors, known)


def latency_model(
    names: Sequence[str],
    rows: Sequence[Sample],
    coefficients: Array,
    errors: Array,
    known: tuple[tuple[float, float], tuple[float, float] | None],
) -> LatencyModel:
    """Return the latency model of one key's rows by its coefficients, held-out relative errors and `intervals`."""
    row, ((low, high), uncosted) = rows[0].row, known
    return LatencyModel(
        device=row.device,
        compiler=row.compiler,
        precision=row.precision,
        coefficients=tuple(
            (name, float(f"{value:.6g}")) for name, value in zip(names, coefficients, strict=True) if value > 0
        ),
        low_ratio=round(low, 4),
        high_ratio=round(high, 4),
        models=len(rows),
        error_median=round(float(np.median(errors)), 4),
        error_p90=round(float(np.percentile(errors, 90)), 4),
        uncosted_ratios=uncosted and (round(uncosted[0], 4), round(uncosted[1], 4)),
        options=tuple(sorted(set(options(row.compiler, rows[0].vtcm_mb)) - set(OPTIONS[row.compiler]))),
    )


def _held_out(names: Sequence[str], key: Key, usable: Sequence[Sample]) -> tuple[Array, Flags]:
    """Predict each row of the key by a fit to the device's rows of other models; tell if its simulations lack costs."""
    rows = _of(key, usable)
    predicted, lacking = [], []
    for sample, terms in zip(rows, _matrix(rows, names), strict=True):
        coefficients = _coefficients(names, key, [s for s in usable if s.row.model != sample.row.model])
        predicted.append(terms @ coefficients)
        lacking.append(lacks(sample, names, coefficients))
    return np.array(predicted), np.array(lacking)


def lacks(sample: Sample, names: Sequence[str], coefficients: Array) -> bool:
    """Tell whether a simulation that the coefficients need lacks costs."""
    needed = {name for name, value in zip(names, coefficients, strict=True) if value > 0}
    return not sample.uncosted.isdisjoint(needed)


def intervals(ratios: Array, lacking: Flags) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return the interval of graphs whose nodes all have a cost, and of others; one for all where either is rare."""
    if min(lacking.sum(), (~lacking).sum()) < LEAST_OF_A_KIND:
        return interval(ratios, SHARE), None
    return interval(ratios[~lacking], SHARE), interval(ratios[lacking], SHARE)


def _coefficients(names: Sequence[str], key: Key, usable: Sequence[Sample]) -> Array:
    """Fit the coefficients of one key to samples of its device.

    The compilers of a device share all but the overhead of a call: what they run is one silicon. A precision that
    follows another has that one's coefficients times one factor, which the compilers share, too.
    """
    device, compiler, precision = key
    leader = (device, compiler, FOLLOWS.get(precision, ""))
    if _of(leader, usable):
        return _coefficients(names, leader, usable) * _factor(names, device, precision, usable)
    rows = _teachers(names, key, [sample for sample in usable if sample.row.precision == precision])
    return shared_fit(names, rows)[compiler]


def shared_fit(names: Sequence[str], rows: Sequence[Sample]) -> dict[str, Array]:
    """Fit the coefficients of each compiler to rows of a device; they share all but the overhead."""
    compilers = sorted({sample.row.compiler for sample in rows})
    overheads = [[float(sample.row.compiler == name) for name in compilers] for sample in rows]
    weights = np.array([sample.weight for sample in rows])
    shared = fit_relative(np.hstack([overheads, _matrix(rows, names)[:, 1:]]), _measured(rows), weights)
    return {name: np.array([shared[index], *shared[len(compilers) :]]) for index, name in enumerate(compilers)}


def _factor(names: Sequence[str], device: str, precision: str, usable: Sequence[Sample]) -> float:
    """Return the median of measured over what the coefficients of the precision's leader predict."""
    ratios = []
    for compiler in sorted({sample.row.compiler for sample in usable}):
        leader, rows = (device, compiler, FOLLOWS[precision]), _of((device, compiler, precision), usable)
        if rows and _of(leader, usable):
            ratios.append(_measured(rows) / (_matrix(rows, names) @ _coefficients(names, leader, usable)))
    return float(np.median(np.concatenate(ratios)))


def _teachers(names: Sequence[str], key: Key, rows: list[Sample]) -> list[Sample]:
    """Leave out graphs whose simulations lack costs and are too short for it, where enough others are left."""
    costed = [sample for sample in rows if sample.uncosted.isdisjoint(names)]
    return costed if len(_of(key, costed)) >= least_models(key[0]) else rows


def term_sets(row: Measurement) -> tuple[tuple[str, ...], ...]:
    """Name the terms of the latency models of a row's device and precision, best first.

    A chip with a simulator has its own simulation, in float with the MACs, which take a point off the error on models
    kept out (benchmarks/README.md); in INT8 they add error. Another has those of all three generations of silicon, the
    DRAM traffic and the MACs; then, for graphs that one of the three cannot simulate, fewer: the chips next to its own
    generation (v68 before v73, v73 and v81 from there on), and v73 alone. In float the chips next to it come first:
    every third float simulation of v68 lacks costs. With 16 bit activations two of three lack some, so v73 and v81 are
    taken for every chip.
    """
    if row.device in OWN_SIMULATION:
        alone = (OVERHEAD, row.device)
        return ((*alone, MACS), alone) if row.precision == "fp16" else (alone,)
    middle, older, newer = REFERENCES
    near = (older,) if row.htp_arch < _MIDDLE_ARCH else (middle, newer)
    usual = (REFERENCES, near)
    first = {"fp16": (near, REFERENCES), "w8a16": ((middle, newer),)}.get(row.precision, usual)
    return tuple((OVERHEAD, *chips, DRAM_BYTES, MACS) for chips in (*first, (middle,)))


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


def _uncosted(device: str, case: Mapping[str, Simulation]) -> frozenset[str]:
    """Name the terms that come from a simulation in which some node has no cost."""
    lacking = {chip for chip, simulation in case.items() if simulation.uncosted}
    if device in OWN_SIMULATION:
        return frozenset({device} if OWN_SIMULATION[device] in lacking else ())
    return frozenset(lacking | ({DRAM_BYTES} if DRAM_REFERENCE in lacking else set()))


def _refusal(case: Mapping[str, Simulation]) -> str:
    refused = [f"{chip} with {s.vtcm_mb} MB: {s.refusal}" for chip, s in sorted(case.items()) if s.refusal]
    missing = [f"not simulated on {chip}" for chip in REFERENCES if chip not in case]
    return (refused or missing or ["its work or its DRAM traffic is not known"])[0]


def _of(key: Key, group: Iterable[Sample]) -> list[Sample]:
    return [s for s in group if s.key == key]


def _matrix(group: Sequence[Sample], names: Sequence[str]) -> Array:
    return np.array([sample.values(names) for sample in group])


def _measured(group: Sequence[Sample]) -> Array:
    return np.array([sample.row.latency_s for sample in group])
