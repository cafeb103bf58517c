"""Copy this file into your own tests: it fails when a model got slower than a stored baseline, or is not stable.

Make the baseline once and commit its folder:

    python -m experiments.pareto MODEL --device host --backends ort_cpu --out tests/baseline

and point MODEL and BASELINE below at yours. The current run is made by the first test.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiments.evaluator.stability import run_cycles
from experiments.gate import Limits, compare_folders, markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = os.environ.get("GATE_MODEL", "")
BASELINE = os.environ.get("GATE_BASELINE", "")
LIMITS = Limits(latency=1.2, energy=None, run_noise=0.02)

needs_model = pytest.mark.skipif(not MODEL, reason="set MODEL, or the variable GATE_MODEL")
needs_baseline = pytest.mark.skipif(not BASELINE, reason="set BASELINE, or the variable GATE_BASELINE")


@needs_model
@needs_baseline
def test_it_is_no_slower_than_the_baseline(tmp_path: Path) -> None:
    from experiments.pareto import main as pareto

    assert pareto([MODEL, "--device", "host", "--backends", "ort_cpu", "--splits", "0", "--out", str(tmp_path)]) == 0
    current = next(path.parent for path in tmp_path.glob("*/outcomes.jsonl"))
    report = compare_folders(Path(BASELINE), current, LIMITS)
    assert not report.regressed, markdown(report, LIMITS)


@needs_model
def test_it_neither_leaks_nor_drifts() -> None:
    import onnxruntime

    from graphs import load, random_inputs

    feed = random_inputs(load(MODEL), 0)

    @contextlib.contextmanager
    def opened() -> Iterator[Callable[[], object]]:
        session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
        yield lambda: session.run(None, feed)

    assert run_cycles(opened).problems() == ()
