"""Graph in, executable out: import, fuse, decide how each function is built, assemble.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import tvm

from compilers.tvm import foreign, frontend, library
from compilers.tvm.cache import TileCache
from compilers.tvm.sweep import Sweep, apply
from compilers.tvm.targets import cpu_of, host_target, reference_target, registers_of, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compilers.tvm.cache import Decision
    from graphs import Graph
    from partition import Device


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """The executable, and how it came about: decision and number of call sites of each fused function.

    `check` is what can be run here to check the model: the executable itself, or for another machine the same
    schedules built for this one. `facts` describe the target.
    """

    executable: Any
    check: Any
    triple: str
    decisions: Mapping[str, Decision]
    calls: Mapping[str, int]
    facts: tuple[tuple[str, str], ...]


def build(graph: Graph, version: str, *, threads: int, candidates: int) -> Built:
    """Build a graph for this machine's CPU; `version` keeps the cache of one TVM from another.

    Raises:
        CompilerError: TVM refused the graph, or compiles some function wrong in every way known here.
    """
    target = host_target()
    module, functions = _import(graph, target)
    calls = frontend.count_calls(module)
    cache = TileCache.for_build(version, cpu_of(target), f"t{threads}", f"sweep{candidates}", f"r{_SCHEDULE}")
    sweep = Sweep(target=target, threads=threads, candidates=candidates, cache=cache)
    decisions = sweep.decide(functions, calls)
    tuned = {name: apply(func, decisions[name], parallel=threads > 1) for name, func in functions.items()}
    safe = {name: func for name, func in functions.items() if decisions[name].build == "safe"}
    executable = library.assemble(module, tuned, safe, target, reference_target(target))
    return Built(
        executable=executable,
        check=executable,
        triple=str(target.attrs["mtriple"]),
        decisions=decisions,
        calls=calls,
        facts=(("mcpu", cpu_of(target)),),
    )


def build_elsewhere(graph: Graph, device: Device, processor: str, *, threads: int) -> Built:
    """Build a graph for the processor of another machine.

    Raises:
        CompilerError: TVM does not know the target, or refused the graph.
    """
    target, here = target_of(device, processor), reference_target(host_target())
    module, functions = _import(graph, target)
    decisions = foreign.decide(functions, target, parallel=threads > 1)
    tuned = {name: apply(func, decisions[name], parallel=threads > 1) for name, func in functions.items()}
    registers = registers_of(target)
    vectors = f"{registers.count} registers of {registers.lanes * 32} bits"
    return Built(
        executable=library.assemble(module, tuned, {}, target, here),
        check=library.assemble(module, tuned, {}, here, here),
        triple=str(target.attrs["mtriple"]),
        decisions=decisions,
        calls=frontend.count_calls(module),
        facts=(
            ("mcpu", cpu_of(target)),
            ("mtriple", str(target.attrs["mtriple"])),
            ("schedules", f"not measured: the static model's first tile for {vectors}"),
            ("checked_on", "this machine: the same schedules, by another code generator"),
        ),
    )


def _import(graph: Graph, target: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """Return the fused module for a target, and its functions by name."""
    module = frontend.fuse(frontend.import_graph(graph.proto()), target)
    return module, {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}


# Of schedule.py and tiles.py: raise it when the same TileConfig comes to mean other code.
_SCHEDULE: Final = 1
