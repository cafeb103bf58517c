"""Output error of a backend against the float reference: plain numpy, no model and no clock.

A figure that cannot be given is ``None`` and the verdict says why; it is never 0 by accident.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Array = npt.NDArray[Any]


class Verdict(enum.StrEnum):
    """What a comparison of one output came to."""

    EXACT = "exact"  # every element is the same; the SQNR is unbounded, hence None
    COMPARED = "compared"
    INTEGER = "integer"  # class or token numbers, flags, texts: no signal power, so no cosine and no SQNR
    ZERO_REFERENCE = "zero reference"  # nothing to relate an error to
    NOT_FINITE = "not finite"  # NaN or infinity that the other side does not have, or NaN in the reference
    EMPTY = "empty"
    SHAPE = "shapes differ"
    DTYPE = "dtypes differ"
    MISSING = "only one side has it"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputError:
    """The error of one output.

    Attributes:
        verdict: What the comparison came to; says why a figure below is ``None``.
        max_abs: Largest absolute difference, in the unit of the output.
        relative_max: ``max_abs`` over the largest absolute value of the reference.
        cosine: Cosine of the angle between the two outputs as flat vectors, -1 to 1.
        sqnr_db: Signal to quantisation noise ratio in dB, 10 log10(sum ref^2 / sum (ref - out)^2).
        mismatch_ratio: Share of the elements that are not exactly equal, 0 to 1.
    """

    verdict: Verdict
    max_abs: float | None = None
    relative_max: float | None = None
    cosine: float | None = None
    sqnr_db: float | None = None
    mismatch_ratio: float | None = None


def compare(reference: Mapping[str, Array], outputs: Mapping[str, Array]) -> Mapping[str, OutputError]:
    """Compare outputs by name; a name that only one side has gets the verdict ``MISSING``.

    Order: that of ``reference``, then what only ``outputs`` has.
    """
    names = dict.fromkeys([*reference, *outputs])
    return {name: _of_pair(reference.get(name), outputs.get(name)) for name in names}


def output_error(reference: Array, output: Array) -> OutputError:
    """Compare one output with its reference.

    Floats of different width are compared as float64. Infinities that both sides have at the same place
    (attention masks) are left out of every figure; any other infinity or NaN is ``NOT_FINITE``.
    """
    reference, output = np.asarray(reference), np.asarray(output)
    if reference.shape != output.shape:
        return OutputError(verdict=Verdict.SHAPE)
    family = _family(reference)
    if family is None or family != _family(output):
        return OutputError(verdict=Verdict.DTYPE)
    if reference.size == 0:
        return OutputError(verdict=Verdict.EMPTY)
    compare_values = {"integer": _of_integers, "text": _of_texts, "float": _of_floats}[family]
    return compare_values(reference, output)


def _of_pair(reference: Array | None, output: Array | None) -> OutputError:
    if reference is None or output is None:
        return OutputError(verdict=Verdict.MISSING)
    return output_error(reference, output)


def _family(array: Array) -> str | None:
    """Give "float", "integer" (bool included) or "text", None for complex numbers and records."""
    # ml_dtypes' bfloat16 and float8 have kind "V" but convert; numpy's own void records do not.
    if array.dtype.kind == "f" or (array.dtype.kind == "V" and np.can_cast(array.dtype, np.float64)):
        return "float"
    return "integer" if array.dtype.kind in "biu" else "text" if array.dtype.kind in "OSUT" else None


def _of_texts(reference: Array, output: Array) -> OutputError:
    differ = np.asarray(reference != output)
    if not differ.any():
        return OutputError(verdict=Verdict.EXACT, mismatch_ratio=0.0)
    return OutputError(verdict=Verdict.INTEGER, mismatch_ratio=float(differ.mean()))


def _of_integers(reference: Array, output: Array) -> OutputError:
    differ = reference != output
    if not differ.any():
        return OutputError(verdict=Verdict.EXACT, max_abs=0.0, mismatch_ratio=0.0)
    # Python integers: the difference of two int64 does not fit an int64, nor a float64 exactly.
    pairs = zip(reference[differ].tolist(), output[differ].tolist(), strict=True)
    return OutputError(
        verdict=Verdict.INTEGER,
        max_abs=float(max(abs(int(left) - int(right)) for left, right in pairs)),
        mismatch_ratio=float(differ.mean()),
    )


def _of_floats(reference: Array, output: Array) -> OutputError:
    left, right = (array.astype(np.float64).ravel() for array in (reference, output))
    same_infinity = np.isinf(left) & (left == right)
    left, right = left[~same_infinity], right[~same_infinity]
    if not left.size or not (np.isfinite(left).all() and np.isfinite(right).all()):
        return OutputError(verdict=Verdict.NOT_FINITE)
    with np.errstate(over="ignore"):
        noise = left - right
    peak, max_abs = float(np.abs(left).max()), float(np.abs(noise).max())
    if not np.isfinite(max_abs):  # 1e308 against -1e308
        return OutputError(verdict=Verdict.NOT_FINITE)
    mismatch_ratio = float(np.count_nonzero(noise) / reference.size)
    if peak == 0.0:
        return OutputError(verdict=Verdict.ZERO_REFERENCE, max_abs=max_abs, mismatch_ratio=mismatch_ratio)
    if max_abs == 0.0:
        return OutputError(
            verdict=Verdict.EXACT, max_abs=0.0, relative_max=0.0, cosine=1.0, mismatch_ratio=mismatch_ratio
        )
    return OutputError(
        verdict=Verdict.COMPARED,
        max_abs=max_abs,
        relative_max=max_abs / peak,
        cosine=_cosine(left, right),
        sqnr_db=_energy_db(left) - _energy_db(noise),
        mismatch_ratio=mismatch_ratio,
    )


def _cosine(left: Array, right: Array) -> float | None:
    """Give None where one side is all zero: a zero vector has no direction."""
    peaks = np.abs(left).max(), np.abs(right).max()
    if not all(peaks):
        return None
    # Scaled first, because the squares of very small or large values leave the range of float64.
    left, right = left / peaks[0], right / peaks[1]
    cosine = float(left @ right / np.sqrt((left @ left) * (right @ right)))
    return min(1.0, max(-1.0, cosine))


def _energy_db(signal: Array) -> float:
    """Give 10 log10 of the sum of squares of a signal that is not all zero."""
    peak = float(np.abs(signal).max())
    unit = signal / peak
    return float(10 * np.log10(unit @ unit) + 20 * np.log10(peak))
