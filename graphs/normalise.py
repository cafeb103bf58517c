"""Bring a model as found in the wild to the one form the rest of the house reads, or refuse it.

Afterwards: initialisers are apart from the body and are not inputs; sparse ones and Constant nodes are dense
initialisers; every node has a unique name; nodes are in topological order; symbolic dimensions are bound.
"""

from __future__ import annotations

import heapq
import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from graphs.graph import DTYPES, GraphError
from graphs.weights import ExternalFiles, Weight, read_weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from graphs.wire import RawTensor

OLDEST_OPSET, OLDEST_IR = 7, 3
# From IR 4 on an initialiser need not be an input, and one that is not is a constant.
_IR_WITH_CONSTANTS = 4
_MOST_DENSE_BYTES = 2**31

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
    _embed_nested_tensors(body.graph, files)
    weights = _collect(read_weight(tensor.header, tensor.data, files) for tensor in tensors)
    _add_sparse(body.graph, weights)
    _lift_constants(body.graph, weights, files)
    _drop_initialised_inputs(body, weights)
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
                f"{_label(node)} is of the operator domain '{node.domain}', which the model does not import: "
                "add an `opset_import` for it"
            )
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in local:
            raise GraphError(
                f"{_label(node)} is of the unknown operator domain '{node.domain}': export the model without that "
                "custom operator, or with a model-local function that defines it"
            )


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


def _label(node: onnx.NodeProto) -> str:
    """Return how an error names a node that may have no name yet."""
    called = node.name or next(iter(node.output), "")
    return f"node '{called}' ({node.op_type})"


# ---- constants


def _collect(found: Iterable[Weight]) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for weight in found:
        _add(weights, weight)
    return weights


def _add(weights: dict[str, Weight], weight: Weight) -> None:
    name = weight.spec.name
    if not name:
        raise GraphError("the model has an initialiser without a name: export it again")
    if name in weights:
        raise GraphError(f"the model has two initialisers named '{name}': rename one of them")
    weights[name] = weight


def _embed_nested_tensors(graph: onnx.GraphProto, files: ExternalFiles) -> None:
    """Load external tensors that are attributes or live in bodies: few and small, and only top-level ones map."""
    for sparse in graph.sparse_initializer:
        _embed(sparse.values, files)
        _embed(sparse.indices, files)
    for node in graph.node:
        for attribute in node.attribute:
            _embed(attribute.t, files)
            for tensor in attribute.tensors:
                _embed(tensor, files)
        for inner in bodies(node):
            for tensor in inner.initializer:
                _embed(tensor, files)
            _embed_nested_tensors(inner, files)


def _embed(tensor: TensorProto, files: ExternalFiles) -> None:
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    embedded = read_weight(tensor, None, files).tensor()
    tensor.CopyFrom(embedded)


def _add_sparse(graph: onnx.GraphProto, weights: dict[str, Weight]) -> None:
    """Turn sparse initialisers into dense ones, as every runtime does on loading."""
    for sparse in graph.sparse_initializer:
        _add(weights, _dense(sparse, sparse.values.name))
    graph.ClearField("sparse_initializer")


def _dense(sparse: onnx.SparseTensorProto, name: str) -> Weight:
    shape = tuple(sparse.dims)
    nowhere = ExternalFiles(None)
    values = read_weight(sparse.values, None, nowhere).array()
    indices = read_weight(sparse.indices, None, nowhere).array()
    elements = math.prod(shape)
    if any(dim < 1 for dim in shape) or elements * values.itemsize > _MOST_DENSE_BYTES:
        raise GraphError(f"the sparse tensor '{name}' has the shape {list(shape)}, which does not fit 2 GB when dense")
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    misfit = f"the sparse tensor '{name}' has values or indices that do not fit its shape {list(shape)}"
    try:
        flat = indices if indices.ndim == 1 else indices @ np.array(strides, dtype=np.int64)
        dense = np.zeros(elements, dtype=values.dtype)
        dense[flat] = values
    except (IndexError, ValueError, TypeError) as error:
        raise GraphError(misfit) from error
    if flat.size and flat.min() < 0:  # numpy counts negative indices from the end; ONNX has none
        raise GraphError(misfit)
    return read_weight(onnx.numpy_helper.from_array(dense.reshape(shape), name), None, nowhere)


