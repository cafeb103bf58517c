"""Apply the counting rules to the nodes of a model, of the bodies inside it and of its functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from graphs.graph import DTYPES, GraphError, Node, TensorSpec
from graphs.nodes import bodies, captures
from graphs.work.operation import Operation, Scope, UnknownError
from graphs.work.table import PICKED_PORTS, RULES, SHAPE_READERS, VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from graphs.weights import Weight


class Cost(NamedTuple):
    """The five counts of a node; None is unknown."""

    macs: int | None
    elementwise: int | None
    weight_bytes: int | None
    read_bytes: int | None
    write_bytes: int | None


FREE = Cost(0, 0, 0, 0, 0)

# What a damaged node (an attribute of a wrong type, a shape of a wrong rank) makes a rule raise.
_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def count(
    body: onnx.ModelProto,
    typed: Mapping[str, onnx.NodeProto],
    specs: Mapping[str, TensorSpec],
    weights: Mapping[str, Weight],
) -> tuple[Node, ...]:
    """Return the model's nodes with their work.

    Args:
        body: The normalised model.
        typed: Its nodes by name as inference left them, with value infos in the bodies of control flow.
        specs: Every activation.
        weights: Every constant.
    """
    scope = Scope(
        specs={**specs, **{name: weight.spec for name, weight in weights.items()}},
        weights=frozenset(weights),
        value=_small_values(weights),
        functions={(function.domain, function.name): function for function in body.functions},
        opset_imports=tuple(body.opset_import),
    )
    return tuple(_node(node, cost_of(typed.get(node.name, node), scope)) for node in body.graph.node)


def _small_values(weights: Mapping[str, Weight]) -> Callable[[str], np.ndarray | None]:
    def value(name: str) -> np.ndarray | None:
        weight = weights.get(name)
        return weight.array() if weight is not None and weight.elements <= 64 else None

    return value


def _node(node: onnx.NodeProto, cost: Cost) -> Node:
    return Node(
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        captured=captures(node),
        **cost._asdict(),
    )


def cost_of(node: onnx.NodeProto, scope: Scope) -> Cost:
    """Return the work of one node.

    Raises:
        GraphError: The node's attributes or the ranks of its inputs do not fit its operator.
    """
    try:
        if (node.domain, node.op_type) in _CONTROL:
            return _CONTROL[node.domain, node.op_type](node, scope)
        if (node.domain, node.op_type) in scope.functions:
            return _function(node, scope)
        operation = Operation(node, scope)
        work = _work(operation)
        return Cost(*work, *_traffic(operation))
    except _MISFITS as error:
        raise GraphError(
            f"node '{node.name}' ({node.op_type}) has attributes or inputs that do not fit its operator: {error}"
        ) from error


def _work(operation: Operation) -> tuple[int | None, int | None]:
    rule = RULES.get((operation.node.domain, operation.node.op_type))
    if rule is None:
        return None, None
    try:
        return rule(operation)
    except UnknownError:
        return None, None


# ---- bytes


def _traffic(operation: Operation) -> tuple[int | None, int | None, int | None]:
    """Return the bytes of weights read, of activations read, and of activations written."""
    op_type = operation.node.op_type
    if op_type in VIEWS:
        return 0, 0, 0
    written = _sum(_size(name, operation.scope) for name in operation.outputs if name)
    weights: list[int | None] = []
    activations: list[int | None] = []
    for name, port in _ports(operation).items():
        constant = name in operation.scope.weights
        (weights if constant else activations).append(_read(operation, name, port))
    return _sum(weights), _sum(activations), written


def _ports(operation: Operation) -> dict[str, int]:
    """Return each tensor read, once, with the first port it is read at."""
    if operation.node.op_type in SHAPE_READERS:
        return {}
    return {name: port for port, name in reversed(list(enumerate(operation.inputs))) if name}


def _read(operation: Operation, name: str, port: int) -> int | None:
    """Return the bytes read of one input: all of it, or of a table what is picked."""
    size = _size(name, operation.scope)
    if port not in PICKED_PORTS.get(operation.node.op_type, ()):
        return size
    picked = _size(operation.outputs[0], operation.scope)
    return None if size is None or picked is None else min(size, picked)


def _size(name: str, scope: Scope) -> int | None:
    spec = scope.specs.get(name)
    return None if spec is None else spec.size_bytes


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


# ---- control flow


def _add(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs, unknown where any part is."""
    return Cost(*(_sum(column) for column in zip(FREE, *costs, strict=True)))


def _times(cost: Cost, count: int | None) -> Cost:
    return Cost(*(None if field is None or count is None else field * count for field in cost))


def _body(graph: onnx.GraphProto, outer: Scope) -> Cost:
    """Return the work of a body once."""
    scope = inner_scope(graph, outer)
    return _add(cost_of(node, scope) for node in graph.node)


def inner_scope(graph: onnx.GraphProto, outer: Scope) -> Scope:
    """Return what a body's nodes see: its own tensors before those around it."""
    specs = {info.name: _spec(info) for info in [*graph.input, *graph.value_info, *graph.output]}
    own_weights = {tensor.name: _tensor_spec(tensor) for tensor in graph.initializer}
    constants = {node.output[0] for node in graph.node if node.op_type == "Constant" and node.domain == ""}
    hidden = {info.name for info in graph.input}
    return outer._replace(
        specs={**outer.specs, **specs, **own_weights},
        weights=(outer.weights - hidden) | own_weights.keys() | constants,
    )


