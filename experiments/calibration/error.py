"""What calibration and validation cannot go on with."""

from __future__ import annotations


class CalibrationError(ValueError):
    """Say what is wrong with a table, its models or its rows, in one sentence the user can act on."""
