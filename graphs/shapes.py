"""Check a model and give its activations types and shapes, on a skeleton that leaves the large weights out."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError

from graphs.folding import embed_constants, fold, shape_of
from graphs.graph import DTYPES, GraphError, TensorSpec
from graphs.nodes import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

    from graphs.weights import Weight

_LOG = logging.getLogger(__name__)

Infos = dict[str, onnx.ValueInfoProto]

# Shape operands (Reshape's shape, Slice's starts, ...) have a handful of values; inference needs those, not weights.
SMALL_ELEMENTS = 1024

_CONTRIBUTED = "com.microsoft"
# onnxruntime's operators in the default domain -> the opset from which ONNX has its own of that name.
_RUNTIME_OPERATORS = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 2**31}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shaped:
    """What inference found so far."""

    model: onnx.ModelProto
    """What is left to infer from: values stand where nodes made them, and value infos tell what is known."""
    infos: Infos
    """The type of every activation that has one."""
    nodes: dict[str, onnx.NodeProto]
    """The nodes by name, in order; the bodies of control flow carry their value infos."""


def check_and_infer(body: onnx.ModelProto, weights: Mapping[str, Weight]) -> Shaped:
    """Find the type of every activation that has one; take the value infos out of `body`.

    The file's own value infos are used only where no inference reaches: they go stale when a symbol is bound.

    Raises:
        GraphError: The checker or strict type inference refuses the model.
    """
    _type_what_passes(body.graph, weights)
    declared = {info.name: info for info in [*_taken_value_infos(body), *_copies(body.graph.output)]}
    skeleton = skeleton_of(body, weights)
    check(skeleton)
    embed_constants(skeleton.graph, {tensor.name: tensor for tensor in skeleton.graph.initializer})
    shaped = _strict(skeleton)
    if _unknown(shaped):
        shaped = _beyond(shaped, declared)
    for info in body.graph.output:
        if info.name in shaped.infos:
            info.CopyFrom(shaped.infos[info.name])
    return shaped


def _type_what_passes(graph: onnx.GraphProto, weights: Mapping[str, Weight]) -> None:
    """Give an output that no node makes, an input or a constant, the type of that."""
    inputs = {info.name: info for info in graph.input}
    for info in graph.output:
        if info.name in inputs:
            info.CopyFrom(inputs[info.name])
        elif info.name in weights:
            info.CopyFrom(_info(info.name, weights[info.name].spec))


def _taken_value_infos(body: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    taken = _copies(body.graph.value_info)
    body.graph.ClearField("value_info")
    return taken


def _copies(infos: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
    holder = onnx.GraphProto()
    holder.value_info.extend(infos)
    return list(holder.value_info)


def skeleton_of(body: onnx.ModelProto, weights: Mapping[str, Weight]) -> onnx.ModelProto:
    """Return the model with small constants in it and each large one as an input of its type."""
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(body)
    _move_runtime_operators(skeleton)
    graph = skeleton.graph
    for name, weight in weights.items():
        if weight.elements <= SMALL_ELEMENTS:
            graph.initializer.append(weight.tensor())
        else:
            graph.input.append(_info(name, weight.spec))
    return skeleton


def _move_runtime_operators(skeleton: onnx.ModelProto) -> None:
    """Put onnxruntime's own operators that its optimiser writes into the default domain where they are known."""
    opset = next((entry.version for entry in skeleton.opset_import if entry.domain == ""), 1)
    moved = [
        node
        for node in all_nodes(skeleton.graph)
        if node.domain == "" and opset < _RUNTIME_OPERATORS.get(node.op_type, 0)
    ]
    for node in moved:
        node.domain = _CONTRIBUTED
    if moved and _CONTRIBUTED not in {entry.domain for entry in skeleton.opset_import}:
        skeleton.opset_import.append(onnx.helper.make_opsetid(_CONTRIBUTED, 1))


