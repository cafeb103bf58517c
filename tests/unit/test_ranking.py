from __future__ import annotations

import dataclasses

import pytest

from experiments.ranking import rank, value
from experiments.store import Row


def made(backend: str, latency_ms: float, energy_mj: float, *, spread: float = 0.0, **other: str) -> Row:
    low, high = 1 - spread, 1 + spread
    about = {"device": "host", "status": "ok", "processor": "cpu", **other}
    return Row(
        key=f"{backend}{latency_ms}",
        model="m",
        backend=backend,
        precision="fp32",
        options="",
        segments=1,
        cuts=(),
        plan_digest="",
        latency_s=latency_ms / 1e3,
        latency_low_s=latency_ms / 1e3 * low,
        latency_high_s=latency_ms / 1e3 * high,
        latency_source="measured",
        energy_j=energy_mj / 1e3,
        energy_low_j=energy_mj / 1e3 * low,
        energy_high_j=energy_mj / 1e3 * high,
        **about,
    )


def standings(rows: list[Row], *objectives: str) -> list[tuple[str, str]]:
    return [(r.standing, r.device_standing) for r in rank(rows, objectives or ("latency", "energy"))]


def test_series_rank_apart_and_the_device_ranks_them_together() -> None:
    rows = [made("tvm", 2, 2), made("tvm", 3, 3), made("ort_cpu", 1, 1)]
    assert standings(rows) == [("frontier", "dominated"), ("dominated", "dominated"), ("frontier", "frontier")]


def test_devices_never_compete() -> None:
    rows = [made("tvm", 2, 2), made("tvm", 1, 1, device="sa8255p")]
    assert standings(rows) == [("frontier", "frontier")] * 2


def test_overlapping_intervals_are_a_tie() -> None:
    assert standings([made("tvm", 1.0, 1.0, spread=0.1), made("tvm", 1.1, 1.1, spread=0.1)])[1][0] == "tie"


@pytest.mark.parametrize("status", ["misplaced", "uncalibrated", "failed"])
def test_what_does_not_compare_and_the_unknown_do_not_compete(status: str) -> None:
    rows = [made("tvm", 1, 1, status=status), made("tvm", 2, 2)]
    assert standings(rows)[0] == ("unranked", "unranked")
    assert standings(rows)[1] == ("frontier", "frontier")
    assert standings(rows, "latency", "memory")[1] == ("unranked", "unranked")


def test_power_is_energy_over_latency() -> None:
    assert value(made("tvm", 2, 4), "power") == (2.0, 2.0, 2.0)


def test_power_is_no_surer_than_the_energy_that_it_comes_from() -> None:
    # Active power of 0.5 to 4 W around 1.5: the ends of a modelled energy are at the ends of the latency.
    row = dataclasses.replace(
        made("tvm", 2, 3), latency_low_s=1e-3, latency_high_s=3e-3, energy_low_j=0.5e-3, energy_high_j=12e-3
    )
    assert value(row, "power") == pytest.approx((1.5, 0.5, 4.0))
    metered = dataclasses.replace(row, energy_source="measured", energy_low_j=2.8e-3, energy_high_j=3.2e-3)
    assert value(metered, "power") == pytest.approx((1.5, 1.4, 1.6))
    slower = dataclasses.replace(row, key="b", latency_s=2.1e-3, energy_j=3.15e-3 * 1.01)
    assert [standing for standing, _ in standings([row, slower], "latency", "power")] == ["frontier", "tie"]
