"""Work counts, each checked against a count by hand, and that no operator goes uncounted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import Node, from_proto
from graphs.work.counting import _CONTROL
from graphs.work.table import RULES

FLOAT, INT64, UINT8, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL
info = helper.make_tensor_value_info

if TYPE_CHECKING:
    from collections.abc import Iterable


def model(
    op_type: str, inputs: list[Any], outputs: list[Any], *, domain: str = "", opset: int = 17, **attributes: Any
) -> onnx.ModelProto:
    """Build one node; an input is a shape, (shape, dtype), an array (a weight) or None (omitted)."""
    feeds, constants, names = [], [], []
    for port, given in enumerate(inputs):
        names.append("" if given is None else f"i{port}")
        if isinstance(given, np.ndarray | np.generic):
            constants.append(numpy_helper.from_array(np.asarray(given), f"i{port}"))
        elif given is not None:
            shape, dtype = given if given and isinstance(given[0], tuple) else (given, FLOAT)
            feeds.append(info(f"i{port}", dtype, shape))
    results = []
    for port, given in enumerate(outputs):
        shape, dtype = given if given and isinstance(given[0], tuple) else (given, FLOAT)
        results.append(info(f"o{port}", dtype, shape))
    node = helper.make_node(op_type, names, [result.name for result in results], name="n", domain=domain, **attributes)
    # The declared shapes serve operators that nothing infers; for the others `count` checks that they are right.
    graph = helper.make_graph([node], "g", feeds, results, constants)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def count(op_type: str, inputs: list[Any], outputs: list[Any], **kwargs: Any) -> Node:
    graph = from_proto(model(op_type, inputs, outputs, **kwargs))
    declared = [given[0] if given and isinstance(given[0], tuple) else given for given in outputs]
    assert [spec.shape for spec in graph.outputs()] == declared, "the case's own shapes are wrong"
    return graph.nodes()[0]


def w(*shape: int, dtype: type[np.generic] = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


MS = {"domain": "com.microsoft"}
CONV = {
    # 8 filters of 3*3*3 over 6*6 places
    "plain": ("Conv", [(1, 3, 8, 8), w(8, 3, 3, 3)], [(1, 8, 6, 6)], {}, 8 * 36 * 27, 0),
    "bias": ("Conv", [(1, 3, 8, 8), w(8, 3, 3, 3), w(8)], [(1, 8, 6, 6)], {}, 8 * 36 * 27, 8 * 36),
    "batch and stride": ("Conv", [(2, 3, 8, 8), w(8, 3, 3, 3)], [(2, 8, 3, 3)], {"strides": [2, 2]}, 2 * 8 * 9 * 27, 0),
    "dilation": ("Conv", [(1, 3, 8, 8), w(8, 3, 3, 3)], [(1, 8, 4, 4)], {"dilations": [2, 2]}, 8 * 16 * 27, 0),
    # 2 groups: each filter sees 2 of the 4 channels
    "groups": ("Conv", [(1, 4, 5, 5), w(6, 2, 1, 1)], [(1, 6, 5, 5)], {"group": 2}, 6 * 25 * 2, 0),
    "depthwise": ("Conv", [(1, 4, 5, 5), w(4, 1, 3, 3)], [(1, 4, 3, 3)], {"group": 4}, 4 * 9 * 9, 0),
    "1-D": ("Conv", [(1, 2, 10), w(3, 2, 4)], [(1, 3, 7)], {}, 3 * 7 * 8, 0),
    "3-D": ("Conv", [(1, 2, 4, 4, 4), w(3, 2, 2, 2, 2)], [(1, 3, 3, 3, 3)], {}, 3 * 27 * 16, 0),
    # each of the 2*4*4 inputs meets 3 filters of 3*3
    "transposed": ("ConvTranspose", [(1, 2, 4, 4), w(2, 3, 3, 3)], [(1, 3, 6, 6)], {}, 32 * 27, 0),
    "transposed groups": ("ConvTranspose", [(1, 4, 4, 4), w(4, 3, 2, 2), w(6)], [(1, 6, 8, 8)],
                          {"group": 2, "strides": [2, 2]}, 64 * 12, 6 * 64),
    "integer": ("ConvInteger", [((1, 1, 4, 4), UINT8), w(2, 1, 3, 3, dtype=np.uint8), np.uint8(1)],
                [((1, 2, 2, 2), TensorProto.INT32)], {}, 8 * 9, 16),
    # requantise (4) and bias (1) on each of 2*2*2 outputs
    "quantised": ("QLinearConv", [((1, 1, 4, 4), UINT8), np.float32(1), np.uint8(0), w(2, 1, 3, 3, dtype=np.int8),
                                  np.float32(1), np.int8(0), np.float32(1), np.uint8(0), w(2, dtype=np.int32)],
                  [((1, 2, 2, 2), UINT8)], {}, 8 * 9, 8 * 5),
    # bias, added tensor and activation
    "fused": ("FusedConv", [(1, 1, 4, 4), w(2, 1, 3, 3), w(2), (1, 2, 2, 2)], [(1, 2, 2, 2)],
              {**MS, "activation": "Relu"}, 8 * 9, 8 * 3),
    # 3*3 taps of 2 channels at 4 places, 4-neighbour interpolation (7) and mask (1) each
    "deformable": ("DeformConv", [(1, 2, 4, 4), w(3, 2, 3, 3), (1, 18, 2, 2), None, (1, 9, 2, 2)], [(1, 3, 2, 2)],
                   {"opset": 19}, 12 * 18, 4 * 2 * 9 * 8),
    "causal": ("CausalConvWithState", [(2, 3, 5), w(3, 1, 4), w(3)], [(2, 3, 5), (2, 3, 3)],
               {"opset": 27, "activation": "silu"}, 30 * 4, 30 * 3),
}  # fmt: skip

PRODUCTS = {
    "matrix": ("MatMul", [(2, 3), w(3, 4)], [(2, 4)], {}, 24, 0),
    "broadcast": ("MatMul", [(5, 1, 2, 3), (7, 3, 4)], [(5, 7, 2, 4)], {}, 35 * 24, 0),
    "vector left": ("MatMul", [(3,), (2, 3, 4)], [(2, 4)], {}, 24, 0),
    "vector right": ("MatMul", [(2, 3), (3,)], [(2,)], {}, 6, 0),
    "dot": ("MatMul", [(3,), (3,)], [()], {}, 3, 0),
    "gemm": ("Gemm", [(2, 3), w(3, 4), w(4)], [(2, 4)], {}, 24, 8),
    "gemm transposed": ("Gemm", [(3, 2), w(4, 3), w(4)], [(2, 4)], {"transA": 1, "transB": 1, "beta": 0.5}, 24, 16),
    "integer": ("MatMulInteger", [((2, 3), UINT8), w(3, 4, dtype=np.uint8), np.uint8(1), np.uint8(1)],
                [((2, 4), TensorProto.INT32)], {}, 24, 6 + 12),
    "quantised": ("QLinearMatMul", [((2, 3), UINT8), np.float32(1), np.uint8(0), w(3, 4, dtype=np.uint8), np.float32(1),
                                    np.uint8(0), np.float32(1), np.uint8(0)], [((2, 4), UINT8)], {}, 24, 32),
    "quantised gemm": ("QGemm", [((3, 2), UINT8), np.float32(1), np.uint8(0), w(3, 4, dtype=np.uint8), np.float32(1),
                                 np.uint8(0), w(4, dtype=np.int32), np.float32(1), np.uint8(0)],
                       [((2, 4), UINT8)], {**MS, "transA": 1}, 24, 8 * 5),
    "fused": ("FusedMatMul", [(3, 2), w(3, 4)], [(2, 4)], {**MS, "transA": 1, "alpha": 0.5}, 24, 8),
    "fused batch": ("FusedMatMul", [(3, 5, 2), (5, 3, 4)], [(5, 2, 4)], {**MS, "transA": 1, "transBatchA": 1}, 120, 0),
    # quantising A costs 6 for each of its 6 values, rescaling and bias 2 for each of 8 results
    "dynamic": ("DynamicQuantizeMatMul", [(2, 3), w(3, 4, dtype=np.uint8), np.float32(1), np.uint8(0), w(4)],
                [(2, 4)], MS, 24, 36 + 16),
    "to float": ("MatMulIntegerToFloat", [((2, 3), UINT8), w(3, 4, dtype=np.uint8), np.float32(1), np.float32(1)],
                 [(2, 4)], MS, 24, 8),
    # 4-bit weights: K = 32, N = 5; each is scaled and shifted
    "4-bit": ("MatMulNBits", [(2, 32), w(5, 1, 16, dtype=np.uint8), w(5)], [(2, 5)],
              {**MS, "K": 32, "N": 5, "bits": 4, "block_size": 32}, 2 * 32 * 5, 2 * 32 * 5),
    "einsum matmul": ("Einsum", [(2, 3), (3, 4)], [(2, 4)], {"equation": "ij,jk->ik"}, 24, 0),
    "einsum batch": ("Einsum", [(5, 2, 3), (5, 3, 4)], [(5, 2, 4)], {"equation": "...ij,...jk->...ik"}, 120, 0),
    "einsum outer": ("Einsum", [(2,), (3,)], [(2, 3)], {"equation": "i,j->ij"}, 0, 6),
    "einsum sum": ("Einsum", [(2, 3)], [(2,)], {"equation": "ij->i"}, 0, 6),
    "einsum transpose": ("Einsum", [(2, 3)], [(3, 2)], {"equation": "ij->ji"}, 0, 0),
    "einsum implicit": ("Einsum", [(2, 3), (3, 4)], [(2, 4)], {"equation": "ij,jk"}, 24, 0),
    # ij,jk first (24), then ik,kl (2*4*5)
    "einsum chain": ("Einsum", [(2, 3), (3, 4), (4, 5)], [(2, 5)], {"equation": "ij,jk,kl->il"}, 24 + 40, 0),
}  # fmt: skip

RECURRENT = {
    # 7 steps, batch 2, both directions, hidden 5, input 3: 4 gates of 3 + 5 products
    "LSTM": ("LSTM", [(7, 2, 3), w(2, 20, 3), w(2, 20, 5), w(2, 40)], [(7, 2, 2, 5)],
             {"hidden_size": 5, "direction": "bidirectional"}, 7 * 2 * 2 * 5 * 4 * 8, 7 * 2 * 2 * 5 * (4 * 3 + 5)),
    "GRU": ("GRU", [(7, 2, 3), w(1, 15, 3), w(1, 15, 5)], [(7, 1, 2, 5)], {"hidden_size": 5},
            7 * 2 * 5 * 3 * 8, 7 * 2 * 5 * (3 * 2 + 5)),
    "RNN": ("RNN", [(7, 2, 3), w(1, 5, 3), w(1, 5, 5)], [(7, 1, 2, 5)], {"hidden_size": 5},
            7 * 2 * 5 * 8, 7 * 2 * 5 * 2),
}  # fmt: skip

ATTENTION = {
    # 2 heads, 3 queries, 5 keys, size 4, value size 6; scale and softmax are 6 for each score
    "4-D": ("Attention", [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)], [(1, 2, 3, 6)], {"opset": 23}, 30 * 10, 30 * 6),
    "3-D, masked": ("Attention", [(1, 3, 8), (1, 5, 8), (1, 5, 8), (3, 5)], [(1, 3, 8)],
                    {"opset": 23, "q_num_heads": 2, "kv_num_heads": 2}, 30 * 8, 30 * 7),
    "grouped": ("Attention", [(1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)], [(1, 4, 3, 4)], {"opset": 23}, 60 * 8, 60 * 6),
    # projection of 3 tokens by [8, 24] and bias, then 2 heads of 3 * 3 scores of size 4
    "projected": ("Attention", [(1, 3, 8), w(8, 24), w(24)], [(1, 3, 8)], {**MS, "num_heads": 2},
                  3 * 8 * 24 + 18 * 8, 72 + 18 * 6),
    "multi-head": ("MultiHeadAttention", [(1, 3, 8), (1, 5, 8), (1, 5, 12)], [(1, 3, 12)], {**MS, "num_heads": 2},
                   30 * 10, 30 * 6),
    "multi-head, packed": ("MultiHeadAttention", [(1, 3, 2, 3, 4)], [(1, 3, 8)], {**MS, "num_heads": 2},
                           18 * 8, 18 * 6),
    # state 4 * 6 for each of 5 tokens, in and out
    "linear": ("LinearAttention", [(1, 5, 4), (1, 5, 4), (1, 5, 6)], [(1, 5, 6), (1, 1, 4, 6)],
               {"opset": 27, "q_num_heads": 1, "kv_num_heads": 1, "update_rule": "linear"}, 5 * 24 * 2, 5 * 6),
    "rotary": ("RotaryEmbedding", [(1, 2, 3, 4), w(9, 2), w(9, 2), ((1, 3), INT64)], [(1, 2, 3, 4)], {"opset": 23},
               0, 3 * 24),
}  # fmt: skip

X = (1, 2, 4, 4)  # 32 values
SCALARS = {
    "add": ("Add", [X, (1, 2, 1, 1)], [X], {}, 32),
    "sum of three": ("Sum", [X, X, X], [X], {}, 64),
    "mean of three": ("Mean", [X, X, X], [X], {}, 96),
    "relu": ("Relu", [X], [X], {}, 32),
    "hard swish": ("HardSwish", [X], [X], {}, 32 * 5),
    "clip, upper bound only": ("Clip", [X, None, np.float32(1)], [X], {}, 32),
    "clip, both": ("Clip", [X, np.float32(0), np.float32(1)], [X], {}, 64),
    "clip by attributes": ("Clip", [X], [X], {"opset": 10, "min": 0.0, "max": 6.0}, 64),
    "batch norm": ("BatchNormalization", [X, w(2), w(2), w(2), w(2)], [X], {}, 64),
    "layer norm": ("LayerNormalization", [X, w(4), w(4)], [X], {}, 32 * 7),
    "layer norm, no shift": ("LayerNormalization", [X, w(4)], [X], {}, 32 * 6),
    "RMS norm": ("RMSNormalization", [X, w(4)], [X], {"opset": 23}, 32 * 4),
    "skip layer norm": ("SkipLayerNormalization", [(1, 8, 4), (1, 8, 4), w(4), w(4), w(4)], [(1, 8, 4)], MS, 32 * 9),
    "instance norm": ("InstanceNormalization", [X, w(2), w(2)], [X], {}, 32 * 7),
    "softmax": ("Softmax", [X], [X], {}, 32 * 5),
    "gelu": ("Gelu", [X], [X], {"opset": 20}, 32 * 5),
    "gelu, tanh": ("Gelu", [X], [X], {"opset": 20, "approximate": "tanh"}, 32 * 9),
    "fast gelu with bias": ("FastGelu", [X, w(4)], [X], MS, 32 * 10),
    "bias gelu": ("BiasGelu", [X, w(4)], [X], MS, 32 * 6),
    "reduce": ("ReduceSum", [X, ints(2, 3)], [(1, 2, 1, 1)], {}, 32),
    "reduce L2": ("ReduceL2", [X], [(1, 2, 4, 1)], {"axes": [3]}, 64),
    "arg max": ("ArgMax", [X], [((1, 1, 4, 4), INT64)], {"axis": 1}, 32),
    # 8 windows of 4: 3 comparisons each; for the mean 3 sums and a product
    "max pool": ("MaxPool", [X], [(1, 2, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 24),
    "average pool": ("AveragePool", [X], [(1, 2, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 32),
    "global pool": ("GlobalAveragePool", [X], [(1, 2, 1, 1)], {}, 32),
    # 2 axes change: 4 products and 3 sums for each of 128 values
    "resize, linear": ("Resize", [X, None, np.array([1, 1, 2, 2], np.float32)], [(1, 2, 8, 8)], {"mode": "linear"},
                       128 * 7),
    "resize, one axis": ("Resize", [X, None, np.array([1, 1, 1, 2], np.float32)], [(1, 2, 4, 8)], {"mode": "linear"},
                         64 * 3),
    "resize, cubic": ("Resize", [X, None, np.array([1, 1, 2, 2], np.float32)], [(1, 2, 8, 8)], {"mode": "cubic"},
                      128 * 31),
    "resize, nearest": ("Resize", [X, None, np.array([1, 1, 2, 2], np.float32)], [(1, 2, 8, 8)], {}, 0),
    "grid sample": ("GridSample", [X, (1, 3, 3, 2)], [(1, 2, 3, 3)], {}, 18 * 7),
    "quantise": ("QuantizeLinear", [X, np.float32(1), np.uint8(0)], [(X, UINT8)], {}, 32 * 4),
    "dequantise": ("DequantizeLinear", [(X, UINT8), np.float32(1), np.uint8(0)], [X], {}, 64),
    "quantised add": ("QLinearAdd", [(X, UINT8), np.float32(1), np.uint8(0), (X, UINT8), np.float32(1), np.uint8(0),
                                     np.float32(1), np.uint8(0)], [(X, UINT8)], MS, 32 * 9),
    "top 3 of 32": ("TopK", [(32,), ints(3)], [(3,), ((3,), INT64)], {}, 64),
    # 4 transforms of length 8: 5 * 8 * 3 each
    "DFT": ("DFT", [(4, 8, 1)], [(4, 8, 2)], {"axis": 1}, 4 * 120),
    "scatter": ("ScatterElements", [(4, 4), ((2, 4), INT64), (2, 4)], [(4, 4)], {}, 0),
    "scatter, added": ("ScatterElements", [(4, 4), ((2, 4), INT64), (2, 4)], [(4, 4)], {"reduction": "add"}, 8),
    "transpose": ("Transpose", [X], [(4, 4, 2, 1)], {}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", [*CONV.items(), *PRODUCTS.items(), *RECURRENT.items(), *ATTENTION.items()],
                         ids=lambda case: f"{case[1][0]}: {case[0]}")  # fmt: skip
def test_products_are_counted(case: Any) -> None:
    op_type, inputs, outputs, kwargs, macs, elementwise = case[1]
    node = count(op_type, inputs, outputs, **kwargs)
    assert (node.macs, node.elementwise) == (macs, elementwise)


@pytest.mark.parametrize("case", SCALARS.items(), ids=lambda case: f"{case[1][0]}: {case[0]}")
def test_scalar_operations_are_counted(case: Any) -> None:
    op_type, inputs, outputs, kwargs, elementwise = case[1]
    node = count(op_type, inputs, outputs, **kwargs)
    assert (node.macs, node.elementwise) == (0, elementwise)


def bytes_of(node: Node) -> tuple[int | None, int | None, int | None]:
    return node.weight_bytes, node.read_bytes, node.write_bytes


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "kwargs", "expected"),
    [
        ("Conv", [(1, 3, 8, 8), w(8, 3, 3, 3), w(8)], [(1, 8, 6, 6)], {}, (4 * (216 + 8), 768, 1152)),
        ("Add", [X, X], [X], {}, (0, 256, 128)),
        ("Concat", [X, X], [(2, 2, 4, 4)], {"axis": 0}, (0, 256, 256)),
        ("Transpose", [X], [(4, 4, 2, 1)], {}, (0, 128, 128)),
        ("Reshape", [X, ints(32)], [(32,)], {}, (0, 0, 0)),
        ("Flatten", [X], [(1, 32)], {}, (0, 0, 0)),
        ("Squeeze", [X, ints(0)], [(2, 4, 4)], {}, (0, 0, 0)),
        ("Unsqueeze", [X, ints(0)], [(1, 1, 2, 4, 4)], {}, (0, 0, 0)),
        ("Identity", [X], [X], {}, (0, 0, 0)),
        # 3 rows of a table of 100 are read, and the indices
        ("Gather", [w(100, 4), ((3,), INT64)], [(3, 4)], {}, (48, 24, 48)),
        ("Slice", [(100, 4), ints(0), ints(2)], [(2, 4)], {}, (16, 32, 32)),
        ("Shape", [X], [((4,), INT64)], {}, (0, 0, 32)),
        ("Cast", [X], [(X, TensorProto.FLOAT16)], {"to": TensorProto.FLOAT16}, (0, 128, 64)),
        ("Split", [(4, 4)], [(2, 4), (2, 4)], {}, (0, 64, 64)),
        ("DequantizeLinear", [((3,), TensorProto.INT4), np.float32(1)], [(3,)], {"opset": 21}, (4, 2, 12)),
    ],
)  # fmt: skip
def test_bytes_are_counted(
    op_type: str, inputs: list[Any], outputs: list[Any], kwargs: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert bytes_of(count(op_type, inputs, outputs, **kwargs)) == expected


def test_a_tensor_read_twice_counts_once() -> None:
    square = helper.make_node("Mul", ["x", "x"], ["y"], name="square")
    graph = helper.make_graph([square], "g", [info("x", FLOAT, [8])], [info("y", FLOAT, [8])])
    node = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).nodes()[0]
    assert bytes_of(node) == (0, 32, 32)


# ---- nothing is free


def test_every_operator_of_the_default_domain_has_a_rule() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    covered = {name for domain, name in [*RULES, *_CONTROL] if domain == ""}
    assert known == covered


@pytest.mark.parametrize(
    "op_type",
    [
        "QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearConcat", "QLinearAveragePool", "FusedConv",
        "FusedMatMul", "FusedGemm", "LayerNormalization", "SkipLayerNormalization", "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "Gelu", "FastGelu", "BiasGelu", "QuickGelu",
        "Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "QGemm",
        "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits", "QuantizeLinear", "DequantizeLinear",
    ],
)  # fmt: skip
def test_contributed_operators_have_rules(op_type: str) -> None:
    assert ("com.microsoft", op_type) in RULES


def test_an_unknown_operator_has_its_bytes_and_is_listed() -> None:
    graph = from_proto(model("Odd", [X, w(2)], [X], **MS))
    node = graph.nodes()[0]
    assert (node.macs, node.elementwise, bytes_of(node)) == (None, None, (8, 128, 128))
    assert graph.uncosted_nodes() == {"n": "no rule counts the operations of com.microsoft.Odd"}
    assert graph.macs is None


def test_an_operator_that_depends_on_data_is_listed() -> None:
    graph = from_proto(model("RoiAlign", [X, (3, 4), ((3,), INT64)], [(3, 2, 1, 1)]))
    assert "known only at run time" in graph.uncosted_nodes()["n"]


# ---- bodies


def body(
    name: str,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] = (),
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs))


def control(
    node: onnx.NodeProto,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: Iterable[TensorProto] = (),
) -> Node:
    graph = helper.make_graph([node], "g", inputs, outputs, list(constants))
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)).nodes()[0]


def test_if_counts_its_costlier_branch() -> None:
    then = body("t", [helper.make_node("MatMul", ["x", "w"], ["t"])], outputs=[info("t", FLOAT, None)])
    other = body("e", [helper.make_node("Relu", ["x"], ["e"])], outputs=[info("e", FLOAT, None)])
    node = helper.make_node("If", ["c"], ["y"], name="n", then_branch=then, else_branch=other)
    constants = [numpy_helper.from_array(w(4, 4), "w")]
    counted = control(node, [info("x", FLOAT, [2, 4]), info("c", BOOL, [])], [info("y", FLOAT, None)], constants)
    assert (counted.macs, counted.elementwise, *bytes_of(counted)) == (32, 0, 64, 32, 32)


def loop(trips: int | None, condition: str) -> Node:
    nodes = [
        helper.make_node("Less", ["i", "limit"], ["less"]),
        helper.make_node("Identity", ["go" if condition == "passed on" else "less"], ["go_on"]),
        helper.make_node("Relu", ["s"], ["s_out"]),
    ]
    state = [info("i", INT64, []), info("go", BOOL, []), info("s", FLOAT, [4])]
    inner = body("b", nodes, state, [info("go_on", BOOL, []), info("s_out", FLOAT, [4])])
    node = helper.make_node("Loop", ["" if trips is None else "trips", "", "x"], ["y"], name="n", body=inner)
    constants = [numpy_helper.from_array(np.array(7), "limit")]
    if trips is not None:
        constants.append(numpy_helper.from_array(np.array(trips), "trips"))
    return control(node, [info("x", FLOAT, [4])], [info("y", FLOAT, None)], constants)


def test_loop_counts_its_body_times_a_constant_trip_count() -> None:
    counted = loop(3, "passed on")
    assert (counted.macs, counted.elementwise) == (0, 3 * (4 + 1))


@pytest.mark.parametrize(("trips", "condition"), [(None, "passed on"), (3, "computed")])
def test_loop_of_unknown_length_is_unknown(trips: int | None, condition: bool) -> None:
    assert loop(trips, condition).elementwise is None


def test_scan_counts_its_body_for_each_slice() -> None:
    nodes = [helper.make_node("Add", ["s", "v"], ["s2"]), helper.make_node("Identity", ["s2"], ["v2"])]
    ends = [info(name, FLOAT, [4]) for name in ("s", "v", "s2", "v2")]
    inner = body("b", nodes, ends[:2], ends[2:])
    node = helper.make_node("Scan", ["s0", "x"], ["last", "all"], name="n", num_scan_inputs=1, body=inner)
    inputs = [info("s0", FLOAT, [4]), info("x", FLOAT, [9, 4])]
    assert control(node, inputs, [info("last", FLOAT, None), info("all", FLOAT, None)]).elementwise == 36


# ---- totals


def test_parameters_are_those_that_papers_count() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], ["n"]),
        helper.make_node("Clip", ["n", "", "six"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Mul", ["r", "b2"], ["m"]),
        helper.make_node("Add", ["m", "b2"], ["y"]),
    ]
    constants = {"w": w(2, 3, 1, 1), "b": w(2), "gamma": w(2), "beta": w(2), "mean": w(2), "var": w(2),
                 "six": np.float32(6), "shape": ints(-1, 2), "b2": w(2)}  # fmt: skip
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [info("x", FLOAT, [1, 3, 2, 2])], [info("y", FLOAT, None)], tensors)
    built = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert built.parameters == 6 + 2 + 2 + 2 + 2
    assert built.weight_bytes == 4 * (6 + 2 + 2 + 2 + 2 + 2 + 1 + 2) + 16


def test_quantised_weights_are_parameters_and_scales_are_not() -> None:
    inputs = [w(6, 4, dtype=np.int8), w(6), w(6, dtype=np.int8)]
    graph = from_proto(model("DequantizeLinear", inputs, [(6, 4)], axis=0))
    assert graph.parameters == 24
    packed = [(2, 32), w(5, 1, 16, dtype=np.uint8), w(5)]
    sizes = {"K": 32, "N": 5, "bits": 4, "block_size": 32}
    assert from_proto(model("MatMulNBits", packed, [(2, 5)], **MS, **sizes)).parameters == 160


def test_constants_in_bodies_are_counted_once() -> None:
    inner = helper.make_graph([helper.make_node("Add", ["x", "own"], ["t"])], "t", [], [info("t", FLOAT, None)],
                              [numpy_helper.from_array(w(4), "own")])  # fmt: skip
    other = body("e", [helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(w(4), "k")),
                       helper.make_node("Mul", ["x", "k"], ["e"])], outputs=[info("e", FLOAT, None)])  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    graph = helper.make_graph([node], "g", [info("x", FLOAT, [4]), info("c", BOOL, [])], [info("y", FLOAT, None)])
    built = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert (built.parameters, built.weight_bytes) == (8, 32)
    assert bytes_of(built.nodes()[0]) == (16, 16, 16)
