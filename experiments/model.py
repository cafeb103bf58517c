"""The model that a command line names, its calibration data, and the form of it that each precision compiles."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import graphs
from experiments.arguments import UserError
from graphs import Calibration, Graph, GraphError, load, quantise, save, zoo

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALIBRATION_BATCHES: Final = 4


def load_model(model: str, bindings: Sequence[tuple[str, int]] = (), seed: int = 0) -> Graph:
    """Return the model, an ONNX file or one of the zoo, whose weights come from `seed`.

    Raises:
        UserError: it is neither, or a model without operations.
        GraphError: the file cannot be used.
    """
    path = Path(model)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        graph = load(path, bind=dict(bindings))
        if not graph.nodes():
            raise UserError(f"{path} has no operations, so there is nothing to compile; export the model again")
        return graph
    if model not in zoo.names():
        raise UserError(
            f"{model!r} is neither a file nor a zoo model; give an ONNX file or one of {', '.join(zoo.names())}"
        )
    if bindings:
        raise UserError("--bind is for ONNX files; a zoo model has no symbolic dimension")
    return zoo.build(model, seed=seed)


def about(graph: Graph) -> str:
    """Say how large a model is, on one line."""
    macs = "unknown" if graph.macs is None else f"{graph.macs / 1e6:.4g} M"
    return f"{graph.name}: {len(graph.nodes())} nodes, {graph.parameters / 1e6:.4g} M parameters, {macs} MACs"


def calibration_for(graph: Graph, path: Path | None, seed: int) -> Calibration:
    """Return the calibration data of a file or a folder, or random data."""
    if path is not None:
        return Calibration.from_path(graph, path)
    return Calibration.random(graph, _CALIBRATION_BATCHES, seed)


def variants(
    graph: Graph, precisions: Sequence[str], calibration: Calibration, build: Path
) -> dict[str, Graph | GraphError]:
    """Return the graph that each precision compiles, or why there is none."""
    made: dict[str, Graph | GraphError] = {}
    for precision in precisions:
        try:
            made[precision] = variant(graph, precision, calibration, build)
        except GraphError as error:
            made[precision] = error
    return made


def variant(graph: Graph, precision: str, calibration: Calibration, build: Path) -> Graph:
    """Return the graph that a precision compiles: float as it is, int8 as QDQ.

    A graph that is quantised already is its own int8 form.

    Raises:
        GraphError: it has no form of this precision.
    """
    if not graph.is_quantised:
        return _quantised(graph, calibration, build) if precision == "int8" else graph
    if precision != "int8":
        raise GraphError(
            f"{graph.name} is quantised already and has no {precision} form; ask for int8, or give the float graph"
        )
    return graph


def _quantised(graph: Graph, calibration: Calibration, build: Path) -> Graph:
    """Quantise to int8, or take what an earlier run quantised with the same data, recipe and ONNX Runtime."""
    made_by = f"{calibration.digest}:{version('onnxruntime')}:{_recipe_hash()}"
    key = hashlib.sha256(made_by.encode()).hexdigest()[:12]
    path = build / f"{graph.name}-{graph.digest[:12]}" / f"{graph.name}-int8-{key}.onnx"
    with contextlib.suppress(GraphError):  # there is none yet, or it is damaged
        return load(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(quantise(graph, "int8", calibration), path)
    return load(path)  # a graph's name is its file's, and counts in the keys of what is compiled


@functools.cache
def _recipe_hash() -> str:
    """Hash the code that quantises, so that a mended recipe is not answered with what the old one made."""
    digest = hashlib.sha256()
    for path in sorted(Path(graphs.__file__).parent.rglob("*.py")):
        if "zoo" not in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()
