"""Code for a processor that this machine has not: tiles by the model alone, checked here, packed as ELF.

Nothing is measured, because nothing runs: the order of `tiles.candidates` for the target's vector registers decides,
and its first tile that TVM can schedule and compile is taken. The same scheduled functions are also built for this
machine's baseline CPU, so that the whole model can be checked: a wrong schedule is found, a wrong instruction of
the target's own code generator is not.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compilers.adapter import CompilerError
from compilers.tvm.blocks import UnscheduledError
from compilers.tvm.cache import Decision
from compilers.tvm.elf import MACHINES, machine_of
from compilers.tvm.schedule import analyse, schedule
from compilers.tvm.sweep import build_modules
from compilers.tvm.targets import registers_of
from compilers.tvm.tiles import candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A page of the newest Android devices; smaller pages divide it.
_LLD: Final = ("ld.lld", "-shared", "-z", "max-page-size=16384")
_GCC: Final = {"aarch64": ("aarch64-linux-gnu-gcc", "-shared", "-nostdlib", "-Wl,-z,max-page-size=16384")}
_TRIED: Final = 2


def decide(functions: Mapping[str, Any], target: Any, *, threads: int) -> dict[str, Decision]:  # noqa: ANN401
    """Take the first candidate of each function that compiles for the target; "plain" where none does."""
    decisions: dict[str, Decision] = {}
    for turn in range(_TRIED):
        rest = {name: func for name, func in functions.items() if name not in decisions}
        chosen = {name: planned(func, target, turn, threads) for name, func in rest.items()}
        scheduled = {}
        for name, decision in chosen.items():
            try:
                if decision.build != "plain":
                    scheduled[name] = schedule(rest[name], decision.config, threads=threads)
            except UnscheduledError as reason:
                chosen[name] = Decision(build="plain", reason=str(reason))
        built = {name for names, _ in build_modules(scheduled, target) for name in names}
        decisions |= {name: chosen[name] for name in rest if name in built or name not in scheduled}
    left = Decision(build="plain", reason="TVM compiles none of its schedules for this target")
    return {name: decisions.get(name, left) for name in functions}


def planned(func: Any, target: Any, turn: int, threads: int) -> Decision:  # noqa: ANN401
    """Return how the static model would build a function, in its second choice when `turn` is 1."""
    try:
        nest = analyse(func)
    except UnscheduledError as reason:
        return Decision(build="plain", reason=str(reason))
    if nest is None:
        return Decision(build="flat")
    tiles = candidates(nest, registers_of(target), _TRIED, threads)
    return Decision(build="tiled", config=tiles[min(turn, len(tiles) - 1)])


def export(executable: Any, folder: Path, triple: str) -> tuple[str, ...]:  # noqa: ANN401
    """Write a shared library where a linker for the triple is at hand, else its objects as a tar.

    Raises:
        CompilerError: TVM wrote code for another machine than asked, or the linker failed.
    """
    return (pack(executable, folder, triple).name,)


def pack(library: Any, folder: Path, triple: str) -> Path:  # noqa: ANN401
    """Write a module as `export` does and return the file."""
    linker = linker_for(triple)
    path = folder / ("model.so" if linker else "model.tar")
    library.export_library(str(path), fcompile=_packer(linker, triple))
    return path


def linker_for(triple: str) -> tuple[str, ...] | None:
    """Return the command that links a shared library for the triple, None when no such linker is on the PATH.

    For Windows there is none: these write ELF.
    """
    if "windows" in triple:
        return None
    commands = (_LLD, _GCC.get(_architecture(triple)))
    return next((command for command in commands if command and shutil.which(command[0])), None)


def _packer(linker: Sequence[str] | None, triple: str) -> Callable[[str, list[str]], None]:
    def pack(output: str, objects: list[str]) -> None:
        for path in objects:
            check_machine(Path(path), triple)
        if linker:
            _link([*linker, "-o", output, *objects])
            check_machine(Path(output), triple)
            return
        with tarfile.open(output, "w") as archive:
            for path in objects:
                archive.add(path, arcname=Path(path).name)

    return pack


def check_machine(path: Path, triple: str) -> None:
    """See that an object file is for the machine of the triple: TVM builds for this one where a host is missing.

    Raises:
        CompilerError: it is for another machine, or is no object file.
    """
    architecture = _architecture(triple)
    if architecture not in MACHINES:
        raise CompilerError(f"whether code is for {triple!r} cannot be told here; known are {', '.join(MACHINES)}")
    found = machine_of(path)
    if found != architecture:
        raise CompilerError(f"TVM was asked for {triple} and wrote code for {found}: {path.name}")


def _architecture(triple: str) -> str:
    return triple.split("-", maxsplit=1)[0].replace("arm64", "aarch64")


def _link(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerError(f"{command[0]} could not link the library", log=done.stderr)
