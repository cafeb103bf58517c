"""Run the whole ONNX operator suite through the Core ML lowering and the MIL executor (about two minutes).

    python -m benchmarks.coreml_nodes [--update]

With --update it writes the table in docs/coreml_operators.md and the verdicts in tests/golden/coreml_nodes.json that
the tests hold a sample of the suite against. Exits 1 when a case is wrong that is not a named disagreement.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.operator_table import summary, write_golden, write_table, wrong
from compilers.coreml.suite import DISAGREEMENTS, claimed_cases, judge

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "coreml_operators.md"
GOLDEN = ROOT / "tests" / "golden" / "coreml_nodes.json"

HEAD = """# Core ML: what becomes of each operator case of ONNX

Written by `python -m benchmarks.coreml_nodes --update`. Each tensor case of `onnx.backend.test` ({onnx}) whose
operators all have a lowering, or a definition by others that have, is converted (iOS17, fp32), saved, read back by an
independent reader and run by the MIL executor; a case that is refused as it is runs again with all inputs but the
first, then but the last, constant. "Wrong" would be a conversion without complaint that computes something else. Wrong
now: {wrong}.
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the table and the golden verdicts")
    update = parser.parse_args(argv).update
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [judge(case, Path(folder)) for case in claimed_cases()]
    print(summary(outcomes))
    for outcome in wrong(outcomes):
        print(f"wrong: {outcome.name}: {outcome.reason}")
    if update:
        write_golden(outcomes, GOLDEN)
        write_table(outcomes, TABLE, HEAD, dict.fromkeys(DISAGREEMENTS, "ONNX Runtime differs from ONNX"))
    return 0 if {o.name for o in wrong(outcomes)} <= DISAGREEMENTS else 1


if __name__ == "__main__":
    sys.exit(main())
