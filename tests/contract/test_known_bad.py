"""Every command that compiles refuses versions that are known to be bad by one sentence, and compiles nothing (R21)."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnx
import pytest

from compilers import Limits, PassingError, compatibility, compile_segment
from experiments.plans import write_plan
from graphs import from_proto, single
from partition import Plan, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
DISTRIBUTIONS: Final = {"ort_cpu": "onnxruntime", "ort_qnn": "onnxruntime-qnn", "tvm": "apache-tvm"}
CONV: Final = from_proto(single("Conv", [1, 8, 8, 8], weights=[[8, 8, 3, 3]], pads=[1, 1, 1, 1]).proto(), name="one")
NPU: Final = ("one.onnx", "--device", "sa8255p", "--out", "out")
# What compiles, with the arguments, the backend that is bad, and the exit code: 1 where nothing usable came out; what
# the search of `splits` and the model of `tiles` say without compiling is usable.
COMMANDS: Final = {
    "pareto": ((*NPU, "--backends", "ort_qnn", "--precisions", "fp16", "--splits", "0"), "ort_qnn", 1),
    "advise": ((*NPU, "--backends", "ort_qnn", "--precisions", "fp16", "--no-rule"), "ort_qnn", 1),
    "sustained": ((*NPU, "--backends", "ort_qnn"), "ort_qnn", 1),
    "splits": ((*NPU,), "ort_cpu", 0),
    "placement": ((*NPU,), "ort_qnn", 1),
    "knobs": ((*NPU, "--precision", "fp16", "--vary", "vtcm_mb=1,2"), "ort_qnn", 1),
    "tiles": (("one.onnx", "--simulate", "--out", "out"), "ort_qnn", 0),
    "latency": (("one.onnx", "--out", "out"), "ort_cpu", 1),
    "deploy": (("plans/npu.json", "--build", "build"), "ort_qnn", 1),
    "guard": (("plans/host.json", "--build", "build", "--runs", "2"), "ort_cpu", 1),
    "calibrate": (("table.csv", "--models", "models", "--result", "own.json", "--build", "build"), "ort_qnn", 1),
}


def segment(device: str, processor: str, compiler: str, precision: str) -> Segment:
    return Segment(graph=CONV, device=load_device(device), processor=processor, compiler=compiler, precision=precision)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(CONV.proto(), "one.onnx")
    (tmp_path / "models").mkdir()
    onnx.save(CONV.proto(), "models/resnet18.onnx")
    (tmp_path / "table.csv").write_text(
        "model,precision,device,soc_model,htp_arch,runtime,latency_ms,unit\n"
        "resnet18,float,Samsung Galaxy S24,57,75,onnx,1.5,NPU\n"
    )
    for name, place in {
        "npu": ("sa8255p", "npu", "ort_qnn", "fp16"),
        "host": ("host", "cpu", "ort_cpu", "fp32"),
    }.items():
        write_plan(Plan.of(CONV, [segment(*place)]), tmp_path).rename(f"plans/{name}.json")
    return tmp_path


@pytest.fixture
def bad(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Call the installed version of one backend bad, and return the sentence."""
    backend = request.param
    name = DISTRIBUTIONS[backend]
    version = importlib.metadata.version(name)
    table = tmp_path / "table.toml"
    table.write_text(
        f'[[known_bad]]\nbackend = "{backend}"\nreason = "crashes"\nway_out = "upgrade it"\nsource = "a test"\n'
        f'[known_bad.versions]\n{name} = "=={version}"\n'
    )
    monkeypatch.setattr(compatibility, "_TABLE", table)
    caches = (compatibility.known_bad, compatibility._entries)
    for cache in caches:
        cache.cache_clear()
    yield f"known to be bad: {name} {version}: crashes; upgrade it (a test)"
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("command", "bad"), [(name, backend) for name, (_, backend, _) in COMMANDS.items()], indirect=["bad"]
)
@pytest.mark.usefixtures("folder")
def test_every_command_refuses(command: str, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, backend, code = COMMANDS[command]
    main = importlib.import_module(f"experiments.{command}").main
    assert main(list(arguments)) == code
    told = capsys.readouterr()
    rows = [line for path in tmp_path.rglob("outcomes.jsonl") for line in path.read_text().splitlines()]
    assert bad in " ".join(f"{told.out} {told.err}".split()) or bad in {json.loads(row)["reason"] for row in rows}
    assert not [path for path in tmp_path.rglob(f"*-{backend}-*") if (path / "artefact.json").exists()]


@pytest.mark.parametrize("bad", ["ort_cpu"], indirect=True)
def test_what_an_earlier_run_compiled_is_refused_too_and_taken_again_when_the_row_is_gone(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = segment("host", "cpu", "ort_cpu", "fp32")
    with monkeypatch.context() as good:
        good.setattr("compilers.sandbox.known_bad", lambda _: None)
        made = compile_segment(one, tmp_path / "build", Limits())
    with pytest.raises(PassingError) as refused:
        compile_segment(one, tmp_path / "build", Limits())
    assert refused.value.reason == bad
    monkeypatch.setattr("compilers.sandbox.known_bad", lambda _: None)
    assert compile_segment(one, tmp_path / "build", Limits()) == made


def test_all_compile_through_the_one_place_that_asks() -> None:
    calls = [
        path.relative_to(ROOT).as_posix()
        for package in ("graphs", "partition", "compilers", "experiments")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
        if ast.unparse(node.func) != "re.compile"
    ]
    assert calls == ["compilers/sandbox.py"]
