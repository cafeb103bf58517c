"""Where each node runs and why not on the accelerator: `python -m experiments.placement MODEL --device D`.

Exit code: 0 when something is on the accelerator, 1 when nothing is, 2 for wrong arguments or a bad model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.arguments import KEPT, add_bind, command, count, exit_code, option, positive_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, explain the placement and return the exit code."""
    options: Any = _parser().parse_args(argv)
    # What follows imports numpy and onnx, which --help does not need.
    from compilers import UnknownBackendError, get_compiler
    from experiments.explain import Options, RuleError, explain, parse_rule
    from experiments.model import load_model
    from graphs import GraphError
    from partition import DeviceError, load_device

    def run() -> int:
        get_compiler(options.backend)
        graph = load_model(options.model, options.bindings, options.seed)
        asked = Options(
            backend=options.backend,
            precision=options.precision,
            rules=[parse_rule(text) for text in options.refuse],
            options=tuple(sorted(options.options)),
            out=options.out,
            seed=options.seed,
            time_limit_s=options.time_limit,
        )
        return explain(graph, load_device(options.device), asked)

    return exit_code(run, refused=(DeviceError, GraphError, RuleError, UnknownBackendError), kept=KEPT)


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.placement",
        "Show where each node of a model runs, why not on the accelerator, and what would mend it.",
        "model.onnx --device sa8255p --precision int8",
        "model.onnx --device sa8255p --refuse Pad:mode=reflect",
    )
    parser.add_argument("model", metavar="MODEL", help="ONNX file or zoo name")
    parser.add_argument("--device", required=True, metavar="NAME", help="device name or TOML file")
    parser.add_argument("--backend", default="ort_qnn", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "int8"), help="default: %(default)s")
    parser.add_argument(
        "--refuse",
        action="append",
        default=[],
        metavar="OP[:ATTR=VALUE]",
        help="an operator that the target refuses although the compiler here takes it, for example Pad:mode=reflect;"
        " may be repeated",
    )
    parser.add_argument(
        "--option", type=option, action="append", default=[], dest="options", metavar="KEY=VALUE", help="of the backend"
    )
    add_bind(parser)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of weights, inputs and calibration")
    parser.add_argument(
        "--time-limit", type=positive_number, default=600.0, metavar="S", help="for one compile (default: 600)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
