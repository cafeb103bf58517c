"""From the command line's models to simulations: find the subjects, simulate what is not known yet."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compilers import Action, Limits, get_compiler
from experiments.calibration.error import CalibrationError
from experiments.calibration.features import (
    OPTIONS,
    REFERENCES,
    FeatureStore,
    Simulation,
    Sizes,
    read_simulations,
    simulate,
)
from experiments.calibration.subjects import ZOO_MODELS, Subject, folder_subjects, unique, variant, zoo_subjects
from partition import CALIBRATION_FILE, load_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from experiments.calibration.table import Measurement
    from graphs import Graph

SIMULATIONS_NAME: Final = "qnn_simulations.csv"
_ZOO: Final = "zoo"


def subjects_unless_stored(models: Sequence[str], stored: Iterable[Simulation]) -> tuple[Subject, ...]:
    """Return `subjects`; where nothing is asked for, without those that are simulated already."""
    there = set() if models else {s.model for s in stored}
    return tuple(subject for subject in subjects(models) if subject.model not in there)


def subjects(models: Sequence[str]) -> tuple[Subject, ...]:
    """Return the models that the arguments name: "zoo" (as does nothing at all), zoo names, or folders of ONNX files.

    Raises:
        CalibrationError: a name is neither, or two of them are one model.
    """
    if not models:
        return zoo_subjects()
    folders = [Path(entry) for entry in models if Path(entry).is_dir()]
    names = [n for e in models if not Path(e).is_dir() for n in e.split(",") if n]
    missing = next((n for n in names if "/" in n or n.endswith(".onnx")), None)
    if missing is not None:
        raise CalibrationError(f"{missing!r} is no folder; give zoo names or a folder of ONNX files")
    chosen = zoo_subjects(None if _ZOO in names else names) if names else ()
    return unique((*chosen, *(subject for folder in folders for subject in folder_subjects(folder))))


def simulations(
    chosen: Iterable[Subject],
    rows: Iterable[Measurement],
    build: Path,
    time_limit_s: float,
    report: Callable[[str], None],
    stored: Sequence[Simulation] = (),
) -> Iterator[Simulation]:
    """Simulate each subject in the precisions and with the compilers that the rows measured it.

    The references have the VTCM of the devices that were measured: one round for each size. To those in `stored` only
    sizes are added that they have: one model alone with another size would take all others out of that size's fit.

    Raises:
        CalibrationError: the compiler cannot simulate on this machine, or a model cannot be read or quantised.
    """
    measured = {(row.model, row.precision) for row in rows}
    sizes: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    served = Sizes(stored)
    for row in rows:
        sizes[row.model, row.precision, row.compiler].add(served.of(row) if stored else row.vtcm_mb)
    store = FeatureStore(build / SIMULATIONS_NAME)
    for subject in chosen:
        precisions = sorted(precision for model, precision in measured if model == subject.model)
        if not precisions and subject.model not in {model.model for model in ZOO_MODELS.values()}:
            report(f"no row measures {subject.model}, so it is not simulated: name its file as the table names it")
        if not precisions:
            continue
        _require_simulator()
        graph = subject.load()
        for precision in precisions:
            report(f"simulating {subject.model} {precision}")
            compilers = {c: sorted(sizes[subject.model, precision, c]) for c in OPTIONS}
            make = {precision: _maker(graph, precision, build)}
            yield from simulate(subject, make, compilers, store, build, Limits(time_s=time_limit_s))


def shipped(result: Path) -> tuple[Simulation, ...]:
    """Return the simulations that an earlier calibration left beside its result, or those of the one that ships."""
    path = result.with_name(SIMULATIONS_NAME)
    return read_simulations(path if path.exists() else CALIBRATION_FILE.with_name(SIMULATIONS_NAME))


def merged(old: Iterable[Simulation], new: Iterable[Simulation]) -> tuple[Simulation, ...]:
    """Return all simulations, a new one in the place of an old one of the same network, chip and options."""
    found = {(s.model, s.precision, s.compiler, s.chip, s.vtcm_mb): s for s in (*old, *new)}
    return tuple(found.values())


def _maker(graph: Graph, precision: str, build: Path) -> Callable[[], Graph]:
    return lambda: variant(graph, precision, build)


def _require_simulator() -> None:
    for name in OPTIONS:
        why_not = get_compiler(name).why_not(Action.ESTIMATE, load_device(REFERENCES[0]), "npu")
        if why_not is not None:
            raise CalibrationError(f"nothing can be simulated here: {why_not}")
