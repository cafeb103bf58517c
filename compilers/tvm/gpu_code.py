"""The kernels of a GPU artefact as values: who launches what, with which buffers, in which tile. No TVM here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partition.tile import GpuKernel


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One kernel and the buffers it is called with, in its order: names of the function's parameters or temporaries."""

    kernel: GpuKernel
    arguments: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostCode:
    """How the host calls the kernels of one function; `temporaries` are the global buffers it allocates, in bytes."""

    parameters: tuple[str, ...]
    temporaries: tuple[tuple[str, int], ...]
    launches: tuple[Launch, ...]
