"""Which rule counts which operator: every one of the default domain, and com.microsoft's where models use them."""

from __future__ import annotations

from graphs.work import products as p
from graphs.work import scalars as s
from graphs.work.products import REQUANTISE, SOFTMAX, Rule

_MS, _NCHWC = "com.microsoft", "com.microsoft.nchwc"

_LAYER_NORM = 6  # sum, subtract, square, sum, divide by the root, multiply by the scale
_RMS_NORM = 4  # square, sum, multiply, multiply by the scale
_GELU = 5  # x / sqrt 2, erf, + 1, * x, / 2
_FAST_GELU = 9  # x^2, * 0.044715, + 1, * x, * sqrt(2 / pi), tanh, + 1, * x, / 2

_ONCE_PER_OUTPUT = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Cos", "Cosh", "Div", "Equal", "Erf", "Exp", "Floor",
    "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Mod", "Mul", "Neg", "Not", "Or",
    "Pow", "Reciprocal", "RegexFullMatch", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "StringConcat",
    "StringNormalizer", "Sub", "Tan", "Tanh", "Where", "Xor",
)  # fmt: skip
# Operations per element of the first output: the steps of the operator's definition.
_PER_OUTPUT = {
    "BatchNormalization": 2,  # the statistics fold into one scale and one shift
    "Bernoulli": 2,
    "BlackmanWindow": 7,
    "Celu": 5,
    "DequantizeLinear": 2,
    "Elu": 4,
    "HammingWindow": 4,
    "HannWindow": 4,
    "HardSigmoid": 4,
    "HardSwish": 5,
    "LeakyRelu": 2,
    "MelWeightMatrix": 4,
    "Mish": 5,
    "Multinomial": 3,
    "PRelu": 2,
    "QuantizeLinear": REQUANTISE,
    "RandomNormal": 4,
    "RandomNormalLike": 4,
    "RandomUniform": 2,
    "RandomUniformLike": 2,
    "Range": 2,
    "Selu": 5,
    "Shrink": 4,
    "Softplus": 3,
    "Softsign": 3,
    "SwiGLU": 4,
    "Swish": 3,
    "ThresholdedRelu": 2,
}

# Operations per element of the first input.
_PER_INPUT = {
    "ArgMax": 1,
    "ArgMin": 1,
    "Col2Im": 1,
    "CumProd": 1,
    "CumSum": 1,
    "DynamicQuantizeLinear": 2 + REQUANTISE,
    "GlobalAveragePool": 1,
    "GlobalLpPool": 2,
    "GlobalMaxPool": 1,
    "GroupNormalization": _LAYER_NORM + 1,
    "Hardmax": 1,
    "ImageDecoder": 1,
    "InstanceNormalization": _LAYER_NORM + 1,
    "LogSoftmax": SOFTMAX,
    "LpNormalization": 3,
    "MeanVarianceNormalization": 5,
    "NegativeLogLikelihoodLoss": 1,
    "NonZero": 1,
    "ReduceL1": 2,
    "ReduceL2": 2,
    "ReduceLogSum": 1,
    "ReduceLogSumExp": 4,
    "ReduceMax": 1,
    "ReduceMean": 1,
    "ReduceMin": 1,
    "ReduceProd": 1,
    "ReduceSum": 1,
    "ReduceSumSquare": 2,
    "Softmax": SOFTMAX,
    "StringSplit": 1,
    "TfIdfVectorizer": 1,
}

_MOVES = (
    "BitCast", "CenterCropPad", "Compress", "Concat", "ConcatFromSequence", "Constant", "ConstantOfShape",
    "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "MaxUnpool", "OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "Pad", "Reshape", "ReverseSequence",
    "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "Shape",
    "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "TensorScatter", "Tile", "Transpose",
    "Trilu", "Unsqueeze",
)  # fmt: skip

