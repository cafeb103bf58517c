"""Counting rules of what multiplies and accumulates: convolutions, matrix products, recurrent cells, attention."""

from __future__ import annotations

import math
from collections.abc import Callable

from graphs.work.operation import Operation, UnknownError, Work

Rule = Callable[[Operation], Work]

REQUANTISE = 4
"""Scale, round, add the zero point, saturate."""
SOFTMAX = 5
"""Maximum, subtract, exponential, sum, divide."""


# ---- convolutions


def conv(*, weight: int = 1, bias: int = 2, added: int | None = None, extra: int = 0) -> Rule:
    """Count a convolution: each output element takes one filter (`W.shape[1:]`).

    Args:
        weight: Port of the filters [M, C/groups, kernel...].
        bias: Port of the bias.
        added: Port of a tensor that is added to the result, where there is one.
        extra: Further operations on each output element.
    """

    def rule(op: Operation) -> Work:
        out = op.out_size()
        steps = extra + op.has(bias) + (added is not None and op.has(added)) + (op.attribute("activation") is not None)
        return Work(out * math.prod(op.shape(weight)[1:]), out * steps)

    return rule


def conv_transpose(op: Operation) -> Work:
    """Each input element meets the filter of its channel, [C, M/groups, kernel...]."""
    return Work(op.size(0) * math.prod(op.shape(1)[1:]), op.out_size() * op.has(2))


def conv_integer(op: Operation) -> Work:
    """Zero points are subtracted from what they belong to."""
    return Work(op.out_size() * math.prod(op.shape(1)[1:]), _zero_points(op, 2, 3))


def deform_conv(op: Operation) -> Work:
    """Besides the products, each tap of each input channel is interpolated from 4 neighbours (and masked)."""
    out, weight = op.out(), op.shape(1)
    taps = out[0] * op.shape(0)[1] * math.prod(out[2:]) * math.prod(weight[2:])
    biased = math.prod(out) * op.has(3)
    return Work(math.prod(out) * math.prod(weight[1:]), taps * (interpolation(4) + op.has(4)) + biased)


def interpolation(taps: int) -> int:
    """Return the operations of a weighted sum of `taps` values."""
    return 2 * taps - 1


# ---- matrix products


def matmul(op: Operation) -> Work:
    """Count a product with numpy's broadcasting; K is the last dimension of A."""
    return Work(op.out_size() * _inner(op), 0)


def _inner(op: Operation) -> int:
    shape = op.shape(0)
    if not shape:
        raise UnknownError("a matrix product of a scalar")
    return shape[-1]


def fused_matmul(op: Operation) -> Work:
    """Count com.microsoft's product, whose A can be transposed and whose result can be scaled."""
    shape = op.shape(0)
    if len(shape) < 2 or not op.attribute("transA", 0):
        inner = _inner(op)
    else:
        inner = shape[0 if op.attribute("transBatchA", 0) else -2]
    scaled = op.attribute("alpha", 1.0) != 1.0
    return Work(op.out_size() * inner, op.out_size() * (scaled + (op.attribute("activation") is not None)))


def gemm(*, a: int = 0, c: int = 2, extra: int = 0) -> Rule:
    """Count alpha * A' * B' + beta * C over a result [M, N]."""

    def rule(op: Operation) -> Work:
        inner = op.shape(a)[0 if op.attribute("transA", 0) else -1]
        out = op.out_size()
        scales = (op.attribute("alpha", 1.0) != 1.0) + (op.has(c) and op.attribute("beta", 1.0) != 1.0)
        steps = extra + scales + op.has(c) + (op.attribute("activation") is not None)
        return Work(out * inner, out * steps)

    return rule


def matmul_integer(op: Operation) -> Work:
    """Zero points are subtracted from what they belong to."""
    return Work(op.out_size() * _inner(op), _zero_points(op, 2, 3))


def _zero_points(op: Operation, a: int, b: int) -> int:
    return op.size(0) * op.has(a) + op.size(1) * op.has(b)


def matmul_rescaled(*, bias: int, quantises: int = 0) -> Rule:
    """Count an integer product that is scaled back to float; `quantises` operations first on each value of A."""

    def rule(op: Operation) -> Work:
        out = op.out_size()
        return Work(out * _inner(op), out * (1 + op.has(bias)) + op.size(0) * quantises)

    return rule


