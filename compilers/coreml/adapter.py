"""Core ML for Apple devices: the CPU, the GPU or the Neural Engine of an iPhone or a Mac.

Needs: coremltools 9 (Linux or macOS; its Linux build compiles and cannot run) and onnxruntime.
Artefacts: model.mlpackage (the same bytes each time), work.json (what the latency model reads); on the Mac that
    the device file describes also placement.json (Core ML's own plan).
Environment: nothing.

Options of a segment:
    target: iOS16, iOS17, iOS18 or iOS26; int8 needs iOS17, `compress` may need more; the default is what is needed,
        iOS17 at least.
    compute: fp16 or fp32, the arithmetic between the 8-bit operations of an int8 graph; the default is fp16 on the
        Neural Engine, which has no fp32, and fp32 elsewhere.
    compress: a method of compilers/coreml/compress.py (w8, w4, palette4, prune75, w8a8, ...) for a float graph.
    samples: feeds for the activation ranges of w8a8: the first of the segment's feeds (default: all of them), or
        without such random ones with seeds 0, 1, ... (default: 4), which are right for cost, not for accuracy.

On Linux an artefact runs by MIL's documented semantics, not on Apple's kernels: right for checking a conversion,
meaningless in its times. Latency is modelled on the few points that Apple has published. On a Mac, a device file with
`os = "macos"` and `ids.coreml.chip` of its chip ("m4") makes it run and be timed there; our CI has no Mac.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, ClassVar, Final

from compilers.adapter import (
    Action,
    Compiler,
    CompilerError,
    Variant,
    distribution_version,
    library_hash,
    missing_package,
    package_dir,
)
from compilers.coreml import latency, mac
from compilers.coreml.work import Work, count_work
from compilers.machine import cpu
from compilers.ort_session import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compilers.adapter import Session
    from compilers.artefact import Artefact, Estimate, Placement
    from graphs import Graph
    from partition import Device, Segment

PACKAGE: Final = "model.mlpackage"
WORK_FILE: Final = "work.json"
PLAN_FILE: Final = "placement.json"
RUNS_ON: Final = "MIL semantics, not Apple kernels"
APPLE_SYSTEMS: Final = ("ios", "ipados", "macos", "tvos", "visionos", "watchos")
DEFAULT_TARGET: Final = "iOS17"


class CoreMLCompiler(Compiler):
    """The strict ONNX -> MIL lowering and coremltools' backend."""

    name: ClassVar[str] = "coreml"

    def why_not(self, action: Action, device: Device, processor: str) -> str | None:
        """Return None when a package can be made and checked here; an estimate needs points for the chip."""
        if device.os not in APPLE_SYSTEMS:
            return f"Core ML runs on Apple devices only, and {device.title} is none; use --device a17_pro"
        reason = missing_package("coremltools", "coremltools==9.0") or missing_package("onnxruntime", "onnxruntime")
        if reason is None and action is Action.ESTIMATE:
            return latency.why_not(next((p for p in device.processors if p.name == processor), None))
        return reason

    def is_timed(self, device: Device, processor: str) -> bool:
        """Tell whether the device is the Mac that this runs on."""
        return mac.is_this_mac(device, processor)

    def machine(self, device: Device, processor: str) -> str:
        """Return this Mac's CPU, which names its chip, where the device is such a Mac."""
        return cpu() if self.is_timed(device, processor) else ""

    def version(self) -> str:
        """Return the versions of coremltools and ONNX Runtime, with a hash of coremltools' libraries and ours."""
        vendor = package_dir("coremltools")
        libraries = sorted(vendor.glob("*.so")) if vendor else []
        own = package_dir("compilers")
        sources = sorted((own / "coreml").rglob("*.py")) if own else []
        return (
            f"coremltools {distribution_version('coremltools')} onnxruntime {distribution_version('onnxruntime')} "
            f"{library_hash(*libraries, *sources)}"
        )

    def variants(self, precision: str, device: Device, processor: str) -> tuple[Variant, ...]:  # noqa: ARG002
        """List every compression of a float16 package: the precision that all of Apple's processors have."""
        from compilers.coreml.compress import METHODS

        compressed = (
            Variant(options=(("compress", name),), reads_feeds=method.activations) for name, method in METHODS.items()
        )
        return (Variant(), *(compressed if precision == "fp16" else ()))

    def unsupported(self, graph: Graph) -> Mapping[str, str]:
        """Map each node whose operator has no lowering to the reason."""
        from compilers.coreml.lower import node_refusals

        return node_refusals(graph)

    def defaults(self, segment: Segment) -> Mapping[str, str]:
        """Map each option to its default; "" leaves the choice to the lowering."""
        return {"compute": _default_compute(segment), "compress": "", "target": "", "samples": ""}

    def check_request(self, segment: Segment) -> None:
        """Refuse a precision that the processor does not have, and an option that there is not."""
        read_options(segment, backend=self.name, defaults=self.defaults(segment))
        compute_precision(segment)

    def compile(self, segment: Segment, out_dir: Path) -> Artefact:
        """Lower, compress, write the package, read it back with the independent reader, prove it, note the work."""
        from compilers.coreml.build import build

        compute = compute_precision(segment)
        processor = segment.device.processor(segment.processor)
        unit = mac.UNITS[processor.kind] if mac.is_this_mac(segment.device, segment.processor) else ""
        target = mac.PLANNED_TARGET if unit else DEFAULT_TARGET
        built = build(segment, out_dir / PACKAGE, compute=compute, default_target=target)
        planned = self._plan(out_dir, unit, processor.kind) if unit else ()
        (out_dir / WORK_FILE).write_text(count_work(segment.graph).to_json(), encoding="utf-8")
        return self.made(
            segment,
            out_dir,
            files=(PACKAGE, WORK_FILE, *planned),
            delivered=(PACKAGE,),
            precision=built.arithmetic,
            facts=(
                ("runs_on", f"this Mac, {unit}" if unit else RUNS_ON),
                ("mac_unit", unit),
                ("compute", compute),
                ("dram_bytes", str(_dram_bytes(segment, out_dir / PACKAGE))),
                *built.facts(),
                *latency.facts(processor),
            ),
        )

    def _plan(self, out_dir: Path, unit: str, kind: str) -> tuple[str, ...]:
        """Keep Core ML's own plan of the package on this Mac."""
        from compilers.coreml.lint import node_of
        from compilers.coreml.package import read_package

        plan = mac.ask_plan(out_dir / PACKAGE, unit, out_dir)
        program = read_package(out_dir / PACKAGE)
        names = {name: node_of(name, program) for name in plan.units}
        mac.write_plan(mac.by_node(plan, names, kind), out_dir / PLAN_FILE)
        return (PLAN_FILE,)

    def load(self, artefact: Artefact) -> Session:
        """Load the package on this Mac when it was compiled for it, else into the MIL executor (times mean nothing)."""
        unit = artefact.fact("mac_unit")
        if unit and sys.platform == "darwin":
            return mac.open_session(artefact.main_file, unit)
        from compilers.coreml.session import EmulatedSession

        return EmulatedSession(artefact.main_file)

    def placement(self, artefact: Artefact) -> Placement:
        """Return the plan that Core ML made on a Mac; elsewhere nothing is known, and a lint is no placement."""
        plan = artefact.directory / PLAN_FILE
        if not plan.exists():
            raise CompilerError(
                f"Core ML decides on the device where nodes run; {artefact.main_file.name} was not planned on one. "
                f"Its lint: {artefact.fact('lint', 'none')}; see `python -m compilers.coreml`"
            )
        return mac.read_plan(plan)

    def estimate(self, artefact: Artefact) -> Estimate:
        """Model the latency from the counted work and the points published for the chip."""
        work = Work.from_json((artefact.directory / WORK_FILE).read_text(encoding="utf-8"))
        estimate = latency.estimate(work, chip=artefact.fact("chip"), precision=artefact.precision)
        return dataclasses.replace(estimate, dram_bytes=int(artefact.fact("dram_bytes")))


