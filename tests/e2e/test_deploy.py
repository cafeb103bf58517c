"""`python -m experiments.deploy` against tools on PATH that record their calls and behave as adb, ssh and scp do."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, CompilerError, Limits, get_compiler
from compilers.qnn.context import embed_context
from experiments import deploy, pareto, store
from experiments.deployment.bundle import bundle
from experiments.deployment.measured import OutputFormatError, read_perf_test, read_throughput
from experiments.deployment.outputs import compared
from experiments.plans import read_plan, write_plan
from graphs import Calibration, Graph, extract, from_proto, load_tensor, quantise, save
from partition import Plan, PlanError, Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

needs_qnn = pytest.mark.skipif(
    not get_compiler("ort_qnn").available(Action.COMPILE, load_device("sa8255p"), "npu"),
    reason="the QNN wheel does not work here",
)

# As printed on a phone (Arm Learning Paths, "onnxruntime_perf_test" on Android), with 100 runs.
PERF_TEST = """\
Setting intra_op_num_threads to 1
Session creation time cost: 0.217932 s
First inference time cost: 196 ms
Total inference time cost: 9.8962 s
Total inference requests: 100
Average inference time cost total: 98.961997 ms
Total inference run time: 9.89708 s
Number of inferences per second: 10.104
Avg CPU usage: 11 %
Peak working set size: 271122432 bytes
Avg CPU usage:11
Peak working set size:271122432
Runs:100
Min Latency: 0.0958204 s
Max Latency: 0.101519 s
P50 Latency: 0.0995086 s
P90 Latency: 0.101519 s
P95 Latency: 0.101519 s
P99 Latency: 0.101519 s
P999 Latency: 0.101519 s
"""
# As printed by an SM8250 phone.
THROUGHPUT = """\
[Thread 0 - cpu_float32] 43.6138 infs/sec - Number of images processed: 437 - Build time: 48593 microseconds - \
Elapsed time: 10020649 microseconds - Real time: 10019761 microseconds - Teardown time: 8047 microseconds - Batch : 1
Total throughput: 43.6138 infs/sec
"""

ADB = """\
#!/bin/sh
echo "adb $*" >>"$FAKE_LOG"
case "$1" in
get-state)
    [ "$FAKE_MODE" = dead ] && { echo "error: no devices/emulators found" >&2; exit 1; }
    [ "$FAKE_MODE" = offline ] && { echo "offline"; exit 0; }
    echo device ;;
get-serialno) echo R58N12345 ;;
shell) shift
    [ "$1" = getprop ] && { echo "SM-S928B"; exit 0; }
    case "$1" in *device.sh*) [ "$FAKE_MODE" = hang ] && sleep 600 ;; esac
    sh -c "$1"; code=$?
    [ "$FAKE_MODE" = mute ] && exit 0   # adb before 1.0.36 gives no exit code of the device
    exit $code ;;
push)
    [ "$FAKE_MODE" = full ] && {
        echo "adb: error: failed to copy '$2' to '$3': remote No space left on device" >&2; exit 1; }
    cp -r "$2" "$3" && echo "$2: 1 file pushed, 0 skipped. 33.1 MB/s" ;;
pull) cp -r "$2" "$3" && echo "$2: 1 file pulled, 0 skipped." ;;
*) exit 2 ;;
esac
"""
SSH = """\
#!/bin/sh
echo "ssh $*" >>"$FAKE_LOG"
[ "$FAKE_MODE" = dead ] && { echo "ssh: connect to host board port 22: No route to host" >&2; exit 255; }
while [ "$1" = -o ]; do shift 2; done
shift
sh -c "$1"
"""
SCP = """\
#!/bin/sh
echo "scp $*" >>"$FAKE_LOG"
while true; do case "$1" in -o) shift 2 ;; -*) shift ;; *) break ;; esac; done
cp -r "${1#root@board:}" "${2#root@board:}"
"""


# Runs the model beside it on ONNX Runtime, as the real one does with -I, and writes what the device computes.
RUNNER = """\
#!{python}
import os, sys
from pathlib import Path
import numpy as np, onnx, onnxruntime
if sys.argv[1] != "-I" or sys.argv[2] != "-e": sys.exit("unknown option -I")  # before ONNX Runtime 1.22
data = Path(sys.argv[-1]) / "test_data_set_0"
tensors = [onnx.TensorProto.FromString(p.read_bytes()) for p in sorted(data.glob("input_*.pb"))]
if sys.argv[3] == "qnn":  # no NPU here: what the reference run of the segment came to
    expected = [onnx.TensorProto.FromString(p.read_bytes()) for p in sorted(data.glob("output_*.pb"))]
    found = {{t.name: onnx.numpy_helper.to_array(t) for t in expected}}
