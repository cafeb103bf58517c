"""`python -m compilers.qnn.dlc FILE [OTHER]`: what a DLC holds, and how two of them differ.

Exit code: 0 for a summary or two equal DLCs, 1 when they differ, 2 for wrong arguments or a file that is no DLC.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from compilers.adapter import CompilerError
from compilers.qnn.dlc import DlcGraph, DlcTensor, only_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary or the difference and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m compilers.qnn.dlc", description="Sum up a DLC, or compare two.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER", help="compare FILE with this one")
    parser.add_argument("--tensors", action="store_true", help="list every operator and tensor with its encoding")
    options = parser.parse_args(argv)
    try:
        graph = only_graph(options.file)
        other = only_graph(options.other) if options.other else None
    except CompilerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    lines = list(difference(graph, other) if other else summary(graph, tensors=options.tensors))
    sys.stdout.write("\n".join(lines or [f"{options.file} and {options.other} hold the same"]) + "\n")
    return 1 if other and lines else 0


def summary(graph: DlcGraph, *, tensors: bool = False) -> Iterator[str]:
    """Yield lines: edges, operators by type, tensors by role and dtype; each operator and tensor when asked."""
    yield f"graph {graph.name}: {len(graph.nodes)} operators, {len(graph.tensors)} tensors"
    for role in ("input", "output"):
        yield from (f"{role} {_described(tensor)}" for tensor in graph.by_role(role))
    yield "operators: " + ", ".join(f"{count} {kind}" for kind, count in graph.operators().items())
    kinds = Counter((tensor.role, tensor.dtype, _encoding_kind(tensor)) for tensor in graph.tensors)
    for (role, dtype, encoding), count in sorted(kinds.items()):
        yield f"{count} {role} tensors of {dtype}{encoding}"
    yield f"elements in static tensors: {sum(math.prod(t.shape) for t in graph.by_role('static'))}"
    if tensors:
        for node in graph.nodes:
            yield f"operator {node.name} {node.op_type}: {', '.join(node.inputs)} -> {', '.join(node.outputs)}"
        yield from (f"tensor {tensor.role} {_described(tensor)}" for tensor in graph.tensors)


def difference(left: DlcGraph, right: DlcGraph) -> Iterator[str]:
    """Yield a line for each operator or tensor that one lacks or has otherwise; none when they hold the same.

    The graph's own name does not count: the compiler makes a new one each time.
    """
    yield from _differing("operator", {n.name: n for n in left.nodes}, {n.name: n for n in right.nodes})
    yield from _differing("tensor", {t.name: t for t in left.tensors}, {t.name: t for t in right.tensors})


def _differing(what: str, left: Mapping[str, T], right: Mapping[str, T]) -> Iterator[str]:
    for name in [*left, *(name for name in right if name not in left)]:
        if name not in right:
            yield f"- {what} {name}"
        elif name not in left:
            yield f"+ {what} {name}"
        else:
            yield from _changed(what, name, left[name], right[name])


def _changed(what: str, name: str, left: T, right: T) -> Iterator[str]:
    fields: tuple[str, ...] = getattr(type(left), "__slots__", ())
    for field in fields:
        before, after = getattr(left, field), getattr(right, field)
        if before != after:
            yield f"! {what} {name}: {field} {_short(before)} -> {_short(after)}"


def _described(tensor: DlcTensor) -> str:
    return f"{tensor.name} {list(tensor.shape)} {tensor.dtype}{_encoding(tensor)}"


def _encoding(tensor: DlcTensor) -> str:
    if len(tensor.scales) == 1 and tensor.axis is None:
        return f" scale {tensor.scales[0]:.6g} offset {tensor.offsets[0]}"
    return _encoding_kind(tensor)


def _encoding_kind(tensor: DlcTensor) -> str:
    if not tensor.scales:
        return ""
    return " quantised" if tensor.axis is None else f" quantised by axis {tensor.axis}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
