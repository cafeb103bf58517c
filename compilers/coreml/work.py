"""What a graph asks of a processor: MACs, weights and activations in elements, so that a width can be chosen."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from graphs import Graph, Node

# Free of traffic: folded into the operation before or after, or only a new view. Leaving them out makes the
# count the same for a float graph and for its fused QDQ form.
_FREE: Final = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "BatchNormalization", "Cast", "Identity", "Dropout"}
    | {"Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Swish", "Elu"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Totals of one inference; activations count each node's reads and writes, free operators aside."""

    macs: int
    weights: int
    activations: int
    uncosted_nodes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write the totals."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Work:
        """Read what `to_json` wrote.

        Raises:
            CompilerError: the text is something else.
        """
        try:
            fields = json.loads(text)
            return cls(**{**fields, "uncosted_nodes": tuple(fields["uncosted_nodes"])})
        except (ValueError, TypeError, KeyError) as error:
            raise CompilerError(f"the noted work is damaged: {error}; compile again") from error


def count_work(graph: Graph) -> Work:
    """Count the work of a float or a QDQ graph; both give the same activations for the same network."""
    sizes = {name: math.prod(spec.shape) for name, spec in graph.tensors().items() if spec.shape is not None}
    constant = _constant_tensors(graph)
    activations = sum(
        sizes.get(name, 0)
        for node in graph.nodes()
        if node.op_type not in _FREE and not set(node.outputs) <= constant
        for name in (*filter(None, node.inputs), *filter(None, node.outputs))
        if name not in constant
    )
    weights = sum(math.prod(spec.shape or ()) for spec in graph.initializers().values())
    macs = sum(node.macs or 0 for node in graph.nodes())
    return Work(
        macs=macs, weights=weights, activations=activations, uncosted_nodes=tuple(sorted(graph.uncosted_nodes()))
    )


def _constant_tensors(graph: Graph) -> set[str]:
    """Name every tensor that follows from initialisers alone: weights, also through DequantizeLinear."""
    constant = set(graph.initializers())
    for node in graph.nodes():
        if _is_constant(node, constant):
            constant.update(node.outputs)
    return constant


def _is_constant(node: Node, constant: set[str]) -> bool:
    return all(name in constant for name in node.inputs if name)
