"""The identity of a model: a SHA-256 of what decides its results."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import onnx

from graphs.nodes import bodies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphs.graph import TensorSpec
    from graphs.weights import Weight

_VERSION = b"edgefrontier graph 1"


def digest_of(body: onnx.ModelProto, weights: Mapping[str, Weight], tensors: Mapping[str, TensorSpec]) -> str:
    """Return the hex digest of a normalised model; each part goes in with its length, so none can shift."""
    content = hashlib.sha256(_VERSION)

    def add(*parts: bytes) -> None:
        for part in parts:
            content.update(len(part).to_bytes(8, "little") + part)

    for entry in sorted(body.opset_import, key=lambda entry: entry.domain):
        add(b"opset", entry.domain.encode(), str(entry.version).encode())
    for function in body.functions:
        add(b"function", _bytes(_bare_function(function)))
    for kind, declared in ((b"input", body.graph.input), (b"output", body.graph.output)):
        for info in declared:
            spec = tensors[info.name] if info.name in tensors else weights[info.name].spec
            add(kind, info.name.encode(), spec.dtype.encode(), repr(spec.shape).encode())
    for node in body.graph.node:
        add(b"node", *_node_parts(node))
    for name in sorted(weights):
        add(b"weight", name.encode(), weights[name].digest())
    return content.hexdigest()


def _node_parts(node: onnx.NodeProto) -> list[bytes]:
    bare = _bare_node(node)
    attributes = sorted(bare.attribute, key=lambda attribute: attribute.name)
    parts = [_bytes(attribute) for attribute in attributes]
    bare.ClearField("attribute")
    return [_bytes(bare), *parts]


def _bare_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a copy without documentation, here and in the bodies inside."""
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    _strip_node(bare)
    return bare


def _strip_node(node: onnx.NodeProto) -> None:
    node.ClearField("doc_string")
    node.ClearField("metadata_props")
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
    for inner in bodies(node):
        inner.ClearField("doc_string")
        inner.ClearField("metadata_props")
        inner.ClearField("value_info")
        for inner_node in inner.node:
            _strip_node(inner_node)


def _bare_function(function: onnx.FunctionProto) -> onnx.FunctionProto:
    bare = onnx.FunctionProto()
    bare.CopyFrom(function)
    for field in ("doc_string", "metadata_props", "value_info"):
        bare.ClearField(field)
    for node in bare.node:
        _strip_node(node)
    return bare


def _bytes(message: onnx.NodeProto | onnx.AttributeProto | onnx.FunctionProto | onnx.TypeProto) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    return content
