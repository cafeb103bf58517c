"""Fit latency models of Qualcomm NPUs to measured latencies: `python -m experiments.calibrate TABLE.csv`.

TABLE.csv has the columns of Qualcomm's AI Hub table (BSD-3, from the Python package qai-hub-models). Each of its
models that the zoo, a folder of ONNX files or an earlier calibration covers is simulated on the chips that the
compiler has a simulator of, and per (device, precision, runtime) the measured latency is fitted to the simulations.

Exit code: 0 when latency models were written, 1 when no device had enough rows, 2 for wrong arguments or a bad table.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import KEPT, add_build, command, exit_code, positive_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SOURCE = "Qualcomm AI Hub Models perf.yaml (Python package qai-hub-models, BSD-3-Clause)"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, calibrate and return the exit code."""
    options = _parser().parse_args(argv)
    # What follows imports numpy and onnx, which --help does not need.
    from experiments.calibration import CalibrationError, calibrate
    from partition import CalibrationFileError

    return exit_code(
        lambda: calibrate(
            options.table,
            own=options.add,
            models=options.models,
            result=options.result,
            build=options.build,
            time_limit_s=options.time_limit,
            source=SOURCE,
        ),
        refused=(CalibrationError, CalibrationFileError),
        kept=KEPT,
    )


def _parser() -> argparse.ArgumentParser:
    from partition import CALIBRATION_FILE

    parser = command(
        "experiments.calibrate",
        "Fit latency models of Qualcomm NPUs to a table of measured latencies.",
        "qualcomm_ai_hub_latency.csv --add own.csv --result own.json",
    )
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="measured latencies, columns as the AI Hub table")
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        metavar="zoo|A,B|FOLDER",
        help="zoo models, or a folder of ONNX files named <model of the table>.onnx; may be repeated"
        " (default: the zoo)",
    )
    parser.add_argument(
        "--add", type=Path, action="append", default=[], metavar="OWN.csv", help="own measurements, same columns"
    )
    parser.add_argument(
        "--result", type=Path, default=CALIBRATION_FILE, metavar="FILE", help="file to write (default: %(default)s)"
    )
    add_build(parser)
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
