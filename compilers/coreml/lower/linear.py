"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS, Value

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar


@lowers("Gemm")
def _gemm(node: Node) -> None:
    node.need_dtype(*FLOATS)
    alpha, beta = float(node.attr("alpha")), float(node.attr("beta"))
    weight = _weight(node) if not node.attr("transA") else None
    mil, rest = node.mil, node.has(2)
    if weight is None:
        product = mil.matmul(
            x=node.x(0), y=node.x(1), transpose_x=bool(node.attr("transA")), transpose_y=bool(node.attr("transB"))
        )
    else:
        bias = _bias(node, weight.shape[0]) if rest and alpha == beta == 1 else None
        product = mil.linear(x=node.x(0), weight=weight, **({} if bias is None else {"bias": bias}))
        rest = rest and bias is None
    if alpha != 1:
        product = mil.mul(x=product, y=node.like(alpha))
    if rest:
        addend = node.x(2) if beta == 1 else mil.mul(x=node.x(2), y=node.like(beta))
        product = mil.add(x=product, y=addend)
    node.out(product)


def _weight(node: Node) -> MilVar:  # None when B is computed
    """Return B as the (out, in) matrix of `linear`, 8-bit when it is."""
    value, transposed = node.value(1), bool(node.attr("transB"))
    if value.quantised is not None:
        if transposed:
            return node.x(1)
        return node.materialise(Value(name=value.name, dtype=value.dtype, quantised=value.quantised.transposed()))
    if value.const is None:
        return None
    return node.x(1) if transposed else node.constant(np.ascontiguousarray(value.const.T))


def _bias(node: Node, width: int) -> MilVar:  # None when C is no constant row
    if not node.is_const(2):
        return None
    row = node.const(2)
    if row.size not in (1, width) or row.shape not in ((width,), (1, width), (1,), (), (1, 1)):
        return None
    return node.constant(np.ascontiguousarray(np.broadcast_to(row.reshape(-1), (width,))))


@lowers("MatMul")
def _matmul(node: Node) -> None:
    # A rank-1 operand becomes a matrix first: coremltools infers a wrong shape for it (#2263).
    node.need_dtype(*FLOATS, "int32")
    a_rank, b_rank = len(node.shape(0)), len(node.shape(1))
    a, b, mil = node.x(0), node.x(1), node.mil
    if a_rank == 1:
        a = mil.expand_dims(x=a, axes=[0])
    if b_rank == 1:
        b = mil.expand_dims(x=b, axes=[1])
    product = mil.matmul(x=a, y=b)
    dropped = ([-2] if a_rank == 1 else []) + ([-1] if b_rank == 1 else [])
    node.out(mil.squeeze(x=product, axes=dropped) if dropped else product)


@lowers("Einsum")
def _einsum(node: Node) -> None:
    """Lower the two-operand contractions that are a batched matrix product after transposes."""
    node.need_dtype(*FLOATS)
    equation = str(node.attr("equation")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or any(len(set(t)) != len(t) for t in (*terms, result)):
        node.refuse(f"attribute equation={equation} is not handled")
    if len(terms) == 1:
        node.out(
            _reorder(node, _summed(node, 0, terms[0], result), "".join(c for c in terms[0] if c in result), result)
        )
    elif len(terms) == 2:
        node.out(_contract(node, terms[0], terms[1], result))
    else:
        node.refuse(f"attribute equation={equation} has more than two operands")


def _summed(node: Node, index: int, term: str, keep: str) -> MilVar:
    gone = [i for i, letter in enumerate(term) if letter not in keep]
    return node.mil.reduce_sum(x=node.x(index), axes=gone, keep_dims=False) if gone else node.x(index)


def _reorder(node: Node, x: MilVar, have: str, want: str) -> MilVar:
    if len(have) != len(want):
        node.refuse(f"the output axes {want} do not all come from the operands")
    return x if have == want else node.mil.transpose(x=x, perm=[have.index(c) for c in want])


def _contract(node: Node, left: str, right: str, result: str) -> MilVar:
    """Sum over the shared letters: (batch, rows, inner) x (batch, inner, columns)."""
    sizes = dict(zip(left + right, node.shape(0) + node.shape(1), strict=True))
    a, b = _summed(node, 0, left, right + result), _summed(node, 1, right, left + result)
    left, right = ("".join(c for c in t if c in o + result) for t, o in ((left, right), (right, left)))
    batch = [c for c in left if c in right and c in result]
    inner = [c for c in left if c in right and c not in result]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def shaped(x: MilVar, have: str, *groups: list[str]) -> MilVar:
        order = [c for group in groups for c in group]
        moved = _reorder(node, x, have, "".join(order))
        return node.mil.reshape(x=moved, shape=[int(np.prod([sizes[c] for c in group])) for group in groups])

    product = node.mil.matmul(x=shaped(a, left, batch, rows, inner), y=shaped(b, right, batch, inner, columns))
    letters = batch + rows + columns
    if not letters:
        return node.mil.squeeze(x=product, axes=[0, 1, 2])
    product = node.mil.reshape(x=product, shape=[sizes[c] for c in letters])
    return _reorder(node, product, "".join(letters), result)
