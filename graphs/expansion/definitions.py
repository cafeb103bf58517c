"""Operators that ONNX itself defines by others, and functions that come with the model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from graphs.expansion.parts import Impossible, Parts, Source
from graphs.graph import DTYPES

if TYPE_CHECKING:
    from graphs.graph import TensorSpec


def by_definition(source: Source, node: onnx.NodeProto) -> Parts:
    """Return the nodes that a node stands for by its definition, their names under the node's.

    Raises:
        Impossible: The operator has none, or none for these attributes.
    """
    made = definition(source, node)
    parts = Parts(source, node)
    border = {*node.input, *node.output, ""}
    names: dict[str, str] = {}
    for each in made:
        _rename(each, source, node.name, border, names)
        each.name = parts.fresh(each.op_type)
        parts.copy(each)
    return parts


def definition(source: Source, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the body of an operator's definition with the node's own tensors at its ends."""
    from onnx.inliner import inline_local_functions, inline_selected_functions

    local = [f for f in source.body.functions if (f.domain, f.name) == (node.domain, node.op_type)]
    if not local and not is_defined_by_others(node.op_type, node.domain, source.graph.opset):
        raise Impossible
    alone = _model_of(source, node)
    try:
        body = (
            inline_local_functions(alone)
            if local
            else inline_selected_functions(alone, [(node.domain, node.op_type)], inline_schema_functions=True)
        )
    except Exception as error:  # the inliner raises whatever onnx's C++ does
        lines = str(error).strip().splitlines()
        raise Impossible(f"ONNX cannot expand it ({lines[0] if lines else type(error).__name__})") from error
    made = list(body.graph.node)
    if [(each.domain, each.op_type) for each in made] == [(node.domain, node.op_type)]:
        raise Impossible
    return made


def is_defined_by_others(op_type: str, domain: str, opset: int) -> bool:
    """Tell whether ONNX has a definition of an operator in simpler ones."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _model_of(source: Source, node: onnx.NodeProto) -> onnx.ModelProto:
    """Wrap one node as a model, constants as inputs: the definition may ask for the types of its inputs."""
    inputs = [_info(source.specs[name]) for name in dict.fromkeys(filter(None, node.input))]
    if "" in node.input:  # the inliner wants a type of an omitted input too
        inputs.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    outputs = [_info(source.specs[name]) for name in filter(None, node.output)]
    alone = helper.make_graph([_with_defaults(node, source)], "definition", inputs, outputs)
    return helper.make_model(
        alone,
        opset_imports=source.body.opset_import,
        ir_version=source.body.ir_version,
        functions=source.body.functions,
    )


def _with_defaults(node: onnx.NodeProto, source: Source) -> onnx.NodeProto:
    """State the attributes that have a default: the inliner leaves references to those that are not there."""
    stated = onnx.NodeProto()
    stated.CopyFrom(node)
    given = {attribute.name for attribute in node.attribute}
    with contextlib.suppress(onnx.defs.SchemaError):  # a function of the model has no schema
        known = onnx.defs.get_schema(node.op_type, source.graph.opset, node.domain).attributes
        stated.attribute.extend(
            a.default_value for name, a in known.items() if name not in given and a.default_value.name
        )
    return stated


def _info(spec: TensorSpec) -> onnx.ValueInfoProto:
    number = next((number for number, name in DTYPES.items() if name == spec.dtype), None)
    if number is None:
        raise Impossible(f"the tensor {spec.name!r} has no type that is known here")
    return helper.make_tensor_value_info(spec.name, number, spec.shape)


def _rename(node: onnx.NodeProto, source: Source, owner: str, border: set[str], names: dict[str, str]) -> None:
    """Put the tensors inside a definition under the owner's name, also where bodies define or read them."""

    def renamed(name: str) -> str:
        if name in border:
            return name
        if name not in names:
            names[name] = source.fresh(f"{owner}/{name}")
        return names[name]

    node.input[:] = [renamed(name) for name in node.input]
    node.output[:] = [renamed(name) for name in node.output]
    for body in (graph for a in node.attribute for graph in ((a.g,) if a.HasField("g") else a.graphs)):
        for named in (*body.input, *body.output, *body.value_info, *body.initializer):
            named.name = renamed(named.name)
        for inner in body.node:
            _rename(inner, source, owner, border, names)
