from __future__ import annotations

import dataclasses

import pytest

from graphs import Graph, zoo
from partition import DeviceError, FeedFile, Plan, PlanError, Segment, Tile, load_device


@pytest.fixture(scope="module")
def graph() -> Graph:
    return zoo.build("mobilenet_v3_small")


@pytest.fixture
def segment(graph: Graph) -> Segment:
    return Segment(
        graph=graph,
        device=load_device("sa8255p"),
        processor="npu",
        compiler="ort_qnn",
        precision="int8",
        options=(("vtcm_mb", "4"),),
        tiles=(Tile(node="conv", sizes=(("x", 16), ("k", 32))),),
        feeds=FeedFile(path="/data/images", digest="a" * 64),
    )


def test_a_plan_survives_json(graph: Graph, segment: Segment) -> None:
    plan = Plan.of(graph, [segment])
    again = Plan.from_json(plan.to_json(), {graph.digest: graph})
    assert again == plan
    assert again.digest == plan.digest
    assert again.outputs == graph.outputs()


def test_every_field_of_a_segment_is_in_its_digest(segment: Segment) -> None:
    others = [
        dataclasses.replace(segment, device=load_device("qcs9075")),
        dataclasses.replace(segment, processor="cpu"),
        dataclasses.replace(segment, compiler="snpe"),
        dataclasses.replace(segment, precision="fp16"),
        dataclasses.replace(segment, options=()),
        dataclasses.replace(segment, tiles=()),
        dataclasses.replace(segment, feeds=None),
        dataclasses.replace(segment, feeds=FeedFile(path="/data/images", digest="b" * 64)),
        dataclasses.replace(segment, graph=zoo.build("mobilenet_v3_small", seed=1)),
    ]
    assert len({s.digest for s in [segment, *others]}) == len(others) + 1


def test_the_same_feeds_elsewhere_are_the_same_segment(segment: Segment) -> None:
    moved = dataclasses.replace(segment, feeds=FeedFile(path="/other", digest="a" * 64))
    assert moved.digest == segment.digest


def test_what_cannot_be_is_refused(graph: Graph, segment: Segment) -> None:
    with pytest.raises(DeviceError, match="no processor 'dsp'"):
        dataclasses.replace(segment, processor="dsp")
    with pytest.raises(PlanError, match="unknown precision 'fp8'"):
        dataclasses.replace(segment, precision="fp8")
    with pytest.raises(PlanError, match="at least one segment"):
        Plan.of(graph, [])
    elsewhere = dataclasses.replace(segment, device=load_device("qcs9075"))
    with pytest.raises(PlanError, match="one device"):
        Plan.of(graph, [segment, elsewhere])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "segments": [{}]}'])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text, {})


def test_a_plan_of_an_older_schema_says_what_to_do(graph: Graph, segment: Segment) -> None:
    text = Plan.of(graph, [segment]).to_json().replace('"schema": 2', '"schema": 1')
    with pytest.raises(PlanError, match="plan schema 1 is not 2; write the plan anew"):
        Plan.from_json(text, {graph.digest: graph})


def test_a_plan_whose_graph_is_not_given_says_which(graph: Graph, segment: Segment) -> None:
    text = Plan.of(graph, [segment]).to_json()
    with pytest.raises(PlanError, match=r"mobilenet_v3_small.*not given"):
        Plan.from_json(text, {})
