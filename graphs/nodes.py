"""What a node of ONNX's own form reads and carries, its bodies included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import AttributeProto

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies inside it."""
    for node in graph.node:
        yield node
        for inner in bodies(node):
            yield from all_nodes(inner)


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies that a control-flow node (If, Loop, Scan, ...) carries as attributes."""
    found = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def captures(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the outer tensors that the node's bodies read, in order of appearance."""
    found: dict[str, None] = {}
    for inner in bodies(node):
        found.update(dict.fromkeys(_free_names(inner)))
    return tuple(found)


def _free_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield what a body reads and does not define; it may read only what is defined before."""
    defined = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    defined |= {sparse.values.name for sparse in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in defined)
        defined.update(node.output)
    yield from (info.name for info in graph.output if info.name not in defined)


def reads(node: onnx.NodeProto) -> list[str]:
    """Return every tensor the node depends on, captured values included."""
    return [*filter(None, node.input), *captures(node)]


def label(node: onnx.NodeProto) -> str:
    """Return how an error names a node that may have no name yet."""
    called = node.name or next(iter(node.output), "")
    return f"node '{called}' ({node.op_type})"


def unused(wish: str, taken: set[str]) -> str:
    """Return the name wished for, longer where it is taken, and take it."""
    while wish in taken:
        wish += "_"
    taken.add(wish)
    return wish


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Put these nodes in the place of a graph's own, of which they may be some."""
    replaced = onnx.GraphProto()
    replaced.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(replaced.node)
