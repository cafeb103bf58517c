from __future__ import annotations

from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING

import networkx as nx
import pytest

from partition.dag import Activation
from partition.groups import fused_groups
from partition.split import SplitError, fewest_segments, handovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def is_convex(dag: nx.DiGraph[str], nodes: Iterable[str]) -> bool:
    """Tell by the definition: no path between two of the nodes leaves them."""
    inside = set(nodes)
    pairs = permutations(inside, 2)
    return all(inside.issuperset(path) for pair in pairs for path in nx.all_simple_paths(dag, *pair))


def dag_of(*tensors: tuple[str, str | None, str], size: int | None = 8192, outputs: str = "") -> nx.DiGraph[str]:
    """Build a DAG from (tensor, producer, consumers), one letter per node; nodes in alphabetical order."""
    nodes = sorted({c for _, producer, consumers in tensors for c in (producer or "") + consumers})
    listed = tuple(
        Activation(name=name, size_bytes=size, producer=producer, consumers=tuple(consumers), is_output=name in outputs)
        for name, producer, consumers in tensors
    )
    dag: nx.DiGraph[str] = nx.DiGraph(activations=listed)
    dag.add_nodes_from(nodes)
    dag.add_edges_from((t.producer, c) for t in listed if t.producer for c in t.consumers)
    return dag


@pytest.fixture
def t4() -> nx.DiGraph[str]:
    """Case T4: a is read by B and C, D joins them."""
    return dag_of(
        ("x", None, "A"),
        ("a", "A", "BC"),
        ("b", "B", "D"),
        ("c", "C", "D"),
        ("d", "D", "E"),
        ("y", "E", ""),
        outputs="y",
    )


def test_t4_needs_exactly_two_npu_segments(t4: nx.DiGraph[str]) -> None:
    allowed = {node: {"npu"} for node in "ACDE"} | {"B": {"cpu"}}
    runs = fewest_segments(t4, allowed)
    assert [(run.place, run.nodes) for run in runs] == [("npu", ("A", "C")), ("cpu", ("B",)), ("npu", ("D", "E"))]
    moved = {h.tensor.name: (h.source, h.targets, h.tensor.size_bytes) for h in handovers(t4, [r.nodes for r in runs])}
    assert moved == {"x": (None, (0,), 8192), "a": (0, (1,), 8192), "b": (1, (2,), 8192), "c": (0, (2,), 8192)}


def test_t4_one_npu_segment_would_wait_for_itself(t4: nx.DiGraph[str]) -> None:
    with pytest.raises(SplitError, match="wait for each other"):
        handovers(t4, ["ACDE", "B"])


def test_two_segments_are_accepted_in_one_order_when_both_are_convex(t4: nx.DiGraph[str]) -> None:
    for size in range(1, 5):
        for chosen in combinations("ABCDE", size):
            rest = set(t4) - set(chosen)
            accepted = [order for order in ((chosen, rest), (rest, chosen)) if not waits(t4, order)]
            assert bool(accepted) == (is_convex(t4, chosen) and is_convex(t4, rest))


def waits(dag: nx.DiGraph[str], segments: Sequence[Iterable[str]]) -> bool:
    try:
        handovers(dag, segments)  # type: ignore[arg-type]
    except SplitError:
        return True
    return False


def test_no_cover_by_fewer_segments_exists(t4: nx.DiGraph[str]) -> None:
    for places in product(("cpu", "npu"), repeat=5):
        allowed = {node: {place} for node, place in zip("ABCDE", places, strict=True)}
        runs = fewest_segments(t4, allowed)
        handovers(t4, [run.nodes for run in runs])
        orders = nx.all_topological_sorts(t4)
        changes = min(sum(allowed[a] != allowed[b] for a, b in pairwise(order)) for order in orders)
        assert len(runs) == changes + 1


def test_refusals_of_a_node_everywhere_are_named(t4: nx.DiGraph[str]) -> None:
    with pytest.raises(SplitError, match="'B'"):
        fewest_segments(t4, {node: {"npu"} for node in "ACDE"})


def test_a_place_that_takes_everything_needs_one_segment(t4: nx.DiGraph[str]) -> None:
    allowed = {node: {"cpu", "npu"} for node in "ACDE"} | {"B": {"cpu"}}
    assert [(run.place, run.nodes) for run in fewest_segments(t4, allowed)] == [("cpu", ("A", "B", "C", "D", "E"))]


@pytest.mark.parametrize(
    ("segments", "message"),
    [(["AB", "BC"], "two segments"), (["AB", "C"], "no segment"), (["ABCDEF"], "not in the graph")],
)
def test_segments_must_cover_the_graph_once(t4: nx.DiGraph[str], segments: list[str], message: str) -> None:
    with pytest.raises(SplitError, match=message):
        handovers(t4, segments)


def typed(dag: nx.DiGraph[str], ops: str) -> nx.DiGraph[str]:
    """Name operators: c Conv, r Relu, a Add, q DequantizeLinear; nodes in alphabetical order."""
    names = {"c": "Conv", "r": "Relu", "a": "Add", "q": "DequantizeLinear", "m": "Mul", "s": "Sigmoid"}
    nx.set_node_attributes(dag, dict(zip(dag, (names[op] for op in ops), strict=True)), "op_type")
    return dag


def test_element_wise_operators_join_the_convolution_before_them() -> None:
    # x -> A conv -> B relu -> C conv -> D add (with B) -> E relu
    dag = dag_of(("x", None, "A"), ("a", "A", "B"), ("b", "B", "CD"), ("c", "C", "D"), ("d", "D", "E"), ("y", "E", ""))
    assert fused_groups(typed(dag, "crcar")) == (("A", "B"), ("C", "D", "E"))


def test_a_gate_and_its_product_stay_with_their_convolution() -> None:
    dag = dag_of(("x", None, "A"), ("a", "A", "BC"), ("b", "B", "C"), ("y", "C", ""))
    assert fused_groups(typed(dag, "csm")) == (("A", "B", "C"),)


def test_a_weight_is_dequantised_where_it_is_used() -> None:
    # B dequantises a weight (it reads no activation) for the convolution C.
    dag = dag_of(("x", None, "A"), ("a", "A", "C"), ("w", "B", "C"), ("y", "C", ""))
    assert fused_groups(typed(dag, "cqc")) == (("A",), ("B", "C"))


def test_groups_never_wait_for_each_other() -> None:
    # C adds A's output to B's, and B reads A: C may join B but not A.
    dag = dag_of(("x", None, "A"), ("a", "A", "BC"), ("b", "B", "C"), ("y", "C", ""))
    groups = fused_groups(typed(dag, "cca"))
    assert groups == (("A",), ("B", "C"))
    assert all(is_convex(dag, group) for group in groups)
    handovers(dag, groups)
