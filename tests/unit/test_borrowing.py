"""What a chip with few measured models borrows, from whom, and that its errors are those of trials."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.calibration.borrowing import Borrowing, Trials
from experiments.calibration.doubts import doubts, too_few, unused
from experiments.calibration.features import REFERENCES
from experiments.calibration.table import Measurement
from experiments.calibration.training import Sample, fit_all
from partition import DRAM_BYTES, MACS

KINDS = {"alpha": (73, 8), "beta": (75, 8), "gamma": (79, 8), "delta": (75, 2), "phone": (85, 8)}
MODELS = 20


def rows(
    device: str, models: range = range(MODELS), *, scale: float = 1.0, noise: float = 0.0, compiler: str = "snpe"
) -> list[Sample]:
    """Models that take `scale` times one law of their simulations, up to a noise of the device's own."""
    found = []
    arch, vtcm_mb = KINDS[device]
    own = np.random.default_rng(sum(map(ord, device)))
    for index in models:
        random = np.random.default_rng(index)
        simulated = dict(zip(REFERENCES, random.uniform(1e-3, 1e-2, 3), strict=True))
        terms = {**simulated, DRAM_BYTES: random.uniform(1e6, 1e8), MACS: random.uniform(1e8, 1e10)}
        law_s = 1e-4 + 0.2 * simulated["sa8255p"] + 0.3 * simulated["sa8797"] + 1e-13 * terms[MACS]
        row = Measurement(
            model=f"net{index}", precision="int8", device=device, compiler=compiler, htp_arch=arch, vtcm_mb=vtcm_mb,
            latency_s=scale * law_s * (1 + noise * own.standard_normal()),
        )  # fmt: skip
        found.append(Sample(row=row, terms=terms))
    return found


def groups(*few: Sample, noise: float = 0.0) -> dict[str, list[Sample]]:
    lenders = {name: rows(name, noise=noise) for name in KINDS if name != "phone"}
    return {**lenders, "phone": list(few)} if few else lenders


def longer(sample: Sample, factor: float) -> Sample:
    return dataclasses.replace(sample, row=dataclasses.replace(sample.row, latency_s=factor * sample.row.latency_s))


def test_a_chip_borrows_from_those_most_like_it_and_says_so() -> None:
    """As much memory first, then the next generation."""
    phone = rows("phone", range(4), scale=0.5)
    model, *rest = Borrowing(groups(*phone)).fit_all()
    assert model.key == ("phone", "snpe", "int8")
    assert model.lenders == ("gamma", "beta", "alpha")
    assert model.models == 4
    assert len(rest) == 2  # for graphs that one of the references cannot simulate
    for sample in rows("phone", range(15, 20), scale=0.5):
        assert model.predict(sample.terms) == pytest.approx(sample.row.latency_s, rel=1e-4)


def test_a_chip_borrows_only_what_it_lacks() -> None:
    assert Borrowing(groups()).fit_all() == ()
    assert Borrowing(groups(*rows("phone", range(2)))).fit_all() == ()
    assert Borrowing(groups(*rows("phone", range(10)))).fit_all() == ()
    assert Borrowing({"phone": rows("phone", range(5))}).fit_all() == ()  # nobody lends
    both = [*rows("phone", range(10)), *rows("phone", range(5), compiler="ort_qnn")]
    lenders = {name: [*rows(name), *rows(name, compiler="ort_qnn")] for name in ("alpha", "beta")}
    assert {model.compiler for model in fit_all(both)} == {"snpe"}
    assert {model.compiler for model in Borrowing({**lenders, "phone": both}).fit_all()} == {"ort_qnn"}


def test_a_chip_with_a_simulator_of_its_own_neither_borrows_nor_lends() -> None:
    own = [dataclasses.replace(s, row=dataclasses.replace(s.row, device="qcs9075")) for s in rows("alpha", range(5))]
    assert Borrowing({**groups(), "qcs9075": own}).fit_all() == ()
    many = [dataclasses.replace(s, row=dataclasses.replace(s.row, device="qcs9075")) for s in rows("phone")]
    model = Borrowing({**groups(*rows("phone", range(5))), "qcs9075": many}).fit_all()[0]
    assert "qcs9075" not in model.lenders


def test_what_a_graph_is_off_by_on_the_lenders_does_not_bend_the_borrower() -> None:
    """Two of four own models are other networks than ours, on every chip alike: they must not count as the chip's."""

    def odd(samples: list[Sample]) -> list[Sample]:
        return [longer(s, 3.0) if s.row.model in {"net0", "net1"} else s for s in samples]

    known = {name: odd(rows(name)) for name in ("alpha", "beta", "gamma")}
    model = Borrowing({**known, "phone": odd(rows("phone", range(4), scale=0.5))}).fit_all()[0]
    for sample in rows("phone", range(10, 20), scale=0.5):
        assert model.predict(sample.terms) == pytest.approx(sample.row.latency_s, rel=0.02)


