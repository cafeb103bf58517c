"""What is replaced by hand: by domain and operator. Everything else has a definition of ONNX's or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphs.expansion import contributed, control, integers, operators, windows
from graphs.expansion.recurrent import recurrent
from graphs.expansion.resize import resize, upsample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphs.expansion.parts import Parts

    Rule = Callable[[Parts], Sequence[str | None]]

_MICROSOFT: Final = "com.microsoft"

RULES: Final[Mapping[tuple[str, str], Rule]] = {
    ("", "AveragePool"): windows.pool,
    ("", "Col2Im"): operators.col2im,
    ("", "ConvTranspose"): operators.conv_transpose,
    ("", "CumProd"): operators.cum_prod,
    ("", "DFT"): operators.dft,
    ("", "DeformConv"): windows.deform_conv,
    ("", "Dropout"): operators.dropout,
    ("", "Equal"): operators.equal_truth,
    ("", "EyeLike"): operators.eye_like,
    ("", "GRU"): recurrent,
    ("", "GridSample"): operators.sampled_wide,
    ("", "If"): control.if_,
    ("", "IsInf"): operators.is_inf,
    ("", "LSTM"): recurrent,
    ("", "Loop"): control.loop,
    ("", "LpNormalization"): operators.lp_normalization,
    ("", "LpPool"): windows.pool,
    ("", "MaxPool"): windows.max_pool,
    ("", "Mod"): operators.modulo,
    ("", "OneHot"): operators.one_hot,
    ("", "Pow"): operators.power,
    ("", "QLinearConv"): integers.qlinear_conv,
    ("", "QLinearMatMul"): integers.qlinear_matmul,
    ("", "RNN"): recurrent,
    ("", "ReduceLogSumExp"): operators.log_sum_exp,
    ("", "ReduceMax"): operators.reduced_truth,
    ("", "ReduceMean"): operators.integer_mean,
    ("", "ReduceMin"): operators.reduced_truth,
    ("", "Resize"): resize,
    ("", "ReverseSequence"): operators.reverse_sequence,
    ("", "STFT"): operators.stft,
    ("", "Scan"): control.scan,
    ("", "SpaceToDepth"): operators.space_to_depth,
    ("", "TensorScatter"): operators.tensor_scatter,
    ("", "TopK"): operators.sorted_narrow,
    ("", "Unique"): operators.unique_elements,
    ("", "Upsample"): upsample,
    ("", "SimplifiedLayerNormalization"): contributed.rms_normalization,
    (_MICROSOFT, "BiasGelu"): contributed.gelu,
    (_MICROSOFT, "DequantizeLinear"): integers.standard,
    (_MICROSOFT, "DynamicQuantizeMatMul"): integers.dynamic_matmul,
    (_MICROSOFT, "FastGelu"): contributed.fast_gelu,
    (_MICROSOFT, "FusedConv"): contributed.fused("Conv"),
    (_MICROSOFT, "FusedGemm"): contributed.fused("Gemm"),
    (_MICROSOFT, "FusedMatMul"): contributed.fused_matmul,
    (_MICROSOFT, "Gelu"): contributed.gelu,
    (_MICROSOFT, "MatMulIntegerToFloat"): integers.matmul_to_float,
    (_MICROSOFT, "QGemm"): integers.qgemm,
    (_MICROSOFT, "QLinearAdd"): integers.qlinear_binary("Add"),
    (_MICROSOFT, "QLinearAveragePool"): integers.qlinear_unary("AveragePool"),
    (_MICROSOFT, "QLinearConcat"): integers.qlinear_concat,
    (_MICROSOFT, "QLinearGlobalAveragePool"): integers.qlinear_unary("GlobalAveragePool"),
    (_MICROSOFT, "QLinearLeakyRelu"): integers.qlinear_unary("LeakyRelu"),
    (_MICROSOFT, "QLinearMul"): integers.qlinear_binary("Mul"),
    (_MICROSOFT, "QLinearSigmoid"): integers.qlinear_unary("Sigmoid"),
    (_MICROSOFT, "QLinearSoftmax"): integers.qlinear_unary("Softmax"),
    (_MICROSOFT, "QuickGelu"): contributed.quick_gelu,
    (_MICROSOFT, "SimplifiedLayerNormalization"): contributed.rms_normalization,
    (_MICROSOFT, "SkipLayerNormalization"): contributed.skip_layer_normalization,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): contributed.skip_rms_normalization,
    (_MICROSOFT, "QuantizeLinear"): integers.standard,
}
