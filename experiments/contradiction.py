"""A simulated time that the simulator itself contradicts: a wild cost of one chip, told without a measurement."""

from __future__ import annotations

from typing import Final

# Chips of the v73 generation that are simulated, and the one of v81 that their times are held against.
CHECKED: Final = ("sa8255p", "qcs9075")
WITNESS: Final = "sa8797"
# In 366 of 370 simulations of a graph by a compiler, v73 takes 0.92 to 4.9 times as long as v81; NASNet and Swin-S in
# float are beyond, at 8.6 and 35 times, and NASNet, built as it was measured, is off by 190 % (benchmarks/README.md).
_MOST_TIMES: Final = 6.0
# The witness costs another compile; what a wild cost adds is tens of milliseconds.
_WORTH_A_COMPILE_S: Final = 0.02


def is_doubtful(chip: str, simulated_s: float) -> bool:
    """Tell whether a time simulated for the chip is long enough to be held against the witness's."""
    return chip in CHECKED and simulated_s > _WORTH_A_COMPILE_S


def contradiction(chip: str, simulated_s: float, witness_s: float) -> str | None:
    """Return why the simulated time of a doubtful chip is not to be believed, or None."""
    times = simulated_s / witness_s
    if not is_doubtful(chip, simulated_s) or times <= _MOST_TIMES:
        return None
    return (
        f"no estimate: the simulator takes {times:.1f} times as long on {chip} as on {WITNESS}, and at most 4.9 times "
        "for other graphs, so some operator has only a wild cost"
    )
