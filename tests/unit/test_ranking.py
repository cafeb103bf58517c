from __future__ import annotations

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
