"""The ONNX operator suite through TVM: nothing wrong, and what passes only grows.

A sample runs here; `python -m benchmarks.tvm_nodes --update` runs all and writes docs/tvm_operators.md.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from compilers import Action, Limits, get_compiler, in_child
from compilers.suite import DISAGREEMENTS, Verdict, tensor_cases
from partition import load_device

GOLDEN = Path(__file__).parents[1] / "golden" / "tvm_nodes.json"
SAMPLE_EVERY = 60


@pytest.mark.skipif(
    not get_compiler("tvm").available(Action.COMPILE, load_device("host"), "cpu"), reason="TVM does not work here"
)
def test_a_sample_of_the_operator_suite_is_right_or_refused(tmp_path: Path) -> None:
    from compilers.tvm.suite import judge_cases

    before: dict[str, str] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    names = [case.name for case in tensor_cases()]
    outcomes = in_child(judge_cases, names[::SAMPLE_EVERY], tmp_path / "journal.jsonl", limits=Limits(time_s=600))
    wrong = {o.name: o.reason for o in outcomes if o.verdict is Verdict.WRONG}
    assert set(wrong) <= DISAGREEMENTS, wrong
    lost = {o.name: o.reason for o in outcomes if before.get(o.name) == "ok" and o.verdict is not Verdict.OK}
    assert not lost, "what TVM computes right may only grow"
    assert all(o.reason for o in outcomes if o.verdict is Verdict.REFUSED)


def test_the_operator_suite_as_last_counted() -> None:
    verdicts = Counter(json.loads(GOLDEN.read_text(encoding="utf-8")).values())
    assert verdicts["wrong"] == 0
    assert verdicts["ok"] >= 1461
