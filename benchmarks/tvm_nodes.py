"""Run the whole ONNX operator suite through the TVM adapter, in child processes (10 minutes of one core).

    python -m benchmarks.tvm_nodes [--update]

With --update it writes the table in docs/tvm_operators.md and the verdicts in tests/golden/tvm_nodes.json that the
tests hold a sample of the suite against. Exits 1 when a case is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.operator_table import summary, write_golden, write_table, wrong
from compilers import CompilerError, Limits, in_child
from compilers.suite import Case, Outcome, Verdict, tensor_cases

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "tvm_operators.md"
GOLDEN = ROOT / "tests" / "golden" / "tvm_nodes.json"
BATCH = 64
LIMITS = Limits(time_s=1800)

HEAD = """# TVM: what becomes of each operator case of ONNX

Written by `python -m benchmarks.tvm_nodes --update`. Each tensor case of `onnx.backend.test` ({onnx}) is imported,
fused, scheduled, compiled for this machine's CPU and checked against ONNX Runtime, as the adapter does it (one tile
for each function, no library linked); a case that is refused as it is runs again with all inputs but the first
constant. "Wrong" would be code that passed the adapter's own checks and computes something else. Wrong now: {wrong}.
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the table and the golden verdicts")
    update = parser.parse_args(argv).update
    outcomes: list[Outcome] = []
    cases = tuple(tensor_cases())
    batches = -(-len(cases) // BATCH)
    for first in range(batches):  # each batch a sample of all operators, so that a part of the run tells something
        outcomes += judged(cases[first::batches])
        print(summary(outcomes), flush=True)
    outcomes.sort(key=lambda o: o.name)
    for outcome in wrong(outcomes):
        print(f"wrong: {outcome.name}: {outcome.reason}")
    if update:
        write_golden(outcomes, GOLDEN)
        write_table(outcomes, TABLE, HEAD, {})
    return 1 if wrong(outcomes) else 0


def judged(cases: tuple[Case, ...]) -> list[Outcome]:
    """Judge in one child; when it dies, each half in a child of its own: a case that dies alone is refused."""
    from compilers.tvm.suite import judge_cases

    try:
        return in_child(judge_cases, [case.name for case in cases], limits=LIMITS)
    except CompilerError as error:
        if len(cases) == 1:
            return [cases[0].outcome(Verdict.REFUSED, error.reason)]
        middle = len(cases) // 2
        return [*judged(cases[:middle]), *judged(cases[middle:])]


if __name__ == "__main__":
    sys.exit(main())
