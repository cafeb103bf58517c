"""Graph in, executable out: import, fuse, decide how each function is built, assemble.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import tvm

from compilers.tvm import frontend, library
from compilers.tvm.cache import TileCache
from compilers.tvm.sweep import Sweep
from compilers.tvm.targets import cpu_of, host_target, reference_target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compilers.tvm.cache import Decision
    from graphs import Graph


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """The executable, and how it came about: decision and number of call sites of each fused function."""

    executable: Any
    decisions: Mapping[str, Decision]
    calls: Mapping[str, int]
    mcpu: str


def build(graph: Graph, version: str, *, threads: int, candidates: int) -> Built:
    """Build a graph for this machine's CPU; `version` keeps the cache of one TVM from another.

    Raises:
        CompilerError: TVM refused the graph, or compiles some function wrong in every way known here.
    """
    target = host_target()
    module = frontend.fuse(frontend.import_graph(graph.proto()), target)
    calls = frontend.count_calls(module)
    functions = {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    cache = TileCache.for_build(version, cpu_of(target), f"t{threads}", f"sweep{candidates}", f"r{_SCHEDULE}")
    sweep = Sweep(target=target, threads=threads, candidates=candidates, cache=cache)
    decisions = sweep.decide(functions, calls)
    tuned = {name: sweep.apply(func, decisions[name]) for name, func in functions.items()}
    safe = {name: func for name, func in functions.items() if decisions[name].build == "safe"}
    executable = library.assemble(module, tuned, safe, target, reference_target(target))
    return Built(executable=executable, decisions=decisions, calls=calls, mcpu=cpu_of(target))


# Of schedule.py and tiles.py: raise it when the same TileConfig comes to mean other code.
_SCHEDULE: Final = 1
