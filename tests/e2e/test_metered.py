"""The main job beside a fake RAPL: a tree of files that a thread keeps turning, and what may go wrong with it."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import experiments.job
from experiments.doctor import main as doctor
from experiments.evaluator import find_meter
from experiments.pareto import main as pareto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WATTS = 12.0
RANGE_UJ = 262_143_328_850
ZONE = "class/powercap/intel-rapl:0"


@pytest.fixture
def model(tmp_path: Path) -> str:
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 256])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "matmul.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def put(path: Path, text: object) -> None:
    """Write by rename, so that no reader sees an empty counter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(f"{text}\n")
    scratch.replace(path)


@contextlib.contextmanager
def rapl(root: Path, energy_uj: Callable[[float], int]) -> Iterator[None]:
    """Keep a package's counter at `energy_uj(seconds)`; while that raises OSError, there is no counter."""
    put(root / ZONE / "name", "package-0")
    put(root / ZONE / "max_energy_range_uj", RANGE_UJ)
    stop, begin = threading.Event(), time.perf_counter()

    def turn() -> None:
        while not stop.wait(0.004):
            try:
                put(root / ZONE / "energy_uj", energy_uj(time.perf_counter() - begin))
            except OSError:
                (root / ZONE / "energy_uj").unlink(missing_ok=True)

    put(root / ZONE / "energy_uj", 0)
    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run(model: str, out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the main job on the host; return its one row and its environment."""
    arguments = [model, "--device", "host", "--backends", "ort_cpu", "--precisions", "fp32", "--splits", "0"]
    assert pareto([*arguments, "--out", str(out)]) == 0
    (folder,) = (path.parent for path in out.glob("*/outcomes.jsonl"))
    rows = (folder / "outcomes.jsonl").read_text().splitlines()
    return json.loads(rows[-1]), json.loads((folder / "environment.json").read_text())


def steady(seconds: float) -> int:
    """Twelve watts, wrapping within the first seconds."""
    return int(RANGE_UJ - 1e6 + seconds * WATTS * 1e6) % RANGE_UJ


def test_a_row_of_the_host_is_metered(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEFRONTIER_SYS", str(tmp_path / "sys"))
    for zone, millidegrees in (("thermal_zone0", 45_000), ("thermal_zone1", 61_500), ("thermal_zone2", "")):
        put(tmp_path / "sys" / "class" / "thermal" / zone / "temp", millidegrees)
    with rapl(tmp_path / "sys", steady):
        row, environment = run(model, tmp_path / "out")
        assert doctor([]) == 0
    printed = capsys.readouterr().out
    assert row["energy_source"] == "measured"
    meter = row["energy_meter"]
    assert meter["meter"] == environment["meters"]["cpu"] == "rapl package-0"
    assert meter["samples"] >= 10
    assert meter["window_s"] >= 2.0
    assert meter["mean_w"] == pytest.approx(WATTS, rel=0.05)
    # 12 W whether idle or not: gross is power x time per inference, and nothing is left above idle.
    assert row["energy_j"] == pytest.approx(WATTS * meter["window_s"] / meter["inferences"], rel=0.05)
    assert row["energy_low_j"] <= row["energy_j"] <= row["energy_high_j"]
    assert abs(row["energy_net_j"]) <= meter["uncertainty_j"] + 0.05 * row["energy_j"]
    assert sum(row["energy_parts_j"].values()) == pytest.approx(row["energy_j"])
    assert row["temperature_c"] == [61.5, 61.5]
    assert "metered" in printed
    assert "cpu: energy is measured by rapl package-0" in printed


def vanishing(seconds: float) -> int:
    if seconds % 0.4 > 0.36:
        raise OSError
    return steady(seconds)


def backwards(seconds: float) -> int:
    return int((100 + WATTS * (seconds % 0.4)) * 1e6)


def slow(seconds: float) -> int:
    return steady(seconds // 0.5 * 0.5)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (vanishing, "vanished after|cannot be read"),
        (backwards, "ran backwards at reading .* far from the end of its range"),
        (slow, r"only \d samples in the (idle|measuring) window .* run for at least"),
    ],
)
def test_a_meter_that_fails_while_the_model_runs_leaves_a_modelled_energy_and_the_reason(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[float], int],
    reason: str,
) -> None:
    monkeypatch.setenv("EDGEFRONTIER_SYS", str(tmp_path / "sys"))
    measuring = threading.Event()
    evaluate = experiments.job.evaluate

    def evaluated(*arguments: Any) -> Any:
        measuring.set()  # the fault comes once the meter was found
        return evaluate(*arguments)

    monkeypatch.setattr(experiments.job, "evaluate", evaluated)

    def counter(seconds: float) -> int:
        return fault(seconds) if measuring.is_set() else steady(seconds)

    with rapl(tmp_path / "sys", counter):
        row, environment = run(model, tmp_path / "out")
    assert environment["meters"]["cpu"] == "rapl package-0"
    assert row["status"] == "ok"
    assert row["energy_source"] == "modelled"
    assert row["energy_meter"] is None
    (note,) = (note for note in row["notes"] if note.startswith("energy not measured by rapl package-0: "))
    assert re.search(reason, note), note


def test_a_meter_that_may_not_be_read_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEFRONTIER_SYS", str(tmp_path / "sys"))
    read_text = Path.read_text

    def denied(self: Path, *args: Any, **options: Any) -> str:
        if self.name == "energy_uj":  # the tests may run as root, whom nobody denies a file
            raise PermissionError(13, "Permission denied")
        return read_text(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    with rapl(tmp_path / "sys", steady):
        assert "sudo chmod -R a+r" in str(find_meter("cpu"))
        assert doctor([]) == 1
    printed = capsys.readouterr().out
    assert "no permission to read" in printed
    assert "what runs on this machine's cpu: energy is modelled" in printed
