"""The calibrate and validate commands on a small table of our own, with simulations made up for it."""

from __future__ import annotations

import csv
import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from compilers import Action, Latency, Limits, Source, get_compiler
from experiments import calibrate, pareto, validate
from experiments.calibration.features import REFERENCES, Simulation, read_simulations, write_simulations
from experiments.evaluator.calibrated import calibrated, latency_models
from graphs import Calibration, quantise, save, zoo
from partition import CalibrationFileError, Segment, load_calibration, load_device

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "model,component,precision,device,soc_model,htp_arch,runtime,latency_ms,unit,npu_layers,cpu_layers,gpu_layers"
# Device of the table, and the law of its latencies: overhead in seconds, and a factor for each reference chip.
LAWS = {
    ("Dragonwing IQ-9075 EVK", "77", "73"): (2e-4, (0.9, 0.0, 0.0)),
    ("Samsung Galaxy S24", "57", "75"): (1e-4, (0.2, 0.1, 0.5)),
    ("Samsung Galaxy S22 5G", "36", "69"): (3e-4, (0.0, 0.8, 0.0)),
    ("Snapdragon XR2 Gen 2", "36", "69"): (3e-4, (0.0, 0.8, 0.0)),
}
MODELS = 16
NOISE = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of made-up models that follow the laws within 5 %, and their simulations."""
    random = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("calibration")
    lines, simulations = [HEADER], []
    for index in range(MODELS):
        name, simulated = f"net{index}", random.uniform(3e-4, 2e-2, 3)
        simulations += [
            Simulation(
                key=f"{name}-{chip}", model=name, precision="fp16", compiler="ort_qnn", chip=chip,
                simulated_s=float(time_s), dram_bytes=int(random.integers(10**6, 10**8)), macs=10**9,
            )
            for chip, time_s in zip(REFERENCES, simulated, strict=True)
        ]  # fmt: skip
        noise = {soc: random.normal(1, NOISE) for soc in ("77", "57", "36")}
        for (device, soc, arch), (overhead, factors) in LAWS.items():
            latency_ms = 1e3 * (overhead + float(np.dot(factors, simulated))) * noise[soc]
            lines.append(f"{name},{name},float,{device},{soc},{arch},onnx,{latency_ms:.5f},NPU,50,0,0")
    lines.append("partly,partly,float,Samsung Galaxy S24,57,75,onnx,3.0,NPU,50,4,0")
    simulations += [dataclasses.replace(s, model="partly", key=f"partly-{s.chip}") for s in simulations[:3]]
    (root / "table.csv").write_text("\n".join(lines) + "\n")
    write_simulations(simulations, root / "qnn_simulations.csv")
    return root


@pytest.fixture(scope="module")
def fitted(folder: Path) -> Path:
    result = folder / "qnn.json"
    arguments = [str(folder / "table.csv"), "--result", str(result), "--build", str(folder / "build")]
    assert calibrate.main(arguments) == 0
    return result


def test_the_laws_are_found(fitted: Path) -> None:
    found = load_calibration(fitted)
    assert {m.key[0] for m in found.models} == {"qcs9075", "sm8650", "sm8450"}
    own, alone = found.find("qcs9075", "ort_qnn", "fp16")
    assert own.references == alone.references == ("qcs9075",)
    assert "macs" not in dict(alone.coefficients)  # for graphs whose MACs are not known
    assert dict(own.coefficients)["qcs9075"] == pytest.approx(0.9, rel=0.1)
    assert own.models == MODELS
    assert own.error_median < 2 * NOISE
    assert own.low_ratio < 1 < own.high_ratio
    assert "partly" not in found.trained_on
    assert found.rows == 3 * MODELS


def test_the_same_rows_give_the_same_file(folder: Path, fitted: Path) -> None:
    before = fitted.read_bytes()
    assert calibrate.main([str(folder / "table.csv"), "--result", str(fitted), "--build", str(folder / "build")]) == 0
    assert fitted.read_bytes() == before


def test_own_measurements_are_added(folder: Path, tmp_path: Path) -> None:
    """Twice the latency on one device, measured by the user, doubles its predictions and leaves the others."""
    lines = (folder / "table.csv").read_text().splitlines()
    ours = [line.split(",") for line in lines[1:] if "Galaxy S22" in line]
    own = tmp_path / "own.csv"
    own.write_text("\n".join([HEADER, *(",".join([*c[:7], str(2 * float(c[7])), *c[8:]]) for c in ours)]) + "\n")
    (tmp_path / "qnn_simulations.csv").write_bytes((folder / "qnn_simulations.csv").read_bytes())
    result = tmp_path / "qnn.json"
    arguments = [str(folder / "table.csv"), "--result", str(result), "--build", str(tmp_path / "build")]
    assert calibrate.main(arguments) == 0
    before = load_calibration(result)
    assert calibrate.main([*arguments, "--add", str(own)]) == 0
    after = load_calibration(result)
    assert after.rows_hash != before.rows_hash
    for device, factor in (("sm8450", 2), ("sm8650", 1)):
        terms = dict.fromkeys((*REFERENCES, "dram_bytes", "macs"), 1e-3)
        old, new = (c.find(device, "ort_qnn", "fp16")[0].predict(terms) for c in (before, after))
        assert new == pytest.approx(factor * old, rel=1e-3)


PHONE = """
title = "A phone that no file here lists"
os = "android"
[processors.npu]
title = "HTP"
[processors.npu.ids.qnn]
soc_model = "43"
htp_arch = "79"
vtcm_mb = "8"
"""


def own_phone(folder: Path, root: Path, models: int = 4) -> tuple[Path, Path]:
    """A device file, and a table of a few models on it, which take half as long as on a Galaxy S24."""
    device, own = root / "phone.toml", root / "own.csv"
    device.write_text(PHONE)
    theirs = [line.split(",") for line in (folder / "table.csv").read_text().splitlines() if "Galaxy S24" in line]
    lines = [f"{c[0]},fp16,{device},43,79,ort_qnn,{0.5 * float(c[7]):.5f},NPU" for c in theirs[:models]]
    own.write_text("\n".join(["model,precision,device,soc_model,htp_arch,runtime,latency_ms,unit", *lines]) + "\n")
    (root / "qnn_simulations.csv").write_bytes((folder / "qnn_simulations.csv").read_bytes())
    return device, own


def test_a_phone_with_four_measured_models_borrows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, own = own_phone(folder, tmp_path)
    last = own.read_text().splitlines()[-1]
    own.write_text("\n".join([own.read_text(), last.replace("net3", "nett3"), last.replace("ort_qnn", "tflite"), ""]))
    result = tmp_path / "own.json"
    arguments = [str(folder / "table.csv"), "--add", str(own), "--build", str(tmp_path / "build")]
    assert calibrate.main([*arguments, "--result", str(result)]) == 0
    said = flat(capsys)
    assert "not used: nett3 fp16 onnx on phone, which is not simulated: did you mean 'net3'?" in said
    assert "own.csv: left out 1 row: runtime tflite" in said
    found = load_calibration(result)
    model = found.find("phone", "ort_qnn", "fp16")[0]
    assert (model.models, model.lenders) == (4, ("sm8650", "sm8450"))
    assert found.rows == 3 * MODELS + 4
    theirs = found.find("sm8650", "ort_qnn", "fp16")[0]
    assert model.high_ratio / model.low_ratio > theirs.high_ratio / theirs.low_ratio  # its lenders have two laws
    out = tmp_path / "out"
    assert validate.main([*arguments, "--calibration", str(result), "--out", str(out)]) == 0
    assert "fp16, chips that borrow: 4 rows" in flat(capsys)
    with (out / "validation.csv").open() as file:
        borrowed = {row["device"]: row["borrowed"] for row in csv.DictReader(file)}
    assert borrowed == {"qcs9075": "False", "sm8650": "False", "sm8450": "False", "phone": "True"}


def test_two_measured_models_are_too_few_and_it_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, own = own_phone(folder, tmp_path, models=2)
    result = tmp_path / "own.json"
    arguments = ["--add", str(own), "--build", str(tmp_path / "build"), "--result", str(result)]
    assert calibrate.main([str(folder / "table.csv"), *arguments]) == 0
    said = "no latency model: phone onnx fp16 has 2 measured models; 3 are needed to borrow, 10 not to"
    assert said in flat(capsys)
    assert load_calibration(result).find("phone", "ort_qnn", "fp16") == ()


@pytest.mark.skipif(
    not get_compiler("ort_qnn").available(Action.ESTIMATE, load_device("sa8255p"), "npu"),
    reason="the QNN wheel does not work here",
)
def test_the_main_job_predicts_for_a_phone_that_borrows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device, own = own_phone(folder, tmp_path)
    result = tmp_path / "own.json"
    arguments = [str(folder / "table.csv"), "--add", str(own), "--result", str(result)]
    assert calibrate.main([*arguments, "--build", str(tmp_path / "build")]) == 0
    asked = ["--device", str(device), "--backends", "ort_qnn", "--precisions", "fp16", "--latencies", str(result)]
    asked += ["--objectives", "latency,size", "--out", str(tmp_path / "results")]
    for name in ("resnet18", "squeezenet1_1"):
        save(zoo.build(name, size=64), tmp_path / f"{name}.onnx")
    assert pareto.main([str(tmp_path / "squeezenet1_1.onnx"), *asked]) == 1
    assert "not predicted by calibration: no estimate: the simulator's bounds" in flat(capsys)
    assert pareto.main([str(tmp_path / "resnet18.onnx"), *asked]) == 0
    (outcomes,) = (tmp_path / "results").glob("resnet18*/outcomes.jsonl")
    (row,) = map(json.loads, outcomes.read_text().splitlines())
    assert row["latency_source"] == "modelled"
    assert row["latency_low_s"] <= row["latency_s"] < row["latency_high_s"]
    assert "by a borrowed fit to only 4 models measured on phone and those of sm8650, sm8450" in " ".join(row["notes"])


def flat(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, however the console broke its lines."""
    return " ".join(capsys.readouterr().out.split())


