"""The files of a plan that a device needs, each reloaded in a fresh process before it goes in."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from typing import TYPE_CHECKING, Final

from compilers import Artefact, CompilerError, compile_segment, get_compiler
from experiments.evaluator.fidelity import Feed, broken, output_error, reference_outputs
from experiments.evaluator.run import run_artefact
from graphs import random_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compilers import Limits
    from partition import Plan, Segment

# A reloaded artefact that is less alike than this does not compute the segment; 8-bit steps stay far above it.
_LEAST_COSINE: Final = 0.99

# What each backend's artefact consists of on a device, and the tool that runs it there.
TOOLS: Final = {
    "ort_qnn": "onnxruntime_perf_test",
    "ort_cpu": "onnxruntime_perf_test",
    "snpe": "snpe-throughput-net-run",
}
# These give what the artefact computes; `onnx_test_runner` since ONNX Runtime 1.22.
OUTPUT_TOOLS: Final = {"ort_qnn": "onnx_test_runner", "ort_cpu": "onnx_test_runner", "snpe": "snpe-net-run"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One way an artefact is packed: its files (the main one first), and how its reload compared, or why it is out."""

    name: str
    files: tuple[Path, ...]
    cosine: float | None
    why_not: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bundled:
    """One segment of a plan with its artefact and the modes that were tried.

    `feed` is what the segment is given in the reference run of the plan, `expected` what its own graph makes of it.
    """

    segment: Segment
    artefact: Artefact
    modes: tuple[Mode, ...]
    feed: Feed
    expected: Feed

    @property
    def given_there(self) -> tuple[str, ...]:
        """The outputs that the artefact gives, without those that are inputs or that no input decides."""
        known = {*self.feed, *get_compiler(self.artefact.compiler).constant_outputs(self.artefact)}
        return tuple(name for name in self.expected if name not in known)

    def published(self) -> tuple[Mode, ...]:
        """Return the modes that reload."""
        return tuple(mode for mode in self.modes if not mode.why_not)


def bundle(plan: Plan, tensors: Feed, seed: int, build: Path, limits: Limits) -> tuple[Bundled, ...]:
    """Compile each segment and reload each of its modes, on the tensors that really pass between the segments.

    `tensors` holds the inputs of the plan's model; what is not there is drawn.

    Raises:
        CompilerError: a segment does not compile, or none of its modes reloads and computes what it should.
    """
    bundled = []
    for segment in plan.segments:
        artefact = compile_segment(segment, build, limits)
        drawn = random_inputs(segment.graph, seed)
        feed = {name: tensors.get(name, array) for name, array in drawn.items()}
        expected = reference_outputs(segment.graph, feed, limits)
        modes = tuple(_reloaded(mode, artefact, feed, expected, limits) for mode in _modes(artefact))
        entry = Bundled(segment=segment, artefact=artefact, modes=modes, feed=feed, expected=expected)
        if not entry.published():
            raise CompilerError(f"nothing of {segment.compiler} can be published: {modes[0].why_not}")
        tensors = {**tensors, **feed, **expected}
        bundled.append(entry)
    return tuple(bundled)


def copy_files(bundled: tuple[Bundled, ...], payload: Path) -> None:
    """Copy what is published to `payload`/<index>-<backend>/."""
    for index, entry in enumerate(bundled):
        folder = payload / folder_name(index, entry)
        folder.mkdir(parents=True)
        for mode in entry.published():
            for path in mode.files:
                if not (folder / path.name).exists():
                    shutil.copy2(path, folder / path.name)


def folder_name(index: int, entry: Bundled) -> str:
    """Name the folder of one segment."""
    return f"{index}-{entry.segment.compiler}"


def manifest(plan: Plan, bundled: tuple[Bundled, ...], payload: Path) -> dict[str, object]:
    """Describe the payload: what it was made of, by which versions, and every file with its size and SHA-256."""
    return {
        "schema": 1,
        "plan_digest": plan.digest,
        "graph_digest": plan.graph_digest,
        "device": plan.device.name,
        "segments": [_described(index, entry, payload) for index, entry in enumerate(bundled)],
        "payload_bytes": sum(path.stat().st_size for path in payload.rglob("*") if path.is_file()),
    }


def _described(index: int, entry: Bundled, payload: Path) -> dict[str, object]:
    segment, artefact = entry.segment, entry.artefact
    folder = payload / folder_name(index, entry)
    return {
        "folder": folder.name,
        "backend": segment.compiler,
        "compiler_version": artefact.compiler_version,
        "processor": segment.processor,
        "precision": segment.precision,
        "options": dict(segment.options),
        "tool": TOOLS[segment.compiler],
        "output_tool": OUTPUT_TOOLS[segment.compiler],
        "inputs": {spec.name: [spec.dtype, spec.shape] for spec in segment.graph.inputs()},
        "outputs": {spec.name: [spec.dtype, spec.shape] for spec in segment.graph.outputs()},
        "modes": [_mode(mode) for mode in entry.modes],
        "files": {path.name: _file(path) for path in sorted(folder.iterdir()) if path.is_file()},
    }


def _mode(mode: Mode) -> Mapping[str, object]:
    return {
        "name": mode.name,
        "published": not mode.why_not,
        "files": [path.name for path in mode.files],
        "reload_cosine": mode.cosine,
        "why_not": mode.why_not,
    }


def _file(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _modes(artefact: Artefact) -> tuple[Mode, ...]:
    """List the ways to pack an artefact, not tried yet."""
    packings = get_compiler(artefact.compiler).packings(artefact)
    return tuple(Mode(name=name, files=files, cosine=None, why_not="") for name, files in packings.items())


def _reloaded(mode: Mode, artefact: Artefact, feed: Feed, expected: Feed, limits: Limits) -> Mode:
    """Load the mode's files alone in a fresh process, run them, and compare with the segment's reference."""
    packed = dataclasses.replace(artefact, files=tuple(path.name for path in mode.files))
    try:
        outputs = run_artefact(packed, feed, limits=limits, budget_s=None).outputs
    except CompilerError as error:
        return dataclasses.replace(mode, why_not=f"it does not reload: {error.reason}")
    cosine, wrong = judged(expected, outputs)
    why_not = f"it reloads and computes something else: {wrong}" if wrong else ""
    return dataclasses.replace(mode, cosine=cosine, why_not=why_not)


def judged(expected: Feed, outputs: Feed) -> tuple[float | None, str]:
    """Return the cosine of the worst output, and what makes the outputs none of this graph, "" when nothing does."""
    reason = broken(expected, outputs)
    if reason:
        return None, reason
    cosine = output_error(expected, {name: outputs[name] for name in expected}).cosine
    return cosine, f"outputs have cosine {cosine:.4f}" if cosine is not None and cosine < _LEAST_COSINE else ""
