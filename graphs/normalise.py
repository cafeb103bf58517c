"""Bring a model as found in the wild to the one form the rest of the house reads, or refuse it.

Afterwards: initialisers are apart from the body and are not inputs; sparse ones and Constant nodes are dense
initialisers; every node has a unique name; nodes are in topological order; symbolic dimensions are bound.
"""

from __future__ import annotations

import heapq
import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

import onnx

from graphs.constants import add_sparse, collect, drop_initialised_inputs, embed_nested_tensors, lift_constants
from graphs.graph import DTYPES, GraphError
from graphs.nodes import all_nodes, bodies, label, reads, replace_nodes
from graphs.weights import ExternalFiles, Weight, read_weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphs.wire import RawTensor

OLDEST_OPSET, OLDEST_IR = 7, 3

# What exporters write for "any size" (PaddlePaddle: "?" and the size -1): two of them need not be the same size.
_BLANKS = frozenset({"", "?", "None", "-1"})

_KNOWN_DOMAINS = frozenset({
    "", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
})  # fmt: skip


def normalise(
    body: onnx.ModelProto, tensors: Iterable[RawTensor], files: ExternalFiles, bind: Mapping[str, int]
) -> dict[str, Weight]:
    """Change `body` in place to the normal form; return its constants by name.

    Raises:
        GraphError: Anything in the structure that no runtime should be given.
    """
    check_versions(body)
    _name_graphs(body.graph)
    _check_domains(body)
    embed_nested_tensors(body.graph, files)
    weights = collect(read_weight(tensor.header, tensor.data, files) for tensor in tensors)
    add_sparse(body.graph, weights)
    lift_constants(body.graph, weights, files)
    drop_initialised_inputs(body, weights)
    _check_inputs(body.graph)
    _check_definitions(body.graph, weights)
    _sort(body.graph)
    _name_nodes(body.graph)
    _bind(body.graph, bind)
    return weights


# ---- versions, names and domains


def check_versions(body: onnx.ModelProto) -> None:
    """Refuse a model that is no ONNX model, or of a version outside what the checker knows."""
    if not body.HasField("graph"):
        raise GraphError("the model has no graph: this is not an ONNX model, or it is cut off")
    if not OLDEST_IR <= body.ir_version <= onnx.IR_VERSION:
        raise GraphError(
            f"the model's IR version is {body.ir_version}, but {OLDEST_IR} to {onnx.IR_VERSION} can be read: "
            "export it again, or update the onnx package if it is newer"
        )
    for entry in body.opset_import:
        entry.domain = _canonical(entry.domain)
    domains = [entry.domain for entry in body.opset_import]
    if len(set(domains)) != len(domains):
        raise GraphError("the model imports an operator set twice: keep one `opset_import` for each domain")
    newest = onnx.defs.onnx_opset_version()
    for entry in body.opset_import:
        if entry.domain == "" and not OLDEST_OPSET <= entry.version <= newest:
            raise GraphError(
                f"the model uses opset {entry.version}, but {OLDEST_OPSET} to {newest} can be read: convert it "
                "with onnx.version_converter.convert_version"
            )


def _name_graphs(graph: onnx.GraphProto) -> None:
    """Name a graph and its bodies where the file does not; the checker asks for it, and nothing else does."""
    graph.name = graph.name or "graph"
    for node in graph.node:
        for body in bodies(node):
            _name_graphs(body)


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_domains(body: onnx.ModelProto) -> None:
    """Refuse operators of a domain that nobody here knows; model-local functions are known."""
    imported = {entry.domain for entry in body.opset_import}
    local = {(function.domain, function.name) for function in body.functions}
    for node in all_nodes(body.graph):
        node.domain = _canonical(node.domain)
        if node.domain not in imported:
            raise GraphError(
                f"{label(node)} is of the operator domain '{node.domain}', which the model does not import: "
                "add an `opset_import` for it"
            )
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in local:
            raise GraphError(
                f"{label(node)} is of the unknown operator domain '{node.domain}': export the model without that "
                "custom operator, or with a model-local function that defines it"
            )


# ---- structure


def _check_inputs(graph: onnx.GraphProto) -> None:
    for info in graph.input:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise GraphError(f"the input '{info.name}' is a {kind}: only models whose inputs are tensors are read")
        if info.type.tensor_type.elem_type not in DTYPES:
            raise GraphError(f"the input '{info.name}' has no valid dtype: export the model again")
        if not info.type.tensor_type.HasField("shape"):
            raise GraphError(f"the input '{info.name}' has no shape at all: export the model with its rank")


def _check_definitions(graph: onnx.GraphProto, weights: Mapping[str, Weight]) -> None:
    """Refuse tensors that are defined twice, read but never made, or asked for as outputs and never made."""
    made: set[str] = set(weights)
    for info in graph.input:
        _define(made, info.name, "the graph's inputs")
    for node in graph.node:
        if not any(node.output):
            raise GraphError(f"{label(node)} has no outputs: remove it")
        for name in filter(None, node.output):
            _define(made, name, label(node))
    for node in graph.node:
        missing = next((name for name in reads(node) if name not in made), None)
        if missing is not None:
            raise GraphError(f"{label(node)} reads '{missing}', which nothing makes: the model is incomplete")
    _check_outputs(graph, made)


