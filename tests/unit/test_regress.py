from __future__ import annotations

import contextlib
import dataclasses
import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from experiments import store
from experiments.evaluator.noise import NoiseError, autocorrelation, effective_samples, ratio_of_medians
from experiments.evaluator.stability import run_cycles
from experiments.gate import Verdict, judge
from experiments.regress import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = {"cpu": "a chip", "cores": 2, "versions": {"onnxruntime": "1.32"}, "compilers": {"ort_cpu": "1.32-abc"}}
ROW = store.Row(
    key="k", status="ok", model="m", device="host", processor="cpu", backend="ort_cpu", precision="fp32", options="",
    segments=1, cuts=(), plan_digest="d", latency_s=1e-3, latency_low_s=1e-3, latency_high_s=1e-3,
    latency_source="measured", energy_j=6e-3, energy_low_j=1e-3, energy_high_j=9e-3,
)  # fmt: skip


def noisy(median_s: float, seed: int, noise: float = 0.03, count: int = 100) -> tuple[float, ...]:
    return tuple(median_s * (1.0 + noise * np.random.default_rng(seed).standard_normal(count)))


def measured(samples: tuple[float, ...], **changes: object) -> store.Row:
    median = float(np.median(samples))
    fields = {"samples_s": samples, "latency_s": median, "energy_j": 6 * median, **changes}
    return dataclasses.replace(ROW, **fields)  # type: ignore[arg-type]


def folder(path: Path, *rows: store.Row, environment: object = HOST) -> str:
    path.mkdir(parents=True, exist_ok=True)
    for row in rows:
        store.append_row(path, row)
    if environment is not None:
        (path / "environment.json").write_text(json.dumps(environment))
    return str(path)


def test_a_fifth_slower_is_caught_and_noise_alone_raises_no_alarm() -> None:
    caught = alarms = 0
    for seed in range(100):
        before = noisy(1e-3, 3 * seed)
        slow, same = noisy(1.2e-3, 3 * seed + 1), noisy(1e-3, 3 * seed + 2)
        caught += judge(ratio_of_medians(before, slow, run_noise=0.01), 1.2) is Verdict.REGRESSION
        alarms += judge(ratio_of_medians(before, same, run_noise=0.01), 1.2) is Verdict.REGRESSION
    assert caught >= 99
    assert alarms <= 1


def test_the_interval_holds_the_true_ratio() -> None:
    inside = 0
    for seed in range(200):
        ratio = ratio_of_medians(noisy(1.0, 2 * seed), noisy(1.1, 2 * seed + 1))
        inside += ratio.low <= 1.1 <= ratio.high
    assert inside >= 190


def test_noise_too_large_to_tell_is_said_and_passes() -> None:
    two_speeds = (1.0, 1.5) * 10
    ratio = ratio_of_medians(two_speeds, two_speeds)
    assert judge(ratio, 1.2) is Verdict.UNCLEAR


@pytest.mark.parametrize("bad", [(1.0, 2.0), (1.0, float("nan"), 1.0, 1.0, 1.0), (1.0, -1.0, 1.0, 1.0, 1.0)])
def test_samples_that_are_none_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(NoiseError):
        ratio_of_medians(bad, noisy(1.0, 0))


def test_neighbours_that_are_alike_count_for_less() -> None:
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.standard_normal(400))
    assert autocorrelation(tuple(steps)) > 0.9
    assert effective_samples(tuple(steps)) < 40
    assert effective_samples(tuple(rng.standard_normal(400))) > 250
    assert autocorrelation((1.0,) * 50) == 0.0


def test_processes_that_came_to_other_medians_widen_the_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = noisy(1.25e-3, 2)
    before = folder(tmp_path / "a", measured(noisy(1e-3, 0), process_medians_s=(1e-3, 1.001e-3)))
    assert main([before, folder(tmp_path / "b", measured(slow, process_medians_s=(1.25e-3, 1.251e-3)))]) == 1
    capsys.readouterr()
    assert main([before, folder(tmp_path / "c", measured(slow, process_medians_s=(1.25e-3, 1.05e-3)))]) == 0
    assert capsys.readouterr().out.startswith("**Too noisy to tell** in 1 comparison (latency 1.2)")
    fine = measured(noisy(1e-3, 0), backend="tvm", plan_digest="b", key="b")
    unclear = measured(slow, process_medians_s=(1.25e-3, 1.05e-3))
    both = folder(tmp_path / "d", measured(noisy(1e-3, 0)), fine)
    assert main([both, folder(tmp_path / "e", unclear, fine)]) == 0
    assert capsys.readouterr().out.startswith("**No regression** in 2 comparisons (latency 1.2); 1 too noisy to tell")


