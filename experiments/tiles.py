"""Tiles on a GPU and an NPU: `python -m experiments.tiles MODEL --gpu NAME --npu NAME`.

The best tile of each operator on each, what each one's best costs on the other, the loss by operator type, heat maps
and the frontier of latency, energy and on-chip bytes of the heaviest operator. All of it is modelled, unless
`--simulate` adds what the vendor's own compiler and simulator say, and `--measure` what this machine's GPU does.

Exit code: 0 when there is a result, 1 when nothing has tiles, 2 for wrong arguments or a bad model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import KEPT, add_bind, command, count, exit_code, positive, positive_number, share

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the job and return the exit code."""
    options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    if options.model is None and not options.operators:
        print("error: give a MODEL (ONNX file or zoo name) or --op, for example --op conv2d:c=64,k=64,y=56,x=56,f=3",
              file=sys.stderr)  # fmt: skip
        return 2
    # What follows imports numpy and onnx, which --help does not need.
    from experiments.tiles_job import Options, run

    return exit_code(lambda: run(Options(**vars(options))), kept=KEPT)


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.tiles",
        "Find the best tiles of every operator on a GPU and on an NPU, and what carrying them over costs.",
        "resnet18 --gpu sm8650 --npu sa8255p --simulate",
        "--op conv2d:c=64,k=64,y=56,x=56,f=3 --codegen 1",
        "resnet18 --vtcm-mb 1 --slack 0.05",
    )
    parser.add_argument("model", nargs="?", default=None, metavar="MODEL", help="ONNX file or zoo name")
    parser.add_argument(
        "--op", action="append", default=[], dest="operators", metavar="TEXT",
        help="an operator instead of a model, for example conv2d:c=64,k=64,y=56,x=56,f=3; may be repeated",
    )  # fmt: skip
    parser.add_argument("--gpu", default="sm8650", metavar="NAME", help="device of the GPU (default: %(default)s)")
    parser.add_argument("--npu", default="sa8255p", metavar="NAME", help="device of the NPU (default: %(default)s)")
    parser.add_argument("--precision", default="fp16", metavar="P", help="of both (default: %(default)s)")
    parser.add_argument("--npu-precision", default=None, metavar="P", help="of the NPU, where it is another")
    parser.add_argument("--objective", default="latency", metavar="X", help="latency or energy (default: %(default)s)")
    parser.add_argument(
        "--vtcm-mb", type=positive_number, default=None, metavar="MB", help="NPU memory (default: the device's)"
    )
    parser.add_argument(
        "--slack", type=share, default=None, metavar="R",
        help="also find the tiles with the least DRAM traffic among those at most that share slower than the fastest, "
             "for example 0.05, with the time they cost and the energy they save; the plan is made of them",
    )  # fmt: skip
    parser.add_argument(
        "--simulate", action="store_true",
        help="also compile MODEL through ort_qnn at several memory sizes and read the simulator's trace",
    )  # fmt: skip
    parser.add_argument(
        "--measure", type=positive, default=None, metavar="N",
        help="also build MODEL with N tiles for each operator and time them on this machine's GPU through OpenCL",
    )  # fmt: skip
    parser.add_argument(
        "--codegen", type=count, default=0, metavar="N",
        help="also build the N heaviest operators with these tiles, as OpenCL, CUDA, Metal and Hexagon HVX code, and "
             "read static facts from it",
    )  # fmt: skip
    add_bind(parser)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
