"""Evaluate nodes whose inputs are all known, one at a time, with ONNX Runtime's unoptimised kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

Array = np.ndarray[Any, Any]

# Kept as nodes: weights stay 8-bit in the package, and chance is not a constant.
_NEVER = frozenset(
    {"DequantizeLinear", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"}
    | {"Multinomial", "Dropout"}
)


def foldable(node: onnx.NodeProto) -> bool:
    """Tell whether a node with constant inputs may be replaced by its value."""
    return node.op_type not in _NEVER and not any(a.g.ByteSize() or a.graphs for a in node.attribute)


def evaluate(
    node: onnx.NodeProto, inputs: Sequence[Array | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> list[Array]:
    """Return the outputs of one node for these inputs (None = omitted).

    Raises:
        CompilerError: the reference kernels cannot evaluate the node.
    """
    import onnx
    import onnxruntime as ort

    helper = onnx.helper
    feeds = {name: array for name, array in zip(node.input, inputs, strict=True) if array is not None}
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "fold", declared, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: list[Array] = session.run(None, feeds)
    except Exception as error:
        reason = f"node {node.name!r} ({node.op_type}): ONNX Runtime cannot fold it: {error}"
        raise CompilerError(reason) from error
    return results