_DEFAULT: dict[str, Rule] = {
    **dict.fromkeys(_ONCE_PER_OUTPUT, s.per_output(1)),
    **{name: s.per_output(steps) for name, steps in _PER_OUTPUT.items()},
    **{name: s.per_input(steps) for name, steps in _PER_INPUT.items()},
    **dict.fromkeys(_MOVES, s.moves),
    "Conv": p.conv(),
    "ConvTranspose": p.conv_transpose,
    "ConvInteger": p.conv_integer,
    "QLinearConv": p.conv(weight=3, bias=8, extra=REQUANTISE),
    "DeformConv": p.deform_conv,
    "CausalConvWithState": p.causal_conv,
    "MatMul": p.matmul,
    "Gemm": p.gemm(),
    "MatMulInteger": p.matmul_integer,
    "QLinearMatMul": p.qlinear_matmul,
    "Einsum": p.einsum,
    "LSTM": p.recurrent(4, 5),  # f * c, i * g, their sum, tanh(c), * o
    "GRU": p.recurrent(3, 5),  # r * h, 1 - z, * n, z * h, their sum
    "RNN": p.recurrent(1, 0),
    "Attention": p.attention,
    "LinearAttention": p.linear_attention,
    "RotaryEmbedding": s.rotary,
    "MaxPool": s.pool(last=-1),
    "AveragePool": s.pool(last=0),
    "LpPool": s.pool(last=0, steps=2),
    "MaxRoiPool": s.max_roi_pool,
    "RoiAlign": s.roi_align,
    "Resize": s.resize,
    "Upsample": s.resize,
    "GridSample": s.grid_sample,
    "AffineGrid": s.affine_grid,
    "Clip": s.clip,
    "Max": s.variadic(),
    "Min": s.variadic(),
    "Sum": s.variadic(),
    "Mean": s.variadic(final=1),
    "Gelu": s.gelu(_GELU, _FAST_GELU),
    "LayerNormalization": s.normalisation(_LAYER_NORM, 2),
    "RMSNormalization": s.normalisation(_RMS_NORM),
    "LRN": s.lrn,
    "SoftmaxCrossEntropyLoss": s.softmax_loss,
    "TopK": s.top_k,
    "Unique": s.sort_like,
    "NonMaxSuppression": s.non_max_suppression,
    "Scatter": s.scatter,
    "ScatterElements": s.scatter,
    "ScatterND": s.scatter,
    "Det": s.determinant,
    "DFT": s.transform,
    "STFT": s.short_time_transform,
}

