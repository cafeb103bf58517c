"""If, Loop and Scan without branches or jumps, which the Neural Engine has not.

An If whose condition is known has only the branch that it takes; otherwise both are computed and one is selected,
element by element. A Loop whose number of steps is known, and a Scan, become their steps, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

Array = np.ndarray[Any, Any]

CONTROL: Final = frozenset({"If", "Loop", "Scan"})
# Each step becomes operations of its own.
MAX_STEPS: Final = 128
_SCAN_WITHOUT_BATCH: Final = 9


class Scope(Protocol):
    """What the lowering of a graph offers to that of a control node."""

    def value(self, name: str) -> Value | None:
        """Return a tensor of the graph; None for an omitted input."""

    def body(self, graph: onnx.GraphProto, bound: Mapping[str, Value]) -> list[Value]:
        """Lower the nodes of a body, its inputs bound to values, and return its outputs."""

    def emit(self, op_type: str, *operands: Value, **attributes: int) -> Value:
        """Lower one more ONNX node and return its output."""


def lower_control(node: onnx.NodeProto, scope: Scope, opset: int) -> list[Value]:
    """Return the outputs of an If, Loop or Scan.

    Raises:
        CompilerError: what decides is known only while the model runs, or a body is refused.
    """
    import onnx

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [scope.value(name) for name in node.input]
    if node.op_type == "If":
        return _if(attributes["then_branch"], attributes["else_branch"], _given(inputs[0]), scope)
    if node.op_type == "Loop":
        return _loop(attributes["body"], inputs, scope)
    if opset < _SCAN_WITHOUT_BATCH:
        raise CompilerError(
            f"it has another meaning before opset {_SCAN_WITHOUT_BATCH}; convert the model to a newer one"
        )
    return _scan(attributes, [_given(v) for v in inputs], scope)


def _given(value: Value | None) -> Value:
    if value is None:
        raise CompilerError("an input that it needs is omitted")
    return value


def _if(then: onnx.GraphProto, other: onnx.GraphProto, condition: Value, scope: Scope) -> list[Value]:
    if condition.const is not None:
        return scope.body(then if condition.const.all() else other, {})
    results, others = scope.body(then, {}), scope.body(other, {})
    if condition.shape:
        condition = scope.emit("Squeeze", condition)
    return [_selected(condition, a, b, scope) for a, b in zip(results, others, strict=True)]


def _selected(condition: Value, then: Value, other: Value, scope: Scope) -> Value:
    if (then.shape, then.dtype) != (other.shape, other.dtype):
        raise CompilerError(
            f"its branches give {then.dtype}{then.shape} and {other.dtype}{other.shape}, and the condition is computed "
            "while the model runs; Core ML has static shapes"
        )
    return scope.emit("Where", condition, then, other)


def _loop(body: onnx.GraphProto, inputs: Sequence[Value | None], scope: Scope) -> list[Value]:
    count = _known(inputs[0], "its number of steps")
    alive = bool(_known(inputs[1] if len(inputs) > 1 else None, "its condition", default=1))
    carried = [_given(v) for v in inputs[2:]]
    scanned: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while alive and (count is None or step < count):
        _check_steps(step + 1)
        given = [_constant(np.array(step)), _constant(np.array(alive)), *carried]
        going, *results = scope.body(body, {i.name: v for i, v in zip(body.input, given, strict=True)})
        alive = bool(_known(going, "its condition"))
        carried = results[: len(carried)]
        for parts, part in zip(scanned, results[len(carried) :], strict=True):
            parts.append(part)
        step += 1
    return [*carried, *(_stacked(parts, 0, scope) for parts in scanned)]


def _known(value: Value | None, what: str, default: int | None = None) -> int | None:
    if value is None:
        return default
    if value.const is None:
        raise CompilerError(f"{what} is computed while the model runs; only a known one can be unrolled")
    return int(value.const.reshape(-1)[0])


def _check_steps(steps: int) -> None:
    if steps > MAX_STEPS:
        raise CompilerError(f"more than {MAX_STEPS} steps are not handled: each becomes operations of its own")


def _constant(array: Array) -> Value:
    return Value(name="", dtype=str(array.dtype), const=array)


def _scan(attributes: Mapping[str, Any], inputs: Sequence[Value], scope: Scope) -> list[Value]:
    body, count = attributes["body"], int(attributes["num_scan_inputs"])
    carried, sequences = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    outputs = len(body.output) - len(carried)
    axes = [a % len(v.shape) for a, v in zip(_each(attributes, "scan_input_axes", count), sequences, strict=True)]
    steps = {v.shape[axis] for v, axis in zip(sequences, axes, strict=True)}
    if len(steps) != 1:
        raise CompilerError(f"its sequences have different lengths: {sorted(steps)}")
    (length,) = steps
    _check_steps(length)
    backward = _each(attributes, "scan_input_directions", count)
    scanned: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(length):
        parts = [
            scope.emit("Gather", v, _constant(np.array(length - 1 - step if back else step)), axis=axis)
            for v, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        results = scope.body(body, {i.name: v for i, v in zip(body.input, [*carried, *parts], strict=True)})
        carried = results[: len(carried)]
        for gathered, part in zip(scanned, results[len(carried) :], strict=True):
            gathered.append(part)
    ends = zip(
        scanned,
        _each(attributes, "scan_output_axes", outputs),
        _each(attributes, "scan_output_directions", outputs),
        strict=True,
    )
    return [*carried, *(_stacked(parts[::-1] if back else parts, axis, scope) for parts, axis, back in ends)]


def _each(attributes: Mapping[str, Any], name: str, count: int) -> list[int]:
    return [int(n) for n in attributes.get(name, [0] * count)]


def _stacked(parts: Sequence[Value], axis: int, scope: Scope) -> Value:
    """Join the results of all steps along a new axis."""
    if not parts:
        raise CompilerError("no step is made, so what it collects is empty; Core ML has no empty tensors")
    own = parts[0].shape
    axis %= len(own) + 1
    shape = _constant(np.array([*own[:axis], 1, *own[axis:]]))
    return scope.emit("Concat", *(scope.emit("Reshape", part, shape) for part in parts), axis=axis)
