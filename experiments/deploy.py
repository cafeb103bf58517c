"""Take a plan to a device: `python -m experiments.deploy PLAN [--execute]`.

PLAN is a `plans/<digest>.json` that `experiments.pareto` or `experiments.placement` wrote. The folder holds the
artefacts, `run.sh` (adb for Android, ssh for Linux boards), `device.sh` and `manifest.json`.

Exit code: 0 done, 1 when the device did not run it or computed something else, or the backend as installed does not
compile, 2 for wrong arguments or a plan that cannot be deployed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import add_build, command, count, exit_code, positive, positive_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, deploy and return the exit code."""
    options = _parser().parse_args(argv)
    # What follows imports numpy and onnx, which --help does not need.
    from experiments.deployment import DeployError, Options, RunError, deploy

    return exit_code(lambda: deploy(Options(**vars(options))), refused=(DeployError,), failed=(RunError,))


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "experiments.deploy",
        "Write what a device needs to run a plan, and run it.",
        "results/<run>/plans/<digest>.json --execute --tools tools/",
        "results/<run>/plans/<digest>.json --execute --host user@board",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a plans/<digest>.json beside results")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="default: deploy/<digest> beside plans/")
    add_build(parser)
    parser.add_argument("--execute", action="store_true", help="run it on the device that answers; record the latency")
    parser.add_argument("--host", default="", metavar="USER@BOARD", help="for Linux boards")
    parser.add_argument("--serial", default="", metavar="SERIAL", help="for Android, where more than one answers")
    parser.add_argument(
        "--tools", type=Path, default=None, metavar="DIR",
        help="folder with the device's onnxruntime_perf_test and onnx_test_runner, or snpe-throughput-net-run and "
        "snpe-net-run, and Qualcomm's libraries",
    )  # fmt: skip
    parser.add_argument("--runs", type=positive, default=100, metavar="N", help="inferences (default: %(default)s)")
    parser.add_argument(
        "--performance-mode",
        default="burst",
        metavar="MODE",
        help="of the HTP, for example burst, balanced, power_saver",
    )
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of the inputs that check the reload")
    parser.add_argument(
        "--time-limit",
        type=positive_number,
        default=600.0,
        dest="time_limit_s",
        metavar="S",
        help="for a compile and for the run",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
