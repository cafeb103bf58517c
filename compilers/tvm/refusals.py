"""Nodes that TVM's importer lacks, or reads with another meaning than ONNX. No TVM here.

What is named here is written in other operators before import where that is possible (`prepare`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphs import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphs import Expanded, Graph, View

# What the importer of TVM 0.27 takes with ONNX's meaning.
IMPORTED: Final = frozenset(
    {
        "Abs", "Acos", "Acosh", "Add", "AffineGrid", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh",
        "AveragePool", "BatchNormalization", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast",
        "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape", "Conv", "ConvInteger",
        "ConvTranspose", "Cos", "Cosh", "CumSum", "DepthToSpace", "DequantizeLinear", "Div", "Dropout",
        "DynamicQuantizeLinear", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor",
        "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool",
        "Greater", "GreaterOrEqual", "GridSample", "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax",
        "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Less",
        "LessOrEqual", "Log", "LogSoftmax", "LpPool", "MatMul", "MatMulInteger", "Max", "MaxPool", "MaxRoiPool",
        "MaxUnpool", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Mod", "Mul", "Neg", "NonMaxSuppression",
        "NonZero", "Not", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "RMSNormalization", "Range", "Reciprocal",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize", "RoiAlign", "Round", "Scatter", "ScatterElements",
        "ScatterND", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax",
        "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh",
        "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip


def prepare(graph: Graph) -> Expanded:
    """Compute what is known of a graph, and replace what TVM's importer lacks or misreads, where that is possible."""
    return expanded(graph, why_not)


def why_not(node: View) -> str | None:
    """Say why TVM's importer cannot be given a node, None when it can."""
    if node.domain:
        return (
            "TVM's ONNX importer ignores operator domains, so "
            f"{node.domain}::{node.op_type} would be read as another operator"
        )
    if node.op_type not in IMPORTED:
        return f"TVM's ONNX importer has no usable {node.op_type}"
    rule = _MISREAD.get(node.op_type)
    return rule(node) if rule else None


# Each of these was wrong in a case of the operator suite, without a complaint of the importer.


def _holds(node: View, position: int, condition: Callable[[Any], Any]) -> bool:
    """Tell whether an operand is constant and all its elements meet the condition."""
    value = node.constant(position)
    return value is not None and bool(condition(value).all())


def _same_pool(node: View) -> str | None:
    same = str(node.attr("auto_pad", "NOTSET")).startswith("SAME")
    return "TVM's ONNX importer pads SAME_LOWER and dilated windows otherwise than ONNX" if same else None


def _wide_only(node: View) -> str | None:
    half = node.type_name(0) == "float16"
    return f"TVM's ONNX importer computes {node.op_type} in float32 alone" if half else None


def _bit_shift(node: View) -> str | None:
    if not node.type_name(0).startswith("int") or _holds(node, 1, lambda array: array >= 0):
        return None
    return "TVM shifts signed integers by negative counts otherwise than ONNX; make the counts constant"


def _div(node: View) -> str | None:
    if "int" not in node.type_name(0) or _holds(node, 1, lambda array: array != 0):
        return None
    return "an integer division by zero ends the process, here in the check on random inputs; make the divisor constant"


def _conv_integer(node: View) -> str | None:
    known = node.constant(1) is not None and (not node.has(3) or node.constant(3) is not None)
    plain = len(node.shape(1)) == 4 and node.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return None if known and plain else "ConvInteger is taken here in two dimensions, with constant weights"


def _conv_transpose(node: View) -> str | None:
    return "TVM's ONNX importer ignores ConvTranspose's output_shape" if node.attr("output_shape") else None


def _dropout(node: View) -> str | None:
    if node.has(2) and not _holds(node, 2, np.logical_not):
        return "TVM's ONNX importer ignores Dropout's training mode"
    return "TVM's ONNX importer makes Dropout's mask of floats" if node.wants(1) else None


def _eye_like(node: View) -> str | None:
    return "TVM's ONNX importer takes no dtype of EyeLike" if node.attr("dtype") else None


