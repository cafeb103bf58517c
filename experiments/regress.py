"""The gate of a CI: is the current run slower than the baseline? `python -m experiments.regress BASELINE CURRENT`.

Exit code: 0 pass, 1 a regression, 2 wrong input, or a baseline from other hardware (compared with --force only).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import command, count, exit_code, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, compare the two runs and print a Markdown summary."""
    parser = command(
        "experiments.regress",
        __doc__.split("\n", 1)[0],
        "baseline/<run> results/<run> --threshold 1.2 --energy 1.1 --markdown summary.md",
    )
    parser.add_argument("baseline", type=Path, metavar="BASELINE", help="folder of a run (with outcomes.jsonl)")
    parser.add_argument("current", type=Path, metavar="CURRENT", help="folder of the run to judge")
    parser.add_argument("--threshold", type=_ratio, default=1.2, metavar="R", help="of latency (default: 1.2)")
    parser.add_argument("--energy", type=_ratio, default=None, metavar="R", help="of energy (default: not judged)")
    parser.add_argument(
        "--run-noise", type=_share, default=0.01, metavar="S", help="spread of a median between runs (default: 0.01)"
    )
    parser.add_argument("--markdown", type=Path, default=None, metavar="FILE", help="write the summary there too")
    parser.add_argument("--force", action="store_true", help="compare runs of different hardware all the same")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of the resampling")
    options = parser.parse_args(argv)
    from experiments.gate import GateError

    return exit_code(lambda: _judge(options), refused=(GateError,))


def _judge(options: argparse.Namespace) -> int:
    from experiments.files import writing
    from experiments.gate import Limits, compare_folders, markdown

    limits = Limits(latency=options.threshold, energy=options.energy, run_noise=options.run_noise)
    report = compare_folders(options.baseline, options.current, limits, force=options.force, seed=options.seed)
    text = markdown(report, limits)
    if options.markdown is not None:
        with writing(options.markdown) as scratch:
            scratch.write_text(text, encoding="utf-8")
    print(text, end="")
    return 1 if report.regressed else 0


_ratio = number(lambda n: n > 1, "a ratio above 1")
_share = number(lambda n: n >= 0, "a share of at least 0")


if __name__ == "__main__":
    raise SystemExit(main())