def _dram_bytes(segment: Segment, package: Path) -> int:
    """Count the package's weights, compressed as they lie there, and the graph's inputs and outputs, each once.

    Since iOS 17 the Neural Engine decompresses weights while it uses them (Apple, coremltools guide,
    opt-palettization-perf).
    """
    weights = package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    ports = (*segment.graph.inputs(), *segment.graph.outputs())
    return (weights.stat().st_size if weights.exists() else 0) + sum(spec.size_bytes or 0 for spec in ports)


def _on_npu(segment: Segment) -> bool:
    return segment.device.processor(segment.processor).kind == "npu"


def _default_compute(segment: Segment) -> str:
    return segment.precision if segment.precision != "int8" else ("fp16" if _on_npu(segment) else "fp32")


def compute_precision(segment: Segment) -> str:
    """Return "fp16" or "fp32", the arithmetic of the float operations.

    Raises:
        CompilerError: the option is unknown, contradicts the precision, or the processor cannot do it.
    """
    compute = segment.option("compute", _default_compute(segment))
    if compute not in ("fp16", "fp32"):
        raise CompilerError(f"option compute={compute!r} is not fp16 or fp32")
    if segment.precision not in ("int8", compute):
        raise CompilerError(f"option compute={compute} contradicts precision {segment.precision}")
    if compute == "fp32" and _on_npu(segment) and segment.precision == "fp32":
        raise CompilerError("the Neural Engine computes in fp16 and int8 only; ask for fp16, or for the CPU or GPU")
    return compute