else:
    (model,) = Path(sys.argv[-1]).glob("*.onnx")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    feed = {{t.name: onnx.numpy_helper.to_array(t) for t in tensors}}
    found = dict(zip(names, session.run(names, feed), strict=True))
fault = os.environ.get("FAKE_FAULT")
for number, (name, values) in enumerate(found.items()):
    values = {{"zeros": values * 0, "nan": values * np.nan, "noise": values + 3}}.get(fault, values)
    if fault != "none":
        made = onnx.numpy_helper.from_array(values.astype(np.float32), name)
        (data / f"actual_output_{{number}}.pb").write_bytes(made.SerializeToString())
print("result: Models: 1")
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="module")
def shared_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled files, which all tests here share: most deploy the same segment."""
    return tmp_path_factory.mktemp("build")


@pytest.fixture
def bench(tmp_path: Path, shared_build: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a device: fake transports on PATH, and the device's tools in a folder."""
    (tmp_path / "build").symlink_to(shared_build)
    for name, text in (("adb", ADB), ("ssh", SSH), ("scp", SCP)):
        executable(tmp_path / "bin" / name, text)
    (tmp_path / "perf.txt").write_text(PERF_TEST)
    (tmp_path / "throughput.txt").write_text(THROUGHPUT)
    # The tool checks that the model was pushed and prints what the real one printed.
    last = (
        'for model; do :; done\ntest -s "$model" || { echo "Load model from $model failed: No such file"; exit 1; }\n'
    )
    executable(tmp_path / "tools" / "onnxruntime_perf_test", f"#!/bin/sh\n{last}cat {tmp_path}/perf.txt\n")
    executable(
        tmp_path / "tools" / "snpe-throughput-net-run",
        f'#!/bin/sh\ntest -s "$2" || exit 1\ncat {tmp_path}/throughput.txt\n',
    )
    executable(tmp_path / "tools" / "onnx_test_runner", RUNNER.format(python=sys.executable))
    monkeypatch.delenv("FAKE_FAULT", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "calls.txt"))
    monkeypatch.setenv("FAKE_MODE", "well")
    monkeypatch.setenv("EDGE_WORK", str(tmp_path / "device"))
    return tmp_path


