"""Prove right after writing that a package computes its graph: an independent reader, every weight, every kernel.

The proof runs the saved package on one seeded feed and compares with ONNX Runtime without optimisations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.session import EmulatedSession
from graphs import random_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compilers.coreml.package import Program
    from graphs import Graph

Array = np.ndarray[Any, Any]

PROOF_SEED: Final = 0
# float32 sums in another order; ResNet-50 is at 4e-7.
EXACT_ERROR: Final = 1e-3


def check_package(path: Path) -> EmulatedSession:
    """Read a package back and return it ready to run.

    Raises:
        CompilerError: it is damaged, or it holds what the executor could not check.
    """
    return EmulatedSession(path)


def count_operations(program: Program) -> int:
    """Count the operations that run: without constants and their decompression."""
    return sum(o.type != "const" and not o.type.startswith("constexpr_") for o in program.operations)


def prove(session: EmulatedSession, graph: Graph, model_file: Path, *, exact: bool) -> float:
    """Run package and graph on the same seeded feed; return the relative error of the float outputs (L2).

    `exact` says that nothing was rounded or compressed, so that the two must agree.

    Raises:
        CompilerError: the package fails, or is `exact` and differs.
    """
    feed = random_inputs(graph, PROOF_SEED)
    got, wanted = session.run(feed), _reference(model_file, feed)
    error = relative_error(got, wanted)
    if exact and not error <= EXACT_ERROR:
        raise CompilerError(
            f"the package differs from its graph by {error:.2g} (relative L2) on the seeded feed, more than the "
            f"{EXACT_ERROR:g} that float32 allows; this is a bug of our lowering or of coremltools: please report it"
        )
    return error


def relative_error(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Return |got - wanted| / |wanted| over all float outputs; equal infinities count as equal."""
    difference, size = 0.0, 0.0
    for name, reference in wanted.items():
        if reference.dtype.kind == "f":
            a, b = got[name].astype(np.float64), reference.astype(np.float64)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            difference += float(np.sum(np.square(a - b, where=~same, out=np.zeros_like(a))))
            size += float(np.sum(np.square(b, where=np.isfinite(b), out=np.zeros_like(b))))
    return float(np.sqrt(difference / size)) if size else float(np.sqrt(difference))


def _reference(model_file: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, map(np.asarray, session.run(names, dict(feed))), strict=True))
    except Exception as error:
        raise CompilerError(f"ONNX Runtime, our reference, cannot run {model_file.name}: {error}") from error
