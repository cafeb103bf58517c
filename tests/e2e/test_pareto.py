"""The main job as a user runs it: a process, a file, an exit code."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]


def pareto(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.pareto", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def weight(name: str, *shape: int) -> TensorProto:
    values = np.random.default_rng(len(name)).normal(0, 0.1, shape)
    return numpy_helper.from_array(values.astype(np.float32), name)


def write_model(path: Path, nodes: list[onnx.NodeProto], weights: list[TensorProto], size: object = 16) -> Path:
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, size, size])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [image], [result], weights)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, path)
    return path


def conv(source: str, target: str, kernel: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [source, kernel], [target], name=f"conv_{target}", pads=[1, 1, 1, 1])


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Three layers that every backend takes."""
    nodes = [conv("x", "a", "w1"), helper.make_node("Relu", ["a"], ["b"], name="relu"), conv("b", "y", "w2")]
    return write_model(tmp_path / "plain.onnx", nodes, [weight("w1", 8, 8, 3, 3), weight("w2", 8, 8, 3, 3)])


@pytest.fixture
def islanded(tmp_path: Path) -> Path:
    """An operator in the middle that the HTP does not have."""
    nodes = [
        conv("x", "a", "w1"),
        helper.make_node("Shrink", ["a"], ["b"], name="island", lambd=0.05),
        conv("b", "y", "w2"),
    ]
    return write_model(tmp_path / "islanded.onnx", nodes, [weight("w1", 8, 8, 3, 3), weight("w2", 8, 8, 3, 3)])


def rows(folder: Path) -> list[dict[str, object]]:
    (run,) = (p for p in folder.iterdir() if p.name != "build")
    return [json.loads(line) for line in (run / "outcomes.jsonl").read_text().splitlines()]


def test_a_file_goes_in_and_frontiers_come_out(plain: Path, tmp_path: Path) -> None:
    done = pareto(str(plain), "--out", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = tmp_path.glob("results/plain-*")
    for name in ("frontier.png", "frontier.svg", "frontier.csv", "outcomes.jsonl", "environment.json"):
        assert (run / name).stat().st_size > 0
    outcomes = rows(tmp_path / "results")
    good = {(r["backend"], r["device"]) for r in outcomes if r["status"] == "ok"}
    assert {("ort_cpu", "host"), ("tvm", "host"), ("ort_qnn", "sa8255p"), ("snpe", "sa8255p")} <= good
    assert ("coreml", "a17_pro") in good
    assert all(r["reason"] for r in outcomes if r["status"] == "failed")
    sources = {r["backend"]: r["latency_source"] for r in outcomes if r["status"] == "ok" and r["segments"] == 1}
    assert sources["ort_qnn"] == "simulated"
    assert sources["coreml"] == "modelled"
    exact = [r for r in outcomes if r["status"] == "ok" and r["precision"] == "fp32" and r["device"] == "host"]
    assert all(float(str(r["relative_max"])) < 1e-3 for r in exact)
    with (run / "frontier.csv").open() as file:
        standings = {(line["backend"], line["device"]): line["standing"] for line in csv.DictReader(file)}
    assert "frontier" in standings.values()


def test_a_rerun_compiles_nothing_and_says_so(plain: Path, tmp_path: Path) -> None:
    options = (str(plain), "--backends", "ort_cpu", "--device", "host", "--precisions", "fp32", "--splits", "0")
    assert pareto(*options, cwd=tmp_path).returncode == 0
    before = rows(tmp_path / "results")
    assert all("onnxruntime-" in str(row["backend_versions"]) for row in before)
    again = pareto(*options, cwd=tmp_path)
    assert again.returncode == 0
    assert "1 of 1 candidates are known" in again.stdout
    assert rows(tmp_path / "results") == before


def test_an_option_that_comes_to_nothing_is_not_lost_in_the_others_results(plain: Path, tmp_path: Path) -> None:
    options = ("--backends", "ort_cpu,tvm", "--device", "sa8255p", "--precisions", "fp32", "--splits", "0")
    done = pareto(str(plain), *options, "--option", "tvm.tune=many", cwd=tmp_path)
    assert done.returncode == 1
    assert "option tune must be a whole number of at least 1, not 'many'" in done.stdout
    assert "nothing came of tvm with tune=many" in done.stdout
    assert {row["backend"]: row["status"] for row in rows(tmp_path / "results")} == {"ort_cpu": "ok", "tvm": "failed"}


def test_an_input_that_no_node_reads_is_told(tmp_path: Path) -> None:
    path = write_model(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"], name="relu")], [])
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1]))
    onnx.save(model, path)
    options = ("--backends", "ort_cpu", "--device", "sa8255p", "--precisions", "fp32", "--splits", "0")
    done = pareto(str(path), *options, cwd=tmp_path)
    assert done.returncode == 0
    assert "no node reads unused" in done.stdout
    (row,) = rows(tmp_path / "results")
    assert "so that a call itself is free" in str(row["notes"])


