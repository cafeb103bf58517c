"""Predicted against measured latency of Qualcomm NPUs: `python -m experiments.validate TABLE.csv`.

Every prediction is held out: a model that the calibration was trained on is predicted by a fit to the others.

Exit code: 0 when rows were predicted, 1 when none could be, 2 for wrong arguments or a bad table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import KEPT, add_build, command, exit_code, positive_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, validate and return the exit code."""
    options = _parser().parse_args(argv)
    # What follows imports numpy and onnx, which --help does not need.
    from experiments.calibration import CalibrationError, validate
    from partition import CalibrationFileError

    return exit_code(
        lambda: validate(
            options.table,
            models=options.models,
            calibration=options.calibration,
            build=options.build,
            out=options.out,
            time_limit_s=options.time_limit,
            own=options.add,
        ),
        refused=(CalibrationError, CalibrationFileError),
        kept=KEPT,
    )


def _parser() -> argparse.ArgumentParser:
    from partition import CALIBRATION_FILE

    parser = command(
        "experiments.validate",
        "Compare predicted with measured latencies of Qualcomm NPUs.",
        "qualcomm_ai_hub_latency.csv --models zoo",
    )
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="measured latencies, columns as the AI Hub table")
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        metavar="zoo|A,B|FOLDER",
        help="only these zoo models, or a folder of ONNX files named <model of the table>.onnx; may be repeated"
        " (default: the zoo and what the calibration has simulated)",
    )
    parser.add_argument(
        "--calibration", type=Path, default=CALIBRATION_FILE, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--add", type=Path, action="append", default=[], metavar="OWN.csv", help="own measurements, same columns"
    )
    add_build(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("results/validation"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--time-limit",
        type=positive_number,
        default=900.0,
        metavar="S",
        help="seconds for one compile (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
