"""Totals over a model's constants, those inside the bodies of control flow included, each counted once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import onnx

from graphs.graph import DTYPES, TensorSpec
from graphs.nodes import bodies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Ports that configure an operator or carry statistics: not what papers count as parameters.
_NOT_PARAMETERS: dict[str, tuple[int, ...]] = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "DequantizeLinear": (1, 2),
    "QuantizeLinear": (1, 2),
    "MatMulNBits": (2, 3),
    "Pad": (2,),
    "Resize": (1, 2),
    "Upsample": (1,),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QGemm": (1, 2, 4, 5, 7, 8),
    "QLinearAdd": (1, 2, 4, 5, 6, 7),
    "QLinearMul": (1, 2, 4, 5, 6, 7),
    "QAttention": (3, 4, 6, 7),
    "DynamicQuantizeMatMul": (2, 3),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
}
# Integers are weights only where an operator computes with them; elsewhere they are shapes and indices.
_INTEGER_WEIGHTS: dict[str, tuple[int, ...]] = {
    "DequantizeLinear": (0,),
    "QLinearConv": (3, 8),
    "ConvInteger": (1,),
    "QLinearMatMul": (3,),
    "QLinearAdd": (0, 3),
    "QLinearMul": (0, 3),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeMatMul": (1,),
    "QGemm": (3, 6),
    "QAttention": (1,),
}


class _Use(NamedTuple):
    """One constant at one port of one node; `key` is the same wherever the same constant is read."""

    key: tuple[int, str]
    spec: TensorSpec
    node: onnx.NodeProto
    port: int


def parameters(graph: onnx.GraphProto, weights: Mapping[str, TensorSpec]) -> int:
    """Return the number of trainable values as papers count them.

    That is every floating constant of rank 1 or more and every quantised weight or bias, each once; not running
    statistics, quantisation scales, bounds, shapes or indices.
    """
    counted: dict[tuple[int, str], int] = {}
    for use in _uses(graph, _outer(weights)):
        counted[use.key] = max(_parameters_of(use), counted.get(use.key, 0))
    return sum(counted.values())


def _parameters_of(use: _Use) -> int:
    op_type, port, shape = use.node.op_type, use.port, use.spec.shape
    if op_type == "MatMulNBits" and port == 1:  # packed [N, blocks, bytes]
        sizes: dict[str, int] = {attribute.name: attribute.i for attribute in use.node.attribute}
        return sizes.get("N", 0) * sizes.get("K", 0)
    if port in _NOT_PARAMETERS.get(op_type, ()) or not shape:
        return 0
    if "float" not in use.spec.dtype and port not in _INTEGER_WEIGHTS.get(op_type, ()):
        return 0
    return math.prod(shape)


def weight_bytes(graph: onnx.GraphProto, weights: Mapping[str, TensorSpec]) -> int:
    """Return the size of all constants that a node reads; strings are not counted."""
    sizes = {use.key: use.spec.size_bytes or 0 for use in _uses(graph, _outer(weights))}
    return sum(sizes.values())


_Known = dict[str, tuple[tuple[int, str], TensorSpec]]


def _outer(weights: Mapping[str, TensorSpec]) -> _Known:
    return {name: ((0, name), spec) for name, spec in weights.items()}


def _uses(graph: onnx.GraphProto, known: _Known) -> Iterator[_Use]:
    """Yield every reading of a constant, going into bodies with what is in sight there."""
    for node in graph.node:
        for port, name in enumerate(node.input):
            if name in known:
                yield _Use(*known[name], node, port)
        for body in bodies(node):
            yield from _uses(body, _in_sight(body, known))


def _in_sight(body: onnx.GraphProto, known: _Known) -> _Known:
    """Return the constants that a body's nodes see: its own hide outer ones of the same name."""
    hidden = {info.name for info in body.input} | {name for node in body.node for name in node.output}
    inner: _Known = {name: entry for name, entry in known.items() if name not in hidden}
    for tensor in [*body.initializer, *_constant_tensors(body)]:
        dtype = DTYPES.get(tensor.data_type, "unknown")
        spec = TensorSpec(name=tensor.name, shape=tuple(tensor.dims), dtype=dtype)
        inner[tensor.name] = ((id(body), tensor.name), spec)
    return inner


def _constant_tensors(body: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield headers of the tensors that a body's Constant nodes hold, under the names of their outputs."""
    for node in body.node:
        if node.op_type == "Constant" and node.domain == "":
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield onnx.TensorProto(name=node.output[0], data_type=attribute.t.data_type, dims=attribute.t.dims)