def test_two_runs_at_once_take_turns_and_measure_once(plain: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.pareto", str(plain), "--backends", "ort_cpu", "--device", "host"]
    command += ["--precisions", "fp32", "--splits", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    told = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(rows(tmp_path / "results")) == 1
    assert sum("1 of 1 candidates are known" in text for text in told) == 1


def test_a_graph_that_is_quantised_already_is_its_own_int8_form(tmp_path: Path) -> None:
    """Case T9: the reference is the graph as it is, unoptimised; what ONNX Runtime makes of it is off by a step."""
    nodes, constants, source = [], [], "x"
    for name, scale in (("fine", 0.02), ("coarse", 0.05)):
        constants += [numpy_helper.from_array(np.float32(scale), f"{name}_scale")]
        constants += [numpy_helper.from_array(np.uint8(128), f"{name}_zero")]
        parameters = [f"{name}_scale", f"{name}_zero"]
        target = "y" if name == "coarse" else "d"
        nodes.append(helper.make_node("QuantizeLinear", [source, *parameters], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [target]))
        source = target
    model = write_model(tmp_path / "coded.onnx", nodes, constants)
    asked = ("--device", "host", "--backends", "ort_cpu", "--splits", "0", "--processes", "1")
    done = pareto(str(model), *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fp32 is left out: coded is quantised already" in done.stdout
    assert "random data" not in done.stdout
    (row,) = rows(tmp_path / "results")
    assert (row["precision"], row["status"], row["error_verdict"]) == ("int8", "ok", "compared")
    assert isinstance(row["sqnr_db"], float)
    assert 25 < row["sqnr_db"] < 60


def test_an_npu_that_got_only_a_part_is_labelled_and_not_ranked(islanded: Path, tmp_path: Path) -> None:
    options = ("--backends", "ort_qnn", "--device", "sa8255p", "--precisions", "fp16", "--splits", "0")
    done = pareto(str(islanded), *options, cwd=tmp_path)
    (row,) = rows(tmp_path / "results")
    assert row["status"] in {"misplaced", "failed"}
    assert "island" in json.dumps(row)
    assert done.returncode == 1  # the only candidate is not where it was asked, so there is no frontier
    assert "island" in done.stdout


def test_what_lacks_a_calibration_beside_others_is_told_and_not_ranked(plain: Path, tmp_path: Path) -> None:
    """On this chip the calibration has models for snpe, and no simulator stands behind ort_qnn."""
    options = ("--backends", "ort_qnn,snpe", "--device", "sa8295p", "--precisions", "int8", "--splits", "0")
    done = pareto(str(plain), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r["backend"]: r["status"] for r in rows(tmp_path / "results")} == {"ort_qnn": "uncalibrated", "snpe": "ok"}
    (run,) = tmp_path.glob("results/plain-*")
    with (run / "frontier.csv").open() as file:
        lines = {line["backend"]: line for line in csv.DictReader(file)}
    assert (lines["ort_qnn"]["standing"], lines["ort_qnn"]["device_standing"]) == ("unranked", "unranked")
    assert "does not compare with calibrated latencies" in lines["ort_qnn"]["reason"]
    assert lines["snpe"]["standing"] == "frontier"
    assert "modelled, not calibrated" in done.stdout
    drawn = " ".join(re.findall("<!-- (.*?) -->", (run / "frontier.svg").read_text()))
    assert "Not drawn: 1 candidate without a calibrated latency" in drawn
    assert len(list((run / "plans").glob("*.json"))) == 2


def test_a_compile_that_runs_into_its_limit_is_a_row_and_a_rerun_tries_again(plain: Path, tmp_path: Path) -> None:
    options = (str(plain), "--backends", "tvm", "--device", "host", "--precisions", "fp32", "--splits", "0")
    done = pareto(*options, "--time-limit", "1", cwd=tmp_path)
    assert done.returncode == 1
    (row,) = rows(tmp_path / "results")
    assert row["status"] == "failed"
    assert "stopped at its time limit of 1 s" in str(row["reason"])
    assert pareto(*options, cwd=tmp_path).returncode == 0


BAD_ARGUMENTS = [
    (["--device", "sa8255"], "did you mean 'sa8255p'"),
    (["--backends", "ort_cpu,tmv"], "did you mean 'tvm'"),
    (["--precisions", "fp64"], "unknown precision 'fp64'"),
    (["--objectives", "latency"], "at least two objectives"),
    (["--objectives", "latency,joy"], "unknown objective 'joy'"),
    (["--bind", "batch"], "expected NAME=SIZE"),
    (["--splits", "-1"], "at least 0"),
    (["--option", "threads=2"], "expected BACKEND.KEY=VALUE"),
    (["--option", "tvm.threads"], "expected KEY=VALUE"),
    (["--option", "tvm.threads=2", "--backends", "ort_cpu"], "an option is for backend 'tvm', and the run has ort_cpu"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_a_wrong_argument_is_one_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = pareto(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_bad_models_are_one_sentence(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "half.onnx").write_bytes(plain.read_bytes()[:-500])
    (tmp_path / "text.onnx").write_text("this is no model")
    foreign = helper.make_node("Magic", ["x"], ["y"], name="m", domain="my.own")
    write_model(tmp_path / "foreign.onnx", [foreign], [])
    write_model(tmp_path / "symbolic.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")], [], size="side")
    expected = {
        "half.onnx": "half.onnx",
        "text.onnx": "text.onnx",
        "absent.onnx": "absent.onnx",
        "foreign.onnx": "my.own",
        "symbolic.onnx": "--bind side=",
        "mobilenet_v9": "neither a file nor a zoo model",
    }
    for name, message in expected.items():
        done = pareto(name, cwd=tmp_path)
        assert done.returncode == 2, name
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_model_without_operations_is_one_sentence(tmp_path: Path) -> None:
    done = pareto(str(write_model(tmp_path / "none.onnx", [], [weight("y", 2)])), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.onnx has no operations" in done.stderr


def test_an_output_folder_that_cannot_be_is_named(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = pareto(str(plain), "--out", "taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "taken" in done.stderr
    assert "--out" in done.stderr


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_resumes(plain: Path, tmp_path: Path) -> None:
    asked = [str(plain), "--backends", "ort_cpu,ort_qnn,snpe", "--splits", "0", "--jobs", "1"]
    command = [sys.executable, "-m", "experiments.pareto", *asked]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["env", "--default-signal=INT", *command]  # a job in the background ignores it
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("results/plain-*/outcomes.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes" in output
    kept = len(rows(tmp_path / "results"))
    assert kept >= 1
    done = pareto(*asked, cwd=tmp_path)
    assert done.returncode == 0
    assert f"{kept} of " in done.stdout


def test_help_imports_no_vendor_code() -> None:
    script = (
        "import sys; import graphs, partition, compilers, experiments.pareto; "
        "print([m for m in ('tvm', 'coremltools', 'onnxruntime', 'onnx', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
