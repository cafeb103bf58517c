"""What a model costs on the chips that the compiler simulates: the inputs of every calibration."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compilers import CompilerError, Limits, PassingError, compile_segment, get_compiler
from experiments.calibration.error import CalibrationError
from experiments.csv_file import read_csv
from experiments.files import writing
from graphs import GraphError
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from experiments.calibration.subjects import Subject
    from experiments.calibration.table import Measurement
    from graphs import Graph

# One simulated chip for each generation of silicon: v73, v68 and v81.
REFERENCES: Final = ("sa8255p", "sa8540", "sa8797")
VTCM_MB: Final = 8  # of nearly every chip that they stand for; for another the references are simulated with its size
# As the measured runtimes do it by default: the longest optimisation for both, and with ONNX Runtime the graph's inputs
# quantised on the CPU.
OPTIONS: Final = {
    "ort_qnn": (
        ("vtcm_mb", str(VTCM_MB)),
        ("offload_graph_io_quantization", "1"),
        ("htp_graph_finalization_optimization_mode", "3"),
    ),
    "snpe": (("vtcm_mb", str(VTCM_MB)), ("htp_graph_finalization_optimization_mode", "3")),
}
_PROTOCOL: Final = 1  # raise it when the adapters or the recipes change what is simulated
_HEADER: Final = (
    "key", "model", "precision", "compiler", "chip", "vtcm_mb", "simulated_s", "low_s", "high_s", "dram_bytes", "macs",
    "uncosted", "refusal",
)  # fmt: skip
_LATER: Final = {"vtcm_mb", "low_s", "high_s"}  # columns that an older file lacks


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One graph on one simulated chip; `refusal` says why there is no time, `uncosted` counts nodes without a cost.

    `low_s` and `high_s` are the compiler's own bounds of the time, which older files do not have.
    """

    key: str
    model: str
    precision: str
    compiler: str
    chip: str
    simulated_s: float | None
    dram_bytes: int | None
    macs: int | None
    uncosted: int = 0
    refusal: str = ""
    vtcm_mb: int = VTCM_MB
    low_s: float | None = None
    high_s: float | None = None


class Sizes:
    """The VTCM with which a row's references were simulated: its device's own, where the precision has such ones."""

    def __init__(self, simulations: Iterable[Simulation]) -> None:
        self._known = {(s.precision, s.vtcm_mb) for s in simulations}

    def of(self, row: Measurement) -> int:
        """Return the size in MB; the usual one where a file has no simulations with the device's."""
        return row.vtcm_mb if (row.precision, row.vtcm_mb) in self._known else VTCM_MB


def options(compiler: str, size_mb: int) -> tuple[tuple[str, str], ...]:
    """Return the options under which a reference is simulated for devices with so much VTCM."""
    return tuple({**dict(OPTIONS[compiler]), "vtcm_mb": str(size_mb)}.items())


