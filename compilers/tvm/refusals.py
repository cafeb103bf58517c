"""Nodes that TVM's importer is known to refuse, or to read with another meaning than ONNX. No TVM here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphs import Graph, Node

# Operators that the importer of TVM 0.27 lacks, or takes with a wrong meaning.
_NOT_IMPORTED: Final = frozenset(
    {
        "Attention", "BitCast", "Celu", "CenterCropPad", "Col2Im", "ConvInteger", "DFT", "Det", "GRU",
        "HammingWindow", "LSTM", "Loop", "LpNormalization", "MelWeightMatrix", "NegativeLogLikelihoodLoss",
        "OneHot", "QLinearConv", "QLinearMatMul", "RNN", "ReverseSequence", "RotaryEmbedding", "STFT", "Scan",
        "SoftmaxCrossEntropyLoss", "StringNormalizer", "Swish", "TensorScatter", "TfIdfVectorizer",
        "Upsample",
    }
)  # fmt: skip


def refusals(graph: Graph) -> dict[str, str]:
    """Map each node that is refused to its reason."""
    found = {node.name: _refused(node) or _misread(node, graph) for node in graph.nodes()}
    return {name: reason for name, reason in found.items() if reason}


def _refused(node: Node) -> str | None:
    if node.domain not in ("", "ai.onnx"):
        return (
            "TVM's ONNX importer ignores operator domains, so "
            f"{node.domain}::{node.op_type} would be read as another operator"
        )
    if node.op_type in _NOT_IMPORTED:
        return f"TVM's ONNX importer has no usable {node.op_type}"
    return None


def _misread(node: Node, graph: Graph) -> str | None:
    """Say what the importer would read wrong without a complaint: each was wrong in a case of the operator suite."""
    rule = _MISREAD.get(node.op_type)
    return rule(node, graph) if rule else None


def _dtype(graph: Graph, name: str) -> str:
    """Return the type of a tensor, "" for one of no known type."""
    spec = graph.initializers().get(name) or graph.tensors().get(name)
    return spec.dtype if spec else ""


def _holds(graph: Graph, name: str, condition: Callable[[Any], Any]) -> bool:
    """Tell whether a tensor is constant and all its elements meet the condition."""
    return name in graph.initializers() and bool(condition(graph.constant(name)).all())


def _bit_shift(node: Node, graph: Graph) -> str | None:
    value, count = node.inputs
    if not _dtype(graph, value).startswith("int") or _holds(graph, count, lambda array: array >= 0):
        return None
    return "TVM shifts signed integers by negative counts otherwise than ONNX; make the counts constant"


def _div(node: Node, graph: Graph) -> str | None:
    value, divisor = node.inputs
    if "int" not in _dtype(graph, value) or _holds(graph, divisor, lambda array: array != 0):
        return None
    return "an integer division by zero ends the process, here in the check on random inputs; make the divisor constant"


def _dropout(node: Node, _graph: Graph) -> str | None:
    return "TVM's ONNX importer makes Dropout's mask of floats" if any(node.outputs[1:]) else None


def _layer_normalization(node: Node, _graph: Graph) -> str | None:
    return "TVM's ONNX importer leaves LayerNormalization's mean and deviation zero" if any(node.outputs[1:]) else None


def _is_inf(node: Node, graph: Graph) -> str | None:
    (written,) = [n for n in graph.proto().graph.node if n.name == node.name]
    one_sided = any(not attribute.i for attribute in written.attribute)
    return "TVM's ONNX importer takes IsInf of one sign for IsInf of both" if one_sided else None


def _suppression(_node: Node, _graph: Graph) -> str | None:
    return (
        "TVM's NonMaxSuppression keeps other boxes than ONNX's: none of a single one, fewer at a bound of the overlap"
    )


def _mod(node: Node, graph: Graph) -> str | None:
    if "float" not in _dtype(graph, node.inputs[0]):
        return _div(node, graph)
    (written,) = [n for n in graph.proto().graph.node if n.name == node.name]
    remainder = any(attribute.name == "fmod" and attribute.i for attribute in written.attribute)
    return None if remainder else "TVM's Mod of floats without fmod=1 differs from ONNX's at infinities"


_MISREAD: Final[Mapping[str, Callable[[Node, Graph], str | None]]] = {
    "BitShift": _bit_shift,
    "Div": _div,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "Mod": _mod,
    "NonMaxSuppression": _suppression,
}