def _lift_constants(graph: onnx.GraphProto, weights: dict[str, Weight], files: ExternalFiles) -> None:
    """Turn Constant nodes into initialisers: the same to every runtime, and no processor has to be found for them."""
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and node.domain == "" and len(node.output) == 1:
            _add(weights, _constant(node, files))
        else:
            kept.append(node)
    if len(kept) != len(graph.node):
        _replace_nodes(graph, kept)


def _constant(node: onnx.NodeProto, files: ExternalFiles) -> Weight:
    name = node.output[0]
    if len(node.attribute) != 1:
        raise GraphError(f"{_label(node)} needs exactly one value: export the model again")
    attribute = node.attribute[0]
    if attribute.name == "sparse_value":
        return _dense(attribute.sparse_tensor, name)
    tensor = TensorProto()
    if attribute.name == "value":
        tensor.CopyFrom(attribute.t)
    else:
        tensor.CopyFrom(_scalar_constant(node, attribute))
    tensor.name = name
    return read_weight(tensor, None, files)


def _scalar_constant(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> TensorProto:
    """Return the tensor of the short forms value_int, value_floats, value_string, ..."""
    kinds = {"value_float": TensorProto.FLOAT, "value_int": TensorProto.INT64, "value_string": TensorProto.STRING}
    kind = kinds.get(attribute.name.removesuffix("s"))
    value = onnx.helper.get_attribute_value(attribute)
    if kind is None or (attribute.name.endswith("s") != isinstance(value, list)):
        raise GraphError(f"{_label(node)} has the unknown attribute '{attribute.name}': export the model again")
    values = value if isinstance(value, list) else [value]
    dims = [len(values)] if attribute.name.endswith("s") else []
    return onnx.helper.make_tensor("", kind, dims, values)


def _drop_initialised_inputs(body: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Remove inputs that have an initialiser; older files list every weight among the inputs."""
    kept = [info for info in body.graph.input if info.name not in weights]
    for info in body.graph.input:
        if info.name in weights:
            _check_same_dtype(info, weights[info.name])
    if len(kept) != len(body.graph.input):
        copies = [_copy_info(info) for info in kept]
        del body.graph.input[:]
        body.graph.input.extend(copies)
    body.ir_version = max(body.ir_version, _IR_WITH_CONSTANTS)


def _check_same_dtype(info: onnx.ValueInfoProto, weight: Weight) -> None:
    stated = DTYPES.get(info.type.tensor_type.elem_type)
    if stated != weight.spec.dtype:
        raise GraphError(f"the input '{info.name}' states {stated}, but its initialiser is {weight.spec.dtype}")


def _copy_info(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    return copy


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
            raise GraphError(f"{_label(node)} has no outputs: remove it")
        for name in filter(None, node.output):
            _define(made, name, _label(node))
    for node in graph.node:
        missing = next((name for name in reads(node) if name not in made), None)
        if missing is not None:
            raise GraphError(f"{_label(node)} reads '{missing}', which nothing makes: the model is incomplete")
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


def _sort(graph: onnx.GraphProto) -> None:
    """Put the nodes in topological order; an order that is one already stays."""
    maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    before = [{maker[name] for name in reads(node) if name in maker} for node in graph.node]
    if all(index > max(needs, default=-1) for index, needs in enumerate(before)):
        return
    order = _topological(before)
    if len(order) < len(before):
        cycle = _cycle(before, set(range(len(before))) - set(order))
        raise GraphError("the graph has a cycle: " + " -> ".join(_label(graph.node[index]) for index in cycle))
    _replace_nodes(graph, [graph.node[index] for index in order])


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


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    replaced = onnx.GraphProto()
    replaced.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(replaced.node)


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
