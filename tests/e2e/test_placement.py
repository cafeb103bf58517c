"""`python -m experiments.placement`: cases T2, T4 and T5, and operators that are claimed and then refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, Cause, Limits, StartError, get_compiler
from experiments import placement
from experiments.evaluator import reference_outputs
from experiments.explain.boundary import crossings
from experiments.explain.parts import plan_of
from experiments.explain.proof import stitched
from experiments.explain.report import ALONG
from experiments.explain.rules import parse_rule, refused_by
from experiments.explain.settle import Request, settle
from experiments.explain.suggest import suggestions
from experiments.plans import read_plan
from graphs import Graph, from_proto, random_inputs, save
from partition import Device, load_device

if TYPE_CHECKING:
    from pathlib import Path

SA8255P = load_device("sa8255p")
LIMITS = Limits(time_s=120)

pytestmark = pytest.mark.skipif(
    not get_compiler("ort_qnn").available(Action.COMPILE, SA8255P, "npu"), reason="the QNN wheel does not work here"
)


def model(nodes: list[onnx.NodeProto], shape: list[int], **weights: np.ndarray[Any, Any]) -> Graph:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "case",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).normal(0, 0.1, shape).astype(np.float32)


def around(operator: str) -> Graph:
    """Case T4: A=Conv; B=`operator`(A); C=Relu(A); D=B+C; E=Conv1x1(D)."""
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="A", pads=[1] * 4),
        helper.make_node(operator, ["a"], ["b"], name="B"),
        helper.make_node("Relu", ["a"], ["c"], name="C"),
        helper.make_node("Add", ["b", "c"], ["d"], name="D"),
        helper.make_node("Conv", ["d", "we"], ["y"], name="E"),
    ]
    return model(nodes, [1, 8, 16, 16], wa=weight(8, 8, 3, 3), we=weight(8, 8, 1, 1))


def padded() -> Graph:
    """Case T2."""
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], name="conv1", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Pad", ["b", "pads"], ["c"], name="pad", mode="reflect"),
        helper.make_node("Conv", ["c", "we"], ["y"], name="conv2"),
    ]
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    return model(nodes, [1, 8, 32, 32], wa=weight(8, 8, 3, 3), we=weight(8, 8, 3, 3), pads=pads)


def chip(soc_model: str) -> Device:
    npu = dataclasses.replace(SA8255P.processor("npu"), ids={"qnn": {"soc_model": soc_model, "vtcm_mb": "4"}})
    others = tuple(p for p in SA8255P.processors if p.name != "npu")
    return dataclasses.replace(SA8255P, name=f"soc{soc_model}", processors=(*others, npu))


def request(graph: Graph, tmp_path: Path, device: Device = SA8255P) -> Request:
    return Request(
        graph=graph, device=device, processor="npu", cpu="cpu", backend="ort_qnn", precision="fp16",
        build=tmp_path / "build", limits=LIMITS,
    )  # fmt: skip


def silent(text: str) -> None:
    pass


def test_t4_two_npu_parts_around_the_cpu_node_and_the_tensors_between_them(tmp_path: Path) -> None:
    graph = around("Erf")
    settled = settle(request(graph, tmp_path), {}, silent)
    assert [(run.place, run.nodes) for run in settled.runs] == [
        ("npu", ("A", "C")),
        ("cpu", ("B",)),
        ("npu", ("D", "E")),
    ]
    assert settled.refused["B"].cause is Cause.OPERATOR
    found = {c.tensor: (c.size_bytes, c.source, c.targets) for c in crossings(graph, settled.runs)}
    assert found == {"a": (8192, 0, (1,)), "b": (8192, 1, (2,)), "c": (8192, 0, (2,))}


def test_t5_a_new_input_reaches_both_processors_in_the_split_plan(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Erf", ["x"], ["e"], name="erf"),
        helper.make_node("Mul", ["x", "two"], ["d"], name="mul"),
        helper.make_node("Add", ["e", "d"], ["y"], name="add"),
    ]
    asked = request(model(nodes, [1, 8, 4, 4], two=np.array(2, np.float32)), tmp_path)
    settled = settle(asked, {}, silent)
    assert list(settled.refused) == ["erf"]
    plan = plan_of(asked.graph, settled.runs, SA8255P, "ort_qnn", "fp16")
    for value, right in ((1, 2.8427), (2, 4.9953), (3, 7.0)):
        outputs = stitched(plan, {"x": np.full((1, 8, 4, 4), value, np.float32)}, asked.build, LIMITS)
        np.testing.assert_allclose(outputs["y"], right, atol=4e-3)


def test_t2_the_rewrite_is_offered_to_a_target_that_refuses_the_pad(tmp_path: Path) -> None:
    asked, rules = request(padded(), tmp_path), [parse_rule("Pad:mode=reflect")]
    settled = settle(asked, refused_by(asked.graph, rules), silent)
    assert [run.place for run in settled.runs] == ["npu", "cpu", "npu"]
    assert [c.size_bytes for c in crossings(asked.graph, settled.runs)] == [32768, 36992]
    feed = random_inputs(asked.graph, 0)
    reference = reference_outputs(asked.graph, feed, LIMITS)
    (offered,) = suggestions(asked, settled, rules, feed, reference, silent)
    assert offered.nodes == ("pad",)
    assert [run.place for run in offered.settled.runs] == ["npu"]
    operators = [node.op_type for node in offered.graph.nodes()]
    assert (operators.count("Slice"), operators.count("Concat")) == (4, 2)
    np.testing.assert_array_equal(reference_outputs(offered.graph, feed, LIMITS)["y"], reference["y"])


def test_t2_nothing_is_offered_to_a_target_that_takes_the_pad(tmp_path: Path) -> None:
    asked = request(padded(), tmp_path)
    settled = settle(asked, {}, silent)
    assert settled.refused == {}
    assert list(suggestions(asked, settled, [], {}, {}, silent)) == []


@pytest.mark.parametrize(
    ("operator", "device", "reason"),
    [
        ("Selu", chip("30"), "QNN_COMMON_ERROR_MEM_ALLOC"),
        ("Mish", SA8255P, "together with A: .*INVALID_GRAPH"),
    ],
    ids=["refused at finalise", "refused only in company"],
)
def test_who_is_claimed_and_then_refused_is_named(tmp_path: Path, operator: str, device: Device, reason: str) -> None:
    settled = settle(request(around(operator), tmp_path, device), {}, silent)
    assert list(settled.refused) == ["B"]
    assert settled.refused["B"].cause is Cause.CLAIMED
    assert re.search(reason, settled.refused["B"].reason)
    assert [run.place for run in settled.runs] == ["npu", "cpu", "npu"]
    assert settled.bisections <= 4


def test_a_chip_that_the_compiler_does_not_know_blames_no_node(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="could not start"):
        settle(request(around("Relu"), tmp_path, chip("9999")), {}, silent)


def test_the_command_writes_the_table_and_a_plan_that_can_be_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(around("Mish"), tmp_path / "mish.onnx")
    code = placement.main([str(tmp_path / "mish.onnx"), "--device", "sa8255p", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert code == 0
    assert "claimed, then refused" in printed
    assert "every output bit identical" in printed
    assert "cosine 1.0" in printed
    folder = tmp_path / "out" / "placement" / "mish-ort_qnn-sa8255p-fp16"
    with (folder / "placement.csv").open() as file:
        rows = {row["node"]: row for row in csv.DictReader(file)}
    assert {name: row["unit"] for name, row in rows.items()} == {
        "A": "npu", "B": "cpu", "C": "npu", "D": "npu", "E": "npu",
    }  # fmt: skip
    assert rows["B"]["segment_in_bytes"] == "8192"
    content = json.loads((folder / "placement.json").read_text())
    assert content["suggestions"][0]["accelerator_parts"] == 1
    (path,) = (folder / "plans").glob("*.json")
    plan = read_plan(path)
    assert plan.digest == content["plan_digest"]
    assert [segment.processor for segment in plan.segments] == ["npu", "cpu", "npu"]


def test_the_quantisers_of_a_refused_node_have_a_reason_too(tmp_path: Path) -> None:
    save(around("Sigmoid"), tmp_path / "net.onnx")
    given = ["--device", "sa8255p", "--precision", "int8", "--refuse", "Sigmoid", "--out", str(tmp_path / "out")]
    assert placement.main([str(tmp_path / "net.onnx"), *given]) == 0
    with (tmp_path / "out" / "placement" / "net-ort_qnn-sa8255p-int8" / "placement.csv").open() as file:
        elsewhere = {row["operator"]: row["reason"] for row in csv.DictReader(file) if row["unit"] == "cpu"}
    assert elsewhere["Sigmoid"] == "the profile refuses Sigmoid"
    assert elsewhere["DequantizeLinear"] == ALONG


def test_a_missing_library_is_the_cause_and_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from compilers.qnn import wheel

    monkeypatch.setattr(wheel, "why_not_here", lambda *_: "onnxruntime-qnn 2.7.0 lacks libQnnHtp.so")
    save(around("Relu"), tmp_path / "m.onnx")
    assert placement.main([str(tmp_path / "m.onnx"), "--device", "sa8255p", "--out", str(tmp_path)]) == 1
    assert "library missing" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--device", "sa825"], ["--device", "sa8255p", "--backend", "qnn"],
                                   ["--device", "sa8255p", "--refuse", "Pad:"]])  # fmt: skip
def test_wrong_arguments_are_named(tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    save(around("Relu"), tmp_path / "m.onnx")
    assert placement.main([str(tmp_path / "m.onnx"), *wrong]) == 2
    assert capsys.readouterr().err.startswith("error: ")
