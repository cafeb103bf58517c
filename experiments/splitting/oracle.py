"""A segment's cost by really compiling it, asked for as seldom as the search can prove enough."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from compilers import CompilerError
from experiments.evaluator import Context, estimate_segment
from experiments.split_costs import members, segment_of
from experiments.units import seconds
from partition.search import Cost, Piece, Place, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from graphs import Graph
    from partition import Device

_SMALL: Final = 64


class CompileOracle:
    """Answers `oracle(place, nodes)` by a compile and the evaluator's estimate; None where the backend refuses.

    `refused` notes the reasons, `asked` counts; every artefact is cached by content, so a rerun pays nothing.
    """

    def __init__(
        self,
        part: Callable[[Piece], Graph],
        device: Device,
        problem: Problem,
        context: Context,
        tell: Callable[[str], None],
    ) -> None:
        self._part, self._device, self._problem = part, device, problem
        self._context, self._tell = context, tell
        self.refused: list[str] = []
        self.asked = 0

    def __call__(self, place: Place, nodes: tuple[str, ...]) -> Cost | None:
        """Compile one segment and return its cost; without an energy it is refused, since plans are compared by it."""
        piece = Piece(place=place, nodes=members(self._problem, nodes))
        self.asked += 1
        what = f"{place}: {piece.nodes[0]} to {piece.nodes[-1]} ({len(piece.nodes)} operators)"
        try:
            segment = segment_of(self._part(piece), self._device, piece)
            latency, energy = estimate_segment(segment, self._context)
        except CompilerError as error:
            self._refuse(what, error.reason)
            return None
        if energy is None:
            self._refuse(what, "its energy is not known")
            return None
        self._tell(f"compile {self.asked}, {what}: {seconds(latency.typical_s)} {latency.source}")
        return Cost(latency_s=latency.typical_s, energy_j=energy.total_j)

    def _refuse(self, what: str, reason: str) -> None:
        self.refused.append(f"{what}: {reason}")
        self._tell(f"compile {self.asked}, {what}: refused: {reason}")


def structural_key(graph: Graph, problem: Problem) -> Callable[[Place, tuple[str, ...]], Hashable]:
    """Return a naming of segments that gives equal names to those that differ in names and large weights only.

    Compared are operators, attributes, shapes, types, small constants (a reshape's target, a clip's limits) and
    which tensors cross the border.
    """
    operators = {node.name: node for node in graph.nodes()}
    readers: dict[str, set[str]] = {}
    for node in graph.nodes():
        for name in node.reads:
            readers.setdefault(name, set()).add(node.name)
    leaves = {spec.name for spec in graph.outputs()}
    signs, constants = _signs(graph), _constants(graph)

    def key(place: Place, nodes: tuple[str, ...]) -> Hashable:
        inside = members(problem, nodes)
        number: dict[str, int] = {}
        text = [str(place)]
        for node in (operators[name] for name in inside):
            reads = (*node.inputs, *node.captured)
            text += [constants.get(t) or str(number.setdefault(t, len(number))) for t in reads]
            number.update({t: len(number) + i for i, t in enumerate(node.outputs)})
            text.append(signs[node.name])
        held = set(inside)
        crossing = [
            n for t, n in number.items() if t in leaves or (readers.get(t, set()) - held and t not in constants)
        ]
        return hashlib.sha256("|".join([*text, str(crossing)]).encode()).hexdigest()

    return key


def _signs(graph: Graph) -> dict[str, str]:
    """Describe each operator: type, attributes, and shape and type of what it makes."""
    tensors = graph.tensors()
    attributes = {
        node.name: b"".join(sorted(a.SerializeToString() for a in node.attribute)) for node in graph.proto().graph.node
    }
    signs = {}
    for node in graph.nodes():
        made = [(t, tensors[t].shape, tensors[t].dtype) if t in tensors else t for t in node.outputs]
        shapes = [str(m[1:]) if isinstance(m, tuple) else "?" for m in made]
        read = [str((tensors[t].shape, tensors[t].dtype)) for t in node.inputs if t in tensors]
        digest = hashlib.sha256(attributes.get(node.name, b"")).hexdigest()
        signs[node.name] = f"{node.domain}:{node.op_type}:{digest}:{read}:{shapes}"
    return signs


def _constants(graph: Graph) -> dict[str, str]:
    """Describe each constant by shape and type; whole numbers and single values, which steer a compiler, by value."""
    from onnx import numpy_helper

    described = {name: f"{spec.dtype}{spec.shape}" for name, spec in graph.initializers().items()}
    for tensor in graph.proto().graph.initializer:
        steers = "int" in described[tensor.name] or described[tensor.name].endswith(("()", "(1,)"))
        elements = 1
        for size in tensor.dims:
            elements *= size
        if steers and elements <= _SMALL and not tensor.external_data:
            described[tensor.name] += str(numpy_helper.to_array(tensor).tolist())
    return described
