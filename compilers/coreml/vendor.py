"""The one door to coremltools: imported on first use, without its log lines and progress bars."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from typing import Any

TARGETS = ("iOS16", "iOS17", "iOS18", "iOS26")


@functools.cache
def coremltools() -> Any:  # noqa: ANN401 - the package has no types
    """Import coremltools quietly and return it."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in ("coremltools", "coremltools.converters"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import coremltools as ct
    return ct


def builder() -> Any:  # noqa: ANN401 - the package has no types
    """Return the MIL builder, `coremltools.converters.mil.Builder`."""
    coremltools()
    from coremltools.converters.mil import Builder

    return Builder
