"""ONNX Runtime on a CPU: the baseline, and the host's latency.

Needs: onnxruntime.
Artefacts: optimised.onnx (the graph after ONNX Runtime's optimiser: for the instruction set of this machine when
    the device is the host, else without the layouts that depend on one; weights above 1 KB beside it in
    optimised.data), placement.json.
Environment: nothing.

Options of a segment: `threads` (intra-op threads, default 1).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from compilers.adapter import (
    Action,
    Compiler,
    distribution_version,
    library_hash,
    missing_package,
    not_over_rpc,
    package_dir,
)
from compilers.artefact import Artefact, Placement
from compilers.ort_session import (
    OrtSession,
    assigned_units,
    cpu_session,
    positive_int,
    read_options,
    require_precision,
    session_options,
    source_names,
)
from compilers.profile import KernelTime, shortest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import onnxruntime as ort

    from compilers.adapter import Session
    from graphs import Node
    from partition import Device, Segment

_BLOCKED: Final = "_nchwc"
_KERNEL_EVENT: Final = "_kernel_time"
_UNITS: Final = {"CPUExecutionProvider": "cpu"}
_DEFAULTS: Final = {"threads": "1"}
_REFUSED: Final = {
    "fp16": "its CPU kernels compute in float32, so it would only insert casts; ask for fp32 or int8",
}


class _ElsewhereSession(OrtSession):
    """The same kernels on another CPU than the one asked for: outputs to check, no times."""

    on_device: ClassVar[bool] = False


class OrtCpuCompiler(Compiler):
    """ONNX Runtime's CPU execution provider."""

    name: ClassVar[str] = "ort_cpu"

    def why_not(self, action: Action, device: Device, processor: str) -> str | None:
        """Return None for a CPU: this machine's is measured, another's gets its artefact and its outputs here."""
        if device.processor(processor).kind != "cpu":
            return f"ort_cpu runs on a CPU; for the {processor} of {device.name} choose another backend"
        if device.address is not None:
            return not_over_rpc(device, self.name)
        if action is Action.ESTIMATE:
            return "ort_cpu has no cost model; it is measured by running"
        return missing_package("onnxruntime", "onnxruntime")

    def version(self) -> str:
        """Return the version of onnxruntime and the hash of its native module."""
        folder = package_dir("onnxruntime")
        natives = sorted((folder / "capi").glob("onnxruntime_pybind11_state*")) if folder else []
        return f"onnxruntime-{distribution_version('onnxruntime')}+{library_hash(*natives)}"

    def defaults(self, segment: Segment) -> Mapping[str, str]:  # noqa: ARG002
        """Map the only option, the number of threads, to its default."""
        return _DEFAULTS

    def check_request(self, segment: Segment) -> None:
        """Refuse fp16, and a precision that the graph contradicts."""
        _checked(segment)

    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Write the graph as ONNX Runtime optimises it for this machine, and where its nodes went."""
        threads = _checked(segment)
        main_file = out_dir / "optimised.onnx"
        config = session_options(threads=threads)
        config.graph_optimization_level = _optimisation_level(segment.device)
        config.optimized_model_filepath = str(main_file)
        config.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.data")
        session = cpu_session(out_dir / "segment.onnx", config)
        nodes = assigned_units(session, _UNITS)
        names = source_names((name for name, _, _ in nodes), {n.name for n in segment.graph.nodes()})
        units = {names[name]: unit for name, _, unit in nodes}
        (out_dir / "placement.json").write_text(json.dumps({"units": units}, indent=1), encoding="utf-8")
        files = tuple(n for n in ("optimised.onnx", "optimised.data", "placement.json") if (out_dir / n).exists())
        return self.made(
            segment,
            out_dir,
            files=files,
            facts=(
                ("threads", str(threads)),
                ("nodes_after_optimisation", str(len(nodes))),
                (
                    "runs_on",
                    "this machine" if segment.device.os == "host" else "ONNX Runtime's kernels on this machine",
                ),
            ),
        )

    def load(self, artefact: Artefact) -> Session:
        """Load the optimised graph as it is, with the threads it was compiled for."""
        import onnxruntime as ort

        options = session_options(threads=int(artefact.fact("threads")))
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = cpu_session(artefact.main_file, options)
        return OrtSession(session) if artefact.device == "host" else _ElsewhereSession(session)

    def profile(
        self, artefact: Artefact, inputs: Mapping[str, np.ndarray[Any, Any]], runs: int
    ) -> tuple[KernelTime, ...]:
        """Read ONNX Runtime's own profile; what it fused is followed back to the operator that it kept."""
        import onnxruntime as ort

        from graphs import load

        nodes = load(artefact.directory / "segment.onnx").nodes()
        with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
            options = session_options(threads=int(artefact.fact("threads")))
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = cpu_session(artefact.main_file, options)
            for _ in range(runs):
                session.run(None, dict(inputs))
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return shortest(_runs_of(events, nodes))

    def placement(self, artefact: Artefact) -> Placement:
        """Return the units that the session itself reported when it had partitioned the graph."""
        text = (artefact.directory / "placement.json").read_text(encoding="utf-8")
        return Placement(units=json.loads(text)["units"])


def _checked(segment: Segment) -> int:
    """Return the threads that a segment asks for.

    Raises:
        CompilerError: its precision or an option is none of this backend.
    """
    require_precision(segment, backend=OrtCpuCompiler.name, refused=_REFUSED)
    options = read_options(segment, backend=OrtCpuCompiler.name, defaults=_DEFAULTS)
    return positive_int(options["threads"], "option threads")


def _runs_of(events: list[dict[str, Any]], nodes: Sequence[Node]) -> tuple[tuple[KernelTime, ...], ...]:
    """Sort the events of kernels into runs, by the event that closes each.

    A kernel on blocks of channels has the name of its output and `_BLOCKED`.
    """
    known = {node.name: node for node in nodes}
    makers = {output: node for node in nodes for output in node.outputs}
    runs: list[tuple[KernelTime, ...]] = []
    kernels: list[KernelTime] = []
    for event in sorted(events, key=lambda e: (float(e["ts"]) + float(e.get("dur", 0)), e["name"] == "model_run")):
        if event["name"] == "model_run":
            runs.append(tuple(kernels))
            kernels = []
        elif event["name"].endswith(_KERNEL_EVENT):
            name = event["name"].removesuffix(_KERNEL_EVENT)
            operator = str(event["args"]["op_name"])
            last = makers.get(name.removesuffix(_BLOCKED)) or known.get(source_names([name], known)[name])
            kernels.append(
                KernelTime(
                    kernel=operator,
                    nodes=_fused(last, operator, makers) if last else (),
                    time_s=max(float(event["dur"]), 0.5) * 1e-6,  # whole microseconds: 0 is less than half of one
                )
            )
    return tuple(runs)


def _fused(last: Node, operator: str, makers: Mapping[str, Node]) -> tuple[str, ...]:
    """Name the nodes from the one of that operator to `last`, along first inputs; `last` alone when there is none."""
    chain = [last]
    while chain[0].op_type != operator and chain[0].inputs and chain[0].inputs[0] in makers:
        chain.insert(0, makers[chain[0].inputs[0]])
    return tuple(node.name for node in chain) if chain[0].op_type == operator else (last.name,)


def _optimisation_level(device: Device) -> ort.GraphOptimizationLevel:
    """The last level lays tensors out for the machine that optimises, so it is for the host alone."""
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    return levels.ORT_ENABLE_ALL if device.os == "host" else levels.ORT_ENABLE_EXTENDED
