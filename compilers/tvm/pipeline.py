"""Graph in, executable out: import, fuse, decide how each function is built, assemble.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError, PassingError
from compilers.artefact import PROVISIONAL
from compilers.machine import cpu
from compilers.tvm import foreign, frontend, library
from compilers.tvm.cache import Decision, TileCache
from compilers.tvm.dot import dot_of
from compilers.tvm.gpu_facts import Split
from compilers.tvm.nodes import tiles_by_function
from compilers.tvm.schedule import analyse
from compilers.tvm.sweep import Sweep, apply
from compilers.tvm.targets import cpu_of, host_target, reference_target, registers_of, target_of
from compilers.tvm.tiles import TileConfig, blocked, refusal
from compilers.tvm.vector_facts import code_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partition import Address, Segment


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """The executable, and how it came about: decision, number of call sites and their ONNX nodes by fused function.

    `check` is what can be run here to check the model: the executable itself, or for another machine the same
    schedules built for this one. `integer_macs` counts the multiply-adds of a Q/DQ graph that are computed in
    integers. `facts` describe the target, and `code` the code of each function of another machine.
    """

    executable: Any
    check: Any
    triple: str
    decisions: Mapping[str, Decision]
    calls: Mapping[str, int]
    nodes: Mapping[str, list[list[str]]]
    integer_macs: int
    facts: tuple[tuple[str, str], ...]
    code: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)


def build(segment: Segment, version: str, *, threads: int, candidates: int, trials: int = 0) -> Built:
    """Build a segment for this machine's CPU; `version` keeps the cache of one TVM from another.

    `candidates` is the tiles that the sweep tries for each function. `trials` is what more is tried for those that take
    time: tiles up to `_WIDE`, then what MetaSchedule proposes.

    Raises:
        CompilerError: TVM refused the graph or a tile, or compiles some function wrong in every way known here.
    """
    target = host_target()
    imported = frontend.read(segment.graph)
    module, functions = frontend.fused(imported, target)
    calls = frontend.count_calls(module)
    candidates = max(candidates, min(trials, _WIDE))
    names = (version, cpu_of(target), cpu(), f"t{threads}", f"sweep{candidates}", f"r{_SCHEDULE}")
    sweep = Sweep(target=target, threads=threads, candidates=candidates, cache=TileCache.for_build(*names))
    asked = _asked(segment, module, functions, target)
    free = {name: func for name, func in functions.items() if name not in asked}
    decisions = sweep.decide(free, calls) | asked
    tuned = _as_decided(functions, decisions, threads)
    if trials:
        from compilers.tvm.tune import Tuner

        tuner = Tuner(sweep=sweep, trials=trials, cache=TileCache.for_build(*names, f"tune{trials}"))
        decisions = tuner.improve(free, {name: decisions[name] for name in free}, calls) | asked
        tuned |= tuner.tuned(free, decisions)
    safe = {name: func for name, func in functions.items() if decisions[name].build == "safe"}
    executable = library.assemble(module, tuned, safe, target, reference_target(target))
    return Built(
        executable=executable,
        check=executable,
        triple=str(target.attrs["mtriple"]),
        decisions=decisions,
        calls=calls,
        nodes=frontend.nodes_of(module),
        integer_macs=int(imported.attrs[frontend.INTEGER_MACS]),
        facts=(("mcpu", cpu_of(target)),),
    )


def build_elsewhere(segment: Segment, version: str, *, threads: int) -> Built:
    """Build a segment for the processor of another machine; where it answers over RPC, its tiles are timed there.

    Raises:
        CompilerError: TVM does not know the target, or refused the graph or a tile.
    """
    target, here = target_of(segment.device, segment.processor), reference_target(host_target())
    imported = frontend.read(segment.graph)
    integer_macs = int(imported.attrs[frontend.INTEGER_MACS])
    module, functions = frontend.fused(imported, target)
    asked = _asked(segment, module, functions, target)
    free = {name: func for name, func in functions.items() if name not in asked}
    chosen, chosen_facts = _chosen(free, target, segment.device.address, version, threads)
    decisions = chosen | asked
    tuned = _as_decided(functions, decisions, threads)
    # The target's own dot-product instructions are in the schedules; the check then lays the model out anew.
    alike = not (integer_macs and dot_of(target))
    triple, split = str(target.attrs["mtriple"]), Split()
    executable = library.assemble(module, tuned, {}, target, here, instruments=[split])
    return Built(
        executable=executable,
        check=library.assemble(module, tuned, {}, here, here) if alike else _plain(imported, here, threads),
        triple=triple,
        decisions=decisions,
        calls=frontend.count_calls(module),
        nodes=frontend.nodes_of(module),
        integer_macs=integer_macs,
        code=code_facts(executable, split, triple),
        facts=(
            ("mcpu", cpu_of(target)),
            ("mtriple", triple),
            *chosen_facts,
            ("checked", f"on this machine's code generator, with {'the same' if alike else 'other'} schedules"),
        ),
    )


def _chosen(
    functions: Mapping[str, Any],
    target: Any,  # noqa: ANN401
    address: Address | None,
    version: str,
    threads: int,
) -> tuple[dict[str, Decision], tuple[tuple[str, str], ...]]:
    """Decide by times on the device where one answers, else by the model until it does; and say how in facts."""
    registers = registers_of(target)
    facts = [("schedules", f"not measured: the model's first for {registers.count} x {registers.lanes * 32} bits")]
    if address is not None:
        from compilers.tvm import there

        names = (version, cpu_of(target), str(address), f"t{threads}", f"r{_SCHEDULE}")
        shared = TileCache.for_build(*names)
        try:
            board = there.board_at(address, shared.parts())
            cache = shared.part(board)
            found, fresh = there.decide(functions, target, address, board, cache, threads=threads)
        except PassingError as error:
            facts += [(PROVISIONAL, f"tiles were not timed on the device: {error}")]
        except CompilerError as error:  # it would say the same next time
            facts = [("schedules", f"{facts[0][1]}; {error}")]
        else:
            for key, decision in fresh.items():
                cache.put(key, decision)
            timed = sum(decision.time_s is not None for decision in found.values())
            what = f"board {board}" if board else "which does not say what it is: boards there are taken for alike"
            how = f"the faster of two, measured on {address} ({what}), for {timed} of {len(found)} functions"
            return found, (("schedules", how),)
    return foreign.decide(functions, target, threads=threads), tuple(facts)


def _asked(segment: Segment, module: Any, functions: Mapping[str, Any], target: Any) -> dict[str, Decision]:  # noqa: ANN401
    """Return the decisions that the segment's tiles come to.

    Raises:
        CompilerError: a tile is not for one of the functions, or not legal there.
    """
    found = {}
    for name, asked in tiles_by_function(segment, module, functions, _tile).items():
        nest = analyse(functions[name])
        if nest is None:
            raise CompilerError(f"the plan's tile {asked} cannot be built for {name}: it has no reduction")
        tile = asked if isinstance(asked, TileConfig) else blocked(nest, registers_of(target), asked)
        reason = refusal(tile, nest)
        if reason is not None:
            raise CompilerError(f"the plan's tile {tile} cannot be built for {name}: {reason}")
        found[name] = Decision(build="tiled", config=tile, reason="asked for by the plan")
    return found


def _tile(**sizes: Any) -> TileConfig | tuple[int, int, int]:  # noqa: ANN401
    """Read the fields of a register tile, or the rows, columns and channels of an NPU's tile, which becomes a block.

    Sums stay in registers whatever the tile's input channels `c` are.
    """
    if sizes.keys() != {"x", "y", "k", "c"}:
        return TileConfig(**sizes)
    if min(sizes.values()) < 1:
        raise ValueError("every size must be at least 1")
    return sizes["y"], sizes["x"], sizes["k"]


def _plain(imported: Any, target: Any, threads: int) -> Any:  # noqa: ANN401
    """Build the model without a measurement."""
    module, functions = frontend.fused(imported, target)
    decisions = foreign.decide(functions, target, threads=threads)
    return library.assemble(module, _as_decided(functions, decisions, threads), {}, target, target)


def _as_decided(functions: Mapping[str, Any], decisions: Mapping[str, Decision], threads: int) -> dict[str, Any]:
    return {name: apply(func, decisions[name], threads=threads) for name, func in functions.items()}


# None of the 20 functions of MobileNetV2 and ResNet-18 that were tried got faster by 16 schedules of MetaSchedule, at
# ten times the cost of 16 tiles.
_WIDE: Final = 16
# Of schedule.py, by_rows.py and tiles.py: raise it when the same TileConfig, or none, comes to mean other code.
_SCHEDULE: Final = 7
