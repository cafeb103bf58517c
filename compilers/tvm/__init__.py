"""Apache TVM for CPUs and vector units: Relax import, NHWC layout, fusion, a tile for each fused function, LLVM.

On this machine's CPU the tiles are measured and the code runs. For a processor whose device file says what TVM
generates for it (`targets`) there is an artefact, with tiles chosen by model alone (`foreign`; for a GPU `gpu`). A
GPU's artefact is estimated from its kernels' code where the device has a fit to measured rows, and runs where the
device is this machine (`host_gpu`) and OpenCL answers.

Needs: apache-tvm with an apache-tvm-ffi that can serialise its IR (`_FFI_PINS`), onnxruntime (reference for the
    check of the whole model). For this machine's GPU pyopencl (extra opencl); for PTX cuda-bindings (extra cuda).
Artefacts: model.so (without a C++ compiler: model.vm and code*.ll, which load in seconds), functions.json (how
    each fused function was built, and its time), placement.json. For another machine model.so where its linker is
    on the PATH (ld.lld, or aarch64-linux-gnu-gcc), else model.tar with its object files, and static facts of the code
     in functions.json. For a GPU also the source of its kernels (kernels.cl, .metal, .cu; kernels.ptx where NVRTC is
     installed) and kernels.json with the tile of each function and the static facts of each kernel; for this machine's
     GPU program.json and weights.npz, the order of the calls and the constants, because the wheel of TVM has no runtime
     for OpenCL.
Environment: EDGEFRONTIER_CACHE, the folder of the tile cache (default ~/.cache/edgefrontier); TVM_NUM_THREADS is
    set from the option `threads`, because TVM's own default is one thread.

Tiles of a segment: on a CPU or a vector unit the fields of `tiles.TileConfig`, or the x, y, k and c of
    `partition.tile.NpuTile`, which become an outer block; on a GPU the fields of `partition.tile.GpuTile`; for the
    function that holds the node.
Options of a segment: `threads` (default 1), `sweep` (tile candidates tried for each function, default 2), `tune`
    (schedules tried for each function that takes time, default 0: no more than the sweep; the first 16 of a function
    that has tiles are tiles, a tenth of a second each, the others MetaSchedule's, half a second each). Of a GPU:
    `textures` (default 0; 1: tensors between OpenCL kernels are images where they can be, `textures.py`).

Only this file is imported without TVM; the others of the folder import it, so methods import them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from compilers import child
from compilers.adapter import (
    Action,
    Compiler,
    CompilerError,
    Session,
    StartError,
    Variant,
    distribution_version,
    library_hash,
    missing_package,
    package_dir,
)
from compilers.artefact import Artefact, Placement
from compilers.ort_session import positive_int, read_options, require_precision
from compilers.tvm.refusals import prepare
from partition import Address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy as np

    from compilers.artefact import Estimate
    from compilers.profile import KernelTime
    from compilers.tvm.cache import Decision
    from compilers.tvm.opencl import OpenClSession
    from compilers.tvm.pipeline import Built
    from graphs import Graph
    from partition import Device, Segment

# Newer ffi releases satisfy the wheel's own requirement and crash when TIR is serialised (docs/vendor_bugs.md).
_FFI_PINS: Final = {"0.27.0.post1": ("0.1.14.post1", "0.1.14.post0")}
_REFUSED: Final = {"fp16": "its code for CPUs computes in float32 only; ask for fp32 or int8"}
_GPU_KINDS: Final = ("opencl", "metal", "cuda")
# Largest difference over the largest value of the reference, for a model whose sums are float16.
_TOLERANCES_GPU: Final = {"fp16": 0.05}
_OPENCL: Final = "opencl"  # the fact that the kernels run here, with the names of inputs and outputs
_DEFAULTS: Final = {"threads": "1", "sweep": "2", "tune": "0"}
_GPU_DEFAULTS: Final = {"textures": "0"}
_SWEPT_TRIALS: Final = "16"
_ANSWER_S: Final = 60.0


class TvmCompiler(Compiler):
    """Apache TVM, Relax, for every processor whose device file says what TVM generates for it."""

    name: ClassVar[str] = "tvm"
    takes_tiles: ClassVar[bool] = True

    def why_not(self, action: Action, device: Device, processor: str) -> str | None:
        """Return None for compiling where the device file names a target, and for running on this machine's CPU."""
        reason = _no_target(device, processor)
        if reason is not None:
            return reason
        if action is Action.ESTIMATE:
            return _no_estimate(device, processor)
        if _is_gpu(device, processor):
            reason = _no_opencl(action, device, processor)
            if reason is not None:
                return reason
        elif action is Action.RUN and device.os != "host" and device.address is None:
            return (
                f"code for the {processor} of {device.name} does not run on this machine; with a TVM RPC server there "
                f"give --device rpc://HOST:PORT/KEY?device={device.name}"
            )
        return missing_package("tvm", "apache-tvm") or _wrong_ffi() or missing_package("onnxruntime", "onnxruntime")

    def version(self) -> str:
        """Return the versions of the TVM and ffi wheels and a hash of their libraries."""
        folders = [folder / "lib" for name in ("tvm", "tvm_ffi") if (folder := package_dir(name))]
        names = ("libtvm_compiler.*", "libtvm_runtime.*", "libtvm_ffi.*")
        libraries = sorted(path for folder in folders for name in names for path in folder.glob(name))
        versions = f"{distribution_version('apache-tvm')}-ffi-{distribution_version('apache-tvm-ffi')}"
        return f"apache-tvm-{versions}+{library_hash(*libraries)}"

    def machine(self, device: Device, processor: str) -> str:
        """Name this machine's CPU, or the OpenCL device that answers with its driver."""
        if device.os == "host" and _is_gpu(device, processor):
            return _opencl_device()
        return super().machine(device, processor)

    def variants(self, precision: str, device: Device, processor: str) -> tuple[Variant, ...]:  # noqa: ARG002
        """List the plain way and, where both are measured, another: MetaSchedule, which takes minutes, or textures."""
        if device.os != "host":
            return (Variant(),)
        other = ("textures", "1") if _is_gpu(device, processor) else ("tune", _SWEPT_TRIALS)
        return (Variant(), Variant(options=(other,)))

    def unsupported(self, graph: Graph) -> Mapping[str, str]:
        """Map each node that TVM's importer lacks or misreads, and that nothing it takes can replace, to its reason."""
        return prepare(graph).refused

    def defaults(self, segment: Segment) -> Mapping[str, str]:
        """Map each option of a CPU's code, or of a GPU's, to its default."""
        return _GPU_DEFAULTS if _is_gpu(segment.device, segment.processor) else _DEFAULTS

    def check_request(self, segment: Segment) -> None:
        """Refuse a precision that the generated code does not have."""
        gpu = _is_gpu(segment.device, segment.processor)
        require_precision(segment, backend=self.name, refused={} if gpu else _REFUSED)
        if gpu:
            _asks_for_textures(segment)
        else:
            read_options(segment, backend=self.name, defaults=_DEFAULTS)

    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Import, tune, build, check every function and then the whole model, and export."""
        if _is_gpu(segment.device, segment.processor):
            return self._compile_gpu(segment, out_dir)
        self.check_request(segment)
        options = read_options(segment, backend=self.name, defaults=_DEFAULTS)
        threads = positive_int(options["threads"], "option threads")
        candidates = positive_int(options["sweep"], "option sweep")
        trials = 0 if options["tune"] == "0" else positive_int(options["tune"], "option tune")

        if child.serving:
            _import_with(TVM_DEVICE_BACKEND_AUTOLOAD="0")  # without what it has for GPUs
        from compilers.tvm import foreign, library, pipeline, runtime, targets
        from compilers.tvm.check import check_model

        runtime.use_threads(threads)
        native = targets.is_native(segment.device.processor(segment.processor).ids["tvm"])
        if native:
            built = pipeline.build(segment, self.version(), threads=threads, candidates=candidates, trials=trials)
            files = library.export(built.executable, out_dir)
        elif trials:
            raise CompilerError(
                "option tune times schedules on this machine, and this is code for another; leave it out (tune=0)"
            )
        else:
            built = pipeline.build_elsewhere(segment, self.version(), threads=threads)
            files = foreign.export(built.executable, out_dir, built.triple)
        _write_json(out_dir / "functions.json", [_row(*item, built) for item in built.decisions.items()])
        kind = segment.device.processor(segment.processor).kind
        _write_json(out_dir / "placement.json", {"units": {node.name: kind for node in segment.graph.nodes()}})
        files = (*files, "functions.json", "placement.json")
        artefact = self.made(
            segment,
            out_dir,
            files=files,
            facts=(
                *_facts(segment, built.decisions),
                *_integer_facts(segment, built.integer_macs),
                *built.facts,
                ("threads", str(threads)),
                *_whereabouts(segment.device),
            ),
        )
        with runtime.load(artefact) if native else runtime.session(built.check, artefact) as session:
            agreement = check_model(segment.graph, out_dir / "segment.onnx", session)
        return _with_facts(artefact, ("relative_error", f"{agreement.relative_max:.3g}"))

    def _compile_gpu(self, segment: Segment, out_dir: Path) -> Artefact:
        self.check_request(segment)

        from compilers.tvm import gpu
        from compilers.tvm.gpu_code import Work, check_textures

        textures = _asks_for_textures(segment)
        built = gpu.build(segment, textures=textures)
        # The model of a kernel's cost knows buffers only.
        machine = None if textures else gpu.machine_of(segment)
        ptx, told = gpu.export_ptx(built, out_dir) if built.kind == "cuda" else ((), "")
        files = (*gpu.export(built, out_dir), *ptx, "kernels.json", "placement.json")
        _write_json(out_dir / "kernels.json", [function.to_json(machine) for function in built.functions])
        _write_json(out_dir / "placement.json", {"units": {node.name: "gpu" for node in segment.graph.nodes()}})
        untiled = [f"{f.name} ({f.rule})" for f in built.functions if f.tile is None]
        work = Work.of(built.functions, machine) if machine else None
        artefact = self.made(
            segment,
            out_dir,
            files=files,
            facts=(
                ("target", built.kind),
                ("functions", str(len(built.functions))),
                ("functions_without_tile", " ".join(untiled)),
                *_integer_facts(segment, built.integer_macs),
                *(check_textures(built.source(), built.functions) if textures else ()),
                *(work.to_facts() if work else ()),
            ),
        )
        if segment.device.os == "host":
            return self._tried(artefact, segment, gpu.export_for_opencl(built, out_dir))
        told = told or "not"
        return _with_facts(artefact, ("checked", f"{told}: nothing here runs them; tests run OpenCL kernels on PoCL"))

    def _tried(self, artefact: Artefact, segment: Segment, files: tuple[str, ...]) -> Artefact:
        """Run a GPU's artefact on the OpenCL device of this machine: which one it is, and whether it computes right."""
        from compilers.tvm.check import check_model

        names = [[spec.name for spec in specs] for specs in (segment.graph.inputs(), segment.graph.outputs())]
        artefact = _with_facts(
            dataclasses.replace(artefact, files=(*artefact.files, *files)), (_OPENCL, json.dumps(names))
        )
        with self._on_opencl(artefact) as session:
            found, tolerance = session.found, _TOLERANCES_GPU.get(segment.precision)
            model = artefact.directory / "segment.onnx"
            agreement = check_model(segment.graph, model, session, tolerance=tolerance)
        if found.kind != "gpu":
            reason = f"the OpenCL device here is {found}"
            nodes = [node.name for node in segment.graph.nodes()]
            told = {"units": dict.fromkeys(nodes, found.kind), "reasons": dict.fromkeys(nodes, reason)}
            _write_json(artefact.directory / "placement.json", told)
        return _with_facts(
            artefact,
            ("runs_on", str(found)),
            ("relative_error", f"{agreement.relative_max:.3g}"),
        )

    def _on_opencl(self, artefact: Artefact) -> OpenClSession:
        from compilers.tvm.gpu import SOURCES
        from compilers.tvm.opencl import OpenClSession

        session = OpenClSession(artefact.directory, SOURCES["opencl"], json.loads(artefact.fact(_OPENCL)))
        was = artefact.fact("runs_on")
        if was and was != str(session.found):
            raise StartError(
                f"compiled and checked on {was}, and now {session.found} answers; delete {artefact.directory}"
            )
        return session

    def is_outdated(self, artefact: Artefact) -> bool:
        """Tell whether the device that should have timed the tiles answers now."""
        from compilers.sandbox import Limits, in_child
        from compilers.tvm import there

        try:
            in_child(there.see_answer, Address(**json.loads(artefact.fact("rpc"))), limits=Limits(time_s=_ANSWER_S))
        except CompilerError:
            return False
        return True

    def estimate(self, artefact: Artefact) -> Estimate:
        """Return the modelled latency of a GPU's artefact: its kernels' static facts, scaled by the device's fit."""
        from compilers.tvm.gpu_code import estimate

        return estimate(artefact)

    def load(self, artefact: Artefact) -> Session:
        """Load the library into a Relax virtual machine, here with the threads it was compiled for, or over RPC."""
        if "rpc" in dict(artefact.facts):
            from compilers.tvm.remote import RemoteSession

            return RemoteSession(artefact, Address(**json.loads(artefact.fact("rpc"))))
        if artefact.fact(_OPENCL):
            return self._on_opencl(artefact)
        if not artefact.fact("threads"):
            return super().load(artefact)  # another machine's GPU: says that it cannot run here

        if child.serving and artefact.main_file.suffix == ".so":
            _import_with(TVM_USE_RUNTIME_LIB="1")  # without its compiler, which is most of the import
        from compilers.tvm import runtime

        runtime.use_threads(int(artefact.fact("threads")))
        return runtime.load(artefact)

    def profile(
        self, artefact: Artefact, inputs: Mapping[str, np.ndarray[Any, Any]], runs: int
    ) -> tuple[KernelTime, ...]:
        """Time each call of a fused function from outside, and name the ONNX nodes that it computes."""
        if "rpc" in dict(artefact.facts):
            raise CompilerError(f"kernels are timed on this machine alone, not on {artefact.fact('runs_on')}")
        if artefact.fact(_OPENCL):
            with self._on_opencl(artefact) as opencl:
                return opencl.profile(inputs, runs)
        from compilers.tvm import observe, runtime

        runtime.use_threads(int(artefact.fact("threads")))
        rows = json.loads((artefact.directory / "functions.json").read_text(encoding="utf-8"))
        with runtime.load(artefact) as session:
            return observe.profile(session, inputs, {row["function"]: row["nodes"] for row in rows}, runs)

    def placement(self, artefact: Artefact) -> Placement:
        """Return the processor asked for, for every node: one library has code for nothing else."""
        text = (artefact.directory / "placement.json").read_text(encoding="utf-8")
        return Placement(**json.loads(text))