def graph() -> Graph:
    weights = np.random.default_rng(7).normal(0, 0.1, (8, 8, 3, 3)).astype(np.float32)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="A", pads=[1] * 4),
        helper.make_node("Sigmoid", ["a"], ["y"], name="B"),
    ]
    body = helper.make_graph(
        nodes, "case", [value("x", TensorProto.FLOAT, [1, 8, 16, 16])],
        [value(name, TensorProto.FLOAT, [1, 8, 16, 16]) for name in ("y", "a")],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def saved_plan(folder: Path, *parts: tuple[str, str, tuple[str, ...]], device: str = "sm8650") -> Path:
    whole = graph()
    segments = tuple(
        Segment(
            graph=extract(whole, nodes) if len(nodes) < 2 else whole,
            device=load_device(device),
            processor="cpu" if compiler == "ort_cpu" else "npu",
            compiler=compiler,
            precision=precision,
        )
        for compiler, precision, nodes in parts
    )
    return write_plan(Plan.of(whole, segments), folder, whole)


CPU = ("ort_cpu", "fp32", ("A", "B"))


def run(plan: Path, bench: Path, *arguments: str) -> int:
    return deploy.main(
        [str(plan), "--build", str(bench / "build"), "--execute", "--tools", str(bench / "tools"), *arguments]
    )


def test_a_plan_is_pushed_run_measured_and_recorded(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = saved_plan(bench / "results", CPU)
    (bench / "results" / store.OUTCOMES_FILE).write_text("")
    assert run(plan, bench) == 0
    assert "SM-S928B R58N12345" in capsys.readouterr().out
    (row,) = store.read_rows(bench / "results").values()
    assert (row.latency_s, row.latency_low_s, row.latency_high_s) == (0.0995086, 0.0958204, 0.101519)
    assert row.latency_source == "measured"
    assert row.cold_s == pytest.approx(0.196)
    assert row.runs_on == "SM-S928B R58N12345 through adb"
    assert row.sqnr_db is not None
    assert row.sqnr_db > 80  # against the float model, which the optimised one differs from by rounding
    calls = (bench / "calls.txt").read_text()
    assert calls.index("get-state") < calls.index("push") < calls.index("sh device.sh") < calls.index("pull")
    folder = plan.parent.parent / "deploy" / plan.stem
    content = json.loads((folder / "manifest.json").read_text())
    (segment,) = content["segments"]
    assert segment["files"]["optimised.onnx"]["bytes"] > 0
    assert segment["modes"][0]["published"] is True


def test_the_main_job_leaves_plans_that_can_be_deployed(bench: Path) -> None:
    save(graph(), bench / "case.onnx")
    asked = ["--device", "sm8650", "--backends", "ort_cpu", "--precisions", "fp32", "--splits", "0"]
    assert pareto.main([str(bench / "case.onnx"), *asked, "--out", str(bench / "results")]) == 0
    (plan,) = (bench / "results").glob("case-*/plans/*.json")
    assert run(plan, bench) == 0
    rows = list(store.read_rows(plan.parent.parent).values())
    assert [row.latency_source for row in rows] == ["modelled", "measured"]
    assert len({row.plan_digest for row in rows}) == 1
    assert rows[1].sqnr_db is not None
    assert rows[1].sqnr_db > 80


CUT = (("ort_cpu", "fp32", ("A",)), ("ort_cpu", "fp32", ("B",)))


def test_a_split_plan_is_compared_on_what_the_device_passes_on(bench: Path) -> None:
    """a is an output of the graph and read by the second segment, too."""
    plan = saved_plan(bench / "results", *CUT)
    assert run(plan, bench) == 0
    measured = json.loads((bench / "results" / "deploy" / plan.stem / "measured.json").read_text())
    assert measured["sqnr_db"] > 80
    assert measured["cuts"] == ["a"]
    device = bench / "device" / plan.stem
    handed = load_tensor(device / "1-ort_cpu" / "test_data_set_0" / "input_0.pb")
    made = load_tensor(device / "check" / "0" / "test_data_set_0" / "actual_output_0.pb")
    np.testing.assert_array_equal(handed[1], made[1])


@pytest.mark.parametrize(
    ("fault", "named"),
    [("zeros", "output 'y' "), ("nan", "output 'y' holds 2048 NaN"), ("noise", "output 'y' |cosine 0")],
)
def test_a_device_that_computes_something_else_is_told_and_not_drawn(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, named: str
) -> None:
    save(graph(), bench / "case.onnx")
    asked = ["--device", "sm8650", "--backends", "ort_cpu", "--precisions", "fp32", "--splits", "0"]
    command = [str(bench / "case.onnx"), *asked, "--out", str(bench / "results")]
    assert pareto.main(command) == 0
    (plan,) = (bench / "results").glob("case-*/plans/*.json")
    monkeypatch.setenv("FAKE_FAULT", fault)
    assert run(plan, bench) == 1
    assert re.search(f"computes something else than the plan: .*{named}", capsys.readouterr().err)
    rows = list(store.read_rows(plan.parent.parent).values())
    assert [row.status for row in rows] == ["ok", "failed"]
    assert rows[1].reason.startswith("on SM-S928B R58N12345, ")
    assert pareto.main(command) == 1  # the only candidate is none
    assert rows[1].reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("#!/bin/sh\necho 'unknown option -I'; exit 1\n", "unknown option -I"),
        ("#!/bin/sh\nexit 0\n", "it printed nothing"),
        (None, "not found"),
    ],
)
def test_a_tool_that_gives_no_outputs_costs_the_comparison_and_not_the_times(
    bench: Path, tool: str | None, why: str
) -> None:
    (bench / "tools" / "onnx_test_runner").unlink()
    if tool:
        executable(bench / "tools" / "onnx_test_runner", tool)
    plan = saved_plan(bench / "results", CPU)
    assert run(plan, bench) == 0
    measured = json.loads((bench / "results" / "deploy" / plan.stem / "measured.json").read_text())
    assert measured["latency_source"] == "measured"
    assert measured["sqnr_db"] is None
    (note,) = [note for note in measured["notes"] if "outputs were not compared on the device" in note]
    assert why in note


