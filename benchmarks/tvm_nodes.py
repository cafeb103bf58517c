"""Run the whole ONNX operator suite through the TVM adapter, in child processes (10 minutes of one core).

    python -m benchmarks.tvm_nodes [--update] [--journal FILE]

With --journal each verdict is a line of FILE at once, and a run that was broken off goes on from there (with the same
code: nothing checks that). With --update it writes the table in docs/tvm_operators.md and the verdicts in
tests/golden/tvm_nodes.json that the tests hold a sample of the suite against. Exits 1 when a case is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.operator_table import summary, write_golden, write_table, wrong
from compilers import CompilerError, Limits, in_child
from compilers.suite import DISAGREEMENTS, Case, Outcome, Verdict, tensor_cases
from compilers.tvm.suite import judge_cases

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "tvm_operators.md"
GOLDEN = ROOT / "tests" / "golden" / "tvm_nodes.json"
BATCH = 256
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
    parser.add_argument("--journal", type=Path, metavar="FILE", help="keep the verdicts, and go on from those kept")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = judged(tuple(tensor_cases()), arguments.journal or Path(folder) / "journal.jsonl")
    print(summary(outcomes))
    for outcome in wrong(outcomes):
        print(f"wrong: {outcome.name}: {outcome.reason}")
    if arguments.update:
        write_golden(outcomes, GOLDEN)
        write_table(outcomes, TABLE, HEAD, dict.fromkeys(DISAGREEMENTS, "ONNX Runtime differs from ONNX"))
    return 0 if {o.name for o in wrong(outcomes)} <= DISAGREEMENTS else 1


def judged(cases: tuple[Case, ...], journal: Path) -> list[Outcome]:
    """Judge what the journal lacks, in a child for each batch; the case that ends a child is refused."""
    known = read(journal)
    while rest := [case for case in cases if case.name not in known]:
        batch = sorted(rest[:BATCH], key=lambda case: case.name)  # as `judge_cases` goes through them
        try:
            in_child(judge_cases, [case.name for case in batch], journal, limits=LIMITS)
        except CompilerError as error:
            found = read(journal)
            guilty = next(case for case in batch if case.name not in found)
            with journal.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(dataclasses.asdict(guilty.outcome(Verdict.REFUSED, error.reason))) + "\n")
        known = read(journal)
        print(f"{len(known)} of {len(cases)}", flush=True)
    return [known[case.name] for case in cases]


def read(journal: Path) -> dict[str, Outcome]:
    if not journal.exists():
        return {}
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return {e["name"]: Outcome(**{**e, "verdict": Verdict(e["verdict"])}) for e in entries}


if __name__ == "__main__":
    sys.exit(main())
