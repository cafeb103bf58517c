"""Choose between two tiles of each function by their times on a device over RPC, cached by structure.

Imports TVM; only reached through the methods of `TvmCompiler`.

What is right is checked elsewhere: the whole model here with the same schedules, and on the device when it runs.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import PassingError
from compilers.tvm import foreign
from compilers.tvm.remote import connect, kernel_times_s, see_board
from compilers.tvm.schedule import schedule
from compilers.tvm.sweep import arguments_of, build_modules, structure_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compilers.tvm.cache import Decision, TileCache
    from partition import Address

# The static model's choice stands unless the other is faster by more than the noise.
_CLEARLY_FASTER: Final = 0.97
_OTHER: Final = "_other"


def decide(
    functions: Mapping[str, Any],
    target: Any,  # noqa: ANN401
    address: Address,
    board: str,
    cache: TileCache,
    *,
    threads: int,
) -> tuple[dict[str, Decision], dict[str, Decision]]:
    """Return a decision for each function, and by structure those that the cache lacked.

    They are built, sent to the device and timed there; the caller puts them into the cache.

    Raises:
        PassingError: the device does not answer.
        CompilerError: it refuses to load or to run the kernels.
    """
    keys = {name: structure_key(func) for name, func in functions.items()}
    known = {key: decision for key in keys.values() if (decision := cache.get(key))}
    unknown = {name: func for name, func in functions.items() if keys[name] not in known}
    measured = _measured(unknown, target, address, board, threads=threads)
    fresh = {keys[name]: decision for name, decision in measured.items()}
    return {name: (known | fresh)[key] for name, key in keys.items()}, fresh


def board_at(address: Address, known: Sequence[str]) -> str:
    """Return the kind of the board that answers; where none does, the only kind that is `known` from before.

    Raises:
        PassingError: none answers, and none or several are known.
    """
    try:
        return see_board(address)
    except PassingError:
        if len(known) != 1:
            raise
        return known[0]


def see_answer(address: Address) -> None:
    """See that a device would time functions now.

    Raises:
        CompilerError: it does not answer.
    """
    connect(address)


def _measured(
    functions: Mapping[str, Any],
    target: Any,  # noqa: ANN401
    address: Address,
    board: str,
    *,
    threads: int,
) -> dict[str, Decision]:
    decisions = foreign.decide(functions, target, threads=threads)
    tiled = {name: decision for name, decision in decisions.items() if decision.build == "tiled"}
    others = {name: foreign.planned(functions[name], target, 1, threads) for name in tiled}
    others = {name: other for name, other in others.items() if other.config != tiled[name].config}
    scheduled = {name: schedule(functions[name], tiled[name].config, threads=threads) for name in others}
    scheduled |= {
        name + _OTHER: schedule(functions[name], other.config, threads=threads) for name, other in others.items()
    }
    times = _times_s(scheduled, functions, target, address, board) if scheduled else {}
    for name, other in others.items():
        first_s, other_s = times.get(name), times.get(name + _OTHER)
        if first_s is None or other_s is None:
            continue  # one of them does not compile
        faster = other_s < _CLEARLY_FASTER * first_s
        decisions[name] = dataclasses.replace(other if faster else tiled[name], time_s=min(first_s, other_s))
    return decisions


def _times_s(
    scheduled: Mapping[str, Any],
    functions: Mapping[str, Any],
    target: Any,  # noqa: ANN401
    address: Address,
    board: str,
) -> dict[str, float]:
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        for names, library in build_modules(scheduled, target):
            path = foreign.pack(library, Path(folder), str(target.attrs["mtriple"]))
            arrays = {
                name: [t.numpy() for t in arguments_of(functions[name.removesuffix(_OTHER)], scheduled[name])]
                for name in names
            }
            times |= kernel_times_s(address, board, path, arrays)
    return times
