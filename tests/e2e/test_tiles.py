"""`python -m experiments.tiles`, whole: files, tables, and bad input in one sentence."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, get_compiler
from experiments.pareto import main as pareto
from experiments.tiles import main
from partition import load_device

if TYPE_CHECKING:
    from pathlib import Path


def test_two_operators_end_in_csv_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operators = ("conv2d:c=32,k=64,y=28,x=28,f=3", "conv2d:c=32,k=32,y=28,x=28,f=3,g=32", "softmax:m=64,k=64")
    assert main([*(word for text in operators for word in ("--op", text)), "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    rows = list(csv.DictReader((folder / "tiles.csv").read_text().splitlines()))
    assert {(row["operator"], row["processor"]) for row in rows} == {
        (text, processor) for text in operators for processor in ("sa8255p npu", "sm8650 gpu")
    }
    for row in rows:
        assert float(row["latency_s"]) > 0
        assert "configurations" in row["statement"]
        assert bool(row["carried_latency_s"]) != bool(row["carried_refusal"])
        if row["loss_ratio"]:
            assert 0 <= float(row["loss_ratio"]) < 1
        # No row without the model's error, or the word that it is not known.
        npu = row["processor"] == "sa8255p npu"
        assert bool(row["error_median_ratio"]) == npu
        assert bool(row["error_median_ratio_of_kind"]) == (npu and row["kind"] != "norm")
        assert row["error_note"].startswith("median error" if npu else "error not known")
    losses = list(csv.DictReader((folder / "losses.csv").read_text().splitlines()))
    assert {row["kind"] for row in losses} == {"conv", "depthwise", "norm"}
    assert all(row["error_note"] for row in losses)
    for name in ("losses", "heat", "frontier"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "all figures are modelled" in out
    assert "sa8255p npu, fp16: median error" in out
    assert "sm8650 gpu: absolute error not known" in out
    assert "throughput lost when a tile is carried over unchanged" in out


def small_model(path: Path, channels: int = 8) -> Path:
    weights = np.random.default_rng(3).normal(0, 0.1, (16, channels, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.skipif(
    not get_compiler("tvm").available(Action.COMPILE, load_device("sm8550"), "gpu"), reason="TVM does not work here"
)
def test_the_best_tiles_become_a_plan_that_the_main_job_compiles_and_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(small_model(tmp_path / "small.onnx"))
    assert main([path, "--gpu", "sm8550", "--out", str(tmp_path)]) == 0
    assert "wrote 1 GPU tiles as the plan" in capsys.readouterr().out
    (plan,) = tmp_path.glob("tiles-*/plans/*.json")
    asked = ["--device", "sm8550", "--backends", "snpe", "--precisions", "fp16", "--splits", "0", "--plan", str(plan)]
    assert pareto([path, *asked, "--out", str(tmp_path / "results")]) == 0
    (text,) = (tmp_path / "results").glob("small-*/outcomes.jsonl")
    rows = [json.loads(line) for line in text.read_text().splitlines()]
    (row,) = (row for row in rows if row["options"] == "1 tiles of a plan")
    assert (row["status"], row["latency_source"]) == ("ok", "modelled")
    assert row["latency_low_s"] < row["latency_s"] < row["latency_high_s"]
    assert any("held out, they are off by" in note for note in row["notes"])
    (kernels,) = (tmp_path / "results" / "build").glob("*/*/kernels.json")
    tiled = [function["reason"] for function in json.loads(kernels.read_text()) if function["rule"] == "tile"]
    assert tiled == ["asked for by the plan"]


@pytest.mark.skipif(
    not get_compiler("tvm").available(Action.RUN, load_device("host_gpu"), "gpu"), reason="needs the extra opencl"
)
def test_tiles_are_timed_on_the_opencl_device_and_the_best_becomes_a_row_of_the_main_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(small_model(tmp_path / "small.onnx"))
    asked = ["--gpu", "sm8550", "--precision", "fp32", "--npu-precision", "fp16", "--measure", "2"]
    assert main([path, *asked, "--out", str(tmp_path / "results")]) == 0
    out = capsys.readouterr().out
    assert "the model's figures are those of sm8550 gpu, another processor" in out
    (table,) = (tmp_path / "results").glob("tiles-*/measured.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert next(row["choice"] for row in rows) == "the model's best"
    assert len({row["tile"] for row in rows}) == len(rows) == 2
    assert all(0 < float(row["measured_s"]) < 10 and row["source"] == "measured" for row in rows)
    assert all("OpenCL, driver" in row["measured_on"] for row in rows)

    (plan,) = (p for p in table.parent.glob("plans/*.json") if "host_gpu" in p.read_text())
    asked = ["--device", "host_gpu", "--backends", "tvm", "--precisions", "fp32", "--splits", "0", "--plan", str(plan)]
    pareto([path, *asked, "--out", str(tmp_path / "results")])  # 1 here: the device file has no figures of energy
    (text,) = (tmp_path / "results").glob("small-*/outcomes.jsonl")
    rows = [json.loads(line) for line in text.read_text().splitlines()]
    assert {row["options"] for row in rows} == {"", "1 tiles of a plan"}
    for row in rows:
        assert (row["latency_source"], row["device"]) == ("measured", "host_gpu")
        assert row["status"] == ("misplaced" if "says it is a cpu" in row["runs_on"] else "ok")
        assert row["cosine"] > 0.999999


@pytest.mark.skipif(
    not get_compiler("tvm").available(Action.COMPILE, load_device("sm8650"), "gpu"), reason="TVM does not work here"
)
def test_the_same_tiles_are_built_in_four_languages_and_their_code_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operators = ("conv2d:c=16,k=32,y=12,x=12,f=3", "softmax:m=8,k=8")
    asked = [word for text in operators for word in ("--op", text)]
    assert main([*asked, "--npu-precision", "int8", "--codegen", "2", "--out", str(tmp_path)]) == 0
    (text,) = tmp_path.glob("tiles-*/artefacts.csv")
    rows = {(r["operator"], r["target"]): r for r in csv.DictReader(text.read_text().splitlines())}
    assert {target for _, target in rows} == {"opencl", "cuda", "metal", "hexagon hvx"}
    assert {r["reason"] for (name, _), r in rows.items() if "softmax" in name} == {"Softmax is several kernels"}
    for target in ("opencl", "cuda", "hexagon hvx"):
        row = rows[operators[0], target]
        assert row["reason"] == ""
        # Every output is stored, at most a vector of 128 bytes at a time.
        assert int(row["loads"]) > int(row["stores"]) >= 12 * 12 * 32 * 2 // 128
    vectors = rows[operators[0], "hexagon hvx"]
    assert (vectors["precision"], vectors["vector_bytes"]) == ("int8", "128")
    assert 0 < int(vectors["vector_products"]) < int(vectors["vector_instructions"])
    assert "not built: norm 8 1x8" in capsys.readouterr().out


def test_a_plan_for_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(small_model(tmp_path / "small.onnx"))
    assert main([path, "--gpu", "sm8550", "--out", str(tmp_path)]) == 0
    (plan,) = tmp_path.glob("tiles-*/plans/*.json")
    capsys.readouterr()
    out = ["--plan", str(plan), "--out", str(tmp_path / "results")]
    assert pareto([path, "--device", "host", *out]) == 2
    assert "add --device sm8550" in capsys.readouterr().err
    other = str(small_model(tmp_path / "other.onnx", channels=4))
    assert pareto([other, "--device", "sm8550", *out]) == 2
    assert "is for another model than other" in capsys.readouterr().err
    assert pareto([path, "--device", "sm8550", "--plan", str(tmp_path / "nowhere.json"), *out[2:]]) == 2
    assert "cannot read the plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a MODEL"),
        (["nosuch"], "neither a file nor a zoo model"),
        (["--op", "reshape:c=1"], "operator 'reshape' has no tiles here"),
        (["--op", "conv2d:c=0,k=1,y=1,x=1,f=1"], "c=0 is not a size of at least 1"),
        (
            ["--op", "softmax:m=4,k=4000", "--vtcm-mb", "0.001"],
            "the smallest that lanes and weight alignment allow needs 16000",
        ),
        (["--op", "matmul:m=4,c=4,k=4", "--npu", "a17_pro"], "a17_pro has no tile geometry of an NPU"),
        (["--op", "matmul:m=4,c=4,k=4", "--gpu", "sa8255p"], "sa8255p has no tile geometry of a GPU"),
        (["--op", "matmul:m=4,c=4,k=4", "--precision", "int8"], "no tile geometry for int8"),
        (["--op", "matmul:m=4,c=4,k=4", "--objective", "speed"], "use latency or energy"),
        (["--op", "matmul:m=4,c=4,k=4", "--simulate"], "--simulate compiles a whole MODEL"),
        (["--op", "matmul:m=4,c=4,k=4", "--measure", "2"], "--measure builds a whole MODEL"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_model_whose_work_is_in_a_body_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = helper.make_tensor_value_info
    bodies = [
        helper.make_graph([helper.make_node("MatMul", ["x", "x"], [f"{side}_y"], name=f"{side}_product")], side, [],
                          [value(f"{side}_y", TensorProto.FLOAT, [4, 4])])
        for side in ("yes", "no")
    ]  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=bodies[0], else_branch=bodies[1])
    inputs = [value("x", TensorProto.FLOAT, [4, 4]), value("c", TensorProto.BOOL, [])]
    graph = helper.make_graph([node], "chosen", inputs, [value("y", TensorProto.FLOAT, [4, 4])])
    path = tmp_path / "chosen.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert main([str(path), "--out", str(tmp_path)]) == 1
    assert "it has 1 If; bodies of If, Loop and Scan are not looked into" in capsys.readouterr().out


def test_an_operators_largest_bands_by_memory_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operators = ("conv2d:c=64,k=64,y=256,x=256,f=3", "conv2d:c=256,k=512,y=28,x=28,f=3")
    arguments = [text for operator in operators for text in ("--op", operator)]
    assert main([*arguments, "--vtcm-mb", "1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 MB 13 rows, 20 times, 294 fetched" in out
    assert "1 MB no band fits" in out  # its weights take 2.25 MiB
    (path,) = tmp_path.glob("tiles-*-1mb/memory.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    found = [(row["band_rows"], row["bands"], row["input_rows_fetched"]) for row in rows]
    assert found == [("13", "20", "294"), ("", "", "")]


@pytest.mark.vendor("onnxruntime_qnn")
def test_the_simulator_tells_time_by_memory_and_every_nodes_tiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    assert main(["squeezenet1_1", "--simulate", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert [f"VTCM {mb} MB, mode 2: " in out for mb in (1, 2, 4, 8)] == [True] * 4
    folder = next(path for path in tmp_path.iterdir() if path.name.startswith("tiles-"))
    nodes = list(csv.DictReader((folder / "nodes.csv").read_text().splitlines()))
    assert sum(float(row["hmx_s"]) for row in nodes) > 0
    memory = list(csv.DictReader((folder / "memory.csv").read_text().splitlines()))
    assert [float(row["memory_bytes"]) / 2**20 for row in memory] == [1, 2, 4, 8]
    assert all(float(row["latency_s"]) > 0 and row["error_median_ratio"] for row in memory)
    assert "by memory size, modelled: median error" in out
    artefacts = [json.loads(p.read_text()) for p in (tmp_path / "build").rglob("artefact.json")]
    assert all(any(name.endswith("_qnn.log") for name in artefact["files"]) for artefact in artefacts)