def test_validation_holds_out_scores_and_draws(folder: Path, fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "validation"
    arguments = [str(folder / "table.csv"), "--calibration", str(fitted), "--out", str(out)]
    assert validate.main([*arguments, "--build", str(folder / "build")]) == 0
    text = capsys.readouterr().out
    assert "48 of 49 rows predicted: 16 models on 3 distinct devices" in text
    assert "one chip, counted once: sm8450 = Samsung Galaxy S22 5G = Snapdragon XR2 Gen 2" in text
    assert "partly fp16 onnx: 4 layers ran on the device's CPU or GPU" in text
    with (out / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    errors = [abs(float(row["error_ratio"])) for row in rows]
    assert len(rows) == 48
    assert 0 < np.median(errors) < 2 * NOISE
    assert {row["in_fit"] for row in rows} == {"True"}
    assert (out / "validation.png").stat().st_size > 10_000


def test_a_model_that_was_in_the_fit_is_not_predicted_by_itself(folder: Path, fitted: Path) -> None:
    """One wild measurement must be missed by all of its wildness, or it would have taken part in its own fit."""
    wild = folder / "wild.csv"
    lines = (folder / "table.csv").read_text().splitlines()
    cells = lines[1].split(",")
    assert cells[3] == "Dragonwing IQ-9075 EVK"
    cells[7] = f"{1000 * float(cells[7]):.3f}"
    wild.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    out = folder / "wild"
    arguments = ["--calibration", str(fitted), "--out", str(out), "--build", str(folder / "build")]
    assert validate.main([str(wild), *arguments]) == 0
    with (out / "validation.csv").open() as file:
        rows = {(row["model"], row["device"]): row for row in csv.DictReader(file)}
    assert float(rows["net0", "qcs9075"]["error_ratio"]) == pytest.approx(-0.999, abs=0.001)


def test_a_model_that_was_never_in_a_fit_is_predicted_as_it_stands(folder: Path, fitted: Path) -> None:
    lines = (folder / "table.csv").read_text().splitlines()
    new = folder / "new"
    new.mkdir()
    (new / "table.csv").write_text(
        "\n".join([lines[0], *[line.replace("net0,net0", "new,new") for line in lines[1:5]]]) + "\n"
    )
    known = read_simulations(folder / "qnn_simulations.csv")
    copied = [dataclasses.replace(s, model="new", key=f"new-{s.chip}") for s in known if s.model == "net0"]
    write_simulations([*known, *copied], new / "qnn_simulations.csv")
    (new / "qnn.json").write_bytes(fitted.read_bytes())
    arguments = ["--calibration", str(new / "qnn.json"), "--out", str(new / "out"), "--build", str(new / "build")]
    assert validate.main([str(new / "table.csv"), *arguments]) == 0
    with (new / "out" / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["device"] for row in rows] == ["qcs9075", "sm8450", "sm8650"]
    assert {row["in_fit"] for row in rows} == {"False"}


@pytest.mark.parametrize("command", [calibrate.main, validate.main])
def test_a_bad_table_is_one_sentence_and_exit_code_2(
    command: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(command)
    table = tmp_path / "bad.csv"
    table.write_text(f"{HEADER}\nnet,net,float,Samsung Galaxy S24,57,75,onnx,-1,NPU,1,0,0\n")
    assert command([str(table)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: bad.csv line 2 gives the latency '-1'")
    assert error.count("\n") == 1


def test_too_few_models_write_nothing(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "table.csv").read_text().splitlines()[:9]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "qnn_simulations.csv").write_bytes((folder / "qnn_simulations.csv").read_bytes())
    result = tmp_path / "qnn.json"
    arguments = [str(tmp_path / "table.csv"), "--result", str(result), "--build", str(tmp_path / "build")]
    assert calibrate.main(arguments) == 1
    assert not result.exists()


def test_a_file_that_is_no_calibration_is_refused(fitted: Path, tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match="there is no calibration"):
        load_calibration(tmp_path / "none.json")
    entry = json.loads(fitted.read_text())
    for change, said in (({"schema": 99}, "schema 99, not 1"), ({"models": [{}]}, "is no calibration")):
        (tmp_path / "odd.json").write_text(json.dumps({**entry, **change}))
        with pytest.raises(CalibrationFileError, match=said):
            load_calibration(tmp_path / "odd.json")


def test_the_calibration_that_ships_is_sound() -> None:
    """It loads, refers only to devices that the compiler simulates, and says what it was made of."""
    shipped = load_calibration()
    assert shipped.rows > 500
    assert len(shipped.rows_hash) == 64
    assert len({m.device for m in shipped.models}) >= 12
    for model in shipped.models:
        load_device(model.device)
        assert model.references
        for name in (*model.references, shipped.dram_reference):
            assert load_device(name).processor("npu").ids["qnn"]["simulated"] == "true"


@pytest.mark.skipif(
    not get_compiler("ort_qnn").available(Action.ESTIMATE, load_device("sa8255p"), "npu"),
    reason="the QNN wheel does not work here",
)
@pytest.mark.parametrize(("device", "source"), [("qcs9075", Source.SIMULATED), ("sm8650", Source.MODELLED)])
def test_a_segment_is_predicted_with_its_interval(device: str, source: Source, tmp_path: Path) -> None:
    graph = zoo.build("squeezenet1_1", size=64)
    int8 = quantise(graph, "int8", Calibration.random(graph, count=1))
    shipped = load_calibration()
    segment = Segment(graph=int8, device=load_device(device), processor="npu", compiler="ort_qnn", precision="int8")
    model, *rest = latency_models(segment, shipped)
    assert model.precision == "int8"
    estimate, note = calibrated(segment, (model, *rest), shipped, tmp_path, Limits(time_s=120))
    found: Latency = estimate.latency
    assert found.source is source
    assert 5e-5 < found.low_s < found.typical_s < found.high_s < 2e-3
    assert found.high_s == pytest.approx(found.typical_s * model.high_ratio)
    assert f"{model.error_median:.1%} (median)" in note
    wide = quantise(graph, "w8a16", Calibration.random(graph, count=1))
    assert all(m.precision == "w8a16" for m in latency_models(dataclasses.replace(segment, graph=wide), shipped))
