"""What borrowed latency models are worth: chips with enough measured models, cut to few, are predicted.

Usage: python benchmarks/qnn_borrowing.py TABLE.csv

For each precision and number of own models: the mean over chips of the median and 90th-percentile error on models that
neither the chip nor its lenders saw, and how many of them lie in the 80 % interval, which comes from the trials of the
other chips and other models. `public` models were measured on the lenders, too, `private` ones were not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments.calibration.borrowing import Borrowing, Trials
from experiments.calibration.collect import shipped
from experiments.calibration.table import read_table
from experiments.calibration.training import by_device, samples
from partition import CALIBRATION_FILE

if TYPE_CHECKING:
    import numpy.typing as npt

COUNTS = (3, 5, 7, 9)


def main(arguments: list[str]) -> int:
    rows, _ = samples(read_table(Path(arguments[0])).rows, shipped(CALIBRATION_FILE))
    borrowing = Borrowing(by_device(rows))
    for precision in ("fp16", "int8", "w8a16"):
        for count in COUNTS:
            for private in (False, True):
                trials = borrowing.trials(0, precision, count, private=private)
                if trials is not None:
                    kind = "private" if private else "public"
                    print(f"{precision} from {count} {kind} models, {_said(trials)}", flush=True)
    return 0


def _said(trials: Trials) -> str:
    errors = 100 * np.abs(1 / trials.ratios - 1)
    by_chip = [errors[trials.devices == device] for device in np.unique(trials.devices)]
    median, p90 = (np.mean([np.percentile(of_chip, share) for of_chip in by_chip]) for share in (50, 90))
    covered = _covered(trials)
    chips = [covered[trials.devices == device].mean() for device in np.unique(trials.devices)]
    return (
        f"{len(by_chip)} chips: median {median:.1f} %, 90th percentile {p90:.1f} %, in the interval "
        f"{covered.mean():.0%} ({min(chips):.0%} to {max(chips):.0%} by chip)"
    )


def _covered(trials: Trials) -> npt.NDArray[np.bool_]:
    """Tell which ratios lie in the interval of the other chips' trials of other models."""
    covered = np.zeros(len(trials.ratios), bool)
    for device in np.unique(trials.devices):
        others = trials.of(trials.devices != device)
        for model in np.unique(trials.models[trials.devices == device]):
            costed, uncosted = others.intervals(str(model))
            for index in np.flatnonzero((trials.devices == device) & (trials.models == model)):
                low, high = (trials.lacking[index] and uncosted) or costed
                covered[index] = low <= trials.ratios[index] <= high
    return covered


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