def test_without_the_float_model_the_plans_own_graphs_are_the_reference(bench: Path) -> None:
    quantised = quantise(graph(), "int8", Calibration.random(graph(), 1, 0))
    segment = Segment(
        graph=quantised, device=load_device("sm8650"), processor="cpu", compiler="ort_cpu", precision="int8"
    )
    plan = Plan.of(graph(), [segment])
    found = []
    for whole in (None, graph()):
        path = write_plan(plan, bench / "results", whole)
        assert run(path, bench) == 0
        found.append(json.loads((bench / "results" / "deploy" / path.stem / "measured.json").read_text()))
    own, against_float = found
    assert any("against the plan's own graphs" in note for note in own["notes"])
    assert not any("against" in note for note in against_float["notes"])
    assert own["sqnr_db"] is None or own["sqnr_db"] > against_float["sqnr_db"]
    assert 20 < against_float["sqnr_db"] < 60


def test_the_main_job_draws_what_the_device_measured_instead_of_its_prediction(bench: Path) -> None:
    save(graph(), bench / "case.onnx")
    asked = ["--device", "sm8650", "--backends", "ort_cpu", "--precisions", "fp32", "--splits", "0"]
    command = [str(bench / "case.onnx"), *asked, "--out", str(bench / "results")]
    assert pareto.main(command) == 0
    (plan,) = (bench / "results").glob("case-*/plans/*.json")
    predicted = csv_rows(plan.parent.parent / "frontier.csv")
    assert run(plan, bench) == 0
    assert pareto.main(command) == 0
    (found,) = csv_rows(plan.parent.parent / "frontier.csv")
    assert [row["latency_source"] for row in predicted] == ["modelled"]
    assert (found["latency_source"], found["standing"]) == ("measured", "frontier")
    assert float(found["latency_s"]) == pytest.approx(0.0995086)
    assert found["energy_source"] == "modelled"
    assert float(found["energy_j"]) > float(predicted[0]["energy_j"])  # the device took longer than was modelled


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("mode", "named"),
    [
        ("dead", "step connect: no device answered .*no devices/emulators found"),
        ("offline", "step connect: no device answered .*offline"),
        ("full", "step push: the device has no space left"),
        ("hang", "step run did not end within 10 s"),
    ],
)
def test_what_goes_wrong_on_the_way_is_named(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str, named: str
) -> None:
    plan = saved_plan(bench / "results", CPU)
    assert deploy.main([str(plan), "--build", str(bench / "build")]) == 0
    monkeypatch.setenv("FAKE_MODE", mode)
    assert run(plan, bench, *(["--time-limit", "10"] if mode == "hang" else [])) == 1
    assert re.search(named, capsys.readouterr().err)
    folder = plan.parent.parent / "deploy" / plan.stem
    assert "step: connect" in (folder / "run.log").read_text()
    assert not (folder / "measured.json").exists()