def _spec(info: onnx.ValueInfoProto) -> TensorSpec:
    from graphs.shapes import spec_of

    return spec_of(info)


def _tensor_spec(tensor: onnx.TensorProto) -> TensorSpec:
    return TensorSpec(name=tensor.name, shape=tuple(tensor.dims), dtype=DTYPES.get(tensor.data_type, "unknown"))


def _if(node: onnx.NodeProto, scope: Scope) -> Cost:
    """Return the costlier branch; the condition itself is negligible but read."""
    costs = [_body(graph, scope) for graph in bodies(node)]
    if any(None in cost for cost in costs):
        return Cost(None, None, *_bytes_of(costs))
    return max(costs, key=lambda cost: (cost.macs, cost.elementwise, cost.read_bytes))


def _bytes_of(costs: list[Cost]) -> tuple[int | None, int | None, int | None]:
    """Return the greatest known bytes of several branches, unknown where any is."""
    columns = list(zip(*costs, strict=True))[2:]
    known = [None if None in column else max(value for value in column if value is not None) for column in columns]
    return known[0], known[1], known[2]


def _loop(node: onnx.NodeProto, scope: Scope) -> Cost:
    """Return the body times the trip count, where this is constant and no condition can end the loop early."""
    body = bodies(node)[0]
    trips = scope.value(node.input[0]) if node.input and node.input[0] else None
    known = trips is not None and _runs_through(node, body, scope)
    return _times(_body(body, scope), max(int(trips.item()), 0) if known and trips is not None else None)


def _runs_through(node: onnx.NodeProto, body: onnx.GraphProto, scope: Scope) -> bool:
    """Return whether the condition is true from the start and the body passes it on or sets it to true."""
    start = scope.value(node.input[1]) if len(node.input) > 1 and node.input[1] else np.ones(1, np.bool_)
    makers = {name: inner for inner in body.node for name in inner.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type in ("Identity", "Cast"):
        name = makers[name].input[0]
    if name in makers and makers[name].op_type == "Constant":
        tensor = Operation(makers[name], scope).attribute("value")
        passed_on = tensor is not None and bool(onnx.numpy_helper.to_array(tensor).all())
    else:
        outer = scope.value(name)
        passed_on = name == body.input[1].name or (outer is not None and bool(outer.all()))
    return start is not None and bool(start.all()) and passed_on


def _scan(node: onnx.NodeProto, scope: Scope) -> Cost:
    """Return the body times the length of the first scanned input."""
    operation = Operation(node, scope)
    scanned = operation.attribute("num_scan_inputs")
    axes = operation.attribute("scan_input_axes") or [0]
    port = len(operation.inputs) - scanned
    try:
        length = operation.shape(port)[axes[0]]
    except UnknownError:
        length = None
    return _times(_body(bodies(node)[0], scope), length)


def _sequence_map(node: onnx.NodeProto, scope: Scope) -> Cost:
    """Return unknown: a sequence has no length before run time."""
    return _times(_body(bodies(node)[0], scope), None)


_CONTROL: dict[tuple[str, str], Callable[[onnx.NodeProto, Scope], Cost]] = {
    ("", "If"): _if,
    ("", "Loop"): _loop,
    ("", "Scan"): _scan,
    ("", "SequenceMap"): _sequence_map,
}


# ---- model-local functions


def _function(node: onnx.NodeProto, scope: Scope) -> Cost:
    """Return the work of a function's body with the shapes and attributes of this call."""
    graph = _inlined(node, scope)
    return _body(graph, scope)


def _inlined(node: onnx.NodeProto, scope: Scope) -> onnx.GraphProto:
    """Return the call as a graph of plain operators with inferred shapes."""
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.extend(scope.opset_imports)
    model.functions.extend(scope.functions.values())
    model.graph.name = node.name
    model.graph.node.append(node)
    for name in dict.fromkeys(filter(None, node.input)):
        value = scope.value(name)
        if value is not None:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        elif name in scope.specs:
            model.graph.input.append(_typed(scope.specs[name]))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    inlined = inline_local_functions(model)
    graph = onnx.shape_inference.infer_shapes(inlined, data_prop=True).graph
    # What the call is fed is in the scope around it; listed here it would hide that some of it is constant.
    graph.ClearField("input")
    return graph


def _typed(spec: TensorSpec) -> onnx.ValueInfoProto:
    number = next((key for key, name in DTYPES.items() if name == spec.dtype), 0)
    return onnx.helper.make_tensor_value_info(spec.name, number, spec.shape)


# ---- reasons


def why_uncosted(node: Node, tensors: Mapping[str, TensorSpec]) -> str | None:
    """Return why a node's counts are not complete, or None when they are."""
    if None not in (node.macs, node.elementwise, node.weight_bytes, node.read_bytes, node.write_bytes):
        return None
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    blank = [name for name in (*node.reads, *node.outputs) if name in tensors and tensors[name].size_bytes is None]
    if blank:
        return f"the size of {', '.join(repr(name) for name in blank)} is not known"
    if (node.domain, node.op_type) not in RULES and not node.captured and (node.domain, node.op_type) not in _CONTROL:
        return f"no rule counts the operations of {operator}"
    why = f"the work of {operator} depends on values that are known only at run time"
    return (
        f"{why}; a constant trip count, and a condition that its body passes on, make it known" if _loops(node) else why
    )


def _loops(node: Node) -> bool:
    return node.domain == "" and node.op_type == "Loop"
