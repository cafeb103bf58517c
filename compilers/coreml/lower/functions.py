"""Operators that ONNX defines by other operators (Attention, RotaryEmbedding, ...): lowered by their definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError
from compilers.coreml.lower.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx


# No lowering: their inputs are constants in every model with static shapes, and then they are folded.
FOLDED_ONLY: Final = frozenset({"Constant", "ConstantOfShape", "Range"})


def has_definition(op_type: str, domain: str, opset: int) -> bool:
    """Tell whether ONNX defines the operator by others, and no lowering of its own is better."""
    import onnx

    if domain not in ("", "ai.onnx") or op_type in TABLE or op_type in FOLDED_ONLY:
        return False
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, "")  # its stub lacks the two properties
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def expand(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Replace such nodes by their definitions; return the model and the outer node of each inner one.

    Names inside start with the outer node's, so that a refusal says where it comes from.

    Raises:
        CompilerError: ONNX cannot expand a node.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    if not any(has_definition(n.op_type, n.domain, opset) for n in model.graph.node):
        return model, {}
    declared = {i.name: i for g in (model.graph,) for i in (*g.value_info, *g.input, *g.output)}
    declared |= {t.name: _info_of(t) for t in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    origin: dict[str, str] = {}
    for node in model.graph.node:
        if not has_definition(node.op_type, node.domain, opset):
            nodes.append(node)
            continue
        inner = _definition(model, node, declared)
        origin.update({each.name: node.name for each in inner})
        nodes.extend(inner)
    return _with_nodes(model, nodes), origin


def _info_of(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    import onnx

    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _definition(
    model: onnx.ModelProto, node: onnx.NodeProto, declared: Mapping[str, onnx.ValueInfoProto]
) -> list[onnx.NodeProto]:
    """Return the nodes that a node stands for, their inner tensors under names of their own."""
    import onnx
    import onnx.inliner

    helper = onnx.helper
    used = [name for name in dict.fromkeys(node.input) if name]
    unknown = [name for name in used if name not in declared]
    if unknown:
        raise CompilerError(f"node {node.name!r} ({node.op_type}): tensor {unknown[0]!r} has no known type")
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    inputs = [declared[name] for name in used]
    if "" in node.input:  # the inliner wants a type of omitted inputs too
        inputs.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    graph = helper.make_graph([node], "definition", inputs, outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        inlined = onnx.inliner.inline_selected_functions(
            single, [("", node.op_type)], exclude=False, inline_schema_functions=True
        )
    except Exception as error:
        raise CompilerError(f"node {node.name!r} ({node.op_type}): ONNX cannot expand it: {error}") from error
    border = {*used, *(name for name in node.output if name), ""}
    inner = list(inlined.graph.node)
    if [n.op_type for n in inner] == [node.op_type]:
        raise CompilerError(f"node {node.name!r} ({node.op_type}): ONNX has no definition for these attributes")
    for index, each in enumerate(inner):
        each.name = f"{node.name}/{each.op_type}_{index}"
        each.input[:] = [name if name in border else f"{node.name}/{name}" for name in each.input]
        each.output[:] = [name if name in border else f"{node.name}/{name}" for name in each.output]
    return inner


def _with_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy
