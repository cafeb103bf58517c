"""Run the whole ONNX operator suite through the Core ML lowering and the MIL executor (about two minutes).

    python -m benchmarks.coreml_nodes [--update]

With --update it writes the table in docs/coreml_operators.md and the verdicts in tests/golden/coreml_nodes.json that
the tests hold a sample of the suite against. Exits 1 when a case is wrong that is not a named disagreement.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
from pathlib import Path

from compilers.coreml.suite import DISAGREEMENTS, Outcome, Verdict, claimed_cases, judge

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "coreml_operators.md"
GOLDEN = ROOT / "tests" / "golden" / "coreml_nodes.json"

HEAD = """# Core ML: what becomes of each operator case of ONNX

Written by `python -m benchmarks.coreml_nodes --update`. Each tensor case of `onnx.backend.test` ({onnx}) whose
operators all have a lowering, or a definition by others that have, is converted (iOS17, fp32), saved, read back by an
independent reader and run by the
MIL executor; a case that is refused as it is runs again with all inputs but the first constant. "Wrong" would be a
conversion without complaint that computes something else. Wrong now: {wrong}.

{total}

| operator | ok | refused | a reason for refusing |
|---|---|---|---|
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the table and the golden verdicts")
    update = parser.parse_args(argv).update
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [judge(case, Path(folder)) for case in claimed_cases()]
    counts = collections.Counter(o.verdict for o in outcomes)
    print(", ".join(f"{counts[v]} {v}" for v in Verdict))
    wrong = [o for o in outcomes if o.verdict is Verdict.WRONG]
    for outcome in wrong:
        print(f"wrong: {outcome.name}: {outcome.reason}")
    if update:
        GOLDEN.write_text(json.dumps({o.name: o.verdict for o in outcomes}, indent=0) + "\n", encoding="utf-8")
        TABLE.write_text(table(outcomes), encoding="utf-8")
    return 0 if {o.name for o in wrong} <= DISAGREEMENTS else 1


def table(outcomes: list[Outcome]) -> str:
    import onnx

    counts = collections.Counter(o.verdict for o in outcomes)
    wrong = ", ".join(f"`{o.name}` (ONNX Runtime differs from ONNX)" for o in outcomes if o.verdict is Verdict.WRONG)
    total = f"{len(outcomes)} cases: " + ", ".join(f"{counts[v]} {v}" for v in Verdict) + "."
    rows = []
    for operator in sorted({o.operator for o in outcomes}):
        mine = [o for o in outcomes if o.operator == operator]
        count = collections.Counter(o.verdict for o in mine)
        reason = next((o.reason for o in mine if o.verdict is Verdict.REFUSED), "").replace("|", "\\|")
        rows.append(f"| {operator} | {count[Verdict.OK]} | {count[Verdict.REFUSED]} | {reason[:120]} |")
    head = HEAD.format(onnx=f"onnx {onnx.__version__}", wrong=wrong or "none", total=total)
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
