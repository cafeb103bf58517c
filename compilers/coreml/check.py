"""Prove right after writing that a package computes its graph: an independent reader, every weight, every kernel.

The proof runs the saved package on one seeded feed and compares with ONNX Runtime without optimisations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.session import EmulatedSession
from compilers.ort_session import reference_session
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
# Kernels of sigmoid and the like work around 0.5, so outputs far below 1 carry its last bits (6e-8) as absolute error.
EXACT_DIFFERENCE: Final = 1e-6


def check_package(path: Path) -> EmulatedSession:
    """Read a package back and return it ready to run.

    Raises:
        CompilerError: it is damaged, or it holds what the executor could not check.
    """
    return EmulatedSession(path)


def count_operations(program: Program) -> int:
    """Count the operations that run: without constants and their decompression."""
    return sum(o.type != "const" and not o.type.startswith("constexpr_") for o in program.operations)


def prove(session: EmulatedSession, graph: Graph, *, exact: bool) -> float | None:
    """Run package and graph on the same seeded feed; return the relative error of the float outputs (L2).

    None when the reference itself cannot run the seeded feed (a random index outside its table, say). `exact` says
    that nothing was rounded or compressed, so that the two must agree.

    Raises:
        CompilerError: the package fails, or is `exact` and differs.
    """
    feed = random_inputs(graph, PROOF_SEED)
    with reference_session(graph) as reference:
        try:
            wanted = reference.run(feed)
        except Exception:  # noqa: BLE001 - ONNX Runtime's errors share no class; the caller reports the missing proof
            return None
    got = session.run(feed)
    error = relative_error(got, wanted)
    if exact and not error <= EXACT_ERROR and not _greatest_difference(got, wanted) <= EXACT_DIFFERENCE:
        raise CompilerError(
            f"the package differs from its graph by {error:.2g} (relative L2) on the seeded feed, more than the "
            f"{EXACT_ERROR:g} that float32 allows; this is a bug of our lowering or of coremltools: please report it"
        )
    return error


def _greatest_difference(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    floats = [name for name, array in wanted.items() if array.dtype.kind == "f" and array.size]
    return max((float(np.max(np.abs(got[n].astype(np.float64) - wanted[n]))) for n in floats), default=0.0)


def relative_error(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Return |got - wanted| / |wanted| over all float outputs; equal infinities count as equal."""
    difference, size = 0.0, 0.0
    for name, reference in wanted.items():
        if reference.dtype.kind == "f":
            a, b = got[name].astype(np.float64), reference.astype(np.float64)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            with np.errstate(invalid="ignore"):  # inf - inf, where both are the same
                difference += float(np.sum(np.square(np.where(same, 0, a - b))))
            size += float(np.sum(np.square(b[np.isfinite(b)])))
    return float(np.sqrt(difference / size)) if size else float(np.sqrt(difference))
