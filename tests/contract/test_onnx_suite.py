"""ONNX's own operator suite through the graph core: read, shape, count, and cut after each node.

The golden file holds how many cases pass; `--update-golden` writes larger numbers and refuses smaller ones.
Refused on purpose: inputs with a zero dimension, sequence and optional inputs, operator sets newer than the release.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from graphs import Graph, GraphError, extract, from_proto

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "onnx_suite.json"


def models() -> Iterator[onnx.ModelProto]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes its expected outputs with overflows and NaNs
        cases = collect_testcases(None)
    return (case.model for case in cases if case.model is not None)


def parts(graph: Graph) -> Iterator[list[str]]:
    """Give both sides of the cut after each node but the last."""
    names = [node.name for node in graph.nodes()]
    for cut in range(1, len(names)):
        yield names[:cut]
        yield names[cut:]


def extracts(graph: Graph, part: list[str]) -> bool:
    try:
        return [node.name for node in extract(graph, part).nodes()] == part
    except GraphError:
        return False


def passes() -> Counter[str]:
    """Count what passes; anything but a GraphError on the way is a crash of ours."""
    found: Counter[str] = Counter()
    for model in models():
        found["cases"] += 1
        try:
            graph = from_proto(model)
        except GraphError:
            continue
        found["read"] += 1
        found["every shape known"] += all(spec.shape is not None for spec in graph.tensors().values())
        found["all work counted"] += not graph.uncosted_nodes()
        found["parts extracted"] += sum(extracts(graph, part) for part in parts(graph))
    return found


def test_what_passes_of_the_operator_suite_only_grows(update_golden: bool) -> None:
    found = passes()
    known: dict[str, int] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    fewer = {what: (number, found[what]) for what, number in known.items() if found[what] < number}
    assert not fewer, f"fewer pass than before (before, now): {fewer}"
    if update_golden:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert known or update_golden, f"{GOLDEN} is missing: run with --update-golden"
