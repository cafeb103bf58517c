"""SI values to text for people: the only file that knows "ms"."""

from __future__ import annotations

import math
from typing import Final

_PREFIXES: Final = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "u"),
    (1e-9, "n"),
    (1e-12, "p"),
)
# There is no thousandth of a byte, and nobody counts in kiloseconds.
_UNUSUAL: Final = {"B": _PREFIXES[:5], "s": _PREFIXES[4:]}


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """Write a value with an SI prefix and `digits` significant digits; "-" for an unknown one."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    prefixes = _UNUSUAL.get(unit, _PREFIXES)
    factor, prefix = next(((f, p) for f, p in prefixes if abs(value) >= f), prefixes[-1])
    return f"{significant(value / factor, digits)} {prefix}{unit}".strip()


def significant(value: float, digits: int = 3) -> str:
    """Write a number with that many significant digits and no exponent while it is of ordinary size."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):.{max(places, 0)}f}"


def tick(value: float, unit: str) -> str:
    """Write an axis tick: as `quantity`, without the digits that say nothing."""
    number, _, rest = quantity(value, unit).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {rest}".strip()


def seconds(value: float | None) -> str:
    """Write a duration."""
    return quantity(value, "s")


def joules(value: float | None) -> str:
    """Write an energy."""
    return quantity(value, "J")


def watts(value: float | None) -> str:
    """Write a power."""
    return quantity(value, "W")


def size(value: float | None) -> str:
    """Write a number of bytes, with decimal prefixes."""
    return quantity(value, "B")


def counted(number: int, what: str) -> str:
    """Write a count and what is counted, in the plural where it is not one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def ratio_db(value: float | None) -> str:
    """Write a signal-to-noise ratio; one without noise is exact."""
    return "-" if value is None else "exact" if math.isinf(value) else f"{value:.1f} dB"


def interval(typical: str, low: str, high: str) -> str:
    """Write a value with its bounds, leaving out bounds that read the same."""
    return typical if low == high else f"{typical} ({low} to {high})"
