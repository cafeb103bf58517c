"""How well energy can be modelled without a meter: `python -m experiments.energy_validate CSV`.

Fits E = P0 x t + e_mac x MACs + e_byte x bytes to half of each platform's models and judges on the other half.
Exit code: 0 when the bars are met (median error 8 %, coverage 75 to 90 %), 1 when not, 2 for a bad file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.arguments import command, count, exit_code, positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from experiments.evaluator.power.mlperf import HeldOut

_MOST_ERROR: Final = 0.08
_COVERAGE: Final = (0.75, 0.90)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, fit, judge and report."""
    parser = command(
        "experiments.energy_validate",
        __doc__.split("\n", 1)[0],
        "mlperf_edge_energy.csv",
    )
    parser.add_argument(
        "csv",
        type=Path,
        nargs="?",
        metavar="CSV",
        help="pairs of MLPerf's edge power runs (default: list the fits kept)",
    )
    parser.add_argument(
        "--splits", type=positive, default=5, metavar="N", help="random halvings to average (default: 5)"
    )
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="of the first halving")
    parser.add_argument("--write", type=Path, default=None, metavar="FILE", help="write the coefficients of all pairs")
    parser.add_argument("--json", action="store_true", help="print the sums as JSON")
    options = parser.parse_args(argv)
    if options.csv is None:
        return _list_shipped()
    from experiments.evaluator.power.fit import FitError
    from experiments.evaluator.power.mlperf import PairsError

    return exit_code(lambda: _validate(options), refused=(PairsError, FitError))


def _validate(options: argparse.Namespace) -> int:
    from experiments.evaluator.power.mlperf import hold_out, read_platforms, write_coefficients

    platforms = read_platforms(options.csv)
    seeds = range(options.seed, options.seed + options.splits)
    judged = [[hold_out(platform, seed) for seed in seeds] for platform in platforms]
    if options.write is not None:
        errors = {rounds[0].platform: _median([r.median_error for r in rounds]) for rounds in judged}
        write_coefficients(platforms, errors, options.write)
    return _report(judged, as_json=options.json)


def _list_shipped() -> int:
    from experiments.evaluator.power.mlperf import shipped_models
    from experiments.units import quantity, watts

    for (platform, precision, version), model in shipped_models().items():
        print(
            f"{watts(model.active_w):>7} + {quantity(model.j_per_mac, 'J'):>7}/MAC"
            f" + {quantity(model.j_per_byte, 'J'):>7}/B"
            f"  (x {model.low_ratio:.2f} to {model.high_ratio:.2f})  {platform} {precision} {version}"
        )
    return 0


def _report(judged: Sequence[Sequence[HeldOut]], *, as_json: bool) -> int:
    every = [held for rounds in judged for held in rounds]
    errors = [error for held in every for error in held.errors]
    coverage = _mean([covered for held in every for covered in held.covered])
    by_platform = [_median([held.median_error for held in rounds]) for rounds in judged]
    median = _median(errors)
    met = median <= _MOST_ERROR and _COVERAGE[0] <= coverage <= _COVERAGE[1]
    if as_json:
        figures = {
            "platforms": len(judged), "pairs": sum(len(rounds[0].platform.pairs) for rounds in judged),
            "median_error_ratio": median, "coverage_ratio": coverage, "met": met,
            "median_error_by_platform": {_title(rounds[0]): e for rounds, e in zip(judged, by_platform, strict=True)},
        }  # fmt: skip
        print(json.dumps(figures, indent=1))
        return 0 if met else 1
    print("median error  coverage  models  platform")
    for rounds, error in sorted(zip(judged, by_platform, strict=True), key=lambda entry: -entry[1]):
        covered = _mean([c for held in rounds for c in held.covered])
        print(f"{error:12.1%}  {covered:8.0%}  {rounds[0].platform.models:6}  {_title(rounds[0])}")
    over = sum(error > _MOST_ERROR for error in by_platform)
    print(
        f"\n{len(judged)} platforms, models kept out: median error {median:.1%} (bar {_MOST_ERROR:.0%}),"
        f" 80 % intervals cover {coverage:.1%} (bar {_COVERAGE[0]:.0%} to {_COVERAGE[1]:.0%});"
        f" {over} platforms are above the bar alone"
    )
    return 0 if met else 1


def _title(held: HeldOut) -> str:
    return f"{held.platform.name} {held.platform.precision} {held.platform.version}"


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))


def _median(values: Sequence[float]) -> float:
    import numpy as np

    return float(np.median(values))


if __name__ == "__main__":
    raise SystemExit(main())
