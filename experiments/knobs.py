"""What the HTP compiler's knobs do to simulated time and spill: `python -m experiments.knobs MODEL... --device D`.

Each `--vary KEY=A,B,C` is an axis; all combinations are compiled and simulated. Written are knobs.csv and a picture.

Exit code: 0 when something was simulated, 1 when nothing could be, 2 for wrong arguments or a bad model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.arguments import KEPT, add_bind, command, count, exit_code, positive_number

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, sweep and return the exit code."""
    options: Any = _parser().parse_args(argv)
    # What follows imports numpy and onnx, which --help does not need.
    from compilers import UnknownBackendError, get_compiler
    from experiments.knob_sweep import Options, sweep
    from graphs import GraphError
    from partition import DeviceError

    def run() -> int:
        get_compiler(options.backend)
        return sweep(Options(**vars(options)))

    return exit_code(run, refused=(DeviceError, GraphError, UnknownBackendError), kept=KEPT)


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.knobs",
        "Sweep the HTP compiler's knobs and show time and spill.",
        "resnet18 --device sa8255p --vary vtcm_mb=1,2,4,8",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX file or zoo name")
    parser.add_argument("--device", required=True, metavar="NAME", help="device name or TOML file, with a simulator")
    parser.add_argument("--backend", default="ort_qnn", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--precision", default="int8", choices=("fp16", "int8"), help="default: %(default)s")
    parser.add_argument(
        "--vary", type=_axis, action="append", default=[], dest="axes", metavar="KEY=A,B",
        help="an option of the backend and its values; may be repeated (default: vtcm_mb up to the chip's, and"
        " htp_graph_finalization_optimization_mode=1,2,3). htp_performance_mode is an axis too; the simulator, which"
        " knows one clock, gives the same for all",
    )  # fmt: skip
    add_bind(parser)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of weights and calibration")
    parser.add_argument(
        "--time-limit", type=positive_number, default=600.0, dest="time_limit_s", metavar="S",
        help="seconds for one compile (default: 600)",
    )  # fmt: skip
    return parser


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
    key, equals, rest = text.partition("=")
    values = tuple(dict.fromkeys(filter(None, rest.split(","))))
    if not key or not equals or not values:
        raise argparse.ArgumentTypeError(f"expected KEY=A,B, got {text!r}")
    return key, values


if __name__ == "__main__":
    raise SystemExit(main())
