"""Make a float model ready for the NPU's quantiser: fold, fuse, and keep the names that survive."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from graphs.graph import GraphError
from graphs.nodes import all_nodes, bodies, replace_nodes, unused
from graphs.onnx_io import save
from graphs.packed import unpacked
from graphs.quantisation.runtime import basic_optimisation, infer_types, refuse_large, tensor_names
from graphs.submodel import fixed_outputs

if TYPE_CHECKING:
    from graphs.graph import Graph

_BIASED = {"Conv", "ConvTranspose", "Gemm"}
# Names that ONNX Runtime's quantiser derives from a tensor's name. It reuses an initialiser that has such a name
# by chance, without a look at its value, so the model must not hold one.
DERIVED_SUFFIXES = tuple(
    part + end
    for part in ("", "_quantized", "_convert")
    for end in (
        "_scale",
        "_zero_point",
        "_quantized",
        "_QuantizeLinear",
        "_QuantizeLinear_Input",
        "_QuantizeLinear_Output",
        "_DequantizeLinear",
        "_DequantizeLinear_Output",
        "_scale_convert",
        "_zero_point_convert",
    )
)


def prepare(graph: Graph, *, opset: int) -> onnx.ModelProto:
    """Fold and fuse a float graph as Qualcomm's pre-processing does, typed, at ``opset`` or its own if newer.

    ONNX Runtime's basic optimisation comes first: exporters share equal biases through Identity nodes, and Q/DQ on
    top of those left 21 weights of a ResNet-18 dynamic (44 ms instead of 0.3 ms, simulated).
    Queries, keys and values are cut from the product that makes them (`graphs.packed`): behind a Gather of the packed
    three, the NPU pads the whole for each, in 16 bits for most of a transformer's time.
    A node that is folded into another disappears; the others keep their names.

    Raises:
        GraphError: Over 2 GB of weights, or something that ONNX Runtime cannot read.
    """
    refuse_large(graph.weight_bytes, graph.name)
    if fixed_outputs(graph) | {spec.name for spec in graph.inputs()} >= {spec.name for spec in graph.outputs()}:
        raise GraphError(f"{graph.name} has nothing to quantise: its outputs are constants or its inputs as they are.")
    graph = unpacked(graph)
    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "basic.onnx")
        save(graph, source)
        model = basic_optimisation(source, target)
    model = at_least_opset(model, opset)
    _fuse(model)
    _separate_biases(model.graph)
    _simplify_biases(model.graph)
    _restore_names(model, {node.name for node in graph.nodes()})
    _drop_unused_domains(model)
    _free_derived_names(model)
    infer_types(model)
    return model


def at_least_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Convert a model to ``opset`` where its own is older.

    Q/DQ per channel needs opset 13, blocks and 16 bits need 21.
    """
    if opset_of(model) < opset:
        from onnx import version_converter

        model = version_converter.convert_version(model, opset)
    # The file format that knows int4 and 16-bit Q/DQ; an exporter may have paired a new opset with an old one.
    if opset_of(model) >= 21:
        model.ir_version = max(model.ir_version, 10)
    return model


def opset_of(model: onnx.ModelProto) -> int:
    """Give the version of the default operator set."""
    return next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 1)


def _fuse(model: onnx.ModelProto) -> None:
    """Fuse Gelu, LpNormalization, SpaceToDepth and LayerNormalization out of the pieces exporters write.

    Quantised one by one, the pieces (Erf, Pow, ReduceMean) lose far more than the whole, and the NPU has kernels
    for the whole.
    """
    from onnxruntime.quantization.execution_providers.qnn.fusion_lpnorm import FusionLpNormalization
    from onnxruntime.quantization.execution_providers.qnn.fusion_spacetodepth import FusionSpaceToDepth
    from onnxruntime.quantization.fusions import FusionGelu, FusionLayerNormalization
    from onnxruntime.quantization.onnx_model import ONNXModel

    fusions = [FusionGelu, FusionLpNormalization, FusionSpaceToDepth]
    if opset_of(model) >= 17:
        fusions.append(FusionLayerNormalization)
    wrapped = ONNXModel(model)
    applied = [fusion(wrapped).apply() for fusion in fusions]
    if any(applied):
        wrapped.topological_sort()