def qlinear_matmul(op: Operation) -> Work:
    """An integer product, requantised."""
    return Work(op.out_size() * _inner(op), op.out_size() * REQUANTISE)


def matmul_blockwise(op: Operation) -> Work:
    """Count a product with packed weights [N, K] that are scaled and shifted before use."""
    inner, columns = op.attribute("K"), op.attribute("N")
    if not isinstance(inner, int) or not isinstance(columns, int):
        raise UnknownError("K or N is not stated")
    return Work(op.out_size() * inner, 2 * inner * columns + op.out_size() * op.has(5))


def einsum(op: Operation) -> Work:
    """Count pairwise contractions from left to right; a pair without a summed index only multiplies."""
    equation = str(op.attribute("equation", b""), "utf-8").replace(" ", "")
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    sizes: dict[str, int] = {}
    labels = [_labels(term, op.shape(port), sizes) for port, term in enumerate(terms)]
    kept = set(_labels(result, op.out(), sizes)) if "->" in equation else _implicit(labels)
    if len(labels) == 1:
        return Work(0, op.size(0) if set(labels[0]) - kept else 0)
    macs = elementwise = 0
    left = set(labels[0])
    for step, right in enumerate(labels[1:], start=1):
        needed = kept.union(*labels[step + 1 :])
        both = left | set(right)
        products = math.prod(sizes[label] for label in both)
        if both - needed:
            macs += products
        else:
            elementwise += products
        left = both & needed
    return Work(macs, elementwise)


def _labels(term: str, shape: tuple[int, ...], sizes: dict[str, int]) -> list[str]:
    """Return a label for each axis and note its size; an ellipsis stands for axes counted from the right."""
    named = term.replace("...", ".")
    hidden = len(shape) - len(named.replace(".", ""))
    labels: list[str] = []
    for letter in named:
        labels += [f".{axis}" for axis in range(hidden, 0, -1)] if letter == "." else [letter]
    if len(labels) != len(shape):
        raise UnknownError("the equation does not fit the shapes")
    for label, size in zip(labels, shape, strict=True):
        sizes[label] = max(size, sizes.get(label, 1))
    return labels


def _implicit(labels: list[list[str]]) -> set[str]:
    """Return the labels of a result that the equation leaves out: those that appear once."""
    every = [label for term in labels for label in term]
    return {label for label in every if every.count(label) == 1 or label.startswith(".")}


# ---- recurrent cells


def recurrent(gates: int, cell: int) -> Rule:
    """Count a cell: per step, direction and batch item, `gates` products of input and state with the hidden size.

    Each gate adds its two products, its bias and takes its activation; `cell` operations follow on each hidden value.
    """

    def rule(op: Operation) -> Work:
        steps, batch, inputs = op.shape(0)
        if op.attribute("layout", 0):
            steps, batch = batch, steps
        directions, rows, _ = op.shape(1)
        hidden = rows // gates
        cells = steps * batch * directions * hidden
        peepholes = 6 if op.has(7) else 0
        return Work(cells * gates * (inputs + hidden), cells * (gates * (2 + op.has(3)) + cell + peepholes))

    return rule


# ---- attention


def attend(scores: int, qk_size: int, v_size: int, masks: int) -> Work:
    """Count scores = q k', their scale, masks and softmax, and the weighted sum of the values."""
    return Work(scores * (qk_size + v_size), scores * (1 + SOFTMAX + masks))


def attention(op: Operation) -> Work:
    """Count Attention of the default domain: 4-D [B, H, S, D] or 3-D [B, S, H*D] queries, past keys included."""
    heads, queries, qk_size = _heads(op.shape(0), op.attribute("q_num_heads", 0))
    kv_heads, keys, _ = _heads(op.shape(1), op.attribute("kv_num_heads", 0))
    _, _, v_size = _heads(op.shape(2), op.attribute("kv_num_heads", 0))
    if kv_heads == 0:
        raise UnknownError("the number of heads is not stated")
    total = keys + (op.shape(4)[-2] if op.has(4) else 0)
    extra = op.has(3) + bool(op.attribute("is_causal", 0)) + 3 * (op.attribute("softcap", 0.0) != 0.0)
    return attend(op.shape(0)[0] * heads * queries * total, qk_size, v_size, extra)


def _heads(shape: tuple[int, ...], heads: int) -> tuple[int, int, int]:
    """Return heads, sequence length and head size of a 4-D or packed 3-D tensor."""
    if len(shape) == 4:
        return shape[1], shape[2], shape[3]
    if len(shape) != 3 or heads < 1:
        raise UnknownError("the number of heads is not stated")
    return heads, shape[1], shape[2] // heads


