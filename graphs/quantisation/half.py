"""The fp16 recipe: float16 inside, float32 at the inputs and outputs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from graphs.nodes import all_nodes, unused
from graphs.onnx_io import save
from graphs.quantisation.runtime import (
    give_again,
    infer_types,
    read_inlined,
    refuse_large,
    tensor_names,
    without_passed,
)

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
    whole = without_passed(model)
    converted: onnx.ModelProto = convert_float_to_float16(
        model, keep_io_types=True, disable_shape_infer=True, node_block_list=sorted(keep_float)
    )
    ONNXModel(converted).topological_sort()  # the casts come last, whatever reads them
    _free_names(converted.graph, {tensor.name for tensor in whole.initializer})
    give_again(whole, converted.graph)
    return converted


def _free_names(graph: onnx.GraphProto, given: set[str]) -> None:
    """Rename the float16 form that nodes read of constants which are outputs too: those stay as they are."""
    nodes, there = list(all_nodes(graph)), [tensor for tensor in graph.initializer if tensor.name in given]
    taken = tensor_names(graph)
    inside = {tensor.name: unused(f"{tensor.name}_inside", taken) for tensor in there}
    for node in nodes:
        node.input[:] = [inside.get(name, name) for name in node.input]
    for tensor in there:
        tensor.name = inside[tensor.name]
    read = {name for node in nodes for name in node.input}
    for tensor in there:
        if tensor.name not in read:
            graph.initializer.remove(tensor)


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
