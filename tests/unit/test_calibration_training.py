"""Which terms a latency model takes, and that a prediction knows nothing of what it predicts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.calibration.features import REFERENCES, Simulation
from experiments.calibration.table import Measurement, npu_facts
from experiments.calibration.training import Key, Sample, fit_all, predict_each, term_sets, training_rows
from experiments.calibration.training import samples as samples_of
from partition import DRAM_BYTES, MACS, OVERHEAD, load_device

KEY = ("qcs9075", "ort_qnn", "fp16")
MODELS = 16


def samples(overhead_s: float, ratio: float, s_per_mac: float, *, noise: float = 0.0, key: Key = KEY) -> list[Sample]:
    """Models that follow one law of the simulated time and the MACs, up to `noise`."""
    random = np.random.default_rng(0)
    found = []
    for index in range(MODELS):
        simulated_s, macs = random.uniform(1e-3, 1e-2), random.uniform(1e8, 1e10)
        latency_s = (overhead_s + ratio * simulated_s + s_per_mac * macs) * (1 + noise * random.standard_normal())
        row = Measurement(
            model=f"net{index}",
            precision=key[2],
            device=key[0],
            compiler=key[1],
            latency_s=latency_s,
            **npu_facts(load_device(key[0])),
        )
        found.append(Sample(row=row, terms={key[0]: simulated_s, MACS: macs, DRAM_BYTES: 1e7}))
    return found


def modelled(device: str) -> list[Sample]:
    """Models on a chip without a simulator, which take as long as they are simulated on each reference."""
    found = samples(1e-4, 0.9, 0.0, key=(device, "snpe", "int8"))
    return [dataclasses.replace(s, terms={**s.terms, **dict.fromkeys(REFERENCES, s.terms[device])}) for s in found]


def times(factor: float, sample: Sample) -> Sample:
    return dataclasses.replace(sample, row=dataclasses.replace(sample.row, latency_s=factor * sample.row.latency_s))


def test_a_simulated_chip_takes_the_macs_in_float_only() -> None:
    first, second = fit_all(samples(1e-4, 0.9, 5e-13))
    assert dict(first.coefficients) == pytest.approx({OVERHEAD: 1e-4, KEY[0]: 0.9, MACS: 5e-13}, rel=1e-4)
    assert [name for name, _ in second.coefficients if name == MACS] == []
    (only,) = fit_all(samples(1e-4, 0.9, 0.0, key=(*KEY[:2], "int8")))
    assert dict(only.coefficients) == pytest.approx({OVERHEAD: 1e-4, KEY[0]: 0.9})


def test_an_own_device_that_no_file_here_lists_is_fitted_by_what_its_rows_say() -> None:
    own = [dataclasses.replace(s, row=dataclasses.replace(s.row, device="board")) for s in modelled("sm8650")]
    known = fit_all(modelled("sm8650"))
    assert known
    assert fit_all(own) == tuple(dataclasses.replace(model, device="board") for model in known)


def test_two_runtimes_of_a_device_share_all_but_the_overhead() -> None:
    keys = [("qcs9075", "ort_qnn", "int8"), ("qcs9075", "snpe", "int8")]
    group = [*samples(1e-4, 0.9, 0.0, key=keys[0]), *samples(3e-4, 0.9, 0.0, key=keys[1])]
    found = {model.key: dict(model.coefficients) for model in fit_all(group)}
    assert found[keys[0]] == pytest.approx({OVERHEAD: 1e-4, KEY[0]: 0.9})
    assert found[keys[1]] == pytest.approx({OVERHEAD: 3e-4, KEY[0]: 0.9})
    uneven = [*samples(1e-4, 0.9, 0.0, key=keys[0]), *samples(1e-4, 1.1, 0.0, key=keys[1])]
    ratios = {model.key: dict(model.coefficients)[KEY[0]] for model in fit_all(uneven)}
    assert ratios[keys[0]] == ratios[keys[1]]


def test_wide_activations_follow_int8_by_one_factor() -> None:
    """Whatever the overhead of its own rows would be: few models cannot tell it."""
    int8 = samples(1e-4, 0.9, 0.0, key=(*KEY[:2], "int8"))
    wide = samples(5e-4, 1.2, 0.0, noise=0.2, key=(*KEY[:2], "w8a16"))
    base, scaled = fit_all([*int8, *wide])
    assert (base.precision, scaled.precision) == ("int8", "w8a16")
    factor = dict(scaled.coefficients)[OVERHEAD] / 1e-4
    assert dict(scaled.coefficients)[KEY[0]] == pytest.approx(0.9 * factor, rel=1e-4)
    predicted = [base.predict(sample.terms) for sample in wide]
    assert factor == pytest.approx(
        np.median([s.row.latency_s / p for s, p in zip(wide, predicted, strict=True)]), rel=1e-4
    )
    (alone,) = fit_all(samples(5e-4, 1.2, 0.0, key=(*KEY[:2], "w8a16")))
    assert dict(alone.coefficients) == pytest.approx({OVERHEAD: 5e-4, KEY[0]: 1.2})


def test_two_runtimes_of_a_device_follow_int8_by_the_same_factor() -> None:
    """The median over the rows of both, each against the int8 prediction of its own runtime."""
    overheads = {"ort_qnn": 1e-4, "snpe": 3e-4}
    group = [s for c, o in overheads.items() for s in samples(o, 0.9, 0.0, key=(KEY[0], c, "int8"))]
    exact = {c: samples(o, 0.9, 0.0, key=(KEY[0], c, "w8a16")) for c, o in overheads.items()}
    group += [times(2.0, s) for s in exact["ort_qnn"]]
    group += [times(4.0, s) for s in exact["snpe"][:11]]
    found = {m.key[1:]: dict(m.coefficients) for m in fit_all(group)}
    for compiler, overhead_s in overheads.items():
        assert found[compiler, "w8a16"] == pytest.approx({OVERHEAD: 2 * overhead_s, KEY[0]: 1.8}, rel=1e-4)


def test_each_precision_takes_first_the_simulations_that_serve_it_best() -> None:
    v73, v68, v81 = REFERENCES
    firsts = {"fp16": (v68,), "int8": (v73, v68, v81), "w8a16": (v73, v81)}  # of a chip of the v68 generation
    for precision, chips in firsts.items():
        row = samples(1e-4, 0.9, 0.0, key=("sm8450", "snpe", precision))[0].row
        assert term_sets(row)[0] == (OVERHEAD, *chips, DRAM_BYTES, MACS)
        newer = dataclasses.replace(row, device="sm8850", htp_arch=81)
        assert term_sets(newer)[0] == (OVERHEAD, *((v73, v81) if precision != "int8" else chips), DRAM_BYTES, MACS)
        assert len(set(term_sets(newer))) == len(term_sets(newer))


@pytest.mark.parametrize("precision", ["fp16", "int8", "w8a16"])
def test_a_prediction_does_not_depend_on_any_latency_of_the_same_model(precision: str) -> None:
    """Neither on the one that it predicts nor on that of the other runtime or precision, which a fit shares."""
    keys = [(KEY[0], c, p) for c in ("ort_qnn", "snpe") for p in ("fp16", "int8", "w8a16")]
    group = [s for key in keys for s in samples(1e-4, 0.9, 5e-13, noise=0.2, key=key)]
    before = predict_each(group)
    for model in ("net0", "net7"):
        after = predict_each([times(30.0, s) if s.row.model == model else s for s in group])
        row = (model, precision, KEY[0], "snpe")
        other = ("net3", *row[1:])
        assert after[row][0] == pytest.approx(before[row][0])
        assert after[other][0] != before[other][0]


def lacking(found: list[Sample], *, spread: float) -> list[Sample]:
    """The same models from a simulation that lacks costs, which scatter as much as `spread` says."""
    random = np.random.default_rng(1)
    return [
        dataclasses.replace(
            s,
            uncosted=frozenset({KEY[0]}),
            row=dataclasses.replace(
                s.row, model=f"odd-{s.row.model}", latency_s=s.row.latency_s * random.normal(1, spread)
            ),
        )
        for s in found
    ]


def test_graphs_without_costs_have_an_interval_of_their_own_where_there_are_enough() -> None:
    key = (*KEY[:2], "int8")
    good = samples(1e-4, 0.9, 0.0, noise=0.02, key=key)
    odd = lacking(good, spread=0.3)
    (model,) = fit_all([*good, *odd])
    assert model.uncosted_ratios is not None
    low, high = model.uncosted_ratios
    assert low < 0.8
    assert high > 1.2
    assert 0.9 < model.low_ratio < model.high_ratio < 1.1
    assert model.bounds_s(2.0, uncosted=True) == (2 * low, 2 * high)
    assert model.bounds_s(2.0, uncosted=False) == (2 * model.low_ratio, 2 * model.high_ratio)
    found = predict_each([*good, *odd])
    widths = [found[name, *good[0].row.key[1:]] for name in ("net0", "odd-net0")]
    good_width, odd_width = (high_s / low_s for _, low_s, high_s in widths)
    assert good_width < 1.2
    assert odd_width > 1.5


def test_few_graphs_without_costs_share_the_interval_of_all() -> None:
    key = (*KEY[:2], "int8")
    good = samples(1e-4, 0.9, 0.0, noise=0.02, key=key)
    (model,) = fit_all([*good, *lacking(good[:8], spread=0.3)])
    assert model.uncosted_ratios is None
    assert model.bounds_s(1.0, uncosted=True) == (model.low_ratio, model.high_ratio)


def test_costs_that_lack_count_where_their_simulation_does() -> None:
    """A chip without a simulator needs three simulations and the traffic of one, a chip with its own that one alone."""
    simulations = [
        Simulation(
            key=chip, model="net", precision="int8", compiler="snpe", chip=chip, simulated_s=1e-3, dram_bytes=1, macs=1,
            uncosted=3 * (chip == "sa8540"),
        )
        for chip in ("sa8255p", "sa8540", "sa8797")
    ]  # fmt: skip
    rows = [
        Measurement(
            model="net",
            precision="int8",
            device=device,
            compiler="snpe",
            latency_s=1e-3,
            **npu_facts(load_device(device)),
        )
        for device in ("sa8255p", "sm8650")
    ]
    own, other = samples_of(rows, simulations)[0]
    assert (own.uncosted, other.uncosted) == (frozenset(), {"sa8540"})
    middle = [dataclasses.replace(s, uncosted=3 * (s.chip == "sa8255p")) for s in simulations]
    own, other = samples_of(rows, middle)[0]
    assert (own.uncosted, other.uncosted) == ({"sa8255p"}, {"sa8255p", DRAM_BYTES})


def test_a_model_without_its_macs_is_predicted_by_the_simulation_alone() -> None:
    group = samples(1e-4, 0.9, 0.0)
    group[3] = dataclasses.replace(group[3], terms={KEY[0]: group[3].terms[KEY[0]]})
    assert predict_each(group)[group[3].row.key][0] == pytest.approx(group[3].row.latency_s)


def test_too_few_models_give_no_fit_and_teach_nothing() -> None:
    few = samples(1e-4, 0.9, 0.0)[:7]
    assert fit_all(few) == ()
    assert predict_each(few) == {}
    assert training_rows(few) == []
    enough = samples(1e-4, 0.9, 0.0, key=(*KEY[:2], "int8"))
    assert {model.precision for model in fit_all([*few, *enough])} == {"int8"}
    assert {row.precision for row in training_rows([*few, *enough])} == {"int8"}


def test_a_row_takes_the_simulations_with_its_device_s_memory() -> None:
    rows = [
        Measurement(
            model="net",
            precision="int8",
            device=device,
            compiler="snpe",
            latency_s=1.0,
            **npu_facts(load_device(device)),
        )
        for device in ("qcs6490", "sm8650")
    ]
    simulated = [
        Simulation(
            key="", model="net", precision="int8", compiler="snpe", chip=chip, vtcm_mb=size,
            simulated_s=float(size), dram_bytes=100 * size, macs=1,
        )
        for chip in REFERENCES
        for size in (2, 8)
    ]  # fmt: skip
    found, _ = samples_of(rows, simulated)
    assert [dict(s.terms) for s in found] == [
        {**dict.fromkeys(REFERENCES, size), DRAM_BYTES: 100 * size, MACS: 1} for size in (2.0, 8.0)
    ]
    assert [s.vtcm_mb for s in found] == [2, 8]
    found, _ = samples_of(rows, [s for s in simulated if s.vtcm_mb == 8])  # a file from before, with one size
    assert [s.vtcm_mb for s in found] == [8, 8]
    elsewhere = [dataclasses.replace(s, model="other") if s.vtcm_mb == 2 else s for s in simulated]
    found, _ = samples_of(rows, elsewhere)  # never one model with its own size and another without
    assert [s.row.device for s in found] == ["sm8650"]


def test_a_latency_model_names_the_memory_that_its_simulations_had() -> None:
    usual = modelled("qcs6490")
    small = [dataclasses.replace(s, vtcm_mb=2) for s in usual]
    assert {model.options for model in fit_all(small)} == {(("vtcm_mb", "2"),)}
    assert {model.options for model in fit_all(usual)} == {()}


def test_a_time_that_the_next_generation_contradicts_is_no_sample() -> None:
    """NASNet in fp16, whose bounds and costs tell nothing: 73 ms on v73, 8.5 ms on v81, and 25 ms measured."""
    simulated = [
        Simulation(
            key=f"{model}{chip}", model=model, precision="fp16", compiler="snpe", chip=chip, simulated_s=time_s,
            dram_bytes=10**8, macs=2 * 10**10,
        )
        for model, times_s in (("nasnet", (0.079, 0.377, 0.0089)), ("fcn", (0.065, 0.104, 0.024)))
        for chip, time_s in zip(REFERENCES, times_s, strict=True)
    ]  # fmt: skip
    rows = [
        Measurement(
            model=model,
            precision="fp16",
            device=device,
            compiler="snpe",
            latency_s=0.02,
            **npu_facts(load_device(device)),
        )
        for model in ("nasnet", "fcn")
        for device in ("sa8255p", "sm8650")
    ]
    found, refused = samples_of(rows, simulated)
    assert [(s.row.model, s.row.device) for s in found] == [("fcn", "sa8255p"), ("fcn", "sm8650")]
    assert "8.9 times as long on sa8255p as on sa8797" in refused["nasnet", "fp16", "snpe"]
