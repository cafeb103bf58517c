"""One model on this machine in all states: `python -m experiments.latency MODEL [--against BACKEND]`.

Cold (compile, load, first inference apart), steady, after idle, in a burst and sustained; or two backends in turns.
With `--dispatch` instead of a model: what one call costs that computes next to nothing, and its jitter.
Exit code: 0 done, 1 the backend cannot do it, 2 for wrong arguments or a bad model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import KEPT, add_bind, command, count, exit_code, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print."""
    parser = _parser()
    options = parser.parse_args(argv)
    if (options.model is None) != options.dispatch:
        parser.error("give a MODEL, or --dispatch without one")
    from compilers import CompilerError
    from experiments.latency_job import run

    return exit_code(lambda: run(options), failed=(CompilerError,), kept=KEPT)


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.latency",
        "Measure one model on this machine, cold, steady and after idle.",
        "model.onnx --bind batch=1 --precision int8",
        "resnet18 --against tvm",
        "--dispatch",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="ONNX file or zoo name")
    parser.add_argument(
        "--kernels", action="store_true", help="where the time goes: each kernel with the nodes that it computes"
    )
    parser.add_argument("--dispatch", action="store_true", help="time calls of a model of one Relu on one number")
    parser.add_argument("--backend", default="ort_cpu", metavar="NAME", help="default: ort_cpu")
    parser.add_argument("--against", default=None, metavar="NAME", help="measure in turns with this backend")
    parser.add_argument("--precision", choices=("fp32", "fp16", "int8"), default="fp32", help="default: fp32")
    parser.add_argument("--idle", type=_pause, default=0.5, metavar="S", help="pause before a call (default: 0.5)")
    parser.add_argument(
        "--sustained", type=_run_length, default=10.0, metavar="S", help="length of the long run (default: 10)"
    )
    parser.add_argument(
        "--offset", type=count, default=0, metavar="B", help="bytes that inputs lie behind a 4 KiB page (default: 0)"
    )
    add_bind(parser)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of weights, inputs and order")
    return parser


_pause = number(lambda n: 0 < n <= 600, "a pause above 0 and of at most 600 s")
_run_length = number(lambda n: 0 < n <= 86_400, "a run above 0 and of at most 86400 s (a day)")


if __name__ == "__main__":
    raise SystemExit(main())
