"""The fp16 recipe: float16 inside, float32 at the inputs and outputs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from graphs.onnx_io import save
from graphs.quantisation.runtime import infer_types, read_inlined, refuse_large

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx

    from graphs.graph import Graph


def to_half(graph: Graph, keep_float: Collection[str]) -> onnx.ModelProto:
    """Convert weights and activations to float16, with Cast nodes at the inputs and outputs.

    Finite values beyond float16 become its largest, values too small become its smallest; zero, infinity and NaN
    stay. Operators without float16 kernels (Resize scales, NonMaxSuppression, ...) stay float32 between casts.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = inlined(graph)
    infer_types(model)
    converted: onnx.ModelProto = convert_float_to_float16(
        model, keep_io_types=True, disable_shape_infer=True, node_block_list=sorted(keep_float)
    )
    ONNXModel(converted).topological_sort()  # the casts come last, whatever reads them
    return converted


def inlined(graph: Graph) -> onnx.ModelProto:
    """Give the model with every weight inside, wherever the graph keeps them.

    Raises:
        GraphError: Over 2 GB of weights.
    """
    refuse_large(graph.weight_bytes, graph.name)
    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        file = Path(folder, "model.onnx")
        save(graph, file)
        return read_inlined(file)
