"""Time each kernel of a loaded library by a hook of the virtual machine.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from compilers.profile import KernelTime, shortest
from compilers.tvm.library import SAFE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from compilers.tvm.runtime import TvmSession

    Array = np.ndarray[Any, Any]


def profile(
    session: TvmSession, inputs: Mapping[str, Array], nodes: Mapping[str, list[list[str]]], runs: int
) -> tuple[KernelTime, ...]:
    """Run the session, after one run that warms it up; `nodes` names those of each call of each function."""
    watch = _Watch(nodes)
    session.observe(watch)
    session.run(inputs)
    found = []
    for _ in range(runs):
        watch.clear()
        session.run(inputs)
        found.append(tuple(watch.calls))
    return shortest(tuple(found))


class _Watch:
    """What the virtual machine calls before and after each function."""

    def __init__(self, nodes: Mapping[str, list[list[str]]]) -> None:
        self._nodes = nodes
        self.clear()

    def clear(self) -> None:
        self.calls: list[KernelTime] = []
        self._seen: dict[str, int] = defaultdict(int)
        self._began_s = 0.0

    def __call__(self, _function: Any, symbol: str, before: bool, _result: Any, *_arguments: Any) -> int:  # noqa: ANN401, FBT001
        name = symbol.removesuffix(SAFE_SUFFIX)
        if name in self._nodes and before:
            self._began_s = time.perf_counter()
        elif name in self._nodes:
            time_s = time.perf_counter() - self._began_s
            calls, turn = self._nodes[name], self._seen[name]
            self._seen[name] += 1
            nodes = calls[turn] if turn < len(calls) else []
            self.calls.append(KernelTime(kernel=name, nodes=tuple(nodes), time_s=time_s))
        return 0