def test_a_metered_energy_is_judged_by_the_meters_uncertainty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def metered(energy_j: float, off: float, source: str = "measured") -> store.Row:
        return measured(
            noisy(1e-3, 0), energy_j=energy_j, energy_low_j=energy_j * (1 - off), energy_high_j=energy_j * (1 + off),
            energy_source=source,
        )  # fmt: skip

    before = folder(tmp_path / "a", metered(5e-3, 0.02))
    assert main([before, folder(tmp_path / "b", metered(6.5e-3, 0.02)), "--energy", "1.1"]) == 1
    assert "energy | 5.00 mJ | 6.50 mJ | 1.300 (1.264 to 1.337)" in capsys.readouterr().out
    assert main([before, folder(tmp_path / "c", metered(5.5e-3, 0.3)), "--energy", "1.1"]) == 0
    assert "too noisy to tell" in capsys.readouterr().out
    main([before, folder(tmp_path / "d", metered(6.5e-3, 0.3, "modelled")), "--energy", "1.1"])
    assert "measured before, modelled now" in capsys.readouterr().out


def test_exit_codes_and_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder(tmp_path / "a", measured(noisy(1e-3, 0)))
    same = folder(tmp_path / "b", measured(noisy(1e-3, 1)))
    slow = folder(tmp_path / "c", measured(noisy(1.25e-3, 2)))
    assert main([before, same]) == 0
    assert "**No regression**" in capsys.readouterr().out
    assert main([before, slow, "--energy", "1.1", "--markdown", str(tmp_path / "summary.md")]) == 1
    text = capsys.readouterr().out
    assert text.startswith("**2 regressions** in 2 comparisons (latency 1.2, energy 1.1)")
    assert "| ort_cpu host/cpu fp32 | energy |" in text
    assert (tmp_path / "summary.md").read_text() == text
    assert main([slow, before]) == 0
    assert "| better |" in capsys.readouterr().out


def test_what_vanished_or_broke_is_a_regression_and_what_is_new_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modelled = dataclasses.replace(ROW, key="n", device="sa8255p", processor="npu", latency_source="simulated")
    failed = dataclasses.replace(
        ROW, status="failed", latency_s=None, energy_j=None, reason="the compiler refused Conv", latency_source=None
    )
    before = folder(tmp_path / "a", ROW, modelled)
    current = folder(tmp_path / "b", failed, dataclasses.replace(modelled, key="o", precision="int8"))
    assert main([before, current]) == 1
    text = capsys.readouterr().out
    assert "**no longer works**: the compiler refused Conv" in text
    assert "**missing**" in text
    assert "| new |" in text


def test_figures_of_two_kinds_give_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = dataclasses.replace(ROW, latency_source="modelled")
    bare = dataclasses.replace(predicted, status="uncalibrated", latency_s=5e-4, reason="a reference has a wild cost")
    before, after = folder(tmp_path / "a", predicted), folder(tmp_path / "b", bare)
    assert main([before, after]) == 1
    assert "| 1.00 ms | 500 us | - | **does not compare**: a reference has a wild cost |" in capsys.readouterr().out
    assert main([after, before]) == 0
    assert "| new: uncalibrated before: a reference has a wild cost |" in capsys.readouterr().out
    assert main([after, after]) == 0


def test_a_simulated_latency_has_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = dataclasses.replace(ROW, latency_source="simulated")
    before = folder(tmp_path / "a", simulated, environment=None)
    assert (
        main([before, folder(tmp_path / "b", dataclasses.replace(simulated, latency_s=1.19e-3), environment=None)]) == 0
    )
    assert "1.190 (1.190 to 1.190)" in capsys.readouterr().out
    assert (
        main([before, folder(tmp_path / "c", dataclasses.replace(simulated, latency_s=1.2e-3), environment=None)]) == 1
    )


def test_other_hardware_is_refused_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder(tmp_path / "a", measured(noisy(1e-3, 0)), environment={**HOST, "cpu": "another chip"})
    current = folder(tmp_path / "b", measured(noisy(1e-3, 1)))
    assert main([before, current]) == 2
    assert "other hardware (cpu 'another chip', here 'a chip')" in capsys.readouterr().err
    assert main([before, current, "--force"]) == 0
    assert "may mean nothing" in capsys.readouterr().out
    unknown = folder(tmp_path / "c", measured(noisy(1e-3, 1)), environment=None)
    assert main([before, unknown]) == 2
    assert "no environment.json" in capsys.readouterr().err


def test_another_gpu_is_refused_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [measured(noisy(1e-3, 0), runs_on=f"a GPU (OpenCL, driver {n})") for n in (1, 2)]
    before, current = (folder(tmp_path / name, row) for name, row in zip("ab", rows, strict=True))
    assert main([before, current]) == 2
    assert "measured on a GPU (OpenCL, driver 1), in the current run on a GPU" in capsys.readouterr().err
    assert main([before, current, "--force"]) == 0