def _info(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    number = next(key for key, dtype in DTYPES.items() if dtype == spec.dtype)
    return onnx.helper.make_tensor_value_info(name, number, spec.shape)


def check(skeleton: onnx.ModelProto) -> None:
    """Run onnx.checker; an output without a shape passes, as inference may know it or nobody may.

    Raises:
        GraphError: What the checker says, as one sentence.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(skeleton)
    for info in checked.graph.output:
        if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(checked)
    except (ValidationError, RuntimeError, ValueError, TypeError) as error:
        raise GraphError(f"the model is not valid ONNX: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """Return the first telling line of a C++ message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _strict(skeleton: onnx.ModelProto) -> Shaped:
    """Infer shapes without trusting declared outputs, and refuse what cannot be typed."""
    _distrust_outputs(skeleton.graph)
    try:
        return _infer(skeleton, strict=True)
    except (InferenceError, RuntimeError, ValueError, TypeError) as error:
        if _may_be_right(error):
            return _infer(skeleton, strict=False)
        raise GraphError(f"the model's types or shapes contradict each other: {_sentence(error)}") from error


def _distrust_outputs(graph: onnx.GraphProto) -> None:
    """Forget the shapes declared of outputs; one that no node makes is an input or a constant, and as that is."""
    given = {info.name: info for info in graph.input}
    given |= {
        tensor.name: onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
    }
    for info in graph.output:
        if info.name in given:
            info.CopyFrom(given[info.name])
        elif info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")


_NESTED = re.compile(r"\(op_type:(\w+)[^)]*\): \[ShapeInferenceError\] Inference error\(s\)")


def _may_be_right(error: Exception) -> bool:
    """Return whether the model can be sound although strict inference failed.

    So it can when the failure is inside onnx's own definition of an operator (onnx 1.23 cannot infer the body that
    it gives for MeanVarianceNormalization 13), or in a branch of an If that these sizes do not take (PyTorch's
    squeeze is exported as one, with a Squeeze that only fits a size of 1).
    """
    nested = _NESTED.findall(str(error))
    schemas = [onnx.defs.get_schema(name) for name in nested if onnx.defs.has(name)]
    functions = any(schema.has_function for schema in schemas)  # type: ignore[attr-defined]  # onnx's stub lacks it
    return functions or "If" in nested


def _infer(skeleton: onnx.ModelProto, *, strict: bool) -> Shaped:
    model = onnx.shape_inference.infer_shapes(skeleton, check_type=strict, strict_mode=strict, data_prop=True)
    graph = model.graph
    infos = {info.name: info for info in [*graph.input, *graph.value_info, *graph.output]}
    return Shaped(model=model, infos=infos, nodes={node.name: node for node in graph.node})


def spec_of(info: onnx.ValueInfoProto) -> TensorSpec:
    """Return the spec of an ONNX type; a half-known shape counts as unknown, and what is no tensor has none."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorSpec(name=info.name, shape=None, dtype=(kind or "unknown").removesuffix("_type"))
    tensor = info.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type, "unknown")
    return TensorSpec(name=info.name, shape=shape_of(info), dtype=dtype)


def _unknown(shaped: Shaped) -> set[str]:
    """Return the activations (tensors, not sequences) whose shape is not fully known."""
    made = [name for node in shaped.nodes.values() for name in node.output if name]
    return {name for name in made if name not in shaped.infos or _lacks_shape(shaped.infos[name])}


def _lacks_shape(info: onnx.ValueInfoProto) -> bool:
    return info.type.WhichOneof("value") in (None, "tensor_type") and shape_of(info) is None


# ---- where onnx's inference stops


def _beyond(shaped: Shaped, declared: Infos) -> Shaped:
    """Go on with constant folding, then symbolic inference, then what the file itself declares."""
    shaped = _with_folding(shaped)
    for source in (_symbolic, lambda _: declared):
        unknown = _unknown(shaped)
        if not unknown:
            break
        told = source(shaped.model)
        news = [told[name] for name in sorted(unknown & told.keys()) if _tells_more(told[name], shaped.infos.get(name))]
        if news:
            _tell(shaped.model.graph, news)
            shaped = _with_folding(_inferred_again(shaped))
    return shaped


def _tells_more(told: onnx.ValueInfoProto, known: onnx.ValueInfoProto | None) -> bool:
    """Return whether `told` has the whole shape, or a rank where none is known."""
    ranked = known is not None and known.type.tensor_type.HasField("shape")
    return shape_of(told) is not None or (told.type.tensor_type.HasField("shape") and not ranked)


def _tell(graph: onnx.GraphProto, news: list[onnx.ValueInfoProto]) -> None:
    """State shapes in a graph, in place of what it says of its outputs."""
    outputs = {info.name: info for info in graph.output}
    for info in news:
        if info.name in outputs:
            outputs[info.name].CopyFrom(info)
        else:
            graph.value_info.append(info)


def _inferred_again(shaped: Shaped) -> Shaped:
    """Infer from what is left; of the nodes and tensors that folding took out, what was known stays."""
    new = _infer(shaped.model, strict=False)
    return Shaped(model=new.model, infos={**shaped.infos, **new.infos}, nodes={**shaped.nodes, **new.nodes})


def _with_folding(shaped: Shaped) -> Shaped:
    """Compute shape arithmetic, which gives new shapes, until there is no more of it."""
    shapes = {name: shape_of(info) for name, info in shaped.infos.items()}
    values: dict[str, np.ndarray] = {}
    while fold(shaped.model, shapes, values):
        shaped = _inferred_again(shaped)
        # A shape once known does not change; looking at all of them again would take most of the time.
        new = [name for name in values if shapes.get(name) is None]
        shaped.infos.update((name, _array_info(name, values[name])) for name in new)
        open_names = [name for name in shaped.infos if shapes.get(name) is None]
        shapes.update((name, shape_of(shaped.infos[name])) for name in open_names)
    return shaped


def _array_info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    number = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, number, value.shape)


def _symbolic(skeleton: onnx.ModelProto) -> Infos:
    """Return what onnxruntime's symbolic inference finds, which knows com.microsoft and data-dependent chains."""
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    # Its own driver writes a file into the working folder when a shape stays unknown; these are its steps.
    inference = SymbolicShapeInference(2**31 - 1, auto_merge=True, guess_output_rank=False, verbose=0)
    try:
        inference._preprocess(skeleton)  # noqa: SLF001
        while inference.run_:
            inference._infer_impl()  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  # it fails in any way on what it does not know; shapes stay unknown
        _LOG.info("symbolic shape inference stopped: %s", _sentence(error))
    return {info.name: info for info in inference.known_vi_.values()}
