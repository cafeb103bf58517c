"""Plans cut anywhere, run part after part: every output of the graph comes out as from the graph in one piece.

Outputs are drawn among all tensors: what later parts read too, constants, and the graph's own inputs.
"""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import reference_session
from experiments.evaluator import child_session
from experiments.evaluator.child_session import PlanSession, Step
from experiments.mixing import cut_mixed
from experiments.split_costs import cut, handed_over, plan_of
from graphs import Calibration, Graph, GraphError, Mixer, float_form, from_proto, quantise, random_inputs
from partition import Plan, load_device, to_dag
from partition.search import Piece, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

SHAPE = [2, 4]
CONSTANT = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
UNARY, BINARY = ("Relu", "Neg", "Tanh"), ("Add", "Mul", "Max")
DEVICE = load_device("sa8255p")
PLACES = {
    "float": Place(processor="npu", backend="ort_qnn", precision="fp16"),
    "int8": Place(processor="npu", backend="ort_qnn", precision="int8"),
}


def info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


@st.composite
def models(draw: st.DrawFn, *, control: bool = True) -> Graph:
    """A graph whose outputs are the tensors that nobody reads and any others, inputs and constants among them."""
    known = ["x", "z", "w"]
    nodes = []
    for number in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from([*UNARY, *BINARY, "Split", *(["If"] if control else [])]))
        made = [f"t{number}", f"u{number}"] if kind == "Split" else [f"t{number}"]
        reads = [draw(st.sampled_from(known)) for _ in range(2 if kind in BINARY else 1)]
        reads[0] = reads[0] if nodes else "x"  # or all of it might be constant
        attributes: dict[str, Any] = {}
        if kind == "If":
            arms = [helper.make_node(op, reads, ["arm"], name=f"{op}{number}") for op in ("Relu", "Neg")]
            graphs = [helper.make_graph([arm], arm.name, [], [info("arm")]) for arm in arms]
            attributes = {"then_branch": graphs[0], "else_branch": graphs[1]}
        inputs = ["c"] if kind == "If" else reads
        nodes.append(helper.make_node(kind, inputs, made, name=f"n{number}", **attributes))
        if kind == "Split":
            nodes[-1].attribute.append(helper.make_attribute("axis", 0))
            joined = helper.make_node("Concat", made, [f"s{number}"], name=f"j{number}", axis=0)
            nodes.append(joined)
            made = [f"s{number}"]
        known += made
    read = {name for node in nodes for name in [*node.input, *_captured(node)]}
    ends = [name for name in known[3:] if name not in read]
    more = draw(st.lists(st.sampled_from(known), unique=True))
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x"), info("z"), *([helper.make_tensor_value_info("c", TensorProto.BOOL, [])] if control else [])],
        [info(name) for name in draw(st.permutations(list(dict.fromkeys([*ends, *more]))))],
        [numpy_helper.from_array(CONSTANT, "w")],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))


def _captured(node: onnx.NodeProto) -> list[str]:
    return [name for a in node.attribute for inner in a.g.node for name in inner.input]


def pieces_of(
    graph: Graph, draw: st.DrawFn, places: Sequence[Place], bound: Mapping[str, str] = MappingProxyType({})
) -> tuple[Piece, ...]:
    """Cut a random order of the nodes at random places: any chain of convex parts can come out."""
    dag = to_dag(graph)
    order: list[str] = []
    while len(order) < len(dag):
        ready = [n for n in dag if n not in order and all(p in order for p in dag.predecessors(n))]
        order.append(draw(st.sampled_from(ready)))
    inner = {order.index(a) + 1 for a in order} - {
        cut for node, maker in bound.items() for cut in range(order.index(maker) + 1, order.index(node) + 1)
    }
    ends = sorted({*draw(st.lists(st.sampled_from(sorted(inner)), max_size=4)), len(order)})
    return tuple(
        Piece(place=draw(st.sampled_from(places)), nodes=tuple(order[start:stop]))
        for start, stop in zip([0, *ends], ends, strict=False)
    )


def stitched(plan: Plan, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    steps = [
        Step(
            artefact=SimpleNamespace(compiler="direct", graph=segment.graph),  # type: ignore[arg-type]
            inputs=tuple(spec.name for spec in segment.graph.inputs()),
        )
        for segment in plan.segments
    ]
    with PlanSession(steps, [spec.name for spec in plan.outputs]) as session:
        return session.run(feed)


def whole(graph: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with reference_session(graph) as session:
        return session.run({name: feed[name] for name in (spec.name for spec in graph.inputs())})


@pytest.fixture(autouse=True, scope="module")
def _direct() -> Any:
    """Load a segment as ONNX Runtime's session of its graph, without a compile."""
    with pytest.MonkeyPatch.context() as patch:
        direct = SimpleNamespace(load=lambda artefact: reference_session(artefact.graph))
        patch.setattr(child_session, "get_compiler", lambda _: direct)
        yield


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


@given(models(), st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_stitched_plan_gives_every_output_of_its_graph(graph: Graph, data: st.DataObject) -> None:
    pieces = pieces_of(graph, data.draw, [PLACES["float"]])
    plan = plan_of(graph, DEVICE, pieces, cut(graph, pieces))
    feed = random_inputs(graph, 0) | {"c": np.array(data.draw(st.booleans()))}
    same(stitched(plan, feed), whole(graph, feed))
    # What the search counts as handed over is what the parts really read of each other.
    made = {spec.name for segment in plan.segments for spec in segment.graph.outputs()}
    read = {spec.name for segment in plan.segments for spec in segment.graph.inputs()}
    assert set(handed_over(graph, pieces)) == made & read
    graphs = {segment.graph.digest: segment.graph for segment in plan.segments}
    assert Plan.from_json(plan.to_json(), graphs) == plan


@given(models(control=False), st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_so_does_a_plan_that_mixes_precisions(graph: Graph, data: st.DataObject) -> None:
    try:
        mixer = Mixer(float_form(graph), quantise(graph, "int8", Calibration.random(graph, 1, 0)))
    except GraphError as error:
        if "has nothing to quantise" in str(error):
            reject()
        raise
    pieces = pieces_of(mixer.floating, data.draw, list(PLACES.values()), mixer.bound)
    plan = plan_of(graph, DEVICE, pieces, cut_mixed(mixer, pieces))
    feed = random_inputs(graph, 0)
    outputs = stitched(plan, feed)
    lowered = [node for piece in pieces if piece.place.precision == "int8" for node in piece.nodes]
    same(outputs, whole(mixer.mix(lowered).graph, feed))
