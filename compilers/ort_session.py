"""What the ONNX Runtime adapters share: sessions, the reference for output error, and where nodes went."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError, Session

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import numpy as np
    import onnxruntime as ort

    from graphs import Graph
    from partition import Segment

QUANTISERS: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})
RECORD_ASSIGNMENT: Final = ("session.record_ep_graph_assignment_info", "1")

# What ONNX Runtime appends to the name of a node that it copies, lays out anew or fuses.
_OPTIMISER_SUFFIX: Final = re.compile(r"(_token_\d+|/duplicated|/MatMulAddFusion)$")


class OrtSession(Session):
    """An `onnxruntime.InferenceSession` behind our interface."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session: ort.InferenceSession | None = session
        self._outputs = [output.name for output in session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run once: arrays by input name in, arrays by output name out."""
        if self._session is None:
            raise CompilerError("the ONNX Runtime session is closed; load the artefact again")
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))

    def close(self) -> None:
        """Release the session's memory; a second call does nothing."""
        self._session = None


def reference_session(graph: Graph) -> Session:
    """Return the reference for output error: ONNX Runtime on the CPU with every graph optimisation off.

    The default optimisations change the answer (they drop one of two Q/DQ pairs in a row: up to one step of
    the finer scale), so the default is a backend's result, not the truth. Give the float graph.

    Raises:
        CompilerError: ONNX Runtime cannot load the graph.
    """
    import onnxruntime as ort

    from graphs import save

    options = session_options(threads=0)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        path = Path(folder) / "reference.onnx"
        save(graph, path)
        return OrtSession(cpu_session(path, options))


def session_options(*, threads: int) -> ort.SessionOptions:
    """Return options with `threads` intra-op threads (0: one for each core) and no inter-op parallelism."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry(*RECORD_ASSIGNMENT)
    return options


def cpu_session(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Load a model on the CPU provider alone.

    Raises:
        CompilerError: ONNX Runtime refused the model.
    """
    import onnxruntime as ort

    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise CompilerError(f"ONNX Runtime cannot load {path.name}: {first_line(error)}") from error


def assigned_units(session: ort.InferenceSession, units: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """List (node name, operator, unit) of the partitioned graph; `units` maps a provider to our unit's name.

    The names are those of the graph as ONNX Runtime optimised it; `source_names` maps them back.
    """
    nodes = [
        (node, units.get(part.ep_name, part.ep_name))
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    return [(node.name or f"{node.op_type}#{i}", node.op_type, unit) for i, (node, unit) in enumerate(nodes)]


def source_names(session_nodes: Iterable[str], source: Collection[str]) -> dict[str, str]:
    """Map each node of the optimised graph to the node of the source graph that it is.

    A node that the optimiser made (a layout Transpose, a second copy) keeps its own name.
    """
    names = list(session_nodes)
    kept = set(names) & set(source)
    mapped = {}
    for name in names:
        base = name if name in kept else _without_suffixes(name)
        mapped[name] = base if base in source and (name in kept or base not in kept) else name
        kept.add(mapped[name])
    return mapped


def _without_suffixes(name: str) -> str:
    while match := _OPTIMISER_SUFFIX.search(name):
        name = name[: match.start()]
    return name


def require_precision(segment: Segment, *, backend: str, refused: Mapping[str, str]) -> None:
    """Refuse a precision that the backend lacks, and one that the graph's own operators contradict.

    Raises:
        CompilerError: with the reason of `refused`, or because "int8" came without a Q/DQ node.
    """
    if segment.precision in refused:
        raise CompilerError(f"{backend} has no {segment.precision}: {refused[segment.precision]}")
    quantised = any(node.op_type in QUANTISERS for node in segment.graph.nodes())
    if segment.precision == "int8" and not quantised:
        raise CompilerError(
            f"{backend} was asked for int8, but graph {segment.graph.name!r} holds no QuantizeLinear "
            "node and would run in float; quantise it first (graphs.quantise)"
        )
    if segment.precision != "int8" and quantised:
        raise CompilerError(
            f"{backend} was asked for {segment.precision}, but graph {segment.graph.name!r} is quantised "
            "already; ask for int8, or give the float graph"
        )


def read_options(segment: Segment, *, backend: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the segment's options over `defaults`.

    Raises:
        CompilerError: the segment sets an option that the backend does not have.
    """
    given = dict(segment.options)
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise CompilerError(f"{backend} has no option {', '.join(unknown)} (it has: {known})")
    return {**defaults, **given}


def positive_int(text: str, what: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        CompilerError: the text is none; the message names `what`.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise CompilerError(f"{what} must be a whole number of at least 1, not {text!r}")
    return int(text)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message that says anything, else the name of its type."""
    return [*_lines(error), type(error).__name__][0]


def last_line(error: Exception) -> str:
    """Return the last such line: of an error that wraps another, what that one says."""
    return [type(error).__name__, *_lines(error)][-1]


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]
