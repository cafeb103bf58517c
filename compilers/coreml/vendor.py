"""The one door to coremltools: imported on first use, without its log lines and progress bars."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

from compilers.adapter import CompilerError, missing_package, package_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

MilVar = Any  # a variable of coremltools' MIL builder, whose classes have no types

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


@functools.cache
def schema() -> tuple[Any, Any]:
    """Return coremltools' generated protobuf modules Model_pb2 and MIL_pb2, without its converters.

    Importing the package imports the converters: seconds, and nothing that reading a saved package needs.
    """
    with contextlib.nullcontext() if "coremltools" in sys.modules else _without_converters():
        model, mil = (importlib.import_module(f"coremltools.proto.{name}") for name in ("Model_pb2", "MIL_pb2"))
    return model, mil


@contextlib.contextmanager
def _without_converters() -> Iterator[None]:
    """Let the package be one that does nothing on import; the true one may still come, with the same schema in it."""
    folder = package_dir("coremltools")
    if folder is None:
        raise CompilerError(missing_package("coremltools", "coremltools") or "coremltools is no package")
    bare = types.ModuleType("coremltools")
    bare.__path__ = [str(folder)]
    sys.modules["coremltools"] = bare
    try:
        yield
    finally:
        del sys.modules["coremltools"]


def builder() -> Any:  # noqa: ANN401 - the package has no types
    """Return the MIL builder, `coremltools.converters.mil.Builder`."""
    coremltools()
    from coremltools.converters.mil import Builder

    return Builder
