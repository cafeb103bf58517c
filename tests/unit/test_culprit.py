"""Bisection for the node at which a compiler starts to fail."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import CompilerError, DiedError, LimitError, Limits, PassingError, Placement, get_compiler
from experiments.explain import settle as settling
from experiments.explain.culprit import find_culprit
from experiments.explain.rules import Rule, RuleError, parse_rule, refused_by
from graphs import Graph, from_proto
from partition import load_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from experiments.explain.settle import Settled
    from partition import Segment


@given(count=st.integers(1, 300), data=st.data())
def test_a_lone_culprit_is_found_in_log_n_calls(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    calls = 0

    def fails(units: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return bool(bad.intersection(units))

    found = find_culprit(range(count), fails)
    assert found.unit == min(bad)
    assert found.company == ()
    assert calls <= math.ceil(math.log2(count)) + 1


@given(count=st.integers(2, 300), data=st.data())
def test_a_pair_that_fails_together_is_found_with_its_company(count: int, data: st.DataObject) -> None:
    first, second = sorted(data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True)))

    def fails(units: Sequence[int]) -> bool:
        return first in units and second in units

    found = find_culprit(range(count), fails)
    assert found.unit == second
    assert found.company == tuple(range(first, second))


@given(count=st.integers(1, 60), data=st.data())
def test_what_is_blamed_was_seen_to_fail_however_erratic_the_failing_is(count: int, data: st.DataObject) -> None:
    answers: dict[tuple[int, ...], bool] = {tuple(range(count)): True}

    def fails(units: Sequence[int]) -> bool:
        return answers.setdefault(tuple(units), data.draw(st.booleans()))

    found = find_culprit(range(count), fails)
    # A single unit fails alone, or is all of a failing sequence; with company, the company and it fail together.
    if found.company:
        assert answers[(*found.company, found.unit)]
    elif found.unit > 0:
        assert answers[(found.unit,)]


def test_rules_are_read_and_a_wrong_one_says_how() -> None:
    assert parse_rule("Pad") == Rule(op_type="Pad")
    assert parse_rule("Pad:mode=reflect") == Rule(op_type="Pad", attribute="mode", value="reflect")
    for text in ("", "Pad:", "Pad:mode", "Pad:=reflect", "a b"):
        with pytest.raises(RuleError, match="Pad:mode=reflect"):
            parse_rule(text)


def test_a_rule_sees_what_a_node_leaves_to_the_operators_definition() -> None:
    graph = one_node("Pad", np.array([0, 0, 1, 1], np.int64))
    assert list(refused_by(graph, [parse_rule("Pad:mode=constant")])) == ["only"]
    assert refused_by(graph, [parse_rule("Pad:mode=reflect")]) == {}


def one_node(op_type: str, *inputs: np.ndarray[Any, Any], **attributes: Any) -> Graph:
    names = [f"c{index}" for index in range(len(inputs))]
    node = helper.make_node(op_type, ["x", *names], ["y"], name="only", **attributes)
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 3]), ("y", None))
    )
    constants = [numpy_helper.from_array(array, name) for array, name in zip(inputs, names, strict=True)]
    graph = helper.make_graph([node], "case", [next(ends)], [next(ends)], constants)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


class Taken:
    """Stands in for an artefact that is wholly on the accelerator."""


def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compile_segment: Callable[..., Taken]) -> Settled:
    """Settle four operators with a compiler that does as the test says."""
    names = "abcde"
    nodes = [helper.make_node("Abs", [i], [o], name=f"to {o}") for i, o in itertools.pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in (names[0], names[-1])]
    graph = from_proto(helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:]), ir_version=9))
    monkeypatch.setattr(settling, "compile_segment", compile_segment)
    monkeypatch.setattr(settling, "Artefact", Taken)
    monkeypatch.setattr(type(get_compiler("ort_qnn")), "placement", lambda *_: Placement(units={}, reasons={}))
    request = settling.Request(
        graph=graph, device=load_device("sa8255p"), processor="npu", cpu="cpu", backend="ort_qnn", precision="fp16",
        build=tmp_path, limits=Limits(),
    )  # fmt: skip
    return settling.settle(request, {}, lambda _: None)


def names_of(segment: Segment) -> set[str]:
    return {node.name for node in segment.graph.nodes()}


@pytest.mark.parametrize("kind", [DiedError, CompilerError])
def test_a_crash_or_refusal_that_comes_again_is_searched_for(
    kind: type[CompilerError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def compile_segment(segment: Segment, *_: object) -> Taken:
        if "to d" in names_of(segment):
            raise kind("crashed with SIGSEGV")
        return Taken()

    # Where all operators are of one kind, the others are tried, too.
    assert list(settled(monkeypatch, tmp_path, compile_segment).refused) == ["to d"]


def test_what_passes_its_limit_twice_is_not_tried_twice_at_each_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    died: list[frozenset[str]] = []

    def compile_segment(segment: Segment, *_: object) -> Taken:
        if "to d" in names_of(segment):
            died.append(frozenset(names_of(segment)))
            raise LimitError("was stopped at its time limit of 600 s")
        return Taken()

    assert list(settled(monkeypatch, tmp_path, compile_segment).refused) == ["to d"]
    assert died[0] == died[1]
    assert len(set(died[1:])) == len(died[1:]) > 1


def test_a_crash_that_comes_once_blames_no_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []

    def compile_segment(*_: object) -> Taken:
        calls.append("")
        if len(calls) == 1:
            raise DiedError("was stopped at its time limit of 600 s")
        return Taken()

    found = settled(monkeypatch, tmp_path, compile_segment)
    assert (dict(found.refused), found.bisections, len(calls)) == ({}, 0, 2)


def test_what_is_no_matter_of_the_graph_is_not_searched_for_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def compile_segment(*_: object) -> Taken:
        raise PassingError("the disk was full")

    with pytest.raises(PassingError, match="disk was full"):
        settled(monkeypatch, tmp_path, compile_segment)
