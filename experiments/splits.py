"""The split search: `python -m experiments.splits MODEL --device D` finds where to cut a graph, then really cuts it.

Exit code: 0 when there is a frontier, 1 when no plan meets the constraints or the search passed a limit, 2 for wrong
arguments or a bad model, 130 after Ctrl-C (what is finished is kept, and the same command resumes).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import (
    add_bind,
    add_latencies,
    command,
    count,
    duration,
    exit_code,
    names,
    number,
    positive,
    positive_number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES = ("sequential", "pipelined", "parallel")
SPACES = ("layers", "units", "order", "convex")
ORACLES = ("model", "compile")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the job and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    # What follows imports numpy, networkx and onnx, which --help does not need.
    from experiments.splitting.job import run
    from experiments.splitting.request import Options

    return exit_code(lambda: run(Options(**vars(options)), arguments))


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.splits",
        "Find every Pareto-optimal split of one ONNX model over the processors of a device, then cut,"
        " compile, run and stitch the best ones.",
        "resnet50 --device sa8255p --precisions int8,fp16 --objectives latency,energy,error",
        "yolov5s --device sm8650 --deadline 20ms --max-segments 3 --verify 3",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="ONNX file or zoo name")
    add("--device", default="sa8255p", metavar="NAME", help="device name or TOML file (default: %(default)s)")
    add("--mode", choices=MODES, default="sequential", help="how segments follow one another (default: sequential)")
    add("--backends", type=names, default=(), metavar="A,B", help="backends (default: the first of each processor)")
    add(
        "--precisions",
        type=names,
        default=("fp16",),
        metavar="A,B",
        help="fp32, fp16 (fp32 where there is none) and int8; several may mix in one plan (default: fp16)",
    )
    add(
        "--objectives",
        type=names,
        default=(),
        metavar="X,Y",
        help="of latency, energy, memory, error (mixes with int8) and period"
        " (default: latency,energy; pipelined: period,energy)",
    )
    add("--deadline", type=duration, default=None, metavar="T", help="longest latency, for example 20ms")
    add("--power-cap", type=positive_number, default=None, metavar="W", help="most watts on average")
    add(
        "--memory-cap",
        type=positive_number,
        default=None,
        metavar="B",
        help="most bytes of a segment's weights and activations",
    )
    add(
        "--min-sqnr",
        type=positive_number,
        default=None,
        metavar="DB",
        help="least signal to noise of the outputs (mixes)",
    )
    add("--period-cap", type=duration, default=None, metavar="T", help="longest time between results (pipelined)")
    add(
        "--rule-threshold",
        type=duration,
        default=None,
        metavar="T",
        help="also show the rule that moves operators which pass 80 %% of this time (default: only at its best)",
    )
    add(
        "--pin",
        type=_pin,
        action="append",
        default=[],
        dest="pins",
        metavar="NODE=PROCESSOR",
        help="run a node there and nowhere else, may be repeated",
    )
    add("--max-segments", type=positive, default=None, metavar="K", help="most segments of a plan")
    add(
        "--space",
        choices=SPACES,
        default=None,
        help="where to cut: single-tensor cuts, borders of fused groups, one order, or all convex cuts (default: units;"
        " convex with --costs)",
    )
    add(
        "--oracle",
        choices=ORACLES,
        default="model",
        help="a segment's cost: sum of modelled nodes, or what its compile tells (default: model)",
    )
    add("--gap", type=_ratio, default=0.0, metavar="R", help="stop at a frontier proved to be within this ratio")
    add("--max-compiles", type=positive, default=None, metavar="N", help="stop there and print the gap proved by then")
    add("--contention", type=_factor, default=1.0, metavar="F", help="slow-down by shared bandwidth (parallel)")
    add("--costs", type=Path, default=None, metavar="FILE", help="node costs of your own, JSON (docs/search.md)")
    add("--verify", type=count, default=2, metavar="K", help="plans to cut, compile, run and stitch (default: 2)")
    add("--out", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    add("--seed", type=count, default=0, metavar="N", help="of weights, inputs and calibration")
    add_bind(parser)
    add_latencies(parser)
    add("--calibration", type=Path, default=None, metavar="PATH", help="data for int8 (default: random, labelled so)")
    add("--time-limit", type=positive, default=600, metavar="S", help="seconds for one compile or run (default: 600)")
    return parser  # fmt: skip


_ratio = number(lambda n: n >= 0, "a ratio of at least 0, such as 0.01")
_factor = number(lambda n: n >= 1, "a factor of at least 1")


def _pin(text: str) -> tuple[str, str]:
    node, _, processor = text.rpartition("=")
    if not node or not processor:
        raise argparse.ArgumentTypeError(f"expected NODE=PROCESSOR, got {text!r}")
    return node, processor


if __name__ == "__main__":
    raise SystemExit(main())
