"""The main job: `python -m experiments.pareto [MODEL]` compiles, evaluates and draws the Pareto frontiers.

Exit code: 0 when there is a frontier, 1 when nothing usable came out, or nothing of a plan or a backend's option that
was given, 2 for wrong arguments or a bad model, 130 after Ctrl-C (what is finished is kept, and the same command
resumes).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import add_bind, add_latencies, backend_option, command, count, exit_code, names, positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

DEFAULT_MODEL = "mobilenet_v3_small"
DEFAULT_DEVICES = ("host", "sa8255p", "a17_pro")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the job and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    # What follows imports numpy, networkx and onnx, which --help does not need.
    from experiments.job import Options, run

    return exit_code(lambda: run(Options(**vars(options)), arguments)[0])


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.pareto",
        "Compile one ONNX model with every backend that takes it, cost each candidate and draw the"
        " Pareto frontier per backend.",
        "model.onnx --bind batch=1 --calibration images/",
        "resnet50 --device host --device sa8255p --device a17_pro",
        "resnet50 --device sm8650 --splits 3 --objectives latency,size",
    )
    parser.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help="ONNX file or zoo name (default: %(default)s)"
    )
    parser.add_argument(
        "--device",
        action="append",
        dest="devices",
        metavar="NAME",
        help=f"device name or TOML file, may be repeated (default: {', '.join(DEFAULT_DEVICES)})",
    )
    parser.add_argument("--backends", type=names, default=(), metavar="A,B", help="backends (default: all)")
    parser.add_argument(
        "--precisions", type=names, default=("fp32", "fp16", "int8"), metavar="P,Q", help="default: fp32,fp16,int8"
    )
    parser.add_argument(
        "--splits", type=count, default=1, metavar="N", help="split plans to try per device (default: %(default)s)"
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="try every way to compile that a backend knows, such as compressed weights (then size and error are"
        " objectives worth a look)",
    )
    parser.add_argument(
        "--option",
        type=backend_option,
        action="append",
        default=[],
        dest="options",
        metavar="BACKEND.KEY=VALUE",
        help="of a backend's compiles, as its file in compilers/ lists them, for example tvm.tune=64; may be repeated",
    )
    parser.add_argument(
        "--objectives",
        type=names,
        default=("latency", "energy"),
        metavar="X,Y",
        help="two or more of latency, energy, power, memory, size, error (default: latency,energy)",
    )
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of weights, inputs and calibration")
    parser.add_argument("--jobs", type=positive, default=2, metavar="N", help="compiles at a time (default: 2)")
    add_bind(parser)
    parser.add_argument(
        "--calibration",
        type=Path,
        default=None,
        metavar="PATH",
        help=".npy or .npz file, or a folder of these or of images (default: random data, labelled so)",
    )
    add_latencies(parser)
    parser.add_argument(
        "--processes", type=positive, default=2, metavar="N", help="fresh processes per measurement (default: 2)"
    )
    parser.add_argument(
        "--time-limit", type=positive, default=600, metavar="S", help="seconds for one compile or run (default: 600)"
    )
    parser.add_argument(
        "--plan", type=Path, action="append", default=[], dest="plans", metavar="FILE",
        help="also compile and cost this plan, for example one that experiments.tiles wrote; may be repeated",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