def test_changed_versions_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder(tmp_path / "a", measured(noisy(1e-3, 0)))
    current = folder(
        tmp_path / "b",
        measured(noisy(1e-3, 1)),
        environment={**HOST, "versions": {"onnxruntime": "1.33"}, "governor": "powersave"},
    )
    assert main([before, current]) == 0
    told = capsys.readouterr().out
    assert "- onnxruntime 1.32 -> 1.33" in told
    assert "- governor None -> powersave" in told


def test_wrong_input_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = folder(tmp_path / "a", ROW)
    other = folder(tmp_path / "b", dataclasses.replace(ROW, model="another"))
    failed = folder(tmp_path / "d", dataclasses.replace(ROW, status="failed", latency_s=None))
    for arguments, message in (
        ([good, str(tmp_path / "none")], "has no outcomes.jsonl"),
        ([good, other], "different models: another, m"),
        ([good, failed], "no candidate that came to a cost"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([good, good, "--threshold", "0.9"])


@pytest.mark.parametrize(
    "damage",
    [
        {"latency_s": float("nan")},
        {"latency_s": 0.0},
        {"latency_s": "fast"},
        {"energy_j": -1.0},
        {"samples_s": ["a"] * 10},
        {"samples_s": 3},
    ],
)
def test_a_damaged_baseline_is_refused_and_never_passes(
    damage: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN had compared as the same as everything, the rest ended in tracebacks."""
    good, bad = folder(tmp_path / "a", ROW), folder(tmp_path / "b")
    (tmp_path / "b" / "outcomes.jsonl").write_text(json.dumps({**dataclasses.asdict(ROW), **damage}) + "\n")
    for pair in ([good, bad], [bad, good]):
        assert main(pair) == 2
        assert "b/outcomes.jsonl is damaged: ort_cpu host/cpu fp32" in capsys.readouterr().err


def test_lines_that_cannot_be_read_are_counted_and_a_damaged_environment_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, short = folder(tmp_path / "a", ROW), folder(tmp_path / "b", ROW)
    with (tmp_path / "b" / "outcomes.jsonl").open("a") as file:
        file.write('{"key": "cut sh\n[1]\n\n')
    assert main([short, good]) == 0
    assert f"- 2 lines of {short}/outcomes.jsonl cannot be read" in capsys.readouterr().out
    (tmp_path / "a" / "environment.json").write_text(json.dumps({**HOST, "versions": ["onnxruntime"]}))
    assert main([short, good]) == 2
    assert "environment.json is damaged" in capsys.readouterr().err


def test_a_device_s_figures_without_samples_have_the_noise_between_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder(tmp_path / "a", ROW)
    for name, latency_s, verdict in (("b", 1.001e-3, "same"), ("c", 1.25e-3, "**regression**")):
        current = folder(tmp_path / name, dataclasses.replace(ROW, latency_s=latency_s))
        assert main([before, current]) == int(verdict != "same")
        assert f"| {verdict} |" in capsys.readouterr().out


def test_a_tail_that_the_median_does_not_show_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = np.where(np.random.default_rng(1).random(100) < 0.15, 3e-3, 1e-3)
    before = folder(tmp_path / "a", measured(noisy(1e-3, 0)))
    current = folder(tmp_path / "b", measured(tuple(calls * np.asarray(noisy(1.0, 2)))))
    assert main([before, current]) == 0
    assert "same: the slowest 5% of the calls take 2.8 times as long" in capsys.readouterr().out


@contextlib.contextmanager
def opened() -> Iterator[Callable[[], None]]:
    yield lambda: None


def test_a_leak_and_a_drift_are_told_and_a_settling_is_not() -> None:
    def memory(step: int, settling: int) -> Callable[[], int]:
        cycle = iter(range(1000))
        return lambda: 10**8 + step * (i := next(cycle)) + settling * min(i, 3)

    def clock(growth: float) -> Callable[[], float]:
        state = {"now": 0.0, "calls": 0.0}

        def tick() -> float:
            state["calls"] += 1
            state["now"] += 1e-3 * (1 + growth * state["calls"])
            return state["now"]

        return tick

    assert run_cycles(opened, resident_bytes=memory(0, 10**6), clock=clock(0.0)).problems() == ()
    leaking = run_cycles(opened, resident_bytes=memory(10**6, 0), clock=clock(0.0)).problems()
    assert leaking == ("memory grows by 977 KiB per cycle over 20 cycles",)
    assert "latency drifts" in run_cycles(opened, resident_bytes=memory(0, 0), clock=clock(1e-3)).problems()[0]
    with pytest.raises(ValueError, match="at least 8 cycles"):
        run_cycles(opened, cycles=3)


def test_the_file_to_copy_imports() -> None:
    module = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "test_latency_gate.py"))
    assert callable(module["test_it_neither_leaks_nor_drifts"])
