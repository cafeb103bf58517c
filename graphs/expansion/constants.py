"""Values in place of the nodes that compute them from constants and shapes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.folding import FOLDABLE, fold
from graphs.nodes import reads
from graphs.onnx_io import from_proto
from graphs.shapes import skeleton_of

if TYPE_CHECKING:
    import onnx

    from graphs.graph import Graph, Node


def folded(graph: Graph) -> Graph:
    """Return a graph without its shape arithmetic; the graph itself when it has none.

    So does what exporters do to weights: the gates of an LSTM in another order, float16 kept as float16 and cast. What
    only such arithmetic reads goes too; the other nodes keep their names.
    """
    if not any(_may_be_known(node, graph) for node in graph.nodes()):
        return graph
    skeleton = skeleton_of(graph._body, graph._weights)  # noqa: SLF001  # one package
    large = {info.name for info in skeleton.graph.input} & graph.initializers().keys()
    read = {name for node in graph.nodes() if _may_be_known(node, graph) for name in node.inputs}
    shapes = {name: spec.shape for name, spec in graph.tensors().items()}
    # An If whose branch is known now stays as it is, with a constant condition.
    if not fold(skeleton, shapes, {name: graph.constant(name) for name in large & read}):
        return graph
    model = graph.proto()
    left = {node.name for node in skeleton.graph.node}
    kept = [node for node in model.graph.node if node.name in left]
    held = graph.initializers()
    values = [tensor for tensor in skeleton.graph.initializer if tensor.name not in held]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(values)
    del model.graph.value_info[:]
    return from_proto(without_dead_nodes(model), name=graph.name, base_dir=graph.base_dir)


def _may_be_known(node: Node, graph: Graph) -> bool:
    if node.op_type in ("If", "Loop", "Scan"):
        return True
    if node.domain or node.op_type not in FOLDABLE:
        return False
    if node.op_type in ("Shape", "Size"):
        spec = graph.tensors().get(node.inputs[0]) or graph.initializers().get(node.inputs[0])
        return spec is not None and spec.shape is not None
    return all(name in graph.initializers() for name in node.inputs if name)


def without_dead_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove in place what no output needs, and the constants that nothing reads."""
    needed = {info.name for info in model.graph.output}
    kept = []
    for node in reversed(list(model.graph.node)):
        if needed.intersection(filter(None, node.output)):
            kept.append(node)
            needed.update(reads(node))
    if len(kept) != len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(reversed(kept))
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name not in needed:
            del model.graph.initializer[index]
    return model
