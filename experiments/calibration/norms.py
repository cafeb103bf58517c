"""Norms that the measured quantised graphs keep in float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphs import from_proto

if TYPE_CHECKING:
    from graphs import Graph

_FLOAT: Final = ":float"  # the names of the weights are taken, by what dequantises them


def float_norms(quantised: Graph, original: Graph) -> Graph:
    """Return the quantised graph with each BatchNormalization behind a Concat in float, a Relu after it as well.

    The table's owner leaves them so: DenseNet-121 has 62, and its quantised rows have the layers that follow from it,
    to the last one, on both runtimes (440 and 497). One behind a product is folded into it, there and here.
    """
    before = original.proto().graph
    joined = {name for node in before.node if node.op_type == "Concat" for name in node.output}
    norms = {n.name: n for n in before.node if n.op_type == "BatchNormalization" and n.input[0] in joined}
    if not norms:
        return quantised
    relus = {node.input[0]: node for node in before.node if node.op_type == "Relu"}
    model = quantised.proto()
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        norm = norms.get(node.name)
        if norm is None:
            continue
        node.input[1:] = [f"{name}{_FLOAT}" for name in norm.input[1:]]
        relu = relus.get(norm.output[0])
        if relu is not None and node.output[0] == relu.output[0]:  # the quantiser has let its scale stand for it
            node.output[0] = norm.output[0]
            nodes.append(relu)
    weights = {name for norm in norms.values() for name in norm.input[1:]}
    for weight in before.initializer:
        if weight.name in weights:
            weight.name += _FLOAT
            model.graph.initializer.append(weight)
    read = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    kept = [node for node in nodes if read & set(node.output)]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    del model.graph.value_info[:]
    return from_proto(model, name=quantised.name, base_dir=quantised.base_dir)
