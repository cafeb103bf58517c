"""Bisection for the node at which a compiler starts to fail."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from experiments.explain.culprit import find_culprit
from experiments.explain.rules import Rule, RuleError, parse_rule, refused_by
from graphs import Graph, from_proto

if TYPE_CHECKING:
    from collections.abc import Sequence


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
