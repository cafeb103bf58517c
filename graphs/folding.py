"""Compute the small constant part of a graph: the shape arithmetic that exporters leave behind.

Known values take the place of the nodes that make them, and an If whose condition is known has only one branch.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from graphs.nodes import bodies, reads

if TYPE_CHECKING:
    from collections.abc import Mapping

    Shapes = Mapping[str, tuple[int, ...] | None]
    Values = dict[str, np.ndarray]

_LOG = logging.getLogger(__name__)

# Deterministic operators found in shape arithmetic, and in what exporters do to weights.
FOLDABLE = frozenset({
    "Abs", "Add", "And", "BlackmanWindow", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "CumSum", "Div",
    "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual",
    "HammingWindow", "HannWindow", "Identity", "Less", "LessOrEqual", "Max", "MelWeightMatrix", "Min", "Mod", "Mul",
    "Neg", "NonZero", "Not", "Or", "Pow", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
    "Round", "ScatterND", "Shape", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose",
    "Unsqueeze", "Where",
})  # fmt: skip
# Operators whose result's size is a value of an operand; they are folded only when that value is small.
_SIZED_BY_OPERAND = frozenset({"ConstantOfShape", "Expand", "Tile", "Range"})
_LARGEST = 4096


def fold(model: onnx.ModelProto, shapes: Shapes, known: Values) -> bool:
    """Put values in place of what depends on nothing but small constants and known shapes; say if there was any.

    Args:
        model: Changed in place; the bodies of its control flow carry their value infos.
        shapes: Of the activations of the main graph.
        known: The values found so far in the main graph; new ones are added, none larger than what they are made from.
    """
    opset = next((entry.version for entry in model.opset_import if entry.domain == ""), 1)
    return _fold(model.graph, shapes, known, opset)


def _fold(graph: onnx.GraphProto, shapes: Shapes, known: Values, opset: int) -> bool:
    known.update(_constants(graph, known))
    found: Values = {}
    changed = False
    for node in graph.node:
        changed |= _settle_branch(node, known)
        for body in bodies(node):
            changed |= _fold_body(body, shapes, known, opset)
        if node.domain == "" and node.op_type in FOLDABLE and not known.keys() >= set(filter(None, node.output)):
            values = _values(node, {name: known[name] for name in node.input if name in known}, shapes, opset)
            known.update(values)
            found.update(values)
    if found:
        _replace(graph, found)
    return changed or bool(found)


def _constants(graph: onnx.GraphProto, known: Values) -> Values:
    """Return what the graph states as a value and is not known yet."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    new = {name: tensor for name, tensor in tensors.items() if name not in known}
    return {name: onnx.numpy_helper.to_array(tensor) for name, tensor in new.items()}


def _settle_branch(node: onnx.NodeProto, known: Values) -> bool:
    """Put the branch that an If takes in place of the other one, once its condition is known."""
    if node.op_type != "If" or node.domain or node.input[0] not in known:
        return False
    branches = {attribute.name: attribute.g for attribute in node.attribute}
    names = ("then_branch", "else_branch") if known[node.input[0]].all() else ("else_branch", "then_branch")
    taken, other = (branches[name] for name in names)
    if taken == other:
        return False
    other.CopyFrom(taken)
    return True


def _fold_body(body: onnx.GraphProto, shapes: Shapes, known: Values, opset: int) -> bool:
    """Fold inside a body, which sees what is around it; what it finds stays in it."""
    infos = [*body.input, *body.value_info, *body.output]
    return _fold(body, {**shapes, **{info.name: shape_of(info) for info in infos}}, dict(known), opset)


def shape_of(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """Return a tensor's shape where it is known in full."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    known = all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims)
    return tuple(dim.dim_value for dim in dims) if known else None


def _replace(graph: onnx.GraphProto, values: Values) -> None:
    """Put known values in place of the nodes that make them and of what was inferred of those."""
    kept = onnx.GraphProto()
    kept.node.extend(node for node in graph.node if not set(filter(None, node.output)) <= values.keys())
    kept.value_info.extend(info for info in graph.value_info if info.name not in values)
    for field in ("node", "value_info"):
        graph.ClearField(field)
        getattr(graph, field).extend(getattr(kept, field))
    tensors = {name: onnx.numpy_helper.from_array(value, name) for name, value in values.items()}
    graph.initializer.extend(tensors.values())
    embed_constants(graph, tensors)


def embed_constants(graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]) -> None:
    """Copy small constants into the bodies that capture them: inference does not look outside a body for values."""
    for node in graph.node:
        for body in bodies(node):
            own = {info.name for info in body.input} | {tensor.name for tensor in body.initializer}
            read = {name for inner in body.node for name in reads(inner)} - own
            body.initializer.extend(constants[name] for name in sorted(read & constants.keys()))
            embed_constants(body, {name: tensor for name, tensor in constants.items() if name not in own})


def _values(node: onnx.NodeProto, operands: Values, shapes: Shapes, opset: int) -> Values:
    """Return the outputs of one node, or nothing when they are not known or not small."""
    shape = shapes.get(node.input[0]) if node.input else None
    if node.op_type == "Size" and shape is not None:
        return {node.output[0]: np.array(math.prod(shape), dtype=np.int64)}
    if node.op_type == "Shape" and shape is not None:
        return {node.output[0]: _shape_slice(node, shape)}
    if any(name not in operands for name in node.input if name) or not _small(node, operands):
        return {}
    return evaluate(node, operands, opset)


def _shape_slice(node: onnx.NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], dtype=np.int64)


def _small(node: onnx.NodeProto, operands: Values) -> bool:
    if node.op_type not in _SIZED_BY_OPERAND:
        return True
    sizes = list(operands.values())
    if node.op_type == "Range":
        start, limit, step = (float(value.item()) for value in sizes[:3])
        return step != 0 and abs((limit - start) / step) <= _LARGEST
    return math.prod(max(int(size), 1) for size in sizes[-1].ravel()) <= _LARGEST


def evaluate(node: onnx.NodeProto, operands: Values, opset: int) -> Values:
    """Return what a node makes of known operands by ONNX's reference; nothing where it fails or is larger than they."""
    # A bare node would be evaluated by the newest operator set's rules.
    imports = [onnx.helper.make_opsetid("", opset)]
    outputs = list(filter(None, node.output))
    function = onnx.helper.make_function("edgefrontier", "fold", list(operands), outputs, [node], imports)
    try:
        results = ReferenceEvaluator(function).run(None, operands, attributes={})
    except Exception as error:  # noqa: BLE001  # the reference raises whatever numpy does; the shape stays unknown
        _LOG.info("could not fold %s '%s': %s", node.op_type, node.name, error)
        return {}
    largest = max(_LARGEST, sum(operand.size for operand in operands.values()))
    found = {name: np.asarray(value) for name, value in zip(outputs, results, strict=True)}
    return {name: value for name, value in found.items() if value.size <= largest}
