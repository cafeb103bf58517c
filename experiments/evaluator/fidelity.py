"""Output error of a plan against the float reference, and the outputs that are no outputs at all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from compilers import Limits, in_child, reference_session
from experiments.evaluator.rejection import rejection
from graphs import OutputError, Verdict, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphs import Graph

Feed = dict[str, NDArray[Any]]


def reference_outputs(graph: Graph, feed: Feed, limits: Limits) -> Feed:
    """Run the float graph on ONNX Runtime with every graph optimisation off: the reference of this project.

    An optimised run may differ from the ONNX standard (it merges Q/DQ pairs), so it is a result, not a truth.

    Raises:
        CompilerError: ONNX Runtime cannot run the graph.
    """
    from graphs import save  # brings onnx, which a child that runs an artefact does not need

    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        path = Path(folder) / "reference.onnx"
        save(graph, path)
        return in_child(_reference, path, feed, limits=limits)


def _reference(path: Path, feed: Feed) -> Feed:
    from graphs import load

    with reference_session(load(path)) as session:
        return session.run(feed)


def broken(reference: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> str | None:
    """Say what makes `outputs` unusable whatever the tolerance; `rejection.Kind` lists the ways."""
    for name, expected in reference.items():
        if name not in outputs:
            return f"output {name!r} is missing; it gave {', '.join(outputs) or 'nothing'}"
        found = rejection(expected, outputs[name])
        if found is not None:
            return f"output {name!r} {found.reason}"
    return None


def worst(errors: Iterable[OutputError]) -> OutputError:
    """Return the output that is furthest off.

    First one that differs and has no figure, then the lowest cosine, then integers that differ; those without any
    difference last, so that an equal class number does not hide what the scores beside it lost.
    """
    return min(errors, key=_badness)


def _badness(error: OutputError) -> tuple[int, float]:
    if error.verdict in {Verdict.EXACT, Verdict.EMPTY} or error.mismatch_ratio == 0.0:
        return 3 if error.cosine is None else 2, 0.0
    if error.verdict is Verdict.INTEGER:
        return 1, -(error.mismatch_ratio or 0.0)
    return 0, -2.0 if error.cosine is None else error.cosine


def output_error(reference: Feed, outputs: Feed) -> OutputError:
    """Return the worst error over all outputs."""
    return worst(compare(reference, outputs).values())


def integers_off(reference: Feed, outputs: Feed) -> tuple[str, ...]:
    """Say which integers (class numbers, flags, texts) differ: no figure of the floats beside them shows it."""
    asked = [name for name, array in reference.items() if array.dtype.kind != "f" and name in outputs]
    found = compare({name: reference[name] for name in asked}, {name: outputs[name] for name in asked})
    return tuple(
        f"{error.mismatch_ratio:.2%} of output {name!r} differ from the reference"
        for name, error in found.items()
        if error.verdict is Verdict.INTEGER and error.mismatch_ratio is not None
    )
