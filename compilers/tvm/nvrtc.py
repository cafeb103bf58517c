"""CUDA kernels as PTX: NVIDIA's run-time compiler takes the generated source, without a GPU and without a toolkit.

No TVM here. It shows that the source compiles for an architecture; nothing is launched.
"""

from __future__ import annotations

from typing import Any, Final

from compilers.adapter import CompilerError, missing_package

_EXTRA: Final = "edgefrontier[cuda]"


def why_not() -> str | None:
    """Return None when the compiler is installed, else what is missing; imports nothing heavy."""
    # `cuda` is a namespace, and to look into one that is not there raises.
    return missing_package("cuda", _EXTRA) or missing_package("cuda.bindings", _EXTRA)


def architectures() -> frozenset[str]:
    """Return the names of the architectures that it compiles for.

    Raises:
        CompilerError: its library cannot be loaded.
    """
    from cuda.bindings import nvrtc

    try:
        answer = nvrtc.nvrtcGetSupportedArchs()
    except RuntimeError as error:  # what the bindings raise when they find no library
        raise CompilerError(f"NVRTC's library cannot be loaded; run `pip install {_EXTRA}`: {error}") from error
    return frozenset(f"sm_{number}" for number in _told(answer, "list its architectures"))


def ptx(source: str, arch: str) -> str:
    """Return the PTX of the kernels for an architecture such as "sm_87".

    Raises:
        CompilerError: the architecture is unknown to this NVRTC, its headers are not installed, or it refuses the
            source; with its log.
    """
    from cuda.bindings import nvrtc

    known = architectures()
    if arch not in known:
        raise CompilerError(f"NVRTC compiles for no {arch!r}; it knows {', '.join(sorted(known))}")
    program = _told(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []), "take the source")
    options = [f"--gpu-architecture={arch.replace('sm', 'compute')}", "--std=c++17", "-default-device", *_includes()]
    encoded = [option.encode() for option in options]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _told(nvrtc.nvrtcGetProgramLogSize(program), "give its log")
        nvrtc.nvrtcGetProgramLog(program, log)
        told = log.decode(errors="replace").strip("\x00 ")
        lines = told.splitlines()
        first = next((line for line in lines if ": error: " in line), lines[0])
        raise CompilerError(f"NVRTC refuses the kernels for {arch}: {first}", log=told)
    code = b" " * _told(nvrtc.nvrtcGetPTXSize(program), "give its code")
    nvrtc.nvrtcGetPTX(program, code)
    return str(code.decode().rstrip("\x00 "))


def _told(answer: tuple[Any, ...], what: str) -> Any:  # noqa: ANN401
    result, *values = answer
    if result.value:
        raise CompilerError(f"NVRTC could not {what}: {result.name}")
    return values[-1]


def _includes() -> list[str]:
    """Return where the headers are that the source includes."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = {library: find_nvidia_header_directory(library) for library in ("cudart", "cccl")}
    for library, folder in found.items():
        if folder is None:
            raise CompilerError(f"the headers of {library}, which CUDA source includes, are not installed: {_EXTRA}")
    return [f"-I{folder}" for folder in found.values()]
