"""What the QNN provider says when it refuses: the kind of each of its reasons, and the operators it never takes.

Both come from the provider's own verbose log over ONNX's operator suite (1,884 small models of onnx 1.23, 628 of
them taken in whole or in part) with onnxruntime-qnn 2.7.0 and soc_model 52. A reason that is not here has no known
kind, and another version of the wheel has no known operators: nothing is guessed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from compilers.adapter import Cause, distribution_version
from compilers.qnn import wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphs import Graph, Node

CHECKED_VERSION: Final = "2.7."

# Searched in this order: the first match counts.
_CAUSES: Final = (
    (r"is configured to not take", Cause.OPTION),
    (r"^Operators of type|operator not supported|does not support IsInf|does not support PoolMax3d", Cause.OPERATOR),
    # The HTP's own check (backendValidateOpConfig) answers yes or no, and not what it disliked.
    (r"^Failed to (add|create) ", Cause.CHECK),
    (r"\bdynamic\b|Dynamic|Cannot get shape|must be .*(constant|initializer)|be a constant", Cause.DYNAMIC),
    (r"data ?type|FP64|boolean attn_mask|softmax_precision|compile-time", Cause.DTYPE),
    (r"rank-\d|at least \d+ inputs|at least two inputs|1 output", Cause.SHAPE),
    (r"only supports?|does(n't| not) support|unsupported equation|nonpad_kv|default dilation", Cause.ATTRIBUTE),
)  # fmt: skip

# Refused by type in each case of the suite, with every dtype, shape and attribute there is. Left out: what ONNX
# Runtime folds, fuses or removes before the provider is asked (Dropout, ConstantOfShape, EyeLike, windows).
OPERATORS: Final = frozenset({
    "Acos", "Acosh", "AffineGrid", "Asinh", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Celu", "Col2Im", "Compress", "ConvInteger", "Cosh", "CumProd", "DFT", "DeformConv", "Det",
    "DynamicQuantizeLinear", "Erf", "Hardmax", "MatMulInteger", "MaxUnpool", "MeanVarianceNormalization", "RNN",
    "ReduceL1", "ReduceSumSquare", "ReverseSequence", "Scatter", "Shrink", "Sinh", "Softsign",
})  # fmt: skip


def cause_of(reason: str) -> Cause:
    """Return the kind of a reason that the provider gave; `Cause.UNTOLD` when it told none that is known."""
    found = (cause for pattern, cause in _CAUSES if re.search(pattern, reason))
    return next(found, Cause.UNTOLD)


def refused_operators(graph: Graph) -> Mapping[str, str]:
    """Map the nodes whose operator the provider refuses whatever its inputs; empty for a version not checked."""
    if not distribution_version(wheel.DISTRIBUTION).startswith(CHECKED_VERSION):
        return {}
    return {node.name: f"Operators of type `{node.op_type}` are not supported by QNN" for node in _refused(graph)}


def _refused(graph: Graph) -> Iterator[Node]:
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes():
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    for node in graph.nodes():
        if node.domain == "" and node.op_type in OPERATORS and not _is_gelu(node, readers, graph):
            yield node


def _is_gelu(node: Node, readers: Mapping[str, list[Node]], graph: Graph) -> bool:
    """Tell the Erf of a GELU, x * (1 + erf(x / sqrt 2)) / 2: ONNX Runtime fuses it, and the NPU runs the whole."""
    if node.op_type != "Erf":
        return False
    after = readers.get(node.outputs[0], [])
    constants = graph.initializers()
    return len(after) == 1 and after[0].op_type == "Add" and any(name in constants for name in after[0].inputs)
