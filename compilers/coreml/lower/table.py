"""The table operator -> lowering function; each family module adds its rows with `@lowers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node

Lowering = Callable[["Node"], None]

TABLE: Final[dict[str, Lowering]] = {}


def lowers(*op_types: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of these operators ("Conv", "com.microsoft::Gelu")."""

    def register(function: Lowering) -> Lowering:
        for op_type in op_types:
            assert op_type not in TABLE, f"two lowerings for {op_type}"
            TABLE[op_type] = function
        return function

    return register
