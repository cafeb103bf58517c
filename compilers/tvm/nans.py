"""Largest and smallest of floats where one is NaN: it is passed on, as ONNX has it, in the code for CPUs.

Imports TVM; only reached through the methods of `TvmCompiler`.

TVM's `max(a, b)` is `a if a > b else b`, which is b where either is NaN. So a constant goes to the left, which costs
nothing, and else the result is chosen once more. In a reduction that would take up to three times as long: what is
reduced so far goes to the right there, so that a NaN is passed over, and ReduceMax looks for one itself (`extremes`).
It is done last of all: schedules know reductions by their `max`.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import compilation_pipeline

from compilers.tvm.expressions import operator_name

PIPELINE: Final = "edgefrontier.nans"
"""The name of the TIR pipeline whose `max` and `min` know NaN."""


@tirx.transform.prim_func_pass(opt_level=0, name="edgefrontier.nans")  # type: ignore[untyped-decorator]
def _knowing_nans(func: Any, _module: Any, _context: Any) -> Any:  # noqa: ANN401
    sums: list[Any] = []

    def store(node: Any) -> None:  # noqa: ANN401
        if isinstance(node.value, tirx.Max | tirx.Min) and _loads(node.value.a, [node.buffer]):
            sums.append(node.buffer)

    def extreme(node: Any) -> Any:  # noqa: ANN401
        return type(node)(node.b, node.a) if _loads(node.a, sums) else _of_both(node)

    tvm_ffi.structural_walk(func, [(tirx.BufferStore, store)])
    return tvm_ffi.structural_map(func, [(tirx.Max, extreme), (tirx.Min, extreme)])


def _loads(term: Any, buffers: list[Any]) -> bool:  # noqa: ANN401
    return isinstance(term, tvm.ir.TensorLoad) and any(term.source.same_as(buffer) for buffer in buffers)


def _of_both(extreme: Any) -> Any:  # noqa: ANN401
    left, right = extreme.a, extreme.b
    if "float" not in str(extreme.ty.dtype) or _is_number(left) or _is_power(left):
        return extreme
    if _is_number(right):
        return type(extreme)(right, left)
    first = tirx.Var("first", left.ty)
    # Not `first != first`: TVM's code for that is false of NaN.
    return tirx.Let(first, left, tirx.Select(tirx.EQ(first, first), type(extreme)(first, right), first))


def _is_power(term: Any) -> bool:  # noqa: ANN401
    """Tell a polynomial times a power of two, made of its bits: TVM's exp(x), of which it takes the largest with x."""
    return isinstance(term, tirx.Mul) and "tirx.reinterpret" in (operator_name(term.a), operator_name(term.b))


def _is_number(term: Any) -> bool:  # noqa: ANN401
    value = term.value if isinstance(term, tirx.Broadcast) else term
    return isinstance(value, tirx.FloatImm) and value.value == value.value  # NaN is none


compilation_pipeline.register_tir_pipeline(
    PIPELINE,
    lambda: (
        compilation_pipeline.get_tir_pipeline("default")[0],
        lambda: tvm.transform.Sequential([compilation_pipeline.finalize_host_passes(), _knowing_nans]),
        compilation_pipeline.finalize_device_passes,
    ),
)