def _layer_normalization(node: View) -> str | None:
    wanted = node.wants(1) or node.wants(2)
    return "TVM's ONNX importer leaves LayerNormalization's mean and deviation zero" if wanted else None


def _equal(node: View) -> str | None:
    return "TVM cannot compile Equal of truth values" if node.type_name(0) == "bool" else None


def _is_inf(node: View) -> str | None:
    one_sided = not (node.attr("detect_negative", 1) and node.attr("detect_positive", 1))
    return "TVM's ONNX importer takes IsInf of one sign for IsInf of both" if one_sided else None


def _max_pool(node: View) -> str | None:
    return "TVM's ONNX importer gives no indices of MaxPool" if node.wants(1) else _same_pool(node)


def _mod(node: View) -> str | None:
    if "float" not in node.type_name(0):
        return _div(node)
    return None if node.attr("fmod", 0) else "TVM's Mod of floats without fmod=1 differs from ONNX's at infinities"


def _pow(node: View) -> str | None:
    base, exponent = node.type_name(0), node.type_name(1)
    alike = base == exponent and "float" in base
    return None if alike else f"TVM's power is of one float type, not of {base} and {exponent}"


def _log_sum_exp(_node: View) -> str | None:
    return "TVM's ReduceLogSumExp of an infinity is NaN"


def _reduce_mean(node: View) -> str | None:
    return None if "float" in node.type_name(0) else "TVM's mean of integers is of another type"


def _thresholded(_node: View) -> str | None:
    return "TVM's ONNX importer multiplies with 0 what ThresholdedRelu takes away: of infinities and NaN that is NaN"


def _top_k(node: View) -> str | None:
    narrow = node.type_name(0) in ("int16", "uint16")
    return "TVM sorts no integers of 16 bits" if narrow else None


def _unique(node: View) -> str | None:
    counted = any(node.wants(position) for position in (1, 2, 3))
    flat = node.attr("axis") is None and len(node.shape(0)) > 1
    return "TVM's Unique counts places in one row only" if counted and flat else None


def _reduce_truth(node: View) -> str | None:
    return f"TVM has no {node.op_type} of truth values" if node.type_name(0) == "bool" else None


def _resize(node: View) -> str | None:
    exotic = [
        node.attr("antialias", 0),
        node.attr("exclude_outside", 0),
        node.attr("axes"),
        node.attr("keep_aspect_ratio_policy", "stretch") != "stretch",
        node.attr("coordinate_transformation_mode") in ("tf_crop_and_resize", "half_pixel_symmetric"),
        len(node.shape(0)) != 4,
    ]
    if node.has(2) and (scales := node.constant(2)) is not None:
        exact = [size * float(scale) for size, scale in zip(node.shape(0), scales, strict=False)]
        exotic += [len(exact) != len(node.shape(0)), any(size != int(size) for size in exact)]
    return "TVM's ONNX importer takes this Resize for a plain one" if any(exotic) else None


def _rms_normalization(node: View) -> str | None:
    whole = node.attr("axis", -1) % max(1, len(node.shape(0))) == 0
    return "TVM cannot compile RMSNormalization over all axes" if whole else None


def _space_to_depth(node: View) -> str | None:
    return "TVM's ONNX importer ignores SpaceToDepth's mode" if node.attr("mode", "DCR") != "DCR" else None


_MISREAD: Final[Mapping[str, Callable[[View], str | None]]] = {
    "AveragePool": _same_pool,
    "BitShift": _bit_shift,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _wide_only,
    "Equal": _equal,
    "EyeLike": _eye_like,
    "GridSample": _wide_only,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "LpPool": _same_pool,
    "MaxPool": _max_pool,
    "Mod": _mod,
    "Pow": _pow,
    "RMSNormalization": _rms_normalization,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _reduce_truth,
    "ReduceMean": _reduce_mean,
    "ReduceMin": _reduce_truth,
    "Resize": _resize,
    "Selu": _wide_only,
    "SpaceToDepth": _space_to_depth,
    "ThresholdedRelu": _thresholded,
    "TopK": _top_k,
    "Unique": _unique,
}
