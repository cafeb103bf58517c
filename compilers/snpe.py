"""Qualcomm's DLC for the SNPE / QAIRT runtimes: Hexagon NPU (HTP), without an SDK.

Needs: onnxruntime, onnxruntime-qnn (Linux x86-64 with glibc 2.35), whose QNN IR library writes the DLC.
Artefacts: model.dlc (channels-last images, float inputs and outputs with Quantize and Dequantize inside, a scalar has
    one element; constant_outputs.npz holds the outputs that no input decides, which no DLC gives; for
    "fp16" it holds float32, which the HTP runtime lowers to float16 when it prepares the DLC),
    channels_last.onnx (the graph it was made of), profile.csv (the compiler's simulation of the same graph
    and options), placement.json, dlc.log, qnn.log.
Environment: SNPE_ROOT or QAIRT_SDK_ROOT, the root of an SDK, whose snpe-net-run then runs the DLC here. Without one,
    the DLC is loaded back through the system interface of the wheel and runs on its HTP emulator.

Options of a segment: `vtcm_mb`, `htp_graph_finalization_optimization_mode` and `htp_performance_mode`, as in
`compilers.qnn.chip`; they set the simulation and the run. The DLC is the same for all, since a runtime prepares it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from compilers.adapter import Action, Compiler, CompilerError, Session
from compilers.qnn import edge, wheel
from compilers.qnn import estimate as simulation
from compilers.qnn.chip import Target, default_options, target
from compilers.qnn.dlc import only_graph
from compilers.qnn.layout import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, channels_last
from compilers.qnn.placement import Partitioning, partitioning, read_partitioning, write_partitioning
from compilers.qnn.prepare import LOG_FILE, compile_context, require_npu
from compilers.qnn.refusals import cause_of, refused_operators
from compilers.qnn.session import npu_session, sdk_version
from compilers.qnn.workarounds import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from compilers.adapter import Cause
    from compilers.artefact import Artefact, Estimate, Placement
    from graphs import Graph
    from partition import Device, Segment

DLC_FILE: Final = "model.dlc"
MODEL_FILE: Final = "channels_last.onnx"
NET_RUN: Final = "snpe-net-run"
SDK_VARIABLES: Final = ("SNPE_ROOT", "QAIRT_SDK_ROOT")
_HOST_TOOLS: Final = Path("bin/x86_64-linux-clang")
_LIBRARIES: Final = (wheel.PLUGIN, wheel.HTP_LIBRARY, wheel.SYSTEM_LIBRARY, wheel.IR_LIBRARY)
_NET_RUN_TIMEOUT_S: Final = 600


class SnpeSession(Session):
    """A DLC through `snpe-net-run`, one process for each inference, so its times mean nothing."""

    on_device: ClassVar[bool] = False

    def __init__(self, tool: Path, dlc: Path, *, nhwc_inputs: tuple[str, ...], nhwc_outputs: tuple[str, ...]) -> None:
        self._tool = tool
        self._dlc = dlc
        self._nhwc_inputs = nhwc_inputs
        self._nhwc_outputs = nhwc_outputs
        self._graph = only_graph(dlc)

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run once: arrays by name in the layout of the segment's graph, in and out."""
        with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
            work = Path(folder)
            (work / "inputs.txt").write_text(self._write_inputs(inputs, work), encoding="utf-8")
            self._call(work)
            return {spec.name: self._read_output(work, spec.name, spec.shape) for spec in self._outputs()}

    def _outputs(self) -> tuple[Any, ...]:
        return self._graph.by_role("output")

    def _write_inputs(self, inputs: Mapping[str, np.ndarray[Any, Any]], work: Path) -> str:
        entries: list[str] = []
        for name, value in inputs.items():
            laid_out = value.transpose(TO_CHANNELS_LAST) if name in self._nhwc_inputs else value
            path = work / f"{len(entries)}.raw"
            path.write_bytes(laid_out.astype("float32").tobytes())
            entries.append(f"{name}:={path}")
        return " ".join(entries) + "\n"

    def _call(self, work: Path) -> None:
        outputs = ",".join(spec.name for spec in self._outputs())
        command = [str(self._tool), "--container", str(self._dlc), "--input_list", str(work / "inputs.txt")]
        command += ["--output_dir", str(work / "out"), "--set_output_tensors", outputs]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_NET_RUN_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerError(f"{self._tool} did not finish: {error}") from error
        if done.returncode != 0:
            log = done.stdout + done.stderr
            raise CompilerError(f"{self._tool} ended with {done.returncode}: {_last_line(log)}", log=log)

    def _read_output(self, work: Path, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        import numpy as np

        path = work / "out" / "Result_0" / f"{name}.raw"
        if not path.exists():
            raise CompilerError(f"{self._tool} wrote no output {name!r} (looked for {path.relative_to(work)})")
        value = np.fromfile(path, dtype=np.float32).reshape(shape)
        return value.transpose(TO_CHANNELS_FIRST) if name in self._nhwc_outputs else value


class SnpeCompiler(Compiler):
    """DLC files for the HTP."""

    name: ClassVar[str] = "snpe"

    def why_not(self, action: Action, device: Device, processor: str) -> str | None:
        """Return None when a DLC can be written, simulated or run here (an SDK goes first), else why not."""
        reason = wheel.why_not_chip(device, processor, self.name) or wheel.why_not_here(*_LIBRARIES)
        if reason is not None:
            return reason
        if action is Action.RUN and any(os.environ.get(name) for name in SDK_VARIABLES):
            return _why_no_sdk()
        return wheel.why_not_simulated(device, processor) if action is Action.ESTIMATE else None

    def version(self) -> str:
        """Return the versions of both packages and a hash of Qualcomm's libraries."""
        return wheel.version()

    def defaults(self, segment: Segment) -> Mapping[str, str]:
        """Map each option of the HTP compiler to its default for the chip."""
        return default_options(segment, fixed_io=True)

    def check_request(self, segment: Segment) -> None:
        """Refuse a precision or an option that the chip does not have."""
        target(segment, backend=self.name, fixed_io=True)

    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Write the DLC of the whole segment, and the simulation of the same graph on the chip."""
        from graphs import save

        chip = target(segment, backend=self.name, fixed_io=True)
        last = channels_last(edge.without_inputs_as_outputs(readable(segment.graph)))
        model = out_dir / MODEL_FILE
        save(last.graph, model)
        found = _write_dlc(segment.graph, model, out_dir, chip)
        _simulate(segment.graph, model, out_dir, chip)
        write_partitioning(found, out_dir / simulation.PLACEMENT_FILE)
        profile = (out_dir / simulation.PROFILE_FILE).read_text(encoding="utf-8")
        graph = only_graph(out_dir / DLC_FILE)
        there = {tensor.name for tensor in graph.by_role("output")}
        beside = edge.write_constants(segment.graph, there, out_dir)
        return self.made(
            segment,
            out_dir,
            files=(DLC_FILE, *beside, simulation.PROFILE_FILE, simulation.PLACEMENT_FILE),
            delivered=(DLC_FILE, *beside),
            facts=(
                *chip.facts(),
                ("qnn_sdk", sdk_version(out_dir / LOG_FILE)),
                ("runs_on", "HTP emulator"),
                ("dlc_operators", str(len(graph.nodes))),
                ("nhwc_inputs", "\n".join(last.inputs)),
                ("nhwc_outputs", "\n".join(last.outputs)),
                *edge.facts(segment.graph, there),
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
        """Load the DLC: with an SDK through its `snpe-net-run` (x86 CPU runtime), else on the wheel's HTP emulator."""
        return edge.EdgeSession(self._load_dlc(artefact), artefact)

    def constant_outputs(self, artefact: Artefact) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return the outputs that no input decides."""
        return edge.constants(artefact)

    def _load_dlc(self, artefact: Artefact) -> Session:
        edges = {side: tuple(artefact.fact(side).split("\n")) for side in ("nhwc_inputs", "nhwc_outputs")}
        tool = net_run()
        if tool is not None:
            return SnpeSession(tool, artefact.main_file, **edges)
        from compilers.qnn.dlc_session import DlcSession, compose

        chip = {key: artefact.fact(key) for key in ("soc_model", "vtcm_mb", "optimisation_mode")}
        graph = compose(artefact.main_file, **chip)
        graph.finalize()
        return DlcSession(graph, artefact.main_file, **edges)

    def estimate(self, artefact: Artefact) -> Estimate:
        """Return the compiler's simulation of the graph that the DLC holds."""
        return simulation.estimate(artefact)

    def placement(self, artefact: Artefact) -> Placement:
        """Return the units of the session that wrote the DLC; the layout's own Transposes included."""
        return read_partitioning(artefact.directory / simulation.PLACEMENT_FILE).placement


def net_run() -> Path | None:
    """Return the SDK's `snpe-net-run` for this machine, or None."""
    roots = [Path(os.environ[name]) for name in SDK_VARIABLES if os.environ.get(name)]
    tools = (root / _HOST_TOOLS / NET_RUN for root in roots)
    return next((tool for tool in tools if os.access(tool, os.X_OK)), None)


def _why_no_sdk() -> str | None:
    """Say what is wrong with the SDK that the environment names."""
    if net_run() is not None:
        return None
    set_here = [f"{name}={os.environ[name]}" for name in SDK_VARIABLES if os.environ.get(name)]
    return (
        f"{NET_RUN} is not in {_HOST_TOOLS} below {' or '.join(set_here)}; set it to the root of an SDK, or unset it "
        "to run on the wheel's HTP emulator"
    )


def _write_dlc(graph: Graph, model: Path, out_dir: Path, chip: Target) -> Partitioning:
    """Let the IR library write the DLC, and refuse unless the one file holds the whole graph."""
    dump, log = out_dir / "dlc", out_dir / "dlc.log"
    dump.mkdir()
    # ep.context_enable must stay off: with it the DLC is written and the session then fails.
    options = {
        **chip.provider_options(),
        "dump_qnn_ir_dlc": "1",
        "dump_qnn_ir_dlc_dir": str(dump),
        "qnn_ir_backend_path": str(wheel.library(wheel.IR_LIBRARY)),
    }
    found = partitioning(npu_session(model, options, log=log), log, graph)
    require_npu(found, log, options)
    written = sorted(dump.glob("*.dlc"))
    left = found.left_out()
    if left or len(written) != 1:
        why = f"; the first is {left[0]}: {found.placement.reasons[left[0]]}" if left else ""
        raise CompilerError(
            f"a DLC must hold the whole segment, but {len(left)} nodes were left out and {len(written)} "
            f"files written{why}; split the graph there, or use ort_qnn",
            nodes={name: found.placement.reasons[name] for name in left},
        )
    written[0].rename(out_dir / DLC_FILE)
    dump.rmdir()
    return found


def _simulate(graph: Graph, model: Path, out_dir: Path, chip: Target) -> None:
    """Compile the same graph for the chip; only the profile is kept: the runtime prepares the DLC itself."""
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".context-") as folder:
        compile_context(graph, model, Path(folder), chip.provider_options())
        for name in (simulation.PROFILE_FILE, LOG_FILE):
            shutil.move(Path(folder) / name, out_dir / name)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
