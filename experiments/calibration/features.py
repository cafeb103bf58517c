"""What a model costs on the chips that the compiler simulates: the inputs of every calibration."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compilers import CompilerError, Limits, PassingError, compile_segment, get_compiler
from experiments.calibration.error import CalibrationError
from graphs import GraphError
from partition import Device, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from experiments.calibration.subjects import Subject
    from graphs import Graph

# One simulated chip for each generation of silicon: v73, v68 and v81.
REFERENCES: Final = ("sa8255p", "sa8540", "sa8797")
# As the measured runtimes do it by default: graph inputs quantised on the CPU and the longest optimisation for ONNX
# Runtime, the compiler's own defaults for a DLC. The same 8 MB of VTCM on all three chips (one has 16), as on nearly
# every chip that they stand for.
OPTIONS: Final = {
    "ort_qnn": (
        ("vtcm_mb", "8"),
        ("offload_graph_io_quantization", "1"),
        ("htp_graph_finalization_optimization_mode", "3"),
    ),
    "snpe": (("vtcm_mb", "8"),),
}
_PROTOCOL: Final = 1  # raise it when the adapters or the recipes change what is simulated
_HEADER: Final = (
    "key", "model", "precision", "compiler", "chip", "simulated_s", "dram_bytes", "macs", "uncosted", "refusal",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One graph on one simulated chip; `refusal` says why there is no time, `uncosted` counts nodes without a cost."""

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


class FeatureStore:
    """Simulations on disk as a CSV, appended as they come, found again by content and vendor version.

    The compilers' own cache also hashes our adapters' code, so it forgets everything with each edit of theirs; what
    the vendor simulates does not change with it (`_PROTOCOL` is there for the edit that does change it).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {s.key: s for s in read_simulations(path)} if _finished_bytes(path) else {}

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


def read_simulations(path: Path) -> tuple[Simulation, ...]:
    """Read a CSV of simulations.

    Raises:
        CalibrationError: it is none, or a line of it is not.
    """
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != _HEADER:
            raise CalibrationError(f"{path} is no file of simulations; delete it to simulate anew")
        for cells in reader:
            try:
                found.append(_simulation(cells))
            except (TypeError, ValueError) as error:
                raise CalibrationError(f"{path} line {reader.line_num} is no simulation: {error}") from error
    return tuple(found)


def write_simulations(simulations: Iterable[Simulation], path: Path) -> None:
    """Write a CSV of simulations, sorted."""
    ordered = sorted(simulations, key=lambda s: (s.model, s.precision, s.compiler, s.chip))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_cells(s) for s in ordered)


def simulate(
    subject: Subject,
    graphs: Mapping[str, Callable[[], Graph]],
    compilers: Iterable[str],
    store: FeatureStore,
    build: Path,
    limits: Limits,
) -> Iterator[Simulation]:
    """Simulate a model on every reference chip, in each precision of `graphs` and with each compiler.

    What cannot be simulated comes as a `Simulation` with a refusal, which is kept unless it may pass.
    """
    for precision, make in graphs.items():
        try:
            graph = make()
        except GraphError as error:
            raise CalibrationError(f"{subject.model} cannot be made {precision}: {error}") from error
        for compiler in compilers:
            for chip in REFERENCES:
                yield _simulated(subject.model, graph, precision, compiler, load_device(chip), store, build, limits)


def segment_precision(precision: str) -> str:
    """Return what a `Segment` calls the precision: its graph says how many bits the activations have."""
    return "int8" if precision == "w8a16" else precision


def _simulated(
    model: str, graph: Graph, precision: str, compiler: str, chip: Device, store: FeatureStore, build: Path,
    limits: Limits,
) -> Simulation:  # fmt: skip
    segment = Segment(
        graph=graph,
        device=chip,
        processor="npu",
        compiler=compiler,
        precision=segment_precision(precision),
        options=OPTIONS[compiler],
    )
    version = get_compiler(compiler).version()
    key = hashlib.sha256(f"{segment.digest}:{version}:{_PROTOCOL}".encode()).hexdigest()[:24]
    known = store.get(key)
    if known is not None:
        return dataclasses.replace(known, model=model)
    try:
        made, lasts = _estimate(segment, build, limits), True
    except CompilerError as error:
        refusal = " ".join(error.reason.split())
        made, lasts = dataclasses.replace(_unknown(segment), refusal=refusal), not isinstance(error, PassingError)
    simulation = dataclasses.replace(made, key=key, model=model, precision=precision)
    if lasts:
        store.add(simulation)
    return simulation


def _estimate(segment: Segment, build: Path, limits: Limits) -> Simulation:
    build.mkdir(parents=True, exist_ok=True)
    # The numbers are all that is kept: the artefacts of one calibration would take 50 GB.
    with tempfile.TemporaryDirectory(dir=build, prefix=".simulation-") as folder:
        artefact = compile_segment(segment, Path(folder), limits)
        found = get_compiler(segment.compiler).estimate(artefact)
    return dataclasses.replace(
        _unknown(segment),
        simulated_s=found.latency.typical_s,
        dram_bytes=found.dram_bytes,
        uncosted=len(found.uncosted_nodes),
    )


def _unknown(segment: Segment) -> Simulation:
    return Simulation(
        key="", model="", precision=segment.precision, compiler=segment.compiler, chip=segment.device.name,
        simulated_s=None, dram_bytes=None, macs=segment.graph.macs,
    )  # fmt: skip


def _cells(simulation: Simulation) -> dict[str, object]:
    cells = dataclasses.asdict(simulation)
    return {name: "" if cells[name] is None else cells[name] for name in _HEADER}


def _simulation(cells: Mapping[str, str]) -> Simulation:
    if None in cells.values():
        raise ValueError("it is cut short")
    return Simulation(
        key=cells["key"],
        model=cells["model"],
        precision=cells["precision"],
        compiler=cells["compiler"],
        chip=cells["chip"],
        simulated_s=float(cells["simulated_s"]) if cells["simulated_s"] else None,
        dram_bytes=int(cells["dram_bytes"]) if cells["dram_bytes"] else None,
        macs=int(cells["macs"]) if cells["macs"] else None,
        uncosted=int(cells["uncosted"]),
        refusal=cells["refusal"],
    )
