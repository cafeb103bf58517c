"""A predicted latency: which model predicts, what it multiplies, and what the note says."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import pytest

from compilers import Artefact, CompilerError, Estimate, Latency, Limits, PassingError, Placement, Source, get_compiler
from experiments.evaluator import Context, estimate_segment
from experiments.evaluator import calibrated as module
from experiments.evaluator.calibrated import calibrated, latency_models
from graphs import zoo
from partition import (
    CalibrationFileError,
    CalibrationSet,
    LatencyModel,
    Segment,
    load_calibration,
    load_device,
    save_calibration,
)

if TYPE_CHECKING:
    from pathlib import Path

GRAPH = zoo.build("squeezenet1_1", size=64)


def model(device: str, **coefficients: float) -> LatencyModel:
    return LatencyModel(
        device=device,
        compiler="ort_qnn",
        precision="fp16",
        coefficients=tuple(coefficients.items()),
        low_ratio=0.9,
        high_ratio=1.3,
        models=20,
        error_median=0.05,
        error_p90=0.2,
    )


def calibration(*models: LatencyModel) -> CalibrationSet:
    return CalibrationSet(
        models=models,
        options={"ort_qnn": (("vtcm_mb", "8"),)},
        dram_reference="sa8255p",
        trained_on=("net",),
        rows_hash="0" * 64,
        rows=20,
        versions={},
        source="a test",
    )


def segment(device: str, **options: str) -> Segment:
    return Segment(
        graph=GRAPH,
        device=load_device(device),
        processor="npu",
        compiler="ort_qnn",
        precision="fp16",
        options=tuple(options.items()),
    )


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    """Simulated seconds by chip, in the place of compiles; None refuses."""
    times: dict[str, float | None] = {"sa8255p": 1e-3, "sa8540": 2e-3, "sa8797": 0.5e-3, "qcs9075": 1e-3}

    def reference(asked: Segment, name: str, *_: object) -> Estimate:
        time_s = times[name]
        if time_s is None:
            raise CompilerError(f"{name} has only a wild cost for {asked.graph.name}")
        latency = Latency(typical_s=time_s, low_s=0.9 * time_s, high_s=1.2 * time_s, source=Source.SIMULATED)
        return Estimate(latency=latency, dram_bytes=10**7)

    monkeypatch.setattr(module, "_reference", reference)
    return times


def predicted(asked: Segment, known: CalibrationSet, build: Path) -> tuple[Estimate, str]:
    return calibrated(asked, latency_models(asked, known), known, build, Limits())


def test_a_chip_with_a_simulator_is_simulated_with_the_fitted_overhead(
    simulated: dict[str, float | None], tmp_path: Path
) -> None:
    known = calibration(model("qcs9075", overhead=2e-4, qcs9075=0.9))
    estimate, note = predicted(segment("qcs9075"), known, tmp_path)
    latency = estimate.latency
    assert latency.typical_s == pytest.approx(1.1e-3)
    assert (latency.low_s, latency.high_s) == pytest.approx((0.99e-3, 1.43e-3))
    assert latency.source is Source.SIMULATED
    assert "of qcs9075 with vtcm_mb=8 by a fit to 20 measured models" in note
    assert "off by 5.0% (median) and 20.0% (90th percentile)" in note
    assert "the compiler's own bounds come to 1.01 ms to 1.28 ms" in note


def test_the_macs_of_a_simulated_chip_count_in_the_prediction_and_its_bounds(
    simulated: dict[str, float | None], tmp_path: Path
) -> None:
    assert GRAPH.macs is not None
    rate = 1e-3 / GRAPH.macs
    estimate, note = predicted(segment("qcs9075"), calibration(model("qcs9075", qcs9075=0.9, macs=rate)), tmp_path)
    assert estimate.latency.typical_s == pytest.approx(1.9e-3)
    assert estimate.latency.source is Source.SIMULATED
    assert "the compiler's own bounds come to 1.81 ms to 2.08 ms" in note


def test_another_chip_is_modelled_from_its_siblings(simulated: dict[str, float | None], tmp_path: Path) -> None:
    fitted = model("sm8650", overhead=1e-4, sa8255p=0.2, sa8797=0.4, dram_bytes=1e-11, macs=1e-13)
    estimate, _ = predicted(segment("sm8650"), calibration(fitted), tmp_path)
    assert GRAPH.macs is not None
    assert estimate.latency.typical_s == pytest.approx(1e-4 + 0.2e-3 + 0.2e-3 + 1e-4 + GRAPH.macs * 1e-13)
    assert estimate.latency.source is Source.MODELLED
    assert estimate.dram_bytes == 10**7


def test_the_next_model_predicts_what_a_reference_cannot_simulate(
    simulated: dict[str, float | None], tmp_path: Path
) -> None:
    known = calibration(model("sm8650", sa8540=1.0, sa8255p=1.0), model("sm8650", sa8255p=0.5))
    assert predicted(segment("sm8650"), known, tmp_path)[0].latency.typical_s == pytest.approx(3e-3)
    simulated["sa8540"] = None
    estimate, note = predicted(segment("sm8650"), known, tmp_path)
    assert estimate.latency.typical_s == pytest.approx(0.5e-3)
    assert "from simulations of sa8255p with" in note
    simulated["sa8255p"] = None
    with pytest.raises(CompilerError, match="sa8540 has only a wild cost"):
        predicted(segment("sm8650"), known, tmp_path)


def test_a_simulation_that_lacks_costs_has_the_interval_of_such_models(
    simulated: dict[str, float | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = dataclasses.replace(model("sm8650", sa8255p=1.0, sa8540=1.0), uncosted_ratios=(0.5, 2.0))
    asked = segment("sm8650")
    estimate, note = predicted(asked, calibration(fitted), tmp_path)
    assert (estimate.latency.low_s, estimate.latency.high_s) == pytest.approx((0.9 * 3e-3, 1.3 * 3e-3))
    assert "lacks the cost" not in note
    costed = module._reference

    def lacking(asked: Segment, name: str, *rest: object) -> Estimate:
        return dataclasses.replace(costed(asked, name, *rest), uncosted_nodes=("gelu",) if name == "sa8540" else ())

    monkeypatch.setattr(module, "_reference", lacking)
    estimate, note = predicted(asked, calibration(fitted), tmp_path)
    assert (estimate.latency.low_s, estimate.latency.high_s) == pytest.approx((0.5 * 3e-3, 2.0 * 3e-3))
    assert "lacks the cost of some nodes" in note
    estimate, _ = predicted(asked, calibration(dataclasses.replace(fitted, uncosted_ratios=None)), tmp_path)
    assert estimate.latency.low_s == pytest.approx(0.9 * 3e-3)


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    plain = model("sm8650", sa8255p=1.0, overhead=1e-4)
    known = calibration(
        plain, dataclasses.replace(plain, uncosted_ratios=(0.5, 2.0)), dataclasses.replace(plain, lenders=("sm8750",))
    )
    save_calibration(known, tmp_path / "known.json")
    assert load_calibration(tmp_path / "known.json") == known
    assert (tmp_path / "known.json").read_text().count("uncosted_ratios") == 1
    assert (tmp_path / "known.json").read_text().count("lenders") == 1


def test_a_borrowed_prediction_says_so(simulated: dict[str, float | None], tmp_path: Path) -> None:
    fitted = dataclasses.replace(model("sm8850", sa8255p=1.0), models=4, lenders=("sm8750", "x2_elite"))
    _, note = predicted(segment("sm8850"), calibration(fitted), tmp_path)
    assert "by a borrowed fit to only 4 models measured on sm8850 and those of sm8750, x2_elite" in note
    assert "other chips cut to as few are, on models kept out, off by 5.0% (median) and 20.0%" in note


def test_options_that_were_not_fitted_are_said(simulated: dict[str, float | None], tmp_path: Path) -> None:
    known = calibration(model("qcs9075", qcs9075=1.0))
    _, note = predicted(segment("qcs9075", vtcm_mb="2"), known, tmp_path)
    assert "with vtcm_mb=2 (the fit was made with other options)" in note


def test_a_calibration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match="is no calibration"):
        load_calibration(tmp_path)


@pytest.mark.parametrize(
    ("device", "compiler", "ranked"),
    [
        ("sm8650", "ort_qnn", True),  # its models predict
        ("sm8750", "ort_qnn", False),  # no reference simulates it
        ("sm8750", "snpe", False),  # has no model, where ort_qnn has one on the same processor
        ("sm8550", "ort_qnn", True),  # nothing is calibrated there, so all of its figures are of one kind
        ("sa8255p", "snpe", True),  # has a simulator of its own
    ],
)
def test_the_device_files_figure_is_not_comparable_where_others_are_calibrated(
    simulated: dict[str, float | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    device: str,
    compiler: str,
    ranked: bool,
) -> None:
    simulated["sa8797"] = None
    known = calibration(model("sm8650", sa8255p=1.0), model("sm8750", sa8797=1.0), model("sa8255p", sa8255p=1.0))
    asked = dataclasses.replace(segment(device), compiler=compiler)
    artefact = Artefact(
        compiler=compiler, compiler_version="", segment_digest="", device=device, processor="npu", precision="fp16",
        files=(), size_bytes=0, compile_s=0.0, directory=tmp_path,
    )  # fmt: skip
    own = Estimate(latency=Latency(typical_s=1e-3, low_s=1e-3, high_s=1e-3, source=Source.SIMULATED), dram_bytes=1)
    monkeypatch.setattr(type(get_compiler(compiler)), "estimate", lambda *_: own)
    monkeypatch.setattr(type(get_compiler(compiler)), "placement", lambda *_: Placement(units={}))
    monkeypatch.setattr(sys.modules[estimate_segment.__module__], "compile_segment", lambda *_: artefact)
    context = Context(build=tmp_path, limits=Limits(), feed={}, reference={}, calibration=known)
    if ranked:
        assert estimate_segment(asked, context)[0].typical_s > 0
        return
    why = "sa8797 has only a wild cost" if compiler == "ort_qnn" else "there is no calibration of snpe fp16 on sm8750"
    with pytest.raises(CompilerError, match=f"{why}.*does not compare with calibrated latencies"):
        estimate_segment(asked, context)


def test_what_was_not_calibrated_has_no_model() -> None:
    known = calibration(model("qcs9075", qcs9075=1.0))
    assert latency_models(segment("sm8650"), known) == ()


@pytest.mark.parametrize(
    "change", [{"low_ratio": 1.1}, {"high_ratio": 0.9}, {"coefficients": ()}, {"uncosted_ratios": (1.1, 2.0)}]
)
def test_a_latency_model_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    fields = {name: getattr(model("sm8650", sa8255p=1.0), name) for name in LatencyModel.__slots__}
    with pytest.raises(CalibrationFileError, match="sm8650"):
        LatencyModel(**{**fields, **change})


def test_references_have_the_memory_of_the_chip_that_they_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(segment: Segment, *_: object) -> None:
        asked.append((segment.device.name, dict(segment.options)))
        raise CompilerError("not here")

    monkeypatch.setattr(module, "compile_segment", refuse)
    monkeypatch.setattr(get_compiler("ort_qnn"), "why_not", lambda *_: None)
    known = calibration(
        dataclasses.replace(model("qcs6490", sa8540=1.0), options=(("vtcm_mb", "2"),)), model("sm8650", sa8540=1.0)
    )
    save_calibration(known, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == known
    for device, own in (("qcs6490", {}), ("sm8650", {}), ("qcs6490", {"vtcm_mb": "4"})):
        with pytest.raises(CompilerError, match="not here"):
            predicted(segment(device, **own), known, tmp_path)
    assert asked == [("sa8540", {"vtcm_mb": size}) for size in ("2", "8", "4")]


@pytest.mark.parametrize("device", ["qcs9075", "sm8650"])
def test_a_long_time_that_the_next_generation_contradicts_is_refused(
    device: str, simulated: dict[str, float | None], tmp_path: Path
) -> None:
    reference = device if device == "qcs9075" else "sa8255p"
    asked, known = segment(device), calibration(model(device, **{reference: 1.0}))
    simulated |= {reference: 0.073, "sa8797": 0.0085}
    with pytest.raises(CompilerError, match=f"8.6 times as long on {reference} as on sa8797"):
        predicted(asked, known, tmp_path)
    for believed in ({"sa8797": 0.02}, {"sa8797": None}, {"sa8797": 0.0001, reference: 0.01}):
        simulated |= {reference: 0.073, **believed}
        time_s = simulated[reference]
        assert predicted(asked, known, tmp_path)[0].latency.typical_s == pytest.approx(time_s)


def test_a_witness_that_was_stopped_is_no_word_on_the_graph(
    simulated: dict[str, float | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated["qcs9075"] = 0.073
    reference = module._reference

    def stopped(asked: Segment, name: str, *rest: object) -> Estimate:
        if name == "sa8797":
            raise PassingError("stopped at its limit")
        return reference(asked, name, *rest)

    monkeypatch.setattr(module, "_reference", stopped)
    with pytest.raises(PassingError, match="stopped at its limit"):
        predicted(segment("qcs9075"), calibration(model("qcs9075", qcs9075=1.0)), tmp_path)
