"""What a model costs after the first minute: `python -m experiments.sustained MODEL --device D --trace poisson:5/s`.

Simulates every evaluated candidate of one device under a workload trace: heat, throttling, clocks and power states.
Exit code: 0 done, 1 no candidate came to a cost or can be simulated, 2 for wrong arguments, a bad model or a bad trace.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import (
    add_bind,
    altitude,
    celsius,
    command,
    count,
    ends,
    exit_code,
    minutes,
    positive_number,
    supply_ratio,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.evaluator.dynamics import Cap
    from experiments.heat_map import Load


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, evaluate what is not known yet, simulate and report."""
    options = _parser().parse_args(argv)
    from experiments.sustained_job import NothingUsableError, run

    return exit_code(lambda: run(options), failed=(NothingUsableError,))


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.sustained",
        "Simulate a device under a workload over time, and rank candidates in a burst and in the long run.",
        "resnet50 --device sm8650 --trace poisson:5/s --minutes 30",
        "resnet50 --device sm8650 --heat-map 1,4,8,16",
        "results/<run> --device sm8650 --ambient 25:45 --thermal-cap 10@80 --minutes 4320 --trace batches:1,16@3/s",
    )
    parser.add_argument("model", metavar="MODEL", help="ONNX file, zoo name, or the folder of a finished run")
    parser.add_argument("--device", required=True, metavar="NAME", help="device name or TOML file")
    parser.add_argument(
        "--trace",
        default="closed",
        metavar="T",
        help="closed, poisson:5/s, periodic:30/s, burst:20@10s, batches:1,16@3/s or a CSV file (default: closed)",
    )
    parser.add_argument("--minutes", type=minutes, default=30.0, metavar="M", help="default: 30")
    parser.add_argument(
        "--ambient",
        type=ends(celsius),
        default=(25.0, 25.0),
        metavar="C[:D]",
        help="air temperature in degC, or the ends between which it swings once a day (default: 25)",
    )
    parser.add_argument("--altitude", type=altitude, default=0.0, metavar="M", help="metres above the sea (default: 0)")
    parser.add_argument(
        "--supply",
        type=ends(supply_ratio),
        default=(1.0, 1.0),
        metavar="R[:S]",
        help="supply voltage ratio, or the ends between which it swings once an hour (default: 1)",
    )
    parser.add_argument(
        "--policy",
        choices=("performance", "ondemand"),
        default="performance",
        help="of the clock (default: performance)",
    )
    parser.add_argument(
        "--thermal-cap",
        type=_cap,
        default=None,
        metavar="W@C",
        help="a processor draws at most W watts while the die is above C degC, less 5 K per 1000 m (default: none)",
    )
    parser.add_argument("--keep-awake", action="store_true", help="idle instead of falling asleep between requests")
    parser.add_argument(
        "--heat-map", type=_loads, default=(), metavar="L,M",
        help="also draw the latency over the clock's operating points and these loads: requests at a time, such as"
             " 1,4,16, or rates, such as 0.5/s,2/s",
    )  # fmt: skip
    parser.add_argument("--backends", default="", metavar="A,B", help="evaluate only these backends (default: all)")
    parser.add_argument("--precisions", default="fp32,fp16,int8", metavar="P,Q", help="default: fp32,fp16,int8")
    add_bind(parser)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument(
        "--seed", type=count, default=0, metavar="N", help="of weights, inputs, arrivals and wake-up times"
    )
    return parser


def _loads(text: str) -> tuple[Load, ...]:
    from experiments.heat_map import parse_loads

    return parse_loads(text)


def _cap(text: str) -> Cap:
    from experiments.evaluator.dynamics import Cap

    power, at, temperature = text.partition("@")
    if not at:
        raise argparse.ArgumentTypeError(f"expected W@C, for example 10@80, got {text!r}")
    return Cap(at_most_w=positive_number(power), above_c=celsius(temperature))


if __name__ == "__main__":
    raise SystemExit(main())
