"""Trained models from other people's packages: load, bind, count, cut, quantise, and the main job.

The packages are in real-models.txt; only the ONNX files inside are read. None of these files was made for us: they
come from PaddlePaddle, PyTorch, tf2onnx and spox, in opsets 11 to 18.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest

from compilers import Action, get_compiler
from graphs import Calibration, Graph, GraphError, Verdict, compare, extract, load, quantise, random_inputs
from partition import load_device

ROOT = Path(__file__).resolve().parents[2]


class Real(NamedTuple):
    file: str
    """Package and path inside it."""
    bind: dict[str, int]
    macs: int | None
    """Of the bound model; None where a branch taken at run time decides."""


SPEECH = {"batch": 1, "sequence": 576}  # 64 samples of context and 32 ms at 16 kHz
# One silero network, exported in four ways, has one number of multiply-accumulates. YOLOv8n's published 8.7 GFLOPs at
# 640 pixels and 80 classes are 1.09 G at nudenet's 320 pixels; it has 18 classes.
REAL = {
    "text_detection": Real(
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"p2o.DynamicDimension.0": 1, "p2o.DynamicDimension.1": 160, "p2o.DynamicDimension.2": 160},
        143_975_744,
    ),
    "text_recognition": Real(
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        {"p2o.DynamicDimension.0": 1, "x.2": 48, "p2o.DynamicDimension.1": 160},
        351_114_720,
    ),
    "text_direction": Real(
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x.0": 1, "x.2": 48, "x.3": 192},
        16_315_376,
    ),
    "nudity": Real("nudenet/320n.onnx", {"batch": 1, "height": 320, "width": 320}, 1_012_627_200),
    "file_type": Real("magika/models/standard_v3_3/model.onnx", {"unk__214": 1}, 366_717_952),
    "speech_any_rate": Real(
        "silero_vad/data/silero_vad.onnx", {"input.0": 1, "input.1": 576, "state.1": 1}, None
    ),
    "speech": Real("silero_vad/data/silero_vad_16k_op15.onnx", SPEECH, 679_552),
    "speech_half": Real("silero_vad/data/silero_vad_half.onnx", SPEECH, 679_552),
    "speech_one_if": Real("silero_vad/data/silero_vad_op18_ifless.onnx", SPEECH, 679_552),
    "speech_no_if": Real("silero_vad/data/silero_vad_openvino_16k.onnx", {}, 679_552),
    "speech_windows": Real("silero_vad/data/silero_vad_16k_sequence.onnx", {"sequence_length": 4}, 2_982_400),
}  # fmt: skip


def path_of(name: str) -> Path:
    package, _, inside = REAL[name].file.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed: uv pip install --no-deps -r real-models.txt")
    return Path(spec.origin).parent / inside


def read(name: str) -> Graph:
    return load(path_of(name), bind=REAL[name].bind)


def feed(graph: Graph) -> dict[str, np.ndarray]:
    inputs = random_inputs(graph, 0)
    if "sr" in inputs:
        inputs["sr"] = np.array(16_000, np.int64)
    return inputs


def run(graph: Graph, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    content = graph.proto().SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in graph.outputs()]
    values = session.run(names, {spec.name: tensors[spec.name] for spec in graph.inputs()})
    return dict(zip(names, values, strict=True))


def test_both_lists_of_the_packages_agree() -> None:
    lines = (ROOT / "real-models.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [line for line in lines if not line.startswith("#")] == extras["real-models"]


@pytest.mark.parametrize("name", REAL)
def test_work_is_counted(name: str) -> None:
    graph = read(name)
    assert graph.macs == REAL[name].macs
    assert all(spec.shape is not None for spec in graph.tensors().values())
    if graph.macs is None:
        assert list(graph.uncosted_nodes().values()) == [
            "the work of If depends on values that are known only at run time"
        ]
    else:
        assert graph.uncosted_nodes() == {}


@pytest.mark.parametrize("name", REAL)
def test_parts_give_the_bits_of_the_whole(name: str) -> None:
    graph = read(name)
    inputs = feed(graph)
    whole = run(graph, inputs)
    assert all(np.isfinite(value).all() for value in whole.values())
    nodes = [node.name for node in graph.nodes()]
    for quarter in (1, 2, 3):
        cut = quarter * len(nodes) // 4
        tensors = dict(inputs)
        for part in (nodes[:cut], nodes[cut:]):
            tensors |= run(extract(graph, part), tensors)
        assert all(np.array_equal(tensors[output], value) for output, value in whole.items()), f"cut at {cut}"


@pytest.mark.parametrize("name", ["speech", "speech_any_rate", "file_type"])
def test_damaged_files_are_refused_in_one_sentence_or_read(name: str, tmp_path: Path) -> None:
    content = path_of(name).read_bytes()
    rng = np.random.default_rng(0)
    # Around names of operators and attributes there is structure to damage; most other bytes are weights.
    structure = [found.start() for found in re.finditer(rb"output|branch|Constant|Gather|Shape|value", content)]
    for _ in range(25):
        damaged = bytearray(content)
        for place in rng.choice(structure, 2) + rng.integers(-12, 14, 2):
            damaged[place] ^= 1 << int(rng.integers(8))
        end = len(content) if rng.integers(2) else int(rng.integers(len(content)))
        (tmp_path / "m.onnx").write_bytes(damaged[:end])
        told = "read"
        try:
            load(tmp_path / "m.onnx", bind=REAL[name].bind)
        except GraphError as error:
            told = str(error)
        assert len(told.strip().splitlines()) == 1


# What has no INT8 variant, with the sentence that says so. The 8 kHz branch of silero_vad does not fit 576 samples.
# The other silero exports with an If do all their work inside it.
NOT_QUANTISABLE = {"speech_any_rate": "If_0", "speech_one_if": "nothing to quantise"}


@pytest.mark.parametrize("name", REAL)
def test_int8_runs_or_is_refused_in_one_sentence(name: str) -> None:
    graph = read(name)
    if name in NOT_QUANTISABLE:
        with pytest.raises(GraphError, match=NOT_QUANTISABLE[name]):
            quantise(graph, "int8", Calibration.random(graph, 2))
        return
    inputs = feed(graph)
    found = compare(run(graph, inputs), run(quantise(graph, "int8", Calibration.random(graph, 2)), inputs))
    # Random images hold no text and no speech, so most of these outputs are near zero and have no SQNR worth a bound.
    assert all(error.verdict in {Verdict.COMPARED, Verdict.EXACT} for error in found.values())
    if name in {"nudity", "text_direction"}:
        assert all(error.sqnr_db is not None and error.sqnr_db > 20 for error in found.values())


@pytest.mark.parametrize("name", REAL)
def test_tvm_lacks_nothing_of_them(name: str) -> None:
    """Except a branch that a run decides and that does not fit the bound sizes."""
    refused = get_compiler("tvm").unsupported(read(name))
    if name == "speech_any_rate":
        assert "condition is computed while the model runs" in refused["If_0"]
    else:
        assert refused == {}


def pareto(name: str, *arguments: str, cwd: Path) -> list[dict[str, object]]:
    binds = [text for symbol, size in REAL[name].bind.items() for text in ("--bind", f"{symbol}={size}")]
    command = [sys.executable, "-m", "experiments.pareto", str(path_of(name)), *binds, "--splits", "0", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (rows,) = cwd.glob("results/*/outcomes.jsonl")
    return [json.loads(line) for line in rows.read_text().splitlines()]


def test_the_main_job_takes_a_detector(tmp_path: Path) -> None:
    options = ("--backends", "ort_cpu", "--device", "host", "--precisions", "fp32,int8")
    rows = pareto("text_direction", *options, cwd=tmp_path)
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_a_wild_simulation_makes_no_win(tmp_path: Path) -> None:
    """All simulations of its fp16 form are wild: the device file's 54 us are no win over int8's 127 us."""
    options = ("--backends", "ort_qnn", "--device", "sm8750", "--precisions", "fp16,int8")
    status = {row["precision"]: row["status"] for row in pareto("text_direction", *options, cwd=tmp_path)}
    assert status == {"fp16": "uncalibrated", "int8": "ok"}


def test_every_backend_takes_control_flow_or_says_why_not(tmp_path: Path) -> None:
    rows = pareto("speech", "--precisions", "fp16,fp32", cwd=tmp_path)
    extras = {"coreai"} if importlib.util.find_spec("coreai") else set()
    assert {row["backend"] for row in rows} == {"ort_cpu", "ort_qnn", "snpe", "tvm", "coreml"} | extras
    here = {"tvm"} if get_compiler("tvm").available(Action.COMPILE, load_device("host"), "cpu") else set()
    assert {row["backend"] for row in rows if row["status"] == "ok"} >= {"ort_cpu", "coreml"} | here
    for row in rows:
        assert row["status"] == "ok" or row["reason"], row
