"""Reproduce published observations on the simulator: `python -m experiments.scenarios [NAME ...]`.

With --table, --set and --model they are made from one's own figures, logs and model.

Exit code: 0 done, 2 for an unknown name, or figures that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import UserError, add_bind, command, count, exit_code, least_0, time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphs import Graph


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the studies asked for and print them."""
    parser = command(
        "experiments.scenarios",
        __doc__.split("\n", 1)[0],
        "R9 R16 --out pictures/",
        "R10 --table ramp1.csv --table ramp2.csv --table ramp3.csv",
        "R12 --model audio.onnx --bind batch=1 --set frame_s=20ms --set fast_dma_bytes_per_s=4e9",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="R4, R5, R6, R9, ... (default: all)")
    parser.add_argument(
        "--table", type=Path, action="append", default=[], dest="files", metavar="FILE", help="a CSV file of your own"
        " in place of the published rows, with the columns that `experiments.published` shows; R10: a recorded log with"
        " time_s,temperature_c,clock_hz,latency_s for each run",
    )  # fmt: skip
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], dest="settings", metavar="NAME=X", help="a figure of your"
        " own in place of one that is stated beside the published rows, in SI units or as 20ms",
    )  # fmt: skip
    parser.add_argument("--model", default=None, metavar="MODEL", help="R12: stream this ONNX file or zoo model")
    add_bind(parser)
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of arrivals, jitter and wake-up times")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="draw the studies that have a picture")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from experiments.scenarios.catalogue import draw, given_for, study, study_names
    from experiments.store import open_run

    own = bool(options.files or options.settings or options.model)
    if own and len(options.names) != 1:
        raise UserError("--table, --set and --model are for one study; name it, for example R12")
    if options.bindings and not options.model:
        raise UserError("--bind gives sizes of the inputs of a --model, and there is none")
    if options.out is not None:
        open_run(options.out)
    figures = {}
    for name in options.names or study_names():
        try:
            graph = _graph(options)
            given = given_for(name, options.seed, options.files, dict(options.settings), graph)
            made = study(name, given=given)
        except KeyError as error:
            raise UserError(error.args[0]) from error
        figures[made.name] = made.figures
        if not options.json:
            print(f"\n{made.name}  {made.title}", *(f"  {line}" for line in made.lines), sep="\n", flush=True)
            for text in made.assumptions:
                print(f"  assumed: {text}")
        drawn = options.out and draw(made.name, options.out, given)
        if drawn:
            print(f"  drawn: {drawn}.png", file=sys.stderr)
    if options.json:
        print(json.dumps(figures, indent=1))
    return 0


def _graph(options: argparse.Namespace) -> Graph | None:
    """Read --model, where there is one."""
    if options.model is None:
        return None
    from experiments.model import load_model
    from graphs import GraphError

    try:
        return load_model(options.model, options.bindings, options.seed)
    except GraphError as error:
        raise UserError(str(error)) from error


def _setting(text: str) -> tuple[str, float]:
    """Read NAME=X; a name that ends in _s, but not in _per_s, is a time."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=X, for example frame_s=20ms, got {text!r}")
    return name, (time(least_0) if name.endswith("_s") and not name.endswith("_per_s") else least_0)(value)


if __name__ == "__main__":
    raise SystemExit(main())