class FeatureStore:
    """Simulations on disk as a CSV, appended as they come, found again by content and vendor version.

    The compilers' own cache also hashes our adapters' code, so it forgets everything with each edit of theirs; what
    the vendor simulates does not change with it (`_PROTOCOL` is there for the edit that does change it).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {s.key: s for s in read_simulations(path)} if _finished_bytes(path) else {}
        if self._known and _columns(path) != _HEADER:
            write_simulations(self._known.values(), path)  # lines to come have all columns

    def get(self, key: str) -> Simulation | None:
        """Return what is known under `key`."""
        return self._known.get(key)

    def add(self, simulation: Simulation) -> None:
        """Keep a simulation, on disk at once."""
        self._known[simulation.key] = simulation
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = io.StringIO(newline="")
        writer = csv.DictWriter(line, _HEADER)
        with self.path.open("a+b") as file:
            if not file.tell():
                writer.writeheader()
            writer.writerow(_cells(simulation))
            file.write(line.getvalue().encode())  # in one piece, as another process may append too


def _finished_bytes(path: Path) -> int:
    """Cut off the line that a run which was ended did not finish, and return how much of the file is left."""
    if not path.exists():
        return 0
    finished = path.read_bytes().rfind(b"\n") + 1
    if finished < path.stat().st_size:
        os.truncate(path, finished)
    return finished


def _columns(path: Path) -> tuple[str, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file), ()))


def read_simulations(path: Path) -> tuple[Simulation, ...]:
    """Read a CSV of simulations.

    Raises:
        UserError: it is no CSV file, or a line has lost its end.
        CalibrationError: it is one of something else, or a line of it is.
    """
    header, lines = read_csv(path, least=0)
    if not set(_HEADER) - _LATER <= set(header) <= set(_HEADER):
        raise CalibrationError(f"{path} is no file of simulations; delete it to simulate anew")
    found = []
    for place, cells in lines:
        try:
            found.append(_simulation(cells))
        except ValueError as error:
            raise CalibrationError(f"{path}, line {place} is no simulation: {error}") from error
    return tuple(found)


def write_simulations(simulations: Iterable[Simulation], path: Path) -> None:
    """Write a CSV of simulations, sorted."""
    ordered = sorted(simulations, key=lambda s: (s.model, s.precision, s.compiler, s.chip, s.vtcm_mb))
    with writing(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_cells(s) for s in ordered)


def simulate(
    subject: Subject,
    graphs: Mapping[str, Callable[[], Graph]],
    compilers: Mapping[str, Iterable[int]],
    store: FeatureStore,
    build: Path,
    limits: Limits,
) -> Iterator[Simulation]:
    """Simulate a model on every reference chip, in each precision of `graphs` and with each compiler.

    `compilers` gives each the sizes of VTCM in MB that are wanted.
    What cannot be simulated comes as a `Simulation` with a refusal, which is kept unless it may pass.
    """
    for precision, make in graphs.items():
        try:
            graph = make()
        except GraphError as error:
            raise CalibrationError(f"{subject.model} cannot be made {precision}: {error}") from error
        for compiler, sizes in compilers.items():
            for size_mb, chip in itertools.product(sizes, REFERENCES):
                segment = _segment(graph, precision, compiler, chip, size_mb)
                asked = Simulation(
                    key=_key(segment), model=subject.model, precision=precision, compiler=compiler, chip=chip,
                    simulated_s=None, dram_bytes=None, macs=graph.macs, vtcm_mb=size_mb,
                )  # fmt: skip
                yield _simulated(asked, segment, store, build, limits)


def segment_precision(precision: str) -> str:
    """Return what a `Segment` calls the precision: its graph says how many bits the activations have."""
    return "int8" if precision == "w8a16" else precision


def _segment(graph: Graph, precision: str, compiler: str, chip: str, size_mb: int) -> Segment:
    return Segment(
        graph=graph,
        device=load_device(chip),
        processor="npu",
        compiler=compiler,
        precision=segment_precision(precision),
        options=options(compiler, size_mb),
    )


def _key(segment: Segment) -> str:
    version = get_compiler(segment.compiler).version()
    return hashlib.sha256(f"{segment.digest}:{version}:{_PROTOCOL}".encode()).hexdigest()[:24]


def _simulated(asked: Simulation, segment: Segment, store: FeatureStore, build: Path, limits: Limits) -> Simulation:
    """Return what was asked with its figures or a refusal, from the store where it is known."""
    known = store.get(asked.key)
    if known is not None:
        return dataclasses.replace(known, model=asked.model)
    try:
        made, lasts = _estimate(asked, segment, build, limits), True
    except CompilerError as error:
        refusal = " ".join(error.reason.split())
        made, lasts = dataclasses.replace(asked, refusal=refusal), not isinstance(error, PassingError)
    if lasts:
        store.add(made)
    return made


def _estimate(asked: Simulation, segment: Segment, build: Path, limits: Limits) -> Simulation:
    build.mkdir(parents=True, exist_ok=True)
    # The numbers are all that is kept: the artefacts of one calibration would take 50 GB.
    with tempfile.TemporaryDirectory(dir=build, prefix=".simulation-") as folder:
        artefact = compile_segment(segment, Path(folder), limits)
        found = get_compiler(segment.compiler).estimate(artefact)
    return dataclasses.replace(
        asked,
        simulated_s=found.latency.typical_s,
        low_s=found.latency.low_s,
        high_s=found.latency.high_s,
        dram_bytes=found.dram_bytes,
        uncosted=len(found.uncosted_nodes),
    )


def _cells(simulation: Simulation) -> dict[str, object]:
    cells = dataclasses.asdict(simulation)
    return {name: "" if cells[name] is None else cells[name] for name in _HEADER}


def _simulation(cells: Mapping[str, str]) -> Simulation:
    def seconds(name: str) -> float | None:
        return float(cells[name]) if cells.get(name) else None

    return Simulation(
        key=cells["key"],
        model=cells["model"],
        precision=cells["precision"],
        compiler=cells["compiler"],
        chip=cells["chip"],
        vtcm_mb=int(cells.get("vtcm_mb", VTCM_MB)),
        simulated_s=seconds("simulated_s"),
        low_s=seconds("low_s"),
        high_s=seconds("high_s"),
        dram_bytes=int(cells["dram_bytes"]) if cells["dram_bytes"] else None,
        macs=int(cells["macs"]) if cells["macs"] else None,
        uncosted=int(cells["uncosted"]),
        refusal=cells["refusal"],
    )
