"""The segment's graph written so that the provider does not misread it (docs/vendor_bugs.md, QNN)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from graphs import Graph


def readable(graph: Graph) -> Graph:
    """Return a graph with the same nodes and values, in which HardSigmoid comes first in each `HardSigmoid(x) * x`.

    Turned the other way, the provider's fusion computes it as HardSigmoid alone in float16. A graph without such a
    product is returned itself.
    """
    from graphs import from_proto

    model = graph.proto()
    hard_sigmoids = {node.output[0] for node in model.graph.node if node.op_type == "HardSigmoid"}
    turned = [node for node in model.graph.node if _is_misread(node, hard_sigmoids)]
    for node in turned:
        node.input[:] = reversed(node.input)
    return from_proto(model, name=graph.name, base_dir=graph.base_dir) if turned else graph


def readable_file(graph: Graph, out_dir: Path) -> Path:
    """Return the file of a segment in `out_dir`, or of its `readable` form, written beside it, where they differ."""
    from graphs import save

    written = readable(graph)
    if written is graph:
        return out_dir / "segment.onnx"
    save(written, out_dir / "readable.onnx")
    return out_dir / "readable.onnx"


def _is_misread(node: onnx.NodeProto, hard_sigmoids: set[str]) -> bool:
    return node.op_type == "Mul" and node.input[1] in hard_sigmoids and node.input[0] not in hard_sigmoids