def _check_outputs(graph: onnx.GraphProto, made: set[str]) -> None:
    if not graph.output:
        raise GraphError("the graph has no outputs: mark at least one tensor as an output")
    outputs = [info.name for info in graph.output]
    for name in outputs:
        if name not in made:
            raise GraphError(f"the graph's output '{name}' is made by no node: the model is incomplete")
        if outputs.count(name) > 1:
            raise GraphError(f"the graph has the output '{name}' twice: remove one")


def _define(made: set[str], name: str, where: str) -> None:
    if not name:
        raise GraphError(f"{where} define a tensor without a name: export the model again")
    if name in made:
        raise GraphError(f"the tensor '{name}' is defined twice, the second time by {where}: rename one of them")
    made.add(name)


def _sort(graph: onnx.GraphProto) -> None:
    """Put the nodes in topological order; an order that is one already stays."""
    maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    before = [{maker[name] for name in reads(node) if name in maker} for node in graph.node]
    if all(index > max(needs, default=-1) for index, needs in enumerate(before)):
        return
    order = _topological(before)
    if len(order) < len(before):
        cycle = _cycle(before, set(range(len(before))) - set(order))
        raise GraphError("the graph has a cycle: " + " -> ".join(label(graph.node[index]) for index in cycle))
    replace_nodes(graph, [graph.node[index] for index in order])


def _topological(before: list[set[int]]) -> list[int]:
    """Return Kahn's order, smallest index first, short of the nodes in or behind a cycle."""
    after: list[list[int]] = [[] for _ in before]
    for index, needs in enumerate(before):
        for need in needs:
            after[need].append(index)
    missing = [len(needs) for needs in before]
    ready = [index for index, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for later in after[index]:
            missing[later] -= 1
            if missing[later] == 0:
                heapq.heappush(ready, later)
    return order


def _cycle(before: list[set[int]], stuck: set[int]) -> list[int]:
    """Return one cycle among the stuck nodes, in data-flow order."""
    path = [min(stuck)]
    while (previous := min(before[path[-1]] & stuck)) not in path:
        path.append(previous)
    return [previous, *reversed(path[path.index(previous) :])]


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give unnamed nodes a name made from their first output, which is unique and does not move with the order."""
    taken: set[str] = set()
    for node in graph.node:
        if node.name in taken:
            raise GraphError(f"two nodes are named '{node.name}': rename one of them")
        if node.name:
            taken.add(node.name)
    for node in graph.node:
        if not node.name:
            node.name = _free(f"{node.op_type}_{next(filter(None, node.output))}", taken)
            taken.add(node.name)


def _free(name: str, taken: set[str]) -> str:
    count = 2
    candidate = name
    while candidate in taken:
        candidate = f"{name}_{count}"
        count += 1
    return candidate


# ---- symbolic dimensions


def _bind(graph: onnx.GraphProto, bind: Mapping[str, int]) -> None:
    """Replace the symbols of the inputs by numbers, and refuse those that have none."""
    for info in graph.input:
        _name_blank_dims(info)
    symbols = list(dict.fromkeys(dim.dim_param for info in graph.input for dim in _dims(info) if dim.dim_param))
    _check_bindings(symbols, bind)
    unbound = [symbol for symbol in symbols if symbol not in bind]
    if unbound:
        flags = " ".join(f"--bind {symbol}=1" for symbol in unbound)
        raise GraphError(f"the dimension(s) {', '.join(unbound)} have no size: give each one, as in `{flags}`")
    for info in [*graph.input, *graph.output, *graph.value_info]:
        for dim in _dims(info):
            if dim.dim_param in bind:
                dim.dim_value = bind[dim.dim_param]
    for info in graph.input:
        _check_sizes(info)


def _dims(info: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(info.type.tensor_type.shape.dim) if info.type.HasField("tensor_type") else []


def _name_blank_dims(info: onnx.ValueInfoProto) -> None:
    """Name a dimension that has neither size nor symbol after its place, so that it can be bound: `x.0`."""
    for axis, dim in enumerate(_dims(info)):
        if dim.dim_param in _BLANKS and (not dim.HasField("dim_value") or dim.dim_value == -1):
            dim.dim_param = f"{info.name}.{axis}"


def _check_bindings(symbols: list[str], bind: Mapping[str, int]) -> None:
    for name, size in bind.items():
        if name not in symbols:
            close = get_close_matches(name, symbols, n=1)
            known = f"its symbols are {', '.join(symbols)}" if symbols else "it has no symbolic dimensions"
            hint = f", did you mean '{close[0]}'" if close else ""
            raise GraphError(f"the model has no dimension '{name}' to bind: {known}{hint}")
        if size < 1:
            raise GraphError(f"the dimension '{name}' cannot be bound to {size}: give a size of at least 1")


def _check_sizes(info: onnx.ValueInfoProto) -> None:
    sizes = [dim.dim_value for dim in _dims(info)]
    if any(size < 1 for size in sizes):
        kind = "negative" if any(size < 0 for size in sizes) else "zero"
        raise GraphError(
            f"the input '{info.name}' has a {kind} dimension {sizes}: export the model with a symbolic dimension "
            "there, and bind it"
        )
    if math.prod(sizes) > 2**62:
        raise GraphError(f"the input '{info.name}' has the impossible shape {sizes}: export the model again")
