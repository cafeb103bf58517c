"""The whole model against ONNX Runtime: the last word on whether an artefact is right."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.ort_session import cpu_session, reference_session, session_options
from graphs import compare, random_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from compilers.adapter import Session
    from graphs import Graph, OutputError

FLOAT_TOLERANCE: Final = 1e-3
"""Largest difference over the largest value of the reference."""
HALF_TOLERANCE: Final = 4e-3  # of a graph that rounds to float16, whose steps are 1e-3
FLOAT_COSINE: Final = 0.999
QUANTISED_COSINE: Final = 0.99
SPREADS: Final = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How far outputs are from the reference, the worst of all outputs; infinite when nothing can be said."""

    relative_max: float
    cosine: float

    @classmethod
    def of(cls, reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> Agreement:
        """Compare outputs by name; where both are NaN (the logarithm of a negative input) nothing is compared."""
        pairs = {
            name: _without_shared_nans(reference[name], outputs[name]) for name in reference.keys() & outputs.keys()
        }
        reference = {**reference, **{name: pair[0] for name, pair in pairs.items()}}
        outputs = {**outputs, **{name: pair[1] for name, pair in pairs.items()}}
        far = [
            _distance(error, reference.get(name), outputs.get(name))
            for name, error in compare(reference, outputs).items()
        ]
        return cls(relative_max=max(f[0] for f in far), cosine=min(f[1] for f in far))


def check_model(graph: Graph, model: Path, session: Session, *, tolerance: float | None = None) -> Agreement:
    """Run the artefact and the reference on seeded inputs and compare.

    A float model must agree within `tolerance` (None: `FLOAT_TOLERANCE`, or `HALF_TOLERANCE` with float16 in it) or,
    where its numbers cancel (a detector on noise), within twice what ONNX Runtime itself moves between its
    optimisations off and on. A model that rounds to bytes does so elsewhere with every other order of its sums, so it
    must be within that, or have a cosine of 0.99.

    Raises:
        CompilerError: the artefact computes something else; with the figures.
    """
    quantised = any(
        "Quantize" in node.op_type or node.op_type.startswith(("QLinear", "QGemm")) for node in graph.nodes()
    )
    feed = random_inputs(graph, 0)
    reference = reference_session(graph).run(feed)
    outputs = session.run(feed)
    _check_types(reference, outputs)
    agreement = Agreement.of(reference, outputs)
    away = (
        f"TVM's code is wrong for {graph.name!r}: its output is {agreement.relative_max:.2g} of the largest value "
        f"away from ONNX Runtime's (cosine {agreement.cosine:.4f})"
    )
    if tolerance is None:
        half = any(spec.dtype == "float16" for spec in graph.tensors().values())
        tolerance = HALF_TOLERANCE if half else FLOAT_TOLERANCE
    if agreement.cosine >= QUANTISED_COSINE if quantised else agreement.relative_max <= tolerance:
        return agreement
    spread = Agreement.of(reference, _optimised_outputs(model, feed, list(reference))).relative_max
    if agreement.relative_max > SPREADS * spread or (agreement.cosine < FLOAT_COSINE and not quantised):
        raise CompilerError(f"{away}, whose own optimisations move it by {spread:.2g}")
    return agreement


def _check_types(reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    for name, expected in reference.items():
        wanted, got = np.asarray(expected), np.asarray(outputs[name])
        if (wanted.dtype, wanted.shape) != (got.dtype, got.shape):
            raise CompilerError(
                f"TVM gives output {name!r} as {got.dtype} of {got.shape}, which is {wanted.dtype} of {wanted.shape}"
            )


def _optimised_outputs(model: Path, feed: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    session = cpu_session(model, session_options(threads=1))
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def _without_shared_nans(reference: Any, output: Any) -> tuple[Any, Any]:  # noqa: ANN401
    reference, output = np.asarray(reference), np.asarray(output)
    if reference.shape != output.shape or reference.dtype.kind != "f" or output.dtype.kind != "f":
        return reference, output
    both = np.isnan(reference) & np.isnan(output)
    return np.where(both, 0, reference), np.where(both, 0, output)


def _distance(error: OutputError, reference: Any, output: Any) -> tuple[float, float]:  # noqa: ANN401
    """Return (relative maximum, cosine) of one output; equal is (0, 1), also where both are NaN."""
    if error.relative_max is not None:
        return error.relative_max, error.cosine or 0.0
    both = reference is not None and output is not None
    equal = both and np.array_equal(reference, output, equal_nan=np.asarray(reference).dtype.kind == "f")
    return (0.0, 1.0) if equal else (float("inf"), 0.0)
