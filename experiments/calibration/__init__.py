"""Measured latencies of Qualcomm's NPUs against simulations: the library of the calibrate and validate commands."""

from experiments.calibration.check import validate
from experiments.calibration.command import calibrate
from experiments.calibration.error import CalibrationError

__all__ = ["CalibrationError", "calibrate", "validate"]