def _import_with(**settings: str) -> None:
    """Import less of TVM than `import tvm` does, in a process that does one thing, by environment variables of its own.

    Either leaves out the library of sorting and random numbers.
    """
    if "tvm" in sys.modules:
        return
    os.environ.update(settings)
    try:
        base = importlib.import_module("tvm.base")
        libinfo = importlib.import_module("tvm_ffi.libinfo")
    finally:
        for name in settings:
            del os.environ[name]
    folder = Path(base._LOADED_LIBS["tvm_runtime"]._name).resolve().parent  # noqa: SLF001 - as TVM does it
    libinfo.load_lib_ctypes("tvm", "tvm_runtime_extra", "RTLD_LOCAL", extra_lib_paths=[folder])


def _no_target(device: Device, processor: str) -> str | None:
    """Return None for a processor whose table says what TVM generates code for."""
    chosen = next((p for p in device.processors if p.name == processor), None)
    if chosen is None:
        return f"{device.name} has no processor {processor}; it has {', '.join(p.name for p in device.processors)}"
    ids = chosen.ids.get("tvm", {})
    if "kind" not in ids:
        return (
            f"the device file does not say what TVM generates for the {processor} of {device.name}; add a table "
            f"[processors.{processor}.ids.tvm] with kind (a CPU: llvm, with mtriple and mcpu; native is this machine's)"
        )
    if ids["kind"] not in ("llvm", *_GPU_KINDS):
        return f"this adapter schedules no {ids['kind']} kernels, so none for the {processor} of {device.name}"
    return None


