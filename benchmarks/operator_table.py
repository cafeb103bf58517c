"""The table and the golden verdicts of the ONNX operator suite, for every backend that runs it."""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING

from compilers.suite import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_COLUMNS = "| operator | ok | refused | a reason for refusing |\n|---|---|---|---|\n"


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = collections.Counter(o.verdict for o in outcomes)
    return f"{len(outcomes)} cases: " + ", ".join(f"{counts[v]} {v}" for v in Verdict) + "."


def wrong(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.verdict is Verdict.WRONG]


def write_golden(outcomes: Sequence[Outcome], path: Path) -> None:
    path.write_text(json.dumps({o.name: o.verdict for o in outcomes}, indent=0) + "\n", encoding="utf-8")


def write_table(outcomes: Sequence[Outcome], path: Path, head: str, excuses: Mapping[str, str]) -> None:
    """Write a line for each operator below `head`, in which {onnx} and {wrong} stand for what they say."""
    import onnx

    named = ", ".join(f"`{o.name}` ({excuses.get(o.name, 'unexplained')})" for o in wrong(outcomes))
    rows = [_row(operator, outcomes) for operator in sorted({o.operator for o in outcomes})]
    text = head.format(onnx=f"onnx {onnx.__version__}", wrong=named or "none")
    path.write_text(f"{text}\n{summary(outcomes)}\n\n{_COLUMNS}" + "\n".join(rows) + "\n", encoding="utf-8")


def _row(operator: str, outcomes: Sequence[Outcome]) -> str:
    mine = [o for o in outcomes if o.operator == operator]
    count = collections.Counter(o.verdict for o in mine)
    reason = next((o.reason for o in mine if o.verdict is Verdict.REFUSED), "").replace("|", "\\|")
    return f"| {operator} | {count[Verdict.OK]} | {count[Verdict.REFUSED]} | {reason[:120]} |"