def test_own_models_teach_what_one_factor_cannot() -> None:
    """A chip as fast as its lenders with a call that costs 2 ms more: nine of its own models tell that."""
    slow_call = [longer(s, 1 + 2e-3 / s.row.latency_s) for s in rows("phone")]
    errors = []
    for count in (3, 9):
        model = Borrowing(groups(*slow_call[:count])).fit_all()[0]
        errors.append(np.mean([abs(model.predict(s.terms) / s.row.latency_s - 1) for s in slow_call[10:]]))
    assert errors[1] < 0.5 * errors[0]


def test_a_prediction_knows_no_latency_of_its_own_model_on_any_chip() -> None:
    few = rows("phone", range(5), scale=0.5, noise=0.1)
    before = Borrowing(groups(*few, noise=0.1)).predict_each()
    assert before.keys() == {s.row.key for s in few}
    wild = {
        name: [longer(s, 30.0) if s.row.model == "net2" else s for s in group]
        for name, group in groups(*few, noise=0.1).items()
    }
    after = Borrowing(wild).predict_each()
    key = ("net2", "int8", "phone", "snpe")
    assert after[key][0] == pytest.approx(before[key][0])
    assert after["net3", *key[1:]][0] != before["net3", *key[1:]][0]


def test_errors_and_interval_are_those_of_other_chips_cut_to_as_few() -> None:
    """Not of the own rows: four that fit to the last digit promise nothing."""
    phone = rows("phone", range(4), scale=0.5)
    quiet, loud = (Borrowing(groups(*phone, noise=n)).fit_all()[0] for n in (0.01, 0.2))
    assert quiet.error_median < 0.03
    assert loud.error_median > 0.08
    assert quiet.high_ratio / quiet.low_ratio < 1.1
    assert loud.high_ratio / loud.low_ratio > 1.4


def test_models_that_no_lender_knows_are_tried_as_such() -> None:
    """On public models what a graph is off by is known from the lenders; on private ones it is not, and costs more."""
    lenders = {}
    for name in ("alpha", "beta", "gamma", "delta"):
        shared = np.random.default_rng(5)
        lenders[name] = [longer(s, float(np.exp(shared.normal(0, 0.3)))) for s in rows(name)]
    borrowing = Borrowing(lenders)
    public, private = (borrowing.trials(0, "int8", 3, private=private) for private in (False, True))
    assert public is not None
    assert private is not None
    assert set(public.devices) == {"alpha", "beta", "gamma", "delta"}
    assert np.std(np.log(private.ratios)) > np.std(np.log(public.ratios))
    own = [dataclasses.replace(s, row=dataclasses.replace(s.row, model=f"my-{s.row.model}")) for s in rows("phone")[:3]]
    widths = {}
    for name, few in (("public", rows("phone", range(3))), ("private", own)):
        model = Borrowing({**lenders, "phone": few}).fit_all()[0]
        widths[name] = model.high_ratio / model.low_ratio
    assert widths["private"] > widths["public"]


def test_a_trial_leaves_a_model_out_and_tells_kinds_by_models_and_not_by_rows() -> None:
    names = np.repeat([f"net{i}" for i in range(20)], 10)
    ratios = np.where(names == "net0", 5.0, np.tile(np.linspace(0.9, 1.1, 10), 20))
    trials = Trials(devices=names, models=names, ratios=ratios, lacking=np.isin(names, ["net0", "net1"]))
    (low, high), other = trials.intervals()
    assert other is None  # twenty rows, but of two models
    assert trials.intervals("net0")[0][1] <= high
    assert 0.9 <= low < 1 < high < 1.2
    many = dataclasses.replace(trials, lacking=~np.isin(names, ["net0", "net1", "net2"]))
    assert many.intervals("net1")[1] is not None


def test_what_is_odd_about_own_rows_is_said() -> None:
    found = rows("phone", range(4))
    typo = dataclasses.replace(found[0].row, model="nett1")
    (said,) = unused([typo, found[1].row], found, {})
    assert said.startswith("not used: nett1 int8 qnn_dlc on phone, which is not simulated: did you mean 'net1'?")
    assert "nett1.onnx and give --models FOLDER" in said
    assert list(unused([typo], found, {("nett1", "int8", "snpe"): "refused"})) == []
    seconds = longer(found[2], 1e-3)
    (said,) = doubts([seconds.row], [seconds, *found])
    assert "latency_ms is in milliseconds" in said
    assert list(doubts([s.row for s in found], found)) == []
    (said,) = too_few(found[:1], [])
    assert said == "no latency model: phone qnn_dlc int8 has 1 measured model; 3 are needed to borrow, 10 not to"
    (said,) = too_few(found, [])
    assert said.endswith("has 4 measured models; no chip like it can lend its rows")
    assert list(too_few(found, Borrowing(groups(*found)).fit_all())) == []
