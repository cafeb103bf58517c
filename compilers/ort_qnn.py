"""ONNX Runtime with the QNN execution provider: Qualcomm's Hexagon NPU (HTP).

Needs: onnxruntime, onnxruntime-qnn (Linux x86-64 with glibc 2.35 for compiling).
Artefacts: context.onnx and context_qnn.bin (the context binary that the device loads; a part of the graph
    that the NPU refused stays in context.onnx), profile.csv (the compiler's own simulation, for chips that
    it simulates), placement.json, qnn.log (why a node was refused).
Environment: nothing.

Options of a segment: see `compilers.qnn.chip.target`. Here an artefact runs on the HTP emulator of the wheel,
which is right in its outputs and meaningless in its times. The emulator computes "fp16" in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from compilers.adapter import Action, Compiler
from compilers.ort_session import OrtSession
from compilers.qnn import estimate as simulation
from compilers.qnn import wheel
from compilers.qnn.chip import default_options, target
from compilers.qnn.context import EMBEDDED_FILE, embed_context
from compilers.qnn.optrace import LOG_SUFFIX, SCHEMATIC_SUFFIX, read_trace, trace_files
from compilers.qnn.placement import read_partitioning
from compilers.qnn.prepare import CONTEXT_FILE, LOG_FILE, compile_context
from compilers.qnn.refusals import cause_of, refused_operators
from compilers.qnn.session import npu_session, sdk_version
from compilers.qnn.workarounds import readable_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compilers.adapter import Cause, Session
    from compilers.artefact import Artefact, Estimate, Placement
    from compilers.trace import Trace
    from graphs import Graph
    from partition import Device, Segment

_LIBRARIES: Final = (wheel.PLUGIN, wheel.HTP_LIBRARY, wheel.SYSTEM_LIBRARY)


class HtpEmulatorSession(OrtSession):
    """A context binary on the wheel's emulator of the HTP: its outputs count, its times do not."""

    on_device: ClassVar[bool] = False


class OrtQnnCompiler(Compiler):
    """The QNN execution provider on the HTP."""

    name: ClassVar[str] = "ort_qnn"

    def why_not(self, action: Action, device: Device, processor: str) -> str | None:
        """Return None when the chip can be compiled for, emulated or simulated here, else what is missing."""
        reason = wheel.why_not_chip(device, processor, self.name) or wheel.why_not_here(*_LIBRARIES)
        if reason is None and action is Action.ESTIMATE:
            return wheel.why_not_simulated(device, processor)
        return reason

    def version(self) -> str:
        """Return the versions of both packages and a hash of Qualcomm's libraries."""
        return wheel.version()

    def defaults(self, segment: Segment) -> Mapping[str, str]:
        """Map each option of the HTP compiler to its default for the chip."""
        return default_options(segment)

    def check_request(self, segment: Segment) -> None:
        """Refuse a precision or an option that the chip does not have."""
        target(segment, backend=self.name)

    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Write the context binary, the profile with the simulation, and the placement with its reasons."""
        chip = target(segment, backend=self.name)
        model = readable_file(segment.graph, out_dir)
        found = compile_context(segment.graph, model, out_dir, chip.provider_options(), profiling=chip.profiling)
        traces = [p.name for suffix in (LOG_SUFFIX, SCHEMATIC_SUFFIX) for p in sorted(out_dir.glob(f"*{suffix}"))]
        files = (CONTEXT_FILE, *sorted(p.name for p in out_dir.glob("context_*.bin")))
        profile = (out_dir / simulation.PROFILE_FILE).read_text(encoding="utf-8")
        return self.made(
            segment,
            out_dir,
            files=(*files, simulation.PROFILE_FILE, simulation.PLACEMENT_FILE, *traces),
            delivered=files,
            facts=(
                *chip.facts(),
                ("qnn_sdk", sdk_version(out_dir / LOG_FILE)),
                ("runs_on", "HTP emulator"),
                ("partitions", str(found.partitions)),
                *simulation.facts(profile, found, segment.graph, segment.precision),
            ),
        )

    def unsupported(self, graph: Graph) -> Mapping[str, str]:
        """Map the nodes whose operator the provider never takes; another node may still be refused."""
        return refused_operators(graph)

    def cause(self, reason: str) -> Cause:
        """Tell which kind of cause a reason of the provider states."""
        return cause_of(reason)

    def load(self, artefact: Artefact) -> Session:
        """Load the context binary on the HTP emulator."""
        options = {"soc_model": artefact.fact("soc_model"), "vtcm_mb": artefact.fact("vtcm_mb")}
        return HtpEmulatorSession(npu_session(artefact.main_file, options))

    def packings(self, artefact: Artefact) -> Mapping[str, tuple[Path, ...]]:
        """Give the context binary beside its ONNX file, as it was compiled, and inside it."""
        embedded = artefact.directory / EMBEDDED_FILE
        embed_context(artefact.main_file, embedded)
        binaries = (artefact.directory / name for name in artefact.files if name.endswith(".bin"))
        return {"external": (artefact.main_file, *binaries), "embedded": (embedded,)}

    def estimate(self, artefact: Artefact) -> Estimate:
        """Return the simulation that the compiler wrote when it made the context binary."""
        return simulation.estimate(artefact)

    def trace(self, artefact: Artefact) -> Trace:
        """Return the simulator's trace; needs the option `profiling_level` "optrace"."""
        log, schematic = trace_files(artefact.directory)
        return read_trace(log.read_bytes(), schematic.read_bytes(), sdk=artefact.fact("qnn_sdk"))

    def placement(self, artefact: Artefact) -> Placement:
        """Return the units that the partitioned session reported, with the provider's reasons."""
        return read_partitioning(artefact.directory / simulation.PLACEMENT_FILE).placement
