"""A profile of refused operators: what a target is known to refuse beyond what the compiler here refuses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from graphs import Graph


class RuleError(ValueError):
    """A rule that cannot be read; the message says how one is written."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why one node is not on the processor asked for."""

    cause: Cause
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An operator that the target refuses, with an attribute when only that value of it is refused."""

    op_type: str
    attribute: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.op_type}:{self.attribute}={self.value}" if self.attribute else self.op_type


def parse_rule(text: str) -> Rule:
    """Read "Pad" or "Pad:mode=reflect".

    Raises:
        RuleError: it is neither.
    """
    op_type, colon, rest = text.partition(":")
    attribute, equals, value = rest.partition("=")
    if not op_type.isidentifier() or bool(colon) != bool(equals) or (colon and not (attribute and value)):
        raise RuleError(f"a rule is OPERATOR or OPERATOR:ATTRIBUTE=VALUE, for example Pad:mode=reflect, not {text!r}")
    return Rule(op_type=op_type, attribute=attribute, value=value)


def refused_by(graph: Graph, rules: Sequence[Rule]) -> dict[str, Refusal]:
    """Map the nodes that a rule matches to the refusal."""
    if not rules:
        return {}
    attributes = {node.name: _attributes(node, graph.opset) for node in graph.proto().graph.node}
    found = {}
    for node in graph.nodes():
        for rule in rules:
            if node.op_type == rule.op_type and _holds(rule, attributes.get(node.name, {})):
                found[node.name] = Refusal(cause=Cause.PROFILE, reason=f"the profile refuses {rule}")
    return found


def _attributes(node: onnx.NodeProto, opset: int) -> dict[str, str]:
    """Return a node's attributes as text, with those that it leaves to the operator's definition."""
    from onnx import helper

    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    defaults = {attribute.name: helper.get_attribute_value(attribute) for attribute in _defaults(node, opset)}
    return {
        name: value.decode() if isinstance(value, bytes) else str(value) for name, value in (defaults | values).items()
    }


def _defaults(node: onnx.NodeProto, opset: int) -> Iterator[onnx.AttributeProto]:
    from onnx import defs

    # Only the default domain has one version for all nodes; what another domain leaves out stays unknown.
    if not node.domain and defs.has(node.op_type):
        attributes = defs.get_schema(node.op_type, opset).attributes
        yield from (about.default_value for about in attributes.values() if about.default_value.name)


def _holds(rule: Rule, attributes: Mapping[str, str]) -> bool:
    return not rule.attribute or attributes.get(rule.attribute) == rule.value
