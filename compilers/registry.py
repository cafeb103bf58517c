"""The backends, one line each; a backend's file is imported when it is first asked for."""

from __future__ import annotations

import difflib
import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from compilers.adapter import Compiler

COMPILERS: Final = MappingProxyType(
    {
        "ort_cpu": "compilers.ort_cpu:OrtCpuCompiler",
        "ort_qnn": "compilers.ort_qnn:OrtQnnCompiler",
        "snpe": "compilers.snpe:SnpeCompiler",
        "tvm": "compilers.tvm:TvmCompiler",
        "coreml": "compilers.coreml:CoreMLCompiler",
        "coreai": "compilers.coreai:CoreAICompiler",
    }
)


class UnknownBackendError(KeyError):
    """There is no backend of that name; the message is one sentence that lists those there are."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's own text is in quotes


def compiler_names() -> tuple[str, ...]:
    """List the backends in the order in which they are shown."""
    return tuple(COMPILERS)


def get_compiler(name: str) -> Compiler:
    """Return the backend of that name.

    Raises:
        UnknownBackendError: there is none; the message lists those there are.
    """
    if name not in COMPILERS:
        close = difflib.get_close_matches(name, COMPILERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UnknownBackendError(f"unknown backend {name!r}{hint} (known: {', '.join(COMPILERS)})")
    module, _, attribute = COMPILERS[name].partition(":")
    compiler: Compiler = getattr(importlib.import_module(module), attribute)()
    return compiler