_MICROSOFT: dict[str, Rule] = {
    # Convolutions and products
    "FusedConv": p.conv(added=3),
    "NhwcConv": p.conv(),
    "NhwcFusedConv": p.conv(added=3),
    "QLinearConv": p.conv(weight=3, bias=8, extra=REQUANTISE),
    "ConvTransposeWithDynamicPads": p.conv_transpose,
    "FusedGemm": p.gemm(),
    "FusedMatMul": p.fused_matmul,
    "FusedMatMulActivation": p.fused_matmul,
    "TransposeMatMul": p.fused_matmul,
    "QGemm": p.gemm(a=0, c=6, extra=REQUANTISE),
    "MatMulInteger16": p.matmul_integer,
    "MatMulIntegerToFloat": p.matmul_rescaled(bias=6),
    "DynamicQuantizeMatMul": p.matmul_rescaled(bias=4, quantises=2 + REQUANTISE),
    "MatMulNBits": p.matmul_blockwise,
    "MatMulBnb4": p.matmul_blockwise,
    "DynamicQuantizeLSTM": p.recurrent(4, 5),
    # Attention
    "Attention": p.ms_attention(bias=2, mask=3, past=4, bias_mask=5),
    "QAttention": p.ms_attention(bias=2, mask=5, past=8, bias_mask=9, extra=1),
    "MultiHeadAttention": p.multi_head_attention,
    "GroupQueryAttention": p.group_query_attention,
    "LinearAttention": p.linear_attention,
    "RotaryEmbedding": s.rotary,
    # Normalisation and activation
    "LayerNormalization": s.normalisation(_LAYER_NORM, 2),
    "SimplifiedLayerNormalization": s.normalisation(_RMS_NORM),
    "SkipLayerNormalization": s.normalisation(_LAYER_NORM + 1, 3, 4),
    "SkipSimplifiedLayerNormalization": s.normalisation(_RMS_NORM + 1, 3),
    "EmbedLayerNormalization": s.embed_layer_normalisation(_LAYER_NORM + 1),
    "GroupNorm": s.activated_group_norm(_LAYER_NORM + 1),
    "SkipGroupNorm": s.activated_group_norm(_LAYER_NORM + 2, 4),
    "Gelu": s.per_output(_GELU),
    "BiasGelu": s.per_output(_GELU + 1),
    "FastGelu": s.normalisation(_FAST_GELU, 1),
    "QuickGelu": s.per_output(4),
    "BiasSplitGelu": s.per_output(_GELU + 3),
    "BiasAdd": s.per_output(2),
    "BiasSoftmax": s.per_input(SOFTMAX + 1),
    "BiasDropout": s.normalisation(1, 2),
    # Quantised elementwise operators dequantise their operands (2 operations each), compute, and requantise.
    "QuantizeLinear": s.per_output(REQUANTISE),
    "DequantizeLinear": s.per_output(2),
    "QLinearAdd": s.per_output(2 + 2 + 1 + REQUANTISE),
    "QLinearMul": s.per_output(2 + 2 + 1 + REQUANTISE),
    "QLinearSigmoid": s.per_output(2 + 1 + REQUANTISE),
    "QLinearLeakyRelu": s.per_output(2 + 2 + REQUANTISE),
    "QLinearSoftmax": s.per_input(2 + SOFTMAX + REQUANTISE),
    "QLinearWhere": s.per_output(2 + 1 + REQUANTISE),
    "QLinearReduceMean": s.per_input(1),
    "QLinearGlobalAveragePool": s.per_input(1),
    "QLinearAveragePool": s.pool(last=REQUANTISE),
    "QLinearConcat": s.per_output(2 + REQUANTISE),
    "NhwcMaxPool": s.pool(last=-1),
    # Movement
    "ExpandDims": s.moves,
    "GatherND": s.moves,
    "Pad": s.moves,
    "Trilu": s.moves,
    "GatherBlockQuantized": s.per_output(2),
    "Unique": s.sort_like,
    "GridSample": s.grid_sample,
}

_BLOCKED: dict[str, Rule] = {
    "Conv": p.conv(added=3),
    "MaxPool": s.pool(last=-1),
    "AveragePool": s.pool(last=0),
    "GlobalMaxPool": s.per_input(1),
    "GlobalAveragePool": s.per_input(1),
    "ReorderInput": s.moves,
    "ReorderOutput": s.moves,
    "Upsample": s.resize,
}

RULES: dict[tuple[str, str], Rule] = {
    **{("", name): rule for name, rule in _DEFAULT.items()},
    **{(_MS, name): rule for name, rule in _MICROSOFT.items()},
    **{(_NCHWC, name): rule for name, rule in _BLOCKED.items()},
}
"""(domain, operator) -> counting rule."""

VIEWS = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "BitCast", "Constant", "Optional",
    "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "ExpandDims",
})  # fmt: skip
"""Operators that give their input another name or shape: no byte is read or written."""

SHAPE_READERS = frozenset({
    "Shape", "Size", "SequenceLength", "OptionalHasElement", "EyeLike", "RandomNormalLike", "RandomUniformLike",
})  # fmt: skip
"""Operators that look at their input's shape, not at its values."""

PICKED_PORTS: dict[str, tuple[int, ...]] = {
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Slice": (0,),
    "CenterCropPad": (0,),
    "EmbedLayerNormalization": (2, 3, 4),
    "GatherBlockQuantized": (0,),
    "RotaryEmbedding": (1, 2),
}
"""Ports of a table from which a node reads at most as many bytes as it writes."""
