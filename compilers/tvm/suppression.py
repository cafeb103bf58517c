"""NonMaxSuppression as ONNX means it: of each class the best box, then the best that overlaps no chosen one too much.

Imports TVM; only reached through the methods of `TvmCompiler`.

TVM's own converter keeps other boxes at the bound of the overlap, and with limits that are not constant
(docs/vendor_bugs.md). How many boxes there are is known at run time only, so what follows has a dimension without a
number; a GPU's code for it is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from compilers.tvm.expressions import constant, given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def suppress(bb: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Emit the boxes that are kept, rows of (batch, class, box), for the inputs of ONNX's operator."""
    batch, classes, boxes = (int(extent) for extent in inputs[1].ty.shape.values)
    limits = [_Limit.of(inputs, position, default) for position, default in ((2, 0), (3, 0.0), (4, None))]
    known = limits[0].value
    most = boxes if known is None else max(0, min(boxes, int(known)))
    task = _Task(batch=batch, classes=classes, boxes=boxes, most=most, centred=bool(attrs.get("center_point_box", 0)))
    tensors = [limit.tensor for limit in limits if limit.tensor is not None]

    def body(box: Any, score: Any, *rest: Any) -> Any:  # noqa: ANN401
        return te.extern(
            [(max(1, batch * classes * most), 3), (2,)],
            [box, score, *rest],
            lambda ins, outs: task.statements(ins[0], ins[1], _read(limits, ins[2:]), *outs),
            dtype=["int64", "int64"],
            name="suppressed",
        )

    found = bb.emit(bb.call_te(body, inputs[0], inputs[1], *tensors, primfunc_name_hint="suppressed"))
    rows, end = (bb.emit(relax.TupleGetItem(found, index)) for index in range(2))
    first, step = (relax.const(np.full(2, value), "int64") for value in (0, 1))
    kept = bb.emit(relax.op.dynamic_strided_slice(rows, first, end, step))
    return bb.match_cast(kept, relax.TensorType((tirx.Var("kept", "int64"), 3), "int64"))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    """One of the three limits: known now, or a tensor, or none at all."""

    value: float | None
    tensor: Any

    @classmethod
    def of(cls, inputs: list[Any], position: int, default: float | None) -> _Limit:
        if given(inputs, position) is None:
            return cls(value=default, tensor=None)
        value = constant(inputs, position)
        return cls(value=None, tensor=inputs[position]) if value is None else cls(value=value.item(), tensor=None)


def _read(limits: Sequence[_Limit], tensors: Sequence[Any]) -> list[Any]:
    """Return the limits as numbers or as loads; None where there is none."""
    rest = iter(tensors)
    return [
        limit.value if limit.tensor is None else (tensor := next(rest))[*[0] * len(tensor.shape)] for limit in limits
    ]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    batch: int
    classes: int
    boxes: int
    most: int
    centred: bool

    def statements(self, box: Any, score: Any, limits: Sequence[Any], rows: Any, end: Any) -> Any:  # noqa: ANN401
        """Write what fills the rows and their end, class by class."""
        most, overlap, least = limits
        with IRBuilder() as ib, script.serial(0, 1):  # the builder takes one statement
            box, score, rows, end = (script.buffer_proxy(buffer) for buffer in (box, score, rows, end))
            waiting = script.buffer_proxy(script.alloc_buffer((self.boxes,), "int64", scope="global"))
            count, best, left = (_variable() for _ in range(3))
            end[0], end[1] = script.int64(0), script.int64(3)
            with script.serial(0, self.batch) as b, script.serial(0, self.classes) as c:
                count[0] = script.int64(0)
                with script.serial(0, self.boxes) as i, _if(score[b, c, i] > least if least is not None else None):
                    waiting[count[0]] = tirx.Cast("int64", i)
                    count[0] = count[0] + 1
                with script.serial(0, self.most) as k, _if(tirx.all(count[0] > 0, k < most)):
                    best[0] = script.int64(0)
                    with script.serial(0, count[0]) as i, _if(score[b, c, waiting[i]] > score[b, c, waiting[best[0]]]):
                        best[0] = tirx.Cast("int64", i)
                    for column, value in enumerate((b, c, waiting[best[0]])):
                        rows[end[0], column] = tirx.Cast("int64", value)
                    left[0] = script.int64(0)
                    chosen = _corners(box, b, rows[end[0], 2], centred=self.centred)
                    with script.serial(0, count[0]) as i:
                        other = _corners(box, b, waiting[i], centred=self.centred)
                        with _if(tirx.all(i != best[0], tirx.Not(_overlaps(chosen, other, overlap)))):
                            waiting[left[0]] = waiting[i]
                            left[0] = left[0] + 1
                    count[0] = left[0]
                    end[0] = end[0] + 1
        return ib.get()


def _variable() -> Any:  # noqa: ANN401
    return script.buffer_proxy(script.alloc_buffer((1,), "int64", scope="local"))


@contextlib.contextmanager
def _if(condition: Any) -> Iterator[None]:  # noqa: ANN401
    """Write what is done on a condition; None always holds."""
    with contextlib.ExitStack() as stack:
        if condition is not None:
            stack.enter_context(script.If(condition))
            stack.enter_context(script.Then())
        yield


def _corners(box: Any, batch: Any, index: Any, *, centred: bool) -> tuple[tuple[Any, Any], tuple[Any, Any]]:  # noqa: ANN401
    """Return (least, largest) of a box along both axes; it is given by two corners in any order, or centre and size."""
    first, second, third, fourth = (box[batch, index, column] for column in range(4))
    if centred:
        return (first - third / 2.0, first + third / 2.0), (second - fourth / 2.0, second + fourth / 2.0)
    return (te.min(first, third), te.max(first, third)), (te.min(second, fourth), te.max(second, fourth))


def _overlaps(one: Any, other: Any, bound: Any) -> Any:  # noqa: ANN401
    """Tell whether the intersection of two boxes is more than a share of their union; one without area is in none."""
    width, height = (te.min(a[1], b[1]) - te.max(a[0], b[0]) for a, b in zip(one, other, strict=True))
    areas = [(axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]) for axes in (one, other)]
    shared = width * height
    union = areas[0] + areas[1] - shared
    positive = [value > 0.0 for value in (width, height, *areas, union)]
    return tirx.all(*positive, shared / union > bound)
