"""What a study gives."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One reproduction: lines for people, figures (SI units in the names) for machines, and what was assumed."""

    name: str
    title: str
    lines: tuple[str, ...]
    figures: Mapping[str, object]
    assumptions: tuple[str, ...] = ()
