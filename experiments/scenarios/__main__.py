"""Reproduce published observations on the simulator: `python -m experiments.scenarios [NAME ...]`.

Exit code: 0 done, 2 for an unknown name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import UserError, command, count, exit_code

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the studies asked for and print them."""
    parser = command(
        "experiments.scenarios",
        __doc__.split("\n", 1)[0],
        "R9 R16 --out pictures/",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="R4, R5, R6, R9, ... (default: all)")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of arrivals, jitter and wake-up times")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="draw the studies that have a picture")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from experiments.scenarios.catalogue import draw, study, study_names

    figures = {}
    for name in options.names or study_names():
        try:
            made = study(name, options.seed)
        except KeyError as error:
            raise UserError(error.args[0]) from error
        figures[made.name] = made.figures
        if not options.json:
            print(f"\n{made.name}  {made.title}", *(f"  {line}" for line in made.lines), sep="\n", flush=True)
            for text in made.assumptions:
                print(f"  assumed: {text}")
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            drawn = draw(made.name, options.out, options.seed)
            if drawn:
                print(f"  drawn: {drawn}.png", file=sys.stderr)
    if options.json:
        print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
