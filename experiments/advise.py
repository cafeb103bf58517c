"""The plan to deploy, and why: `python -m experiments.advise MODEL --device D [--rate R]`.

Exit code: 0 with an advice, 1 when no candidate came to a cost or none meets the demands, 2 for wrong arguments or a
bad model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import (
    add_bind,
    celsius,
    command,
    count,
    duration,
    exit_code,
    minutes,
    positive_number,
    share,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, evaluate what is not known yet, and advise."""
    options = _parser().parse_args(argv)
    from experiments.advice.job import run
    from experiments.sustained_job import NothingUsableError

    return exit_code(lambda: run(options), failed=(NothingUsableError,))


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.advise",
        "Choose the candidate to deploy on a device for a request rate, a deadline and a power cap.",
        "resnet50 --device sm8650 --rate 30 --deadline 20ms --power-cap 2",
    )
    parser.add_argument("model", metavar="MODEL", help="ONNX file, zoo name, or the folder of a finished run")
    parser.add_argument("--device", required=True, metavar="NAME", help="device name or TOML file")
    parser.add_argument("--rate", type=positive_number, default=None, metavar="R", help="requests per second, Poisson"
                        " (default: one after the other)")  # fmt: skip
    parser.add_argument("--deadline", type=duration, default=None, metavar="T", help="of the p99, for example 20ms")
    parser.add_argument(
        "--power-cap", "--cap", type=positive_number, default=None, metavar="W", help="most watts on average"
    )
    parser.add_argument(
        "--slack", type=share, default=0.02, metavar="R",
        help="share of latency to give away for less energy, without a deadline (default: 0.02)",
    )  # fmt: skip
    parser.add_argument("--minutes", type=minutes, default=10.0, metavar="M", help="to simulate (default: 10)")
    parser.add_argument(
        "--ambient", type=celsius, default=25.0, metavar="C", help="air temperature in degC (default: 25)"
    )
    parser.add_argument("--no-rule", action="store_true", help="do not learn a rule from the zoo (saves seconds)")
    parser.add_argument("--backends", default="", metavar="A,B", help="evaluate only these backends (default: all)")
    parser.add_argument("--precisions", default="fp32,fp16,int8", metavar="P,Q", help="default: fp32,fp16,int8")
    add_bind(parser)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument(
        "--seed", type=count, default=0, metavar="N", help="of weights, inputs, arrivals and wake-up times"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
