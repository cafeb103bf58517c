"""If, Loop and Scan in Core ML: unrolled or selected, held against ONNX Runtime; what is not known is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from compilers import CompilerError, reference_session
from compilers.coreml.lower import Lowered, lower
from compilers.coreml.session import EmulatedSession
from compilers.coreml.write import write_package
from graphs import Graph, from_proto

if TYPE_CHECKING:
    from pathlib import Path

Array = np.ndarray[Any, Any]


def graph_of(body: str) -> Graph:
    return from_proto(onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>' + body))


def lowered(body: str) -> Lowered:
    return lower(graph_of(body).proto(), "iOS17")


def check(body: str, folder: Path, **feed: Array) -> list[str]:
    """Hold the package against ONNX Runtime; return the operations that run."""
    graph = graph_of(body)
    write_package(lower(graph.proto(), "iOS17"), folder / "a.mlpackage", target="iOS17", compute="fp32")
    session = EmulatedSession(folder / "a.mlpackage")
    got = session.run(feed)
    with reference_session(graph) as reference:
        for name, wanted in reference.run(feed).items():
            np.testing.assert_allclose(got[name], wanted, rtol=1e-6, atol=1e-6)
    return [o.type for o in session.program.operations if o.type != "const"]


X = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)

# The branches read a tensor from outside, one of two outputs that nothing else reads.
IF = """agraph (float[3, 4] x, CONDITION) => (float[3, 2] y, float[1, 3, 2] z) {
    a, b = Split <axis = 1, num_outputs = 2> (x)
    y, z = If (c) <
        then_branch = one () => (float[3, 2] p, float[1, 3, 2] q) {
            p = Relu (a)  zero = Constant <value = int64[1] {0}> ()
            q = Unsqueeze (b, zero) },
        else_branch = two () => (float[3, 2] r, float[1, 3, 2] s) {
            r = Neg (b)  zero = Constant <value = int64[1] {0}> ()
            t = Exp (r) s = Unsqueeze (t, zero) }
    >
}"""


@pytest.mark.parametrize("shape", ["", "[1]"])
@pytest.mark.parametrize("taken", [True, False])
def test_a_computed_condition_selects(taken: bool, shape: str, tmp_path: Path) -> None:
    condition = np.full((1,) if shape else (), taken)
    operations = check(IF.replace("CONDITION", f"bool{shape} c"), tmp_path, x=X, c=condition)
    assert operations.count("select") == 2


def test_a_known_condition_leaves_one_branch(tmp_path: Path) -> None:
    body = IF.replace(", CONDITION", "").replace("a, b = Split", "c = Constant <value = bool {0}> () a, b = Split")
    operations = check(body, tmp_path, x=X)
    assert "select" not in operations
    assert "relu" not in operations


def test_operations_of_a_body_belong_to_the_graphs_node() -> None:
    found = lowered(IF.replace("CONDITION", "bool c"))
    owners = {owner for name, owner in found.node_of.items() if "Exp" in name or "Relu" in name}
    assert owners == {"If_y"}


def test_branches_of_different_shapes_are_refused() -> None:
    body = """agraph (float[3] x, bool c) => (float[n] y) {
        one = Constant <value = int64[1] {1}> ()  two = Constant <value = int64[1] {2}> ()
        y = If (c) <then_branch = a () => (float[n] p) { p = Slice (x, one, two) },
                    else_branch = b () => (float[n] q) { q = Relu (x) }>
    }"""
    with pytest.raises(CompilerError, match=r"branches give float32\(1,\) and float32\(3,\)"):
        lowered(body)


LOOP = """agraph (float[3, 4] x) => (float[3, 4] y, float[STEPS, 3, 4] all) {
    count = Constant <value = int64 {COUNT}> ()  go = Constant <value = bool {1}> ()
    y, all = Loop (count, go, x) <
        body = step (int64 i, bool before, float[3, 4] v) => (bool after, float[3, 4] w, float[3, 4] seen) {
            f = Cast <to = 1> (i)  u = Add (v, f)  w = Mul (u, x)  seen = Neg (w)
            most = Constant <value = int64 {MOST}> ()  after = Less (i, most)
        }
    >
}"""


@pytest.mark.parametrize(("count", "most", "steps"), [(4, 9, 4), (9, 2, 3), (1, 0, 1)])
def test_a_loop_becomes_its_steps(count: int, most: int, steps: int, tmp_path: Path) -> None:
    """It ends by its number of steps, or by a condition that follows from the step."""
    body = LOOP.replace("COUNT", str(count)).replace("MOST", str(most)).replace("STEPS", str(steps))
    assert check(body, tmp_path, x=X).count("mul") == 2 * steps, "the product, and the negation"


def test_loops_that_cannot_be_unrolled_are_refused() -> None:
    def body(count: str, most: str = "1000") -> str:
        return LOOP.replace("COUNT", count).replace("MOST", most).replace("STEPS", "n")

    with pytest.raises(CompilerError, match="more than 128 steps"):
        lowered(body("129"))
    with pytest.raises(CompilerError, match="what it collects is empty"):
        lowered(body("0"))
    computed = body("3").replace(
        "after = Less (i, most)", "s = ReduceSum <keepdims = 0> (w) o = Sub (s, s) after = Less (o, s)"
    )
    with pytest.raises(CompilerError, match=r"'Loop_y' \(Loop\): its condition is computed while the model runs"):
        lowered(computed)
    asked = body("3").replace("float[3, 4] x)", "float[3, 4] x, int64 count)", 1)
    asked = asked.replace("count = Constant <value = int64 {3}> ()", "")
    with pytest.raises(CompilerError, match="its number of steps is computed while the model runs"):
        lowered(asked)


@pytest.mark.parametrize("directions", [(0, 0, 0), (1, 0, 1)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scan_becomes_its_steps(directions: tuple[int, int, int], axis: int, tmp_path: Path) -> None:
    first, second, out = directions
    rows = {0: "3, 4", 1: "4, 3", -1: "4, 3"}[axis]
    body = f"""agraph (float[4] h, float[{rows}] u, float[3, 4] v) => (float[4] last, float[{rows}] all) {{
        last, all = Scan <num_scan_inputs = 2, scan_input_axes = [{axis}, 0], scan_output_axes = [{axis}],
                          scan_input_directions = [{first}, {second}], scan_output_directions = [{out}],
            body = step (float[4] s, float[4] p, float[4] q) => (float[4] t, float[4] o) {{
                a = Mul (s, p)  t = Add (a, q)  o = Relu (t)
            }}> (h, u, v)
    }}"""
    u = X if axis == 0 else np.ascontiguousarray(X.T)
    check(body, tmp_path, h=X[0], u=u, v=X[::-1].copy())


def test_definitions_may_rest_on_definitions(tmp_path: Path) -> None:
    """SoftmaxCrossEntropyLoss is defined by NegativeLogLikelihoodLoss, which has a definition of its own."""
    body = """agraph (float[3, 4] x) => (float y) {
        labels = Constant <value = int64[3] {1, 0, 3}> ()
        y = SoftmaxCrossEntropyLoss (x, labels)
    }"""
    check(body, tmp_path, x=X)


def test_empty_parts_of_a_split_are_dropped_by_a_concat(tmp_path: Path) -> None:
    body = """agraph (float[3, 4] x) => (float[3, 8] y) {
        sizes = Constant <value = int64[3] {0, 4, 0}> ()
        a, b, c = Split <axis = 1> (x, sizes)
        d = Relu (b)
        y = Concat <axis = 1> (a, b, c, d)
    }"""
    check(body, tmp_path, x=X)