def ms_attention(*, bias: int, past: int, mask: int, bias_mask: int, extra: int = 0) -> Rule:
    """Count com.microsoft Attention: one projection [C, q + k + v] of the input, then attention, past included."""

    def rule(op: Operation) -> Work:
        batch, length, channels = op.shape(0)
        columns = op.shape(1)[1]
        sizes = op.attribute("qkv_hidden_sizes") or [columns // 3] * 3
        heads = op.attribute("num_heads", 0)
        if heads < 1:
            raise UnknownError("the number of heads is not stated")
        total = length + (op.shape(past)[3] if op.has(past) else 0)
        masks = op.has(mask) + op.has(bias_mask) + bool(op.attribute("unidirectional", 0))
        inner = attend(batch * heads * length * total, sizes[0] // heads, sizes[2] // heads, masks)
        projected = batch * length * columns
        return Work(projected * channels + inner.macs, projected * (op.has(bias) + extra) + inner.elementwise)

    return rule


def multi_head_attention(op: Operation) -> Work:
    """Count com.microsoft MultiHeadAttention: projections are done before, and may be packed into the query."""
    heads = op.attribute("num_heads", 0)
    if heads < 1:
        raise UnknownError("the number of heads is not stated")
    query = op.shape(0)
    batch, queries = query[0], query[1]
    qk_size = query[4] if len(query) == 5 else query[2] // heads
    keys, v_size = _keys_and_values(op, queries, qk_size, heads)
    total = keys + (op.shape(6)[2] if op.has(6) else 0)
    masks = op.has(4) + op.has(5) + bool(op.attribute("unidirectional", 0))
    inner = attend(batch * heads * queries * total, qk_size, v_size, masks)
    biased = math.prod(query) * op.has(3)
    return Work(inner.macs, inner.elementwise + biased)


def _keys_and_values(op: Operation, queries: int, qk_size: int, heads: int) -> tuple[int, int]:
    """Return the number of present keys and the size of one value."""
    if not op.has(1):
        return queries, qk_size
    key = op.shape(1)
    if not op.has(2):
        return key[1], qk_size
    value = op.shape(2)
    keys = key[2] if len(key) == 4 else key[1]
    return keys, value[3] if len(value) == 4 else value[2] // heads


def group_query_attention(op: Operation) -> Work:
    """Count GroupQueryAttention over the whole key cache: how much of it is filled is known only at run time."""
    batch, length, columns = op.shape(0)
    heads, kv_heads = op.attribute("num_heads", 0), op.attribute("kv_num_heads", 0)
    if heads < 1 or kv_heads < 1:
        raise UnknownError("the number of heads is not stated")
    size = columns // heads if op.has(1) else columns // (heads + 2 * kv_heads)
    total = op.out(1)[2]
    rotated = 3 * batch * length * size * (heads + kv_heads) if op.attribute("do_rotary", 0) else 0
    inner = attend(batch * heads * length * total, size, size, 1)
    return Work(inner.macs, inner.elementwise + rotated)


def linear_attention(op: Operation) -> Work:
    """Count the recurrence: k v' into the state and q' S out of it for each token, k' S too in the delta rules."""
    batch, length, columns = op.shape(0)
    heads, kv_heads = op.attribute("q_num_heads", 0), op.attribute("kv_num_heads", 0)
    if heads < 1 or kv_heads < 1:
        raise UnknownError("the number of heads is not stated")
    qk_size, v_size = columns // heads, op.shape(2)[2] // kv_heads
    state = batch * length * qk_size * v_size
    rule = op.attribute("update_rule", b"linear")
    delta, gated = rule in (b"delta", b"gated_delta"), rule in (b"gated", b"gated_delta")
    values = batch * length * kv_heads * v_size
    elementwise = state * kv_heads * gated + 2 * values * delta + batch * length * heads * v_size
    return Work(state * (heads + kv_heads * (1 + delta)), elementwise)


def causal_conv(op: Operation) -> Work:
    """Count a depthwise causal convolution with filters [C, 1, k] and an optional SiLU (2 operations)."""
    out = op.out_size()
    activated = 2 * (op.attribute("activation", b"none") not in (b"none", b""))
    return Work(out * op.shape(1)[-1], out * (op.has(2) + activated))
