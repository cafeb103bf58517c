"""From a segment to a proven package: lower, convert, compress, save, read back, run once."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError
from compilers.coreml import compress as compression
from compilers.coreml.calibrate import activation_ranges
from compilers.coreml.check import check_package, count_operations, prove
from compilers.coreml.lint import lint
from compilers.coreml.lower import lower
from compilers.coreml.write import convert, package_digest, save_model
from graphs import Calibration, GraphError, random_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np

    from compilers.coreml.lower import Lowered
    from compilers.coreml.package import Program
    from partition import Segment

RANDOM_SAMPLES: Final = 4
IOS18: Final = "iOS18"
NOT_PROVEN: Final = "unknown: ONNX Runtime cannot run the seeded feed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What is known of a package once it is written and proven."""

    target: str
    arithmetic: str
    compress: str
    compressed: int
    ranges: str
    operations: int
    sha256: str
    proof_error: float | None
    proof_s: float
    lint: str

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return what an artefact keeps; `proof_error` is relative L2 to the graph in float32 or int8."""
        facts = {
            "target": self.target,
            "arithmetic": self.arithmetic,
            "operations": str(self.operations),
            "package_sha256": self.sha256,
            "proof_error": NOT_PROVEN if self.proof_error is None else f"{self.proof_error:.3g}",
            "proof_s": f"{self.proof_s:.3g}",
            "lint": self.lint,
        }
        if self.compress:
            facts["compress"] = self.compress
        if self.compressed:
            facts["compressed_weights"] = str(self.compressed)
        if self.ranges:
            facts["activation_ranges"] = self.ranges
        return tuple(facts.items())


def build(segment: Segment, package: Path, *, compute: str, default_target: str) -> Built:
    """Write the package of a segment and prove it.

    Raises:
        CompilerError: an option is wrong, or a step fails; the sentence names it.
    """
    name = segment.option("compress", "")
    chosen = compression.method(name) if name else None
    stated = segment.option("target", "") or None
    default_target = IOS18 if _has_narrow_weights(segment) else default_target
    target = stated or default_target
    if chosen is not None:
        _check(segment, chosen, compute)
        target = compression.target_for(chosen, stated, default_target)
    lowered = lower(segment.graph.proto(), target)
    model = convert(lowered, target=target, compute=compute)
    if chosen is not None:
        model = _compressed(segment, model, lowered, chosen, package)
    save_model(model, lowered, package)
    session = check_package(package)
    compressed = _count_compressed(session.program)
    if chosen is not None and not compressed:
        raise CompilerError(f"compress={name} left every weight as it was: none has 2048 elements that qualify")
    started = time.perf_counter()
    exact = compute == "fp32" and segment.precision == "fp32" and chosen is None and not _is_half(segment)
    error = prove(session, segment.graph, exact=exact)
    activations = chosen is not None and chosen.activations
    return Built(
        target=target,
        arithmetic="int8" if activations or segment.precision == "int8" else compute,
        compress=name,
        compressed=compressed,
        ranges=_ranges_from(segment) if activations else "",
        operations=count_operations(session.program),
        sha256=package_digest(package),
        proof_error=error,
        proof_s=time.perf_counter() - started,
        lint=lint(session.program).summary(),
    )


def _has_narrow_weights(segment: Segment) -> bool:
    return any(spec.dtype in ("int4", "uint4") for spec in segment.graph.initializers().values())


def _is_half(segment: Segment) -> bool:
    """Tell whether the graph itself rounds to float16, at places that ONNX Runtime and MIL choose differently."""
    return any(spec.dtype == "float16" for spec in segment.graph.tensors().values())


def _check(segment: Segment, chosen: compression.Method, compute: str) -> None:
    if segment.precision == "int8":
        raise CompilerError("compress is for a float graph; this one is quantised already (precision int8)")
    if chosen.activations and compute != "fp16":
        raise CompilerError("8-bit activations need precision fp16: coremltools 9.0 writes their scales in fp16 only")


def _compressed(segment: Segment, model: Any, lowered: Lowered, chosen: compression.Method, package: Path) -> Any:  # noqa: ANN401
    if not chosen.activations:
        return compression.compress(model, chosen)
    feeds = _feeds(segment)
    scratch = package.with_name("float.mlpackage")
    save_model(model, lowered, scratch)
    ranges = activation_ranges(check_package(scratch), feeds)
    shutil.rmtree(scratch)
    return compression.compress(model, chosen, ranges)


def _feeds(segment: Segment) -> Iterator[Mapping[str, np.ndarray[Any, Any]]]:
    """Yield the feeds that the ranges of activations come from: the user's, or random ones.

    Raises:
        CompilerError: the option is no count, or the user's data is gone or is another than the segment names.
    """
    asked = segment.option("samples", "")
    if asked and (not asked.isdecimal() or not int(asked)):
        raise CompilerError(f"option samples={asked!r} is no count of feeds")
    if segment.feeds is None:
        return (random_inputs(segment.graph, seed) for seed in range(int(asked or RANDOM_SAMPLES)))
    try:
        calibration = Calibration.from_path(segment.graph, segment.feeds.path)
    except GraphError as error:
        raise CompilerError(f"no ranges for the activations: {error}") from error
    if calibration.digest != segment.feeds.digest:
        raise CompilerError(f"the calibration data at {segment.feeds.path} has changed since this was asked for")
    return itertools.islice(calibration, int(asked) if asked else None)


def _ranges_from(segment: Segment) -> str:
    """Say what the ranges of activations came from."""
    asked = segment.option("samples", "")
    if segment.feeds is None:
        return f"{asked or RANDOM_SAMPLES} random feeds: they tell cost, not accuracy"
    return f"{asked or 'all'} feeds of {segment.feeds.path}"


def _count_compressed(program: Program) -> int:
    return sum(o.type.startswith("constexpr_") and o.type != "constexpr_cast" for o in program.operations)