@pytest.mark.parametrize("mode", ["well", "mute"])
def test_a_tool_that_fails_on_the_device_is_no_measurement(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    executable(bench / "tools" / "onnxruntime_perf_test", "#!/bin/sh\necho 'QNN device not found'\nexit 1\n")
    monkeypatch.setenv("FAKE_MODE", mode)
    plan = saved_plan(bench / "results", CPU)
    assert run(plan, bench) == 1
    assert "step run: the device did not run the plan" in capsys.readouterr().err


def test_a_tool_of_another_version_is_no_measurement(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bench / "perf.txt").write_text(PERF_TEST.replace("P50 Latency", "Median"))
    assert run(saved_plan(bench / "results", CPU), bench) == 1
    assert "P50 Latency" in capsys.readouterr().err


def test_a_linux_board_is_reached_by_ssh(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = saved_plan(bench / "results", CPU, device="qcs9075")
    assert run(plan, bench) == 2
    assert "--host" in capsys.readouterr().err
    assert run(plan, bench, "--host", "root@board") == 0
    assert (
        "through ssh" in json.loads((bench / "results" / "deploy" / plan.stem / "measured.json").read_text())["runs_on"]
    )
    monkeypatch.setenv("FAKE_MODE", "dead")
    assert run(plan, bench, "--host", "root@board") == 1
    assert "No route to host" in capsys.readouterr().err


@needs_qnn
def test_a_context_binary_goes_out_embedded_and_external_and_a_split_plan_in_parts(bench: Path) -> None:
    plan = saved_plan(bench / "results", ("ort_qnn", "fp16", ("A",)), ("ort_cpu", "fp32", ("B",)), device="sa8255p")
    assert run(plan, bench) == 0
    folder = bench / "results" / "deploy" / plan.stem
    first = json.loads((folder / "manifest.json").read_text())["segments"][0]
    assert [(mode["name"], mode["published"]) for mode in first["modes"]] == [("external", True), ("embedded", True)]
    assert set(first["files"]) == {"context.onnx", "context_qnn.bin", "context_embedded.onnx"}
    assert "htp_performance_mode|burst" in (folder / "device.sh").read_text()
    measured = json.loads((folder / "measured.json").read_text())
    assert measured["latency_s"] == pytest.approx(2 * 0.0995086)
    assert measured["cuts"] == ["a"]


@needs_qnn
def test_a_dlc_goes_out_once_it_was_loaded_back(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SNPE_ROOT", "QAIRT_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    plan = saved_plan(bench / "results", ("snpe", "fp16", ("A", "B")))
    fake_net_run(bench)
    assert run(plan, bench) == 0
    folder = bench / "results" / "deploy" / plan.stem
    (segment,) = json.loads((folder / "manifest.json").read_text())["segments"]
    assert list(segment["files"]) == ["model.dlc"]
    assert segment["modes"][0]["reload_cosine"] > 0.999
    measured = json.loads((folder / "measured.json").read_text())
    assert measured["latency_s"] == pytest.approx(1 / 43.6138)
    assert measured["sqnr_db"] > 80  # channels-last on the device, channels-first here


@needs_qnn
def test_a_device_is_asked_for_what_a_dlc_gives_and_the_rest_is_known_here(bench: Path, tmp_path: Path) -> None:
    """Two outputs more than the DLC has: a constant, and the input itself."""
    proto = graph().proto()
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2]), "k"))
    proto.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, [2]))
    proto.graph.output.append(proto.graph.input[0])
    wider = from_proto(proto)
    segment = Segment(graph=wider, device=load_device("sm8650"), processor="npu", compiler="snpe", precision="fp16")
    plan = Plan.of(wider, [segment])
    (entry,) = bundle(plan, {}, 0, tmp_path, Limits(time_s=120))
    assert entry.given_there == tuple(spec.name for spec in graph().outputs())
    folder = tmp_path / "0"
    folder.mkdir()
    for name in entry.given_there:
        values = entry.expected[name]
        values.transpose(0, 2, 3, 1).astype(np.float32).tofile(folder / f"{name}.raw")
    found = compared(plan, [entry], tmp_path, None)
    assert found.wrong == ""
    assert found.error is not None