def _is_gpu(device: Device, processor: str) -> bool:
    return device.processor(processor).ids.get("tvm", {}).get("kind") in _GPU_KINDS


@functools.cache
def _opencl_device() -> str:
    """Ask OpenCL in a process of its own, because it is the driver that answers."""
    from compilers.sandbox import Limits, in_child
    from compilers.tvm import opencl

    try:
        return in_child(opencl.answering, limits=Limits(time_s=_ANSWER_S))
    except CompilerError as error:
        return f"none: {error.reason}"


def _asks_for_textures(segment: Segment) -> bool:
    """Return what the only option of a GPU says.

    Raises:
        CompilerError: it says something else, or TVM has no textures for this GPU.
    """
    asked = read_options(segment, backend=TvmCompiler.name, defaults=_GPU_DEFAULTS)["textures"]
    if asked not in ("0", "1"):
        raise CompilerError(f"option textures must be 0 or 1, not {asked!r}")
    kind = segment.device.processor(segment.processor).ids["tvm"]["kind"]
    if asked == "1" and kind != "opencl":
        raise CompilerError(f"option textures: TVM writes them in OpenCL only, and this GPU's kernels are {kind}")
    return asked == "1"


def _no_opencl(action: Action, device: Device, processor: str) -> str | None:
    """Return None where kernels of a GPU are only built, or run through OpenCL on this machine."""
    if action is Action.RUN and device.address is not None:
        return (
            f"kernels for the {processor} of {device.name} are not sent over RPC: TVM's wheels have no runtime for "
            "OpenCL, so none could be tried; they are modelled"
        )
    if device.os != "host":
        told = f"kernels for the {processor} of {device.name} do not run on this machine; they are modelled"
        return told if action is Action.RUN else None
    kind = device.processor(processor).ids["tvm"]["kind"]
    if kind != "opencl":
        return f'{kind} kernels are not run here; for this machine\'s GPU write kind = "opencl" in the device file'
    from compilers.tvm import opencl

    return opencl.why_not()


