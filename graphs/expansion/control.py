"""If, Loop and Scan as the nodes that they run.

An If whose condition is known is the branch that it takes; of another both branches run, and one result is selected,
element by element. A Loop whose number of steps is known, and a Scan, are their steps, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import onnx

from graphs.expansion.parts import Impossible, Parts, rename
from graphs.nodes import bodies

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STEPS: Final = 64


def if_(parts: Parts) -> list[str]:
    """Replace an If."""
    then, other = parts.attr("then_branch"), parts.attr("else_branch")
    condition = parts.constant(0)
    if condition is not None:
        return _inlined(parts, then if condition.all() else other, {})
    if _same(then, other):
        return _inlined(parts, then, {})
    _check_shapes(parts)
    flag = parts.input(0) if not parts.shape(0) else parts.reshape(parts.input(0))
    results, others = _inlined(parts, then, {}), _inlined(parts, other, {})
    return [parts("Where", flag, a, b) for a, b in zip(results, others, strict=True)]


def _same(then: onnx.GraphProto, other: onnx.GraphProto) -> bool:
    """Tell whether folding has put one branch in the place of both."""
    return [n.SerializeToString() for n in then.node] == [n.SerializeToString() for n in other.node] and [
        info.name for info in then.output
    ] == [info.name for info in other.output]


def _check_shapes(parts: Parts) -> None:
    """Refuse branches of different shapes: inference then gives the output none."""
    try:
        for position in range(len(parts.node.output)):
            parts.output_shape(position)
    except Impossible as reason:
        raise Impossible(
            "its condition is computed while the model runs, and its branches give different or unknown shapes"
        ) from reason


def loop(parts: Parts) -> list[str | None]:
    """Replace a Loop that makes a known number of steps."""
    body = parts.attr("body")
    carried = [parts.input(position) for position in range(2, len(parts.node.input))]
    steps = _steps(parts, body)
    scanned: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    for step in range(steps):
        given = [parts.named(np.array(step, np.int64)), parts.named(np.array(1, np.bool_)), *carried]
        _, *results = _inlined(parts, body, dict(zip((info.name for info in body.input), given, strict=True)))
        carried = results[: len(carried)]
        for collected, part in zip(scanned, results[len(carried) :], strict=True):
            collected.append(part)
    infos = body.output[1 + len(carried) :]
    return [*carried, *(_stacked(parts, each, 0, info) for each, info in zip(scanned, infos, strict=True))]


def _steps(parts: Parts, body: onnx.GraphProto) -> int:
    """Return how often the body of a Loop runs, where its condition never changes."""
    if not parts.has(0):
        raise Impossible("its number of steps is not limited")
    count = int(parts.known(0, "number of steps").reshape(-1)[0])
    if parts.has(1) and not parts.known(1, "condition").all():
        return 0
    going = body.output[0].name
    maker = next((node for node in body.node if going in node.output), None)
    passed_on = going == body.input[1].name or (maker is not None and maker.op_type == "Identity")
    if maker is not None and passed_on and maker.input[0] != body.input[1].name:
        passed_on = False
    constant = next((t for t in body.initializer if t.name == going), None)
    if constant is None and maker is not None and maker.op_type == "Constant":
        constant = maker.attribute[0].t
    always = constant is not None and bool(onnx.numpy_helper.to_array(constant).all())
    if not passed_on and not always:
        raise Impossible("its condition is computed while the model runs")
    return _few(count)


def _few(steps: int) -> int:
    if steps > MAX_STEPS:
        raise Impossible(f"it makes {steps} steps, and {MAX_STEPS} at most are unrolled: each becomes nodes of its own")
    return steps


def scan(parts: Parts) -> list[str | None]:
    """Replace a Scan."""
    if parts.opset < 9:
        raise Impossible("Scan has another meaning before opset 9")
    body, count = parts.attr("body"), parts.attr("num_scan_inputs")
    carried = [parts.input(position) for position in range(len(parts.node.input) - count)]
    first = len(carried)
    sequences = [parts.input(first + index) for index in range(count)]
    shapes = [parts.shape(first + index) for index in range(count)]
    outputs = len(body.output) - first
    axes = [axis % len(shape) for axis, shape in zip(_each(parts, "scan_input_axes", count), shapes, strict=True)]
    steps = _few(shapes[0][axes[0]])
    backward = _each(parts, "scan_input_directions", count)
    scanned: list[list[str]] = [[] for _ in range(outputs)]
    for step in range(steps):
        rows = [
            parts.row(sequence, axis, steps - 1 - step if back else step)
            for sequence, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        given = dict(zip((info.name for info in body.input), [*carried, *rows], strict=True))
        results = _inlined(parts, body, given)
        carried = results[:first]
        for collected, part in zip(scanned, results[first:], strict=True):
            collected.append(part)
    ends = zip(
        scanned,
        _each(parts, "scan_output_axes", outputs),
        _each(parts, "scan_output_directions", outputs),
        body.output[first:],
        strict=True,
    )
    return [*carried, *(_stacked(parts, s[::-1] if back else s, axis, info) for s, axis, back, info in ends)]


def _each(parts: Parts, name: str, count: int) -> list[int]:
    return list(parts.attr(name, [0] * count))


def _stacked(parts: Parts, rows: list[str], axis: int, info: onnx.ValueInfoProto) -> str | None:
    """Join the results of all steps along a new axis."""
    if not rows:
        raise Impossible("it makes no step, so what it collects is empty")
    if axis < 0:
        axis += len(info.type.tensor_type.shape.dim) + 1
    return parts("Concat", *(parts.with_axis(row, axis) for row in rows), axis=axis)


def _inlined(parts: Parts, body: onnx.GraphProto, bound: Mapping[str, str]) -> list[str]:
    """Add the nodes of a body under names of their own, its inputs bound, and return its outputs."""
    names = dict(bound)
    for tensor in body.initializer:
        names[tensor.name] = parts.named(onnx.numpy_helper.to_array(tensor))
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for output in filter(None, node.output):
            names[output] = parts.fresh(output)
        _free_inner(copy, names)
        copy.name = parts.fresh(node.name or node.op_type)
        parts.copy(copy)
    return [names.get(info.name, info.name) for info in body.output]


def _free_inner(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node reads and makes; a name that a body of it defines anew hides the outer one."""
    inner = {
        name
        for body in bodies(node)
        for name in (
            *(info.name for info in body.input),
            *(tensor.name for tensor in body.initializer),
            *(output for each in body.node for output in each.output),
        )
    }
    rename(node, {old: new for old, new in names.items() if old not in inner})
