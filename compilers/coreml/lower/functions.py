"""Operators that ONNX defines by other operators (Attention, RotaryEmbedding, ...): lowered by their definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from compilers.coreml.lower.value import Value


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


def definition(model: onnx.ModelProto, node: onnx.NodeProto, inputs: Mapping[str, Value]) -> list[onnx.NodeProto]:
    """Return the nodes that a node of `model` stands for; `inputs` are its operands by name.

    Names inside start with the node's, so that a refusal says where it comes from.

    Raises:
        CompilerError: ONNX cannot expand the node.
    """
    import onnx
    import onnx.inliner

    helper = onnx.helper
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    infos = [_info(name, value) for name, value in inputs.items()]
    if "" in node.input:  # the inliner wants a type of omitted inputs too
        infos.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    graph = helper.make_graph([node], "definition", infos, outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        inlined = onnx.inliner.inline_selected_functions(
            single, [("", node.op_type)], exclude=False, inline_schema_functions=True
        )
    except Exception as error:
        raise CompilerError(f"node {node.name!r} ({node.op_type}): ONNX cannot expand it: {error}") from error
    inner = list(inlined.graph.node)
    if [n.op_type for n in inner] == [node.op_type]:
        raise CompilerError(f"node {node.name!r} ({node.op_type}): ONNX has no definition for these attributes")
    border = {*inputs, *node.output, ""}
    for index, each in enumerate(inner):
        each.name = f"{node.name}/{each.op_type}_{index}"
        _rename(each, lambda name: name if name in border else f"{node.name}/{name}")
    return inner


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    import onnx

    return onnx.helper.make_tensor_value_info(
        name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape
    )


def _rename(node: onnx.NodeProto, renamed: Callable[[str], str]) -> None:
    """Rename all tensors of a node, and of its bodies, which read those around them."""
    node.input[:] = map(renamed, node.input)
    node.output[:] = map(renamed, node.output)
    for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        for named in (*body.input, *body.output, *body.value_info, *body.initializer):
            named.name = renamed(named.name)
        for inner in body.node:
            _rename(inner, renamed)
