from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest

from partition.dag import Activation
from partition.split import (
    SplitError,
    crossing,
    fewest_segments,
    fused_groups,
    handovers,
    ideals,
    is_convex,
    order_cuts,
    single_tensor_cuts,
)


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
    assert not is_convex(t4, "ACDE")
    assert is_convex(t4, "AC")
    assert is_convex(t4, "BC")
    assert not is_convex(t4, "AD")
    with pytest.raises(SplitError, match="wait for each other"):
        handovers(t4, ["ACDE", "B"])


def test_convexity_is_that_of_the_definition(t4: nx.DiGraph[str]) -> None:
    for size in range(1, 6):
        for nodes in combinations("ABCDE", size):
            paths = [p for s in nodes for t in nodes if s < t for p in nx.all_simple_paths(t4, s, t)]
            assert is_convex(t4, nodes) == all(set(path) <= set(nodes) for path in paths)


def test_refusals_of_a_node_everywhere_are_named(t4: nx.DiGraph[str]) -> None:
    with pytest.raises(SplitError, match="'B'"):
        fewest_segments(t4, {node: {"npu"} for node in "ACDE"})


def test_a_place_that_takes_everything_needs_one_segment(t4: nx.DiGraph[str]) -> None:
    allowed = {node: {"cpu", "npu"} for node in "ACDE"} | {"B": {"cpu"}}
    assert [(run.place, run.nodes) for run in fewest_segments(t4, allowed)] == [("cpu", ("A", "B", "C", "D", "E"))]


def test_ideals_are_the_sets_closed_under_predecessors(t4: nx.DiGraph[str]) -> None:
    found = list(ideals(t4))
    assert {"".join(sorted(done)) for done in found} == {"", "A", "AB", "AC", "ABC", "ABCD", "ABCDE"}
    assert len(found) == 7


def test_cuts_name_the_tensors_that_cross(t4: nx.DiGraph[str]) -> None:
    crossings = [[t.name for t in cut.tensors] for cut in order_cuts(t4)]
    assert crossings == [["a"], ["a", "b"], ["b", "c"], ["d"]]
    assert [sorted(cut.before) for cut in single_tensor_cuts(t4)] == [["A"], ["A", "B", "C", "D"]]
    assert [cut.size_bytes for cut in order_cuts(t4)] == [8192, 16384, 16384, 8192]


def test_what_is_alive_includes_inputs_and_outputs_still_wanted(t4: nx.DiGraph[str]) -> None:
    assert [t.name for t in crossing(t4, "")] == ["x"]
    assert [t.name for t in crossing(t4, "ABCDE")] == ["y"]


def test_an_unknown_size_makes_the_cut_unknown_and_not_zero() -> None:
    dag = dag_of(("x", None, "A"), ("a", "A", "B"), size=None)
    assert order_cuts(dag)[0].size_bytes is None


@pytest.mark.parametrize(
    ("segments", "message"),
    [(["AB", "BC"], "two segments"), (["AB", "C"], "no segment"), (["ABCDEF"], "not in the graph")],
)
def test_segments_must_cover_the_graph_once(t4: nx.DiGraph[str], segments: list[str], message: str) -> None:
    with pytest.raises(SplitError, match=message):
        handovers(t4, segments)


def test_a_cycle_is_refused() -> None:
    dag = dag_of(("a", "A", "B"), ("b", "B", "A"))
    with pytest.raises(SplitError, match="cycle"):
        list(ideals(dag))
    with pytest.raises(SplitError, match="comes before"):
        order_cuts(dag)


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