def _no_estimate(device: Device, processor: str) -> str | None:
    if not _is_gpu(device, processor):
        return "tvm has no cost model for a CPU or a vector unit; it is measured by running"
    if device.processor(processor).tile is None:
        return (
            f"{device.name} has no figures of its GPU to model kernels with; add [processors.{processor}.tile] to its "
            "device file"
        )
    from compilers.tvm.gpu_code import fitted_precisions

    if not fitted_precisions(device.name):
        return f"no measured rows of the {processor} of {device.name} are known, to which a model could be fitted"
    return None


def _wrong_ffi() -> str | None:
    tvm, ffi = distribution_version("apache-tvm"), distribution_version("apache-tvm-ffi")
    pins = _FFI_PINS.get(tvm)
    if pins is None:
        return f"apache-tvm {tvm} is not one this adapter knows; run `pip install apache-tvm=={next(iter(_FFI_PINS))}`"
    if ffi not in pins:
        return (
            f"apache-tvm {tvm} crashes with apache-tvm-ffi {ffi} when it serialises TIR; "
            f"run `pip install --no-deps apache-tvm-ffi=={pins[0]}`"
        )
    return None


def _row(name: str, decision: Decision, built: Built) -> dict[str, Any]:
    return {
        "function": name,
        "calls": built.calls.get(name, 0),
        "nodes": built.nodes.get(name, []),
        "build": decision.build,
        "config": decision.config.to_json() if decision.config else None,
        "time_s": decision.time_s,
        "reason": decision.reason,
        "miscompiled": list(decision.miscompiled),
        "code": dict(built.code.get(name, {})),
    }


