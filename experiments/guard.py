"""Run a plan here with a CPU plan behind it: `python -m experiments.guard PLAN [--fault hang@5] [--fault crash@12]`.

PLAN is a `plans/<digest>.json` of a run. It runs in a process of its own: one that hangs is ended, one that crashes is
started anew, and meanwhile the CPU answers. A fault is a real one: a signal that stops or kills that process before
the call of that number.

Exit code: 0 every call was answered, 1 one was not or the plan cannot run here, 2 for wrong arguments or no plan.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import add_build, command, count, exit_code, positive, positive_number

if TYPE_CHECKING:
    from collections.abc import Sequence

_FAULTS = ("hang", "crash")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the plan and report."""
    options = _parser().parse_args(argv)
    from compilers import CompilerError
    from experiments.guard_job import run
    from partition import PlanError

    return exit_code(lambda: run(options), refused=(PlanError,), failed=(CompilerError,))


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.guard",
        "Run a plan here, with the CPU answering when it fails.",
        "results/<run>/plans/<digest>.json --fault hang@5 --fault crash@25",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a plans/<digest>.json beside results")
    parser.add_argument("--runs", type=positive, default=50, metavar="N", help="calls (default: %(default)s)")
    parser.add_argument(
        "--every", type=positive_number, default=0.1, metavar="S", help="seconds between calls (default: %(default)s)"
    )
    parser.add_argument(
        "--time-limit", type=positive_number, default=1.0, metavar="S", help="for one call (default: %(default)s)"
    )
    parser.add_argument(
        "--failures", type=positive, default=5, metavar="N", help="in a row that open the circuit (default: 5)"
    )
    parser.add_argument(
        "--pause", type=positive_number, default=30.0, metavar="S", help="before the plan is tried again (default: 30)"
    )
    parser.add_argument(
        "--fault", type=_fault, action="append", default=[], metavar="KIND@CALL", help="hang@5 or crash@12; repeatable"
    )
    add_build(parser)
    parser.add_argument(
        "--log", type=Path, default=None, metavar="FILE", help="of events (default: guard-<digest>.jsonl beside plans/)"
    )
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of the inputs")
    return parser


def _fault(text: str) -> tuple[str, int]:
    kind, _, call = text.partition("@")
    if kind not in _FAULTS or not call.isdecimal() or int(call) < 1:
        raise argparse.ArgumentTypeError(f"expected hang@CALL or crash@CALL with a call of at least 1, got {text!r}")
    return kind, int(call)


if __name__ == "__main__":
    raise SystemExit(main())
