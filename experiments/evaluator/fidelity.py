"""Output error of a plan against the float reference, and the outputs that are no outputs at all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from compilers import Limits, in_child, reference_session
from experiments.evaluator.rejection import rejection
from graphs import OutputError, compare

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def worst(errors: Mapping[str, OutputError]) -> OutputError:
    """Return the output with the lowest cosine, or the first whose error cannot be given as a number."""
    return min(errors.values(), key=lambda e: -2.0 if e.cosine is None else e.cosine)


def output_error(reference: Feed, outputs: Feed) -> OutputError:
    """Return the worst error over all outputs."""
    return worst(compare(reference, outputs))
