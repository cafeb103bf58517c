"""Quantised activations and weights as Q/DQ pairs, with the scales that Qualcomm's NPU needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphs.graph import GraphError
from graphs.nodes import bodies
from graphs.quantisation.prepare import names_in_bodies, prepare
from graphs.quantisation.ranges import collect_ranges
from graphs.quantisation.runtime import FLOATS, element_types, give_again, without_passed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from graphs.graph import Graph
    from graphs.quantisation.calibration import Calibration
    from graphs.quantisation.ranges import Method

# The QNN provider takes their scale as one uint8 tensor only. Per channel, or int8, it drops the node to the CPU: a
# ViT fell into 26 partitions, a small model with per-tensor weights into 2.
NORMALISATIONS = {
    "LayerNormalization", "InstanceNormalization", "BatchNormalization", "GroupNormalization", "RMSNormalization",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class QdqRecipe:
    """Widths of a Q/DQ recipe; weights are int8 and symmetric in all of them."""

    activation: str  # the name of a member of onnxruntime's QuantType
    per_channel: bool
    opset: int  # of the result: Q/DQ per channel needs 13, 16 bits need 21


RECIPES = {
    "int8": QdqRecipe(activation="QUInt8", per_channel=True, opset=13),
    "int8-per-tensor": QdqRecipe(activation="QUInt8", per_channel=False, opset=13),
    "w8a16": QdqRecipe(activation="QUInt16", per_channel=True, opset=21),
}


def quantise_qdq(
    graph: Graph, recipe: QdqRecipe, calibration: Calibration, keep_float: Collection[str], method: Method
) -> onnx.ModelProto:
    """Put Q/DQ pairs around every float operation of the main graph but Cast and those in ``keep_float``.

    Operations inside If, Loop and Scan stay float.
    """
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    model = prepare(graph, opset=recipe.opset)
    excluded = {node.name for node in model.graph.node if bodies(node)}
    excluded |= _surviving(model, keep_float, graph.name) | _with_unbounded_constants(model)
    config = _config(model, recipe, sorted(excluded))
    quantised = set(config.op_types_to_quantize)
    nodes = [node for node in model.graph.node if node.op_type in quantised and node.name not in excluded]
    bounds = collect_ranges(model, _float_tensors(model, nodes), graph, calibration, method)
    _mark_inferred(model)
    _hold_ranges(model, bounds, config.extra_options["TensorQuantOverrides"])
    whole = without_passed(model)
    quantizer = QDQQuantizer(
        model,
        recipe.per_channel,
        False,  # noqa: FBT003  # reduce_range: seven-bit weights, for x86 without VNNI
        config.weight_type,
        config.activation_type,
        _tensors_data(bounds),
        [],
        sorted(excluded),
        config.op_types_to_quantize,
        config.extra_options,
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    result: onnx.ModelProto = quantizer.model.model
    give_again(whole, result.graph)
    if not any(node.op_type == "QuantizeLinear" for node in result.graph.node):
        raise GraphError(
            f"{graph.name} has nothing to quantise: no operation on floats in its main graph (bodies of If, Loop and "
            "Scan stay float); use it as it is."
        )
    _drop_stale_types(result)
    return result


def _hold_ranges(
    model: onnx.ModelProto, bounds: dict[str, tuple[float, float]], overrides: dict[str, list[dict[str, Any]]]
) -> None:
    """Let an output keep its own range before a Relu or Clip: the quantiser gives it that of what comes behind."""
    given = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type in {"Relu", "Clip"} and node.input[0] in given & bounds.keys():
            low, high = (np.float32(end) for end in bounds[node.input[0]])
            overrides.setdefault(node.input[0], [{}])[0].update(rmin=low, rmax=high)


def _with_unbounded_constants(model: onnx.ModelProto) -> set[str]:
    """Name the nodes that read a constant with NaN or infinity (an attention mask, say): it has no scale."""
    unbounded = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type in FLOATS and not np.isfinite(onnx.numpy_helper.to_array(tensor)).all()
    }
    return {node.name for node in model.graph.node if not unbounded.isdisjoint(node.input)}


def _surviving(model: onnx.ModelProto, keep_float: Collection[str], name: str) -> set[str]:
    """Refuse to keep float what folding has removed: the node that took it in may be one to quantise."""
    gone = sorted(set(keep_float) - {node.name for node in model.graph.node})
    if gone:
        raise GraphError(
            f"Nodes {gone} of {name} are folded into others before quantisation: keep those float instead."
        )
    return set(keep_float)


def _config(model: onnx.ModelProto, recipe: QdqRecipe, excluded: list[str]) -> Any:  # noqa: ANN401  # vendor type
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    config = get_qnn_qdq_config(
        model,
        None,  # the ranges come from our own pass over the data
        activation_type=QuantType[recipe.activation],
        weight_type=QuantType.QInt8,
        per_channel=recipe.per_channel,
        init_overrides=_normalisation_overrides(model),
        keep_removable_activations=not _activations_can_go(model),
        nodes_to_exclude=excluded,
    )
    # A list made of a set: sorted, because the order of the result must not depend on the hash seed.
    config.op_types_to_quantize = sorted(config.op_types_to_quantize)
    return config


def _normalisation_overrides(model: onnx.ModelProto) -> dict[str, list[dict[str, Any]]]:
    from onnxruntime.quantization import QuantType

    constants = {tensor.name for tensor in model.graph.initializer}
    scales = (node.input[1] for node in model.graph.node if node.op_type in NORMALISATIONS)
    per_tensor = {"quant_type": QuantType.QUInt8, "symmetric": False}
    return {name: [dict(per_tensor)] for name in scales if name in constants}


def _activations_can_go(model: onnx.ModelProto) -> bool:
    """Say whether saturation at the ends of the quantised range may stand in for every Relu and Clip.

    The range always holds 0, so a Clip to 1..3 would lose its lower end; and a body that reads the tensor before
    the Relu would lose that tensor.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    captured = names_in_bodies(model.graph)
    clips = [node for node in model.graph.node if node.op_type == "Clip"]
    removable = [*clips, *(node for node in model.graph.node if node.op_type == "Relu")]
    return all(_clip_holds_zero(clip, constants) for clip in clips) and captured.isdisjoint(
        node.input[0] for node in removable
    )


def _clip_holds_zero(clip: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    for port, sign in ((1, 1), (2, -1)):
        name = clip.input[port] if len(clip.input) > port else ""
        if not name:
            continue
        if name not in constants or np.any(onnx.numpy_helper.to_array(constants[name]) * sign > 0):
            return False
    return True


def _float_tensors(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> list[str]:
    types = element_types(model)
    names = dict.fromkeys(name for node in nodes for name in (*node.input, *node.output))
    return [name for name in names if types.get(name) in FLOATS]


def _tensors_data(bounds: dict[str, tuple[float, float]]) -> Any:  # noqa: ANN401  # vendor type
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

    # The method's name only tells the quantiser that these are plain ranges.
    ranges = {name: (np.array(low, np.float32), np.array(high, np.float32)) for name, (low, high) in bounds.items()}
    return TensorsData(CalibrationMethod.MinMax, ranges)


def _mark_inferred(model: onnx.ModelProto) -> None:
    """Say that types are there, or the quantiser infers them again through files, without com.microsoft."""
    onnx.helper.set_model_props(model, {"onnx.infer": "edgefrontier"})


def _drop_stale_types(model: onnx.ModelProto) -> None:
    """Forget the types of tensors that went with a removed Relu or Clip."""
    there = {name for node in model.graph.node for name in node.output}
    kept = [value for value in model.graph.value_info if value.name in there]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