def fake_net_run(bench: Path) -> None:
    """Compute the case as `snpe-net-run` would: raw float images, channels-last in and out."""
    save(graph(), bench / "reference.onnx")
    text = f"""\
#!{sys.executable}
import sys
from pathlib import Path
import numpy as np, onnxruntime
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert Path(given["--container"]).stat().st_size
name, path = Path(given["--input_list"]).read_text().strip().split(":=")
image = np.fromfile(path, np.float32).reshape(1, 16, 16, 8).transpose(0, 3, 1, 2)
session = onnxruntime.InferenceSession({str(bench / "reference.onnx")!r}, providers=["CPUExecutionProvider"])
out = Path(given["--output_dir"]) / "Result_0"
out.mkdir(parents=True)
for name in given["--set_output_tensors"].split(","):
    (values,) = session.run([name], {{"x": image}})
    values.transpose(0, 2, 3, 1).astype(np.float32).tofile(out / f"{{name}}.raw")
"""
    executable(bench / "tools" / "snpe-net-run", text)


@needs_qnn
def test_a_mode_that_does_not_reload_is_not_published(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def truncated(context: Path, target: Path) -> None:
        embed_context(context, target)
        target.write_bytes(target.read_bytes()[:-1000])

    monkeypatch.setattr("compilers.ort_qnn.embed_context", truncated)
    plan = saved_plan(bench / "results", ("ort_qnn", "fp16", ("A", "B")))
    assert deploy.main([str(plan), "--build", str(bench / "build")]) == 0
    content = json.loads((bench / "results" / "deploy" / plan.stem / "manifest.json").read_text())
    external, embedded = content["segments"][0]["modes"]
    assert (external["published"], embedded["published"]) == (True, False)
    assert "does not reload" in embedded["why_not"]
    assert "context_embedded.onnx" not in content["segments"][0]["files"]


def test_a_context_without_its_binary_is_refused(tmp_path: Path) -> None:
    node = helper.make_node(
        "EPContext", [], ["y"], domain="com.microsoft", main_context=1, embed_mode=0, ep_cache_context="../gone.bin"
    )
    body = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    (tmp_path / "context.onnx").write_bytes(helper.make_model(body).SerializeToString())
    with pytest.raises(CompilerError, match=r"gone\.bin is gone"):
        embed_context(tmp_path / "context.onnx", tmp_path / "embedded.onnx")


@pytest.mark.parametrize(
    ("parts", "device", "named"),
    [
        ((("coreml", "fp16", ("A", "B")),), "a17_pro", "runs ios"),
        ((("ort_qnn", "fp16", ("A", "B")),), "x_elite", "runs windows"),
    ],
)
def test_devices_without_a_way_in_are_refused(
    bench: Path, parts: Any, device: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy.main([str(saved_plan(bench / "results", *parts, device=device))]) == 2
    assert named in capsys.readouterr().err


def test_a_plan_is_read_back_and_a_damaged_one_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved_plan(tmp_path, CPU)
    assert read_plan(path).segments[0].graph.name == "case"
    (stored,) = (path.parent / "graphs").glob("*.onnx")
    stored.unlink()
    with pytest.raises(PlanError, match="not given"):
        read_plan(path)
    path.write_text("{}")
    assert deploy.main([str(path)]) == 2
    assert "not a plan" in capsys.readouterr().err
    assert deploy.main([str(tmp_path / "none.json")]) == 2


def test_figures_that_are_none_are_refused() -> None:
    for text in ("", PERF_TEST.replace("Requests: 100", "x").replace("requests: 100", "requests: 7")):
        with pytest.raises(OutputFormatError):
            read_perf_test(text, 100)
    with pytest.raises(OutputFormatError, match="contradict"):
        read_perf_test(PERF_TEST.replace("Min Latency: 0.09", "Min Latency: 0.99"), 100)
    with pytest.raises(OutputFormatError, match="no measurement"):
        read_throughput(THROUGHPUT.replace("Total throughput: 43.6138", "Total throughput: 0"))
    with pytest.raises(OutputFormatError, match="2 threads"):
        read_throughput(THROUGHPUT + THROUGHPUT)
