"""The split search as a user runs it: known answers, real cuts, bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from experiments.splits import _parser, main
from experiments.splitting.request import Options, check
from experiments.splitting.search import find, rivals
from graphs import load
from partition import load_device

ROOT = Path(__file__).resolve().parents[2]
NODES = {
    "A": ("Conv", ["x", "w1"], "a"),
    "B": ("Erf", ["a"], "b"),
    "C": ("Relu", ["a"], "c"),
    "D": ("Add", ["b", "c"], "d"),
    "E": ("Conv", ["d", "w2"], "y"),
}
NPU_MS, GPU_MS = {"A": 9, "B": 8, "C": 1, "D": 2, "E": 9}, {"A": 4, "B": 5, "C": 8, "D": 9, "E": 2}


def write_model(path: Path, nodes: list[onnx.NodeProto], ends: dict[str, list[int]], kernel: int = 3) -> Path:
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(0, 0.3, (8, 8, k, k)).astype(np.float32), name)
        for name, k in (("w1", kernel), ("w2", 1))
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends.items() if n.startswith(first)]
        for first in "xy"
    )
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, [w for w in weights if w.name in used])
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def branched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Case T4."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        helper.make_node(op, inputs, [out], name=name, **({"pads": [1] * 4} if name == "A" else {}))
        for name, (op, inputs, out) in NODES.items()
    ]
    return write_model(tmp_path / "t4.onnx", nodes, {"x": [1, 8, 16, 16], "y": [1, 8, 16, 16]})


def costs_file(path: Path, **changes: object) -> Path:
    """Case T6: moving a tensor costs 1 ms and 1 ms per unit of size; x and y live on the GPU."""
    table = {
        "nodes": {
            name: {node: {"latency_s": ms / 1e3, "energy_j": 0.0} for node, ms in costs.items()}
            for name, costs in (("npu", NPU_MS), ("gpu", GPU_MS))
        },
        "transfer": {"latency_s": 1e-3, "bytes_per_s": 1000.0},
        "tensor_bytes": {"x": 1, "a": 4, "b": 3, "c": 1, "d": 3, "y": 2},
        "io_on": "gpu",
    }
    path.write_text(json.dumps(table | changes))
    return path


def the_run(tmp_path: Path) -> Path:
    (run,) = (p for p in (tmp_path / "results").iterdir() if p.name != "build")
    return run


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_case_t6_is_found_with_its_gaps(branched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = costs_file(tmp_path / "t6.json")
    assert main([str(branched), "--device", "sm8650", "--costs", str(costs), "--verify", "1"]) == 0
    run = the_run(tmp_path)
    (plan,) = lines(run / "plans.csv")
    assert float(plan["latency_s"]) == pytest.approx(26e-3)
    assert plan["places"] == "gpu/tvm/fp16|npu/ort_qnn/fp16|gpu/tvm/fp16"
    search = json.loads((run / "search.json").read_text())
    assert search["space"] == "all convex cuts"
    assert search["gap_ratio"] == 0
    latency_ms = {s["name"]: round(s["latency_s"] * 1e3, 6) for s in search["strategies"]}
    assert latency_ms["all on npu/ort_qnn/fp16"] == 34
    assert latency_ms["all on gpu/tvm/fp16"] == latency_ms["best single cut"] == 28
    assert latency_ms["greedy per operator"] == latency_ms["fastest place per operator"] == 27
    output = capsys.readouterr().out
    assert "exact in: all convex cuts" in output
    assert "+7.7%" in output
    (done,) = lines(run / "verified.csv")
    assert done["status"] == "misplaced"  # the costs of T6 know nothing of Erf, which no HTP computes
    assert "not run here" in output  # the GPU's kernels
    for name in ("frontier", "cuts", "sensitivity"):
        assert (run / f"{name}.png").stat().st_size > 0


def test_case_t4_is_cut_in_three_compiled_and_stitched(
    branched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = [f"--pin={node}={'cpu' if node == 'B' else 'npu'}" for node in NODES]
    assert main([str(branched), "--verify", "1", *pins]) == 0
    run = the_run(tmp_path)
    (plan,) = json.loads((run / "plans.json").read_text())
    cut = [(s["place"]["processor"], sorted(s["nodes"])) for s in plan["segments"]]
    assert cut == [("npu", ["A", "C"]), ("cpu", ["B"]), ("npu", ["D", "E"])]
    (row,) = lines(run / "plans.csv")
    assert int(row["moved_bytes"]) == 2 * 8192
    assert sorted(row["cuts"].split("|")) == ["a", "b", "c"]
    (done,) = lines(run / "verified.csv")
    assert done["status"] == "ok"
    assert float(done["relative_max"]) < 3e-3
    assert float(done["latency_s"]) == pytest.approx(float(done["predicted_latency_s"]), rel=0.3)
    assert main([str(branched), "--verify", "1", *pins]) == 0
    assert "verifying" not in capsys.readouterr().out.partition("Cut, compiled")[2]  # the second run knows the plan


def test_costs_by_compiling_agree_with_what_the_plans_come_to(branched: Path, tmp_path: Path) -> None:
    arguments = [str(branched), "--oracle", "compile", "--pin", "B=cpu", "--pin", "A=npu", "--verify", "1"]
    assert main(arguments) == 0
    run = the_run(tmp_path)
    search = json.loads((run / "search.json").read_text())
    assert search["gap_ratio"] == 0
    assert 0 < search["oracle_calls"] < search["possible_calls"]
    assert search["bound_scale"] == 1
    (done,) = lines(run / "verified.csv")
    assert float(done["latency_s"]) == pytest.approx(float(done["predicted_latency_s"]), rel=1e-3)
    assert float(done["energy_j"]) == pytest.approx(float(done["predicted_energy_j"]), rel=1e-3)


def test_costs_by_compiling_over_all_convex_cuts(branched: Path, tmp_path: Path) -> None:
    pins = [f"--pin={node}={'cpu' if node == 'B' else 'npu'}" for node in NODES]
    assert main([str(branched), "--oracle", "compile", "--space", "convex", "--verify", "1", *pins]) == 0
    run = the_run(tmp_path)
    search = json.loads((run / "search.json").read_text())
    assert search["space"] == "all convex cuts"
    assert search["gap_ratio"] == 0
    (done,) = lines(run / "verified.csv")
    assert float(done["latency_s"]) == pytest.approx(float(done["predicted_latency_s"]), rel=1e-3)


def test_int8_and_float_mix_in_one_plan(branched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(branched), "--precisions", "int8,fp16", "--objectives", "latency,energy,error"]
    assert main([*arguments, "--pin", "B=cpu", "--pin", "A=npu", "--verify", "2"]) == 0
    run = the_run(tmp_path)
    plans = lines(run / "plans.csv")
    mixed = [p for p in plans if "int8" in p["places"] and "fp" in p["places"]]
    assert mixed
    assert all(float(p["sqnr_db"]) > 0 for p in mixed)
    done = [v for v in lines(run / "verified.csv") if v["status"] == "ok"]
    assert len(done) == min(2, len(plans))
    for one in done:
        assert float(one["sqnr_db"]) > 20
    assert "predicted" in capsys.readouterr().out
    assert main([*arguments, "--min-sqnr", "200", "--deadline", "1e-9"]) == 1
    assert "deadline" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["pipelined", "parallel"])
def test_other_modes_name_their_space(branched: Path, tmp_path: Path, mode: str) -> None:
    costs = costs_file(tmp_path / "t6.json")
    arguments = [str(branched), "--device", "sm8650", "--costs", str(costs), "--mode", mode, "--verify", "0"]
    assert main(arguments) == 0
    run = the_run(tmp_path)
    search = json.loads((run / "search.json").read_text())
    plans = lines(run / "plans.csv")
    if mode == "pipelined":
        assert min(float(p["period_s"]) for p in plans) < 26e-3
        assert search["strategies"][0]["period_gap_ratio"] is not None
    else:
        assert "schedules" in search["space"]
        assert min(float(p["latency_s"]) for p in plans) <= 26e-3


@pytest.mark.parametrize("how", [[], ["--gap", "0.01"], ["--mode", "pipelined"], ["--mode", "parallel"]])
def test_nothing_is_cut_outside_the_space_asked_for(branched: Path, tmp_path: Path, how: list[str]) -> None:
    # B or C alone on a processor is the greedy choice; two tensors cross there.
    costs = costs_file(tmp_path / "t6.json")
    words = [str(branched), "--device", "sm8650", "--costs", str(costs), "--space", "layers", *how]
    request = check(Options(**vars(_parser().parse_args(words))))
    found = find(request, lambda: pytest.fail("nothing is compiled"), print)
    others = rivals(request, found)
    assert "single-tensor cuts" in found.space
    for plan in (*found.solutions, *others):
        where = {node: piece.place for piece in plan.segments for node in piece.nodes}
        assert where["B"] == where["C"] == where["D"], plan
    assert min(s.latency_s for s in found.solutions) <= min(r.latency_s for r in others)


def test_a_graph_of_two_parts_is_split_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Relu", [f"x{i}"], [f"y{i}"], name=f"r{i}") for i in (1, 2)]
    path = write_model(tmp_path / "two.onnx", nodes, {n: [1, 4] for n in ("x1", "x2", "y1", "y2")})
    costs = {"npu": {"r1": {"latency_s": 1, "energy_j": 1}}, "gpu": {"r2": {"latency_s": 1, "energy_j": 1}}}
    file = costs_file(tmp_path / "two.json", nodes=costs, tensor_bytes={}, io_on=None)
    assert main([str(path), "--device", "sm8650", "--costs", str(file), "--verify", "0"]) == 0
    (plan,) = lines(the_run(tmp_path) / "plans.csv")
    assert int(plan["segments"]) == 2


def test_a_graph_without_modelled_work_has_a_period_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_model(
        tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")], {"x": [1, 4], "y": [1, 4]}
    )
    assert main([str(path), "--mode", "pipelined", "--verify", "0"]) == 0
    assert len(lines(the_run(tmp_path) / "plans.csv")) == 1


def looped(path: Path, *, constant: bool) -> Path:
    """MatMul, a Loop whose body is a MatMul and a Relu, MatMul; five times, or as often as the input says."""
    value, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [
            node("MatMul", ["s", "w"], ["m"], name="inner"),
            node("Relu", ["m"], ["s_out"], name="relu"),
            node("Identity", ["go"], ["go_on"], name="on"),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("s", TensorProto.FLOAT, [64, 64])],
        [value("go_on", TensorProto.BOOL, []), value("s_out", TensorProto.FLOAT, [64, 64])],
    )
    weights = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float32)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(True), "start")]
    trips = numpy_helper.from_array(np.array(5, np.int64), "trips")
    graph = helper.make_graph(
        [
            node("MatMul", ["x", "w"], ["a"], name="A"),
            node("Loop", ["trips", "start", "a"], ["b"], name="L", body=body),
            node("MatMul", ["b", "w"], ["y"], name="B"),
        ],
        "looped",
        [value("x", TensorProto.FLOAT, [64, 64]), *([] if constant else [value("trips", TensorProto.INT64, [])])],
        [value("y", TensorProto.FLOAT, [64, 64])],
        [*constants, *([trips] if constant else [])],
    )
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_a_loop_costs_its_body_times_its_trips_or_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = looped(tmp_path / "five.onnx", constant=True)
    assert main([str(path), "--device", "sa8255p", "--verify", "0", "--pin", "L=cpu"]) == 0
    loop = [node for node in load(path).nodes() if node.name == "L"]
    assert [node.macs for node in loop] == [5 * 64**3]
    plans = lines(the_run(tmp_path) / "plans.csv")
    rate = load_device("sa8255p").processor("cpu").macs_per_s["fp32"].value
    assert all(float(plan["latency_s"]) >= 5 * 64**3 / rate for plan in plans)
    capsys.readouterr()
    assert main([str(looped(tmp_path / "fed.onnx", constant=False)), "--device", "sa8255p", "--verify", "0"]) == 2
    told = capsys.readouterr().err
    assert "a constant trip count, and a condition that its body passes on, make it known" in told
    assert "--costs FILE" in told


INFEASIBLE = [
    (["--deadline", "0.02"], "deadline 0.02 s: the least reachable is 0.026 s, 0.006 s too much"),
    (["--deadline", "1e-12"], "deadline 1e-12 s: the least reachable is 0.026 s"),
    (["--max-segments", "1", "--deadline", "0.027"], "deadline 0.027 s"),
    (["--pin", "A=npu", "--pin", "E=npu", "--deadline", "0.026"], "deadline 0.026 s"),
    (["--space", "order", "--memory-cap", "1"], "memory cap 1 bytes"),
    (["--mode", "parallel", "--deadline", "0.001"], "deadline 0.001 s"),
    (["--mode", "pipelined", "--period-cap", "0.001"], "period 0.001 s"),
]


@pytest.mark.parametrize(("arguments", "message"), INFEASIBLE)
def test_constraints_that_cannot_be_met_are_named(
    branched: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = costs_file(tmp_path / "t6.json")
    assert main([str(branched), "--device", "sm8650", "--costs", str(costs), *arguments]) == 1
    assert message in capsys.readouterr().out


BAD = [
    (["--device", "sa8255"], "did you mean 'sa8255p'"),
    (["--device", "a17_pro"], "a split needs two places"),
    (["--device", "host"], "a split needs two places"),
    (["--precision", "fp64"], "unknown precision 'fp64'"),
    (["--backends", "ort_cpu,tmv"], "did you mean 'tvm'"),
    (["--objectives", "latency"], "at least two objectives"),
    (["--objectives", "latency,joy"], "unknown objective 'joy'"),
    (["--objectives", "latency,period"], "--mode pipelined"),
    (["--objectives", "latency,memory", "--space", "convex"], "--space units and order"),
    (["--mode", "parallel", "--max-segments", "2"], "--mode parallel"),
    (["--oracle", "compile", "--space", "layers"], "--space units, order and convex"),
    (["--precisions", "int8,fp16", "--objectives", "latency,memory"], "peak memory is that of one precision"),
    (["--objectives", "latency,error"], "--precisions int8,fp16"),
    (["--min-sqnr", "20"], "--precisions int8,fp16"),
    (["--precisions", "int8,fp16", "--costs", "t4.onnx"], "one precision"),
    (["--precisions", "int8,fp16", "--device", "a17_pro"], "needs two places"),
    (["--gap", "0.1", "--deadline", "1"], "--gap is for"),
    (["--max-compiles", "3"], "--max-compiles is for"),
    (["--pin", "Z=cpu"], "no node 'Z'"),
    (["--pin", "A=gpu"], "the places are on cpu, npu"),
    (["--pin", "B=cpu", "--pin", "C=npu", "--space", "layers"], "no cut of --space layers falls between them"),
    (["--costs", "absent.json"], "absent.json"),
    (["--costs", "t4.onnx"], "no JSON file"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_a_wrong_argument_is_one_sentence(
    branched: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(branched), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"dsp": {}}, "no processor 'dsp'"),
        ({"npu": {"Z": {"latency_s": 1, "energy_j": 1}}}, "no node 'Z'"),
        ({"npu": {"A": {"latency_s": -1, "energy_j": 1}}, "gpu": {}}, "costs are finite and not negative"),
        ({"npu": {"A": {"latency_s": float("nan"), "energy_j": 1}}, "gpu": {}}, "costs are finite and not negative"),
        ({"npu": {"A": {"latency_s": 1}}, "gpu": {}}, "needs latency_s and energy_j"),
    ],
)
def test_a_wrong_cost_is_one_sentence(
    branched: Path, tmp_path: Path, nodes: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = costs_file(tmp_path / "bad.json", nodes=nodes)
    assert main([str(branched), "--device", "sm8650", "--costs", str(costs)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"transfer": {"latency_s": 1e-3, "bytes_per_s": 0}}, "bytes_per_s=0; a bandwidth is above zero"),
        ({"transfer": {"latency_s": 1e-3, "bytes_per_s": -5}}, "bytes_per_s=-5; a bandwidth is above zero"),
        ({"transfer": {"latency_s": 1e-3, "bytes_per_s": "5"}}, "is no cost file"),
        ({"transfer": {"latency_s": 1e-3, "energy_j_per_byte": -1}}, "energy_j_per_byte=-1; it is not negative"),
        ({"tensor_bytes": {"a": 4.9}}, "'a' needs a size in tensor_bytes, in whole bytes; got 4.9"),
        ({"tensor_bytes": {"typo": 4}}, "no tensor 'typo'"),
        ({"dispatch": {"cpu": {"latency_s": 1, "energy_j": 1}}}, "dispatch names 'cpu'; nodes has npu, gpu"),
    ],
)
def test_a_wrong_transfer_or_size_is_one_sentence(
    branched: Path, tmp_path: Path, entry: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = costs_file(tmp_path / "bad.json", **entry)
    assert main([str(branched), "--device", "sm8650", "--costs", str(costs)]) == 2
    assert message in capsys.readouterr().err


def test_missing_costs_are_refusals_with_their_reason(
    branched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {"npu": {}, "gpu": {n: {"latency_s": 1, "energy_j": 1} for n in "ABCD"}}
    costs = costs_file(tmp_path / "some.json", nodes=nodes)
    assert main([str(branched), "--device", "sm8650", "--costs", str(costs)]) == 1
    assert "no place takes node 'E'" in capsys.readouterr().out


def test_ctrl_c_keeps_what_is_compiled_and_the_same_command_resumes(branched: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.splits", str(branched), "--oracle", "compile", "--verify", "1"]
    command += ["--pin", "A=npu", "--pin", "B=cpu", "--pin", "E=npu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["env", "--default-signal=INT", *command]  # a job in the background ignores it
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("compile 1"):
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes" in output
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
