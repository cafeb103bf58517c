"""Lossless rewrites that bring refused nodes to the accelerator, offered only after both graphs were run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from compilers import CompilerError
from experiments.evaluator.fidelity import Feed, reference_outputs
from experiments.explain.rules import Refusal, refused_by
from experiments.explain.settle import Settled, settle
from graphs import Graph, GraphError, rewrite_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from experiments.explain.rules import Rule
    from experiments.explain.settle import Request


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """A rewrite of `nodes`: the outputs of `graph` are bit-identical, and `settled` says where it runs."""

    nodes: tuple[str, ...]
    text: str
    graph: Graph
    settled: Settled


def suggestions(
    request: Request,
    settled: Settled,
    rules: Sequence[Rule],
    feed: Feed,
    reference: Feed,
    tell: Callable[[str], None],
) -> Iterator[Suggestion]:
    """Yield for each refused operator the rewrite that is bit-identical here and that the target takes.

    A rewrite that the target refuses in part, or that gives another bit, is left out with a word through `tell`.
    """
    for op_type, nodes in _by_operator(request.graph, settled.refused).items():
        rewritten = _rewritten(request.graph, nodes)
        if rewritten is None:
            continue
        text, graph = rewritten
        difference = _difference(graph, feed, reference, request)
        if difference:
            tell(f"no rewrite of {op_type} is offered: {text} {difference}")
            continue
        others = {node: why for node, why in settled.refused.items() if node not in nodes}
        after = settle(dataclasses.replace(request, graph=graph), {**others, **refused_by(graph, rules)}, tell)
        if set(after.refused) - set(others):
            tell(f"no rewrite of {op_type} is offered: {text} is refused as well")
        else:
            yield Suggestion(nodes=nodes, text=text, graph=graph, settled=after)


def _by_operator(graph: Graph, refused: Mapping[str, Refusal]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes():
        if node.name in refused:
            groups[node.op_type] = (*groups.get(node.op_type, ()), node.name)
    return groups


def _rewritten(graph: Graph, nodes: Sequence[str]) -> tuple[str, Graph] | None:
    """Rewrite all of `nodes`, or none when one of them has no rewrite."""
    texts: dict[str, int] = {}
    for node in nodes:
        try:
            found = rewrite_of(graph, node)
        except GraphError:
            return None
        if found is None:
            return None
        text, graph = found
        texts[text] = texts.get(text, 0) + 1
    words = (text if count == 1 else f"{text} ({count} times)" for text, count in texts.items())
    return ("; ".join(words), graph) if nodes else None


def _difference(graph: Graph, feed: Feed, reference: Feed, request: Request) -> str:
    """Run the rewritten graph as the reference was run; say what differs, "" when every bit is the same."""
    try:
        outputs = reference_outputs(graph, feed, request.limits)
    except CompilerError as error:
        return f"cannot be run: {error.reason}"
    differ = [name for name, value in reference.items() if not _same_bits(outputs[name], value)]
    return f"changes output {differ[0]!r}" if differ else ""


def _same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