def _separate_biases(graph: onnx.GraphProto) -> None:
    """Give every node a bias of its own, which is no output of the graph.

    One that another operator reads, too, would get that one's 8 bits, and no NPU takes its owner. Of one that several
    nodes share, the quantiser makes copies whose numbered names it takes for other tensors' where they are alike. It
    gives what it makes of a bias the name of that bias, which an output has already.
    """
    constants, names = {tensor.name: tensor for tensor in graph.initializer}, tensor_names(graph)
    readers = Counter([name for node in all_nodes(graph) for name in node.input] + [v.name for v in graph.output])
    for node in graph.node:
        shared = node.op_type in _BIASED and len(node.input) > 2 and readers[node.input[2]] > 1
        if not shared or node.input[2] not in constants:
            continue
        own = graph.initializer.add()
        own.CopyFrom(constants[node.input[2]])
        own.name = unused(f"{node.input[2]}_bias", names)
        readers[node.input[2]] -= 1
        node.input[2] = own.name


def _simplify_biases(graph: onnx.GraphProto) -> None:
    """Write a Gemm's bias, its own by now, as ONNX Runtime quantises it: a value per column, added as it is.

    It fails on other shapes, and of another factor than 1 (beta) it scales the bias's step instead of the bias. What
    differs by row is added behind.
    """
    constants, names = {tensor.name: tensor for tensor in graph.initializer}, tensor_names(graph)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        bias = constants.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) > 2 else None
        if bias is None:
            continue
        values, given = onnx.numpy_helper.to_array(bias), {attribute.name: attribute for attribute in node.attribute}
        if "beta" in given:
            values = values * values.dtype.type(given["beta"].f)
            given["beta"].f = 1.0
        if values.ndim == 2 and len(values) > 1:
            nodes.append(onnx.helper.make_node("Add", [unused(node.output[0], names), bias.name], [node.output[0]]))
            node.output[0] = nodes[-1].input[0]
            del node.input[2]
        else:
            values = values.reshape(-1)
            if weight := constants.get(node.input[1]):
                columns = weight.dims[0 if "transB" in given and given["transB"].i else 1]
                values = np.broadcast_to(values, columns)
        bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    replace_nodes(graph, nodes)


def _restore_names(model: onnx.ModelProto, before: set[str]) -> None:
    """Give every node a unique name; one merged from several keeps that of its first part.

    ONNX Runtime calls the Gemm made of ``MatMul`` "fc1" and ``Add`` "fc1/MatMulAddFusion".
    """
    taken = {node.name for node in model.graph.node if node.name in before}
    for index, node in enumerate(model.graph.node):
        if node.name in taken and node.name in before:
            continue
        name = node.name.removesuffix("/MatMulAddFusion")
        if name not in before or name in taken:
            name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name += "_"
        node.name = name
        taken.add(name)


def _drop_unused_domains(model: onnx.ModelProto) -> None:
    """Remove the operator sets that ONNX Runtime lists in every model it writes."""
    used = {node.domain for node in all_nodes(model.graph)} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def names_in_bodies(graph: onnx.GraphProto) -> set[str]:
    """Give every name that a body of If, Loop or Scan reads: what it captures is among them."""
    names: set[str] = set()
    for body in (body for node in graph.node for body in bodies(node)):
        names.update(name for node in all_nodes(body) for name in node.input)
        names.update(value.name for value in body.output)
    return names


def _free_derived_names(model: onnx.ModelProto) -> None:
    """Rename the inner tensors whose names the quantiser would also derive from another tensor's name."""
    graph = model.graph
    names = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    names |= {name for node in graph.node for name in node.output}
    collisions = sorted(name for name in names if _is_derived(name, names))
    fixed = {value.name for value in (*graph.input, *graph.output)} | names_in_bodies(graph)
    for name in collisions:
        if name in fixed:
            raise GraphError(
                f"Tensor {name!r} of {graph.name} has a name that quantisation derives from another tensor's: "
                "rename it."
            )
        _rename_tensor(graph, name, unused(f"{name}_float", names))


def _is_derived(name: str, names: set[str]) -> bool:
    return any(name.endswith(suffix) and name.removesuffix(suffix) in names for suffix in DERIVED_SUFFIXES)


def _rename_tensor(graph: onnx.GraphProto, old: str, new: str) -> None:
    for tensor in graph.initializer:
        if tensor.name == old:
            tensor.name = new
    for node in graph.node:
        for ports in (node.input, node.output):
            for port, name in enumerate(ports):
                if name == old:
                    ports[port] = new
