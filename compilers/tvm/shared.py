"""What a statement computes several times, bound to a variable.

Imports TVM; only reached through the methods of `TvmCompiler`.

A polynomial has its x a dozen times. What comes before it in a fused function is inlined in place of each, and what
comes before that in place of each again; TVM's passes walk all of it for each column that is unrolled, and LLVM makes
one of the many again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from compilers.tvm.expressions import operator_name

_TERMS: Final = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Cast, tvm.ir.Call, tvm.ir.TensorLoad)
_GUARD: Final = "prim.if_then_else"


def shared(func: Any) -> Any:  # noqa: ANN401
    """Bind each term that one statement of a function has several times to a variable.

    Sums stay as TVM's schedules know them, and what stands behind a condition is not computed before it.
    """
    return tvm_ffi.structural_map(func, [(tirx.BufferStore, _shared)])


def _shared(store: Any) -> Any:  # noqa: ANN401
    terms, value = _terms(store.value), store.value
    sums = any(isinstance(term, tvm.ir.TensorLoad) and term.source.same_as(store.buffer) for term in terms)
    if sums or any(operator_name(term) == _GUARD for term in terms):
        return store
    while (term := _largest_repeated(value)) is not None:
        variable = tirx.Var("shared", term.ty)
        value = tirx.Let(variable, term, _replaced(value, term, variable))
    return store if value is store.value else tirx.BufferStore(store.buffer, value, store.indices)


def _terms(value: Any) -> list[Any]:  # noqa: ANN401
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [(kind, found.append) for kind in _TERMS])
    return found


def _largest_repeated(value: Any) -> Any | None:  # noqa: ANN401
    """Return the largest float that a value has twice; largest first, so that a variable stands around what uses it."""
    floats = [term for term in _terms(value) if str(term.ty.dtype).startswith("float")]
    keys = [tvm_ffi.structural_hash(term) for term in floats]
    counts = Counter(keys)
    repeated = {key: term for key, term in zip(keys, floats, strict=True) if counts[key] > 1}
    return max(repeated.values(), key=lambda term: len(_terms(term)), default=None)


def _replaced(value: Any, term: Any, variable: Any) -> Any:  # noqa: ANN401
    return tvm_ffi.structural_map(
        value, [(type(term), lambda other: variable if tvm_ffi.structural_equal(other, term) else other)]
    )
