"""The constants of a model as found in the wild: sparse, nested, in nodes, among the inputs; afterwards by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from graphs.graph import DTYPES, GraphError
from graphs.nodes import bodies, label, replace_nodes
from graphs.weights import ExternalFiles, Weight, read_weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# From IR 4 on an initialiser need not be an input, and one that is not is a constant.
_IR_WITH_CONSTANTS = 4
_MOST_DENSE_BYTES = 2**31


def collect(found: Iterable[Weight]) -> dict[str, Weight]:
    """Return weights by name; a name may be given once."""
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


def embed_nested_tensors(graph: onnx.GraphProto, files: ExternalFiles) -> None:
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
            embed_nested_tensors(inner, files)


def _embed(tensor: TensorProto, files: ExternalFiles) -> None:
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    embedded = read_weight(tensor, None, files).tensor()
    tensor.CopyFrom(embedded)


def add_sparse(graph: onnx.GraphProto, weights: dict[str, Weight]) -> None:
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


def lift_constants(graph: onnx.GraphProto, weights: dict[str, Weight], files: ExternalFiles) -> None:
    """Turn Constant nodes into initialisers: the same to every runtime, and no processor has to be found for them."""
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and node.domain == "" and len(node.output) == 1:
            _add(weights, _constant(node, files))
        else:
            kept.append(node)
    if len(kept) != len(graph.node):
        replace_nodes(graph, kept)


def _constant(node: onnx.NodeProto, files: ExternalFiles) -> Weight:
    name = node.output[0]
    if len(node.attribute) != 1:
        raise GraphError(f"{label(node)} needs exactly one value: export the model again")
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
        raise GraphError(f"{label(node)} has the unknown attribute '{attribute.name}': export the model again")
    values = value if isinstance(value, list) else [value]
    dims = [len(values)] if attribute.name.endswith("s") else []
    return onnx.helper.make_tensor("", kind, dims, values)


def drop_initialised_inputs(body: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
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
