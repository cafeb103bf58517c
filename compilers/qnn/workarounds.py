"""The segment's graph written so that the provider does not misread it (docs/vendor_bugs.md, QNN)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from compilers.ort_session import QUANTISERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import onnx

    from graphs import Graph

# Axes of a transpose, ones and neighbours that stay neighbours not counted, that the compiler has no kernel for.
_TOO_MANY_AXES: Final = 5


def readable(graph: Graph) -> Graph:
    """Return a graph with the same values, without two forms that the provider does not take as they are meant.

    HardSigmoid comes first in each `HardSigmoid(x) * x`: turned the other way, the provider's fusion computes it as
    HardSigmoid alone in float16. A transpose of five axes or more between two reshapes becomes several that swap two
    blocks of neighbouring axes each; the last has the node's name. A graph with neither is returned itself.
    """
    from graphs import from_proto

    model = graph.proto()
    hard_sigmoids = {node.output[0] for node in model.graph.node if node.op_type == "HardSigmoid"}
    turned = [node for node in model.graph.node if _is_misread(node, hard_sigmoids)]
    for node in turned:
        node.input[:] = reversed(node.input)
    stepped = _in_steps(model, graph)
    return from_proto(model, name=graph.name, base_dir=graph.base_dir) if turned or stepped else graph


def readable_file(graph: Graph, out_dir: Path) -> Path:
    """Return the file of a segment in `out_dir`, or of its `readable` form, written beside it, where they differ."""
    from graphs import save

    written = readable(graph)
    if written is graph:
        return out_dir / "segment.onnx"
    save(written, out_dir / "readable.onnx")
    return out_dir / "readable.onnx"


def _is_misread(node: onnx.NodeProto, hard_sigmoids: set[str]) -> bool:
    return node.op_type == "Mul" and node.input[1] in hard_sigmoids and node.input[0] not in hard_sigmoids


# --- transposes ------------------------------------------------------------------------------------------------


def _in_steps(model: onnx.ModelProto, graph: Graph) -> bool:
    """Replace each transpose of many axes between two reshapes, and tell whether there are any."""
    tensors, flow = graph.tensors(), _Flow(model.graph)
    replaced: dict[int, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        shape = tensors[node.input[0]].shape if node.op_type == "Transpose" and node.input[0] in tensors else None
        swaps = block_swaps(shape, _order(node, len(shape))) if shape else []
        ends = flow.reshapes_around(node) if swaps else None
        if ends is not None:
            before, after, between = ends
            out = tensors[after.output[0]].shape
            assert out is not None
            scale = next((n.input[1:] for n in between if n.op_type == "QuantizeLinear"), None)
            steps = _steps(before.input[0], swaps, (node.name, after, out), model.graph, scale)
            replaced |= {id(n): [] for n in (before, node, *between)} | {id(after): list(steps)}
    if replaced:
        nodes = [new for node in model.graph.node for new in replaced.get(id(node), [node])]
        used = {name for node in nodes for name in node.input}
        weights = [weight for weight in model.graph.initializer if weight.name in used]
        for repeated, kept in ((model.graph.node, nodes), (model.graph.initializer, weights)):
            del repeated[:]
            repeated.extend(kept)
    return bool(replaced)


class _Flow:
    """Who makes and who reads each tensor of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._maker = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {value.name: [] for value in graph.output}
        self._results = frozenset(self._readers)
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def reshapes_around(
        self, node: onnx.NodeProto
    ) -> tuple[onnx.NodeProto, onnx.NodeProto, list[onnx.NodeProto]] | None:
        """Return the reshapes before and after a node, and what quantises between; None where others read there."""
        between: list[onnx.NodeProto] = []
        before = self._maker.get(node.input[0])
        while before is not None and before.op_type in QUANTISERS:
            between.append(before)
            before = self._maker.get(before.input[0])
        after = self._only_reader(node)
        while after is not None and after.op_type in QUANTISERS:
            between.append(after)
            after = self._only_reader(after)
        if before is None or after is None or {before.op_type, after.op_type} != {"Reshape"}:
            return None
        alone = all(self._only_reader(n) is not None for n in (before, *between))
        return (before, after, between) if alone and len({tuple(n.input[1:]) for n in between}) <= 1 else None

    def _only_reader(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        readers = self._readers.get(node.output[0], [])
        return readers[0] if len(readers) == 1 and node.output[0] not in self._results else None


def _order(node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    given = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), ())
    return given or tuple(reversed(range(rank)))


def block_swaps(shape: Sequence[int], order: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return what a transpose is made of, as (a, x, y, b) for [a, x, y, b] to [a, y, x, b]; none if few axes move."""
    axes = [axis for axis in order if shape[axis] != 1]
    now = sorted(axes)
    place = {axis: i for i, axis in enumerate(now)}
    joined = sum(place[b] == place[a] + 1 for a, b in itertools.pairwise(axes))
    if 0 in shape or len(axes) - joined < _TOO_MANY_AXES:
        return []
    swaps = []
    for done, axis in enumerate(axes):
        at = now.index(axis)
        if at == done:
            continue
        end = at + 1
        # What follows it there and in the end comes along.
        while end < len(now) and now[end] == axes[done + end - at]:
            end += 1
        parts = (now[:done], now[done:at], now[at:end], now[end:])
        a, x, y, b = (math.prod(shape[axis] for axis in part) for part in parts)
        swaps.append((a, x, y, b))
        now = [*parts[0], *parts[2], *parts[1], *parts[3]]
    return swaps


def _steps(
    value: str,
    swaps: Sequence[tuple[int, int, int, int]],
    end: tuple[str, onnx.NodeProto, Sequence[int]],
    graph: onnx.GraphProto,
    scale: Sequence[str] | None,
) -> Iterator[onnx.NodeProto]:
    """Yield reshapes and transposes, the last under the node's name, and the reshape after it with its shape.

    Between bytes each is quantised as what it reads is: only a form changes.
    """
    from onnx import helper

    name, after, shape = end
    works: list[tuple[str, list[int]]] = []
    for a, x, y, b in swaps:
        works += [("Reshape", [a, x, y, b] if b > 1 else [1, a, x, y])]
        works += [("Transpose", [0, 2, 1, 3] if b > 1 else [0, 1, 3, 2])]
    for number, (kind, numbers) in enumerate(works):
        at = name if number == len(works) - 1 else f"{name}/step{number}"
        out = f"{at}:stepped"
        yield _form(kind, value, numbers, out, at, graph)
        value = out
        if scale:
            yield helper.make_node("QuantizeLinear", [out, *scale], [f"{out}:q"], name=f"{at}:q")
            yield helper.make_node("DequantizeLinear", [f"{out}:q", *scale], [f"{out}:d"], name=f"{at}:d")
            value = f"{out}:d"
    yield _form("Reshape", value, shape, after.output[0], after.name, graph)


def _form(kind: str, value: str, numbers: Sequence[int], out: str, name: str, graph: onnx.GraphProto) -> onnx.NodeProto:
    import numpy as np
    from onnx import helper, numpy_helper

    if kind == "Transpose":
        return helper.make_node("Transpose", [value], [out], name=name, perm=numbers)
    graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), f"{name}:shape"))
    return helper.make_node("Reshape", [value, f"{name}:shape"], [out], name=name)