def _facts(segment: Segment, decisions: Mapping[str, Decision]) -> tuple[tuple[str, str], ...]:
    inputs = [(spec.name, spec.shape, spec.dtype) for spec in segment.graph.inputs()]
    unscheduled = [name for name, d in decisions.items() if d.build in ("plain", "safe")]
    miscompiled = [name for name, d in decisions.items() if d.miscompiled]
    facts = {
        "inputs": json.dumps(inputs),
        "outputs": json.dumps([spec.name for spec in segment.graph.outputs()]),
        "functions": str(len(decisions)),
        "functions_tuned": " ".join(name for name, d in decisions.items() if d.build == "tuned"),
        "functions_unscheduled": " ".join(unscheduled),
        "functions_miscompiled": " ".join(miscompiled),
        "functions_safe": " ".join(name for name, d in decisions.items() if d.build == "safe"),
    }
    return tuple(facts.items())


def _integer_facts(segment: Segment, integer_macs: int) -> tuple[tuple[str, str], ...]:
    """Say how much of an int8 model is computed in integers; the rest is float32 after dequantise."""
    total = segment.graph.macs
    return (("int8_macs_ratio", f"{integer_macs / total:.4g}"),) if segment.precision == "int8" and total else ()


def _whereabouts(device: Device) -> tuple[tuple[str, str], ...]:
    """Say where the artefact of a device with an address runs."""
    if device.address is None:
        return ()
    return ("runs_on", str(device.address)), ("rpc", json.dumps(dataclasses.asdict(device.address)))


def _with_facts(artefact: Artefact, *facts: tuple[str, str]) -> Artefact:
    return dataclasses.replace(artefact, facts=(*artefact.facts, *facts))


def _write_json(path: Path, content: Any) -> None:  # noqa: ANN401
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
