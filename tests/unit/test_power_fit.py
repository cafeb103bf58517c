from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.arguments import UserError
from experiments.energy_validate import main
from experiments.evaluator.power.fit import FitError, Pair, fit
from experiments.evaluator.power.mlperf import PairsError, read_platforms, shipped_models
from experiments.evaluator.power.mobilenets import work_of

MLPERF = Path(__file__).parents[2] / "shared" / "data" / "mlperf_edge_energy.csv"
if not MLPERF.exists():
    MLPERF = Path(__file__).parents[3] / "shared" / "data" / "mlperf_edge_energy.csv"


@pytest.mark.parametrize(
    ("name", "macs", "parameters"),
    [  # published: 569 M and 4.24 M (v1), 300 M and 3.5 M (v2), 582 M and 6.06 M (v2 at 1.4)
        ("mobilenet-v1-1.0-224-quantized", 569e6, 4.24e6),
        ("mobilenet-v1-precision_float-0.5-160", 76e6, 1.34e6),
        ("mobilenet-v2-1.0-224-non-quantized", 300e6, 3.5e6),
        ("mobilenet-v2-1.4-224-quantized", 582e6, 6.06e6),
    ],
)
def test_the_work_of_mobilenets_is_that_of_the_papers(name: str, macs: float, parameters: float) -> None:
    work = work_of(name)
    assert work is not None
    assert work.macs == pytest.approx(macs, rel=0.02)
    assert work.parameters == pytest.approx(parameters, rel=0.02)


def test_models_that_are_not_counted_have_no_work() -> None:
    assert work_of("efficientnet-lite0-quantized") is None
    assert work_of("mobilenet-v3-large_224_1.0_float") is None


def synthetic(count: int, noise: float, seed: int) -> list[Pair]:
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(count):
        macs, weights = int(rng.uniform(1e7, 6e8)), int(rng.uniform(1e6, 2e7))
        latency_s = 2e-3 + macs / rng.uniform(2e10, 5e10)
        energy_j = (3.0 * latency_s + 2e-11 * macs + 1e-10 * weights) * np.exp(noise * rng.standard_normal())
        pairs.append(Pair(model=f"m{i}", latency_s=latency_s, energy_j=energy_j, macs=macs, weight_bytes=weights))
    return pairs


def test_exact_pairs_give_their_coefficients_back() -> None:
    model = fit(synthetic(20, 0.0, 1))
    assert (model.active_w, model.j_per_mac, model.j_per_byte) == pytest.approx((3.0, 2e-11, 1e-10), rel=1e-6)
    assert model.low_ratio == pytest.approx(1.0)


def test_four_fifths_of_unseen_models_lie_in_the_interval() -> None:
    covered = []
    for seed in range(30):
        pairs = synthetic(40, 0.05, seed)
        model = fit(pairs[:20])
        covered += [model.predict(p)[1] <= p.energy_j <= model.predict(p)[2] for p in pairs[20:]]
    assert 0.75 < np.mean(covered) < 0.90


def test_too_little_or_broken_pairs_are_refused() -> None:
    with pytest.raises(FitError, match="at least 5 pairs, there are 3"):
        fit(synthetic(3, 0.0, 0))
    broken = [*synthetic(5, 0.0, 0), Pair(model="zero", latency_s=0.0, energy_j=1.0, macs=1, weight_bytes=1)]
    with pytest.raises(FitError, match="zero has a latency"):
        fit(broken)


HEADER = (
    "model,precision,device,unit,framework,scenario,latency_ms_or_samples_per_s,mJ_per_inference,mlperf_version,"
    "platform,source\n"
)


def test_files_that_cannot_be_used_are_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pairs.csv"
    for text, message in (
        ("a,b\n1,2\n", "no column platform, device"),
        (HEADER, "has no rows"),
        (HEADER + "other,fp32,d,u,f,SingleStream,1,1,v1,p,s\n", "no platform with 20 models"),
        (HEADER + "mobilenet-v1-1.0-224,fp32,d,u,f,SingleStream,x,1,v1,p,s\n", "bad number"),
    ):
        path.write_text(text)
        with pytest.raises((UserError, PairsError), match=message):
            read_platforms(path)
    assert main([str(tmp_path / "none.csv")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_the_shipped_coefficients_are_readable_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    models = shipped_models()
    assert len(models) == 68
    assert all(m.low_ratio <= 1.0 <= m.high_ratio and m.active_w >= 0 for m in models.values())
    assert main([]) == 0
    assert "firefly-armnn-v22.05-opencl int8 v2.1" in capsys.readouterr().out


@pytest.mark.skipif(not MLPERF.exists(), reason="the MLPerf pairs are not part of the repository")
def test_the_bars_are_met_on_mlperf(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(MLPERF), "--splits", "1", "--json", "--write", str(tmp_path / "out.csv")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["platforms"] == 68
    assert figures["median_error_ratio"] < 0.08
    assert 0.75 <= figures["coverage_ratio"] <= 0.90
    assert shipped_models(tmp_path / "out.csv").keys() == shipped_models().keys()
