"""What TVM generates code for: this machine's CPU, a device's processor, and a baseline of a CPU family.

The table `[processors.NAME.ids.tvm]` of a device file is a target in TVM's own words (`kind`, `mtriple`, `mcpu`,
`mattr`, `vector-width`, `max_num_threads` and so on); lists are written with commas. A target that is no CPU takes
its host code from the table of the device's CPU.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import tvm
from tvm.target import codegen
from tvm.target.detect_target import detect_target_from_device

from compilers.adapter import CompilerError
from compilers.tvm.tiles import Registers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partition import Device

_BASELINES: Final = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}
# A hypervisor may mask what the CPU model implies; code for the model would then die of an illegal instruction.
_MASKABLE: Final = ("avx512f", "avx512vl", "avx512bw", "avx512dq", "avx2", "fma")
NATIVE: Final = "native"
# Functions begin on a line of the cache: a loop of 120 us took 6 % longer or not by what else lay in the library, so a
# kernel measured among its candidates was not the one in the model.
_ALIGNED: Final = "-align-all-functions:uint=6"
# Target options that TVM takes as lists.
_LISTS: Final = frozenset({"keys", "libs", "mattr", "cl-opt"})


def target_of(device: Device, processor: str) -> Any:  # noqa: ANN401
    """Return the target for a processor that `why_not` has let through; `mcpu = "native"` is this machine's CPU.

    Raises:
        CompilerError: this TVM does not know the target that the device file asks for.
    """
    ids = device.processor(processor).ids["tvm"]
    if is_native(ids):
        return host_target()
    if ids["kind"] == "llvm":
        asked = _option("cl-opt", ids["cl-opt"]) if "cl-opt" in ids else []
        return _known_cpu(_target(ids, **{"cl-opt": [*asked, _ALIGNED]}))
    cpu = next((p.name for p in device.processors if p.kind == "cpu" and p.name != processor), None)
    return _target(ids, host=target_of(device, cpu) if cpu else host_target())


def is_native(ids: Mapping[str, str]) -> bool:
    """Tell whether a table asks for this machine's CPU, so that the code can be tried here."""
    return ids.get("mcpu") == NATIVE


def _target(ids: Mapping[str, str], **more: Any) -> Any:  # noqa: ANN401
    config = {key: _option(key, text) for key, text in ids.items()}
    try:
        return tvm.target.Target(config | more)
    except (ValueError, TypeError) as error:
        reason = str(error).split(". Target creation", maxsplit=1)[0].strip()
        raise CompilerError(f"TVM does not know the target {dict(ids)}: {reason}") from error


def _option(key: str, text: str) -> Any:  # noqa: ANN401
    if key in _LISTS:
        return [part.strip() for part in text.split(",")]
    return int(text) if text.isdecimal() else text


def _known_cpu(target: Any) -> Any:  # noqa: ANN401
    """Return the target; for a CPU that LLVM does not know it would only log that it takes another."""
    triple, cpu = str(target.attrs["mtriple"]), cpu_of(target)
    try:
        codegen.llvm_get_vector_width(target)  # before the list of CPUs, which dies of an unknown triple
    except tvm.error.InternalError as error:
        raise CompilerError(f"TVM's LLVM generates no code for the triple {triple!r}") from error
    known = sorted(str(name) for name in tvm.get_global_func("target.llvm_get_cpu_archlist")(target))
    if cpu not in known:
        close = difflib.get_close_matches(cpu, known, n=3) or known
        raise CompilerError(f"TVM's LLVM knows no CPU {cpu!r} for {triple}; near it are {', '.join(close)}")
    return target


def host_target() -> Any:  # noqa: ANN401
    """Return the target for this machine's CPU, or for a portable level when LLVM's CPU model promises too much."""
    detected = detect_target_from_device("cpu")
    present = dict(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())
    masked = [f for f in _MASKABLE if codegen.target_has_features(f, detected) and not present.get(f)]
    level = "x86-64-v3" if present.get("avx2") and present.get("fma") else "x86-64-v2"
    return tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": str(detected.attrs["mtriple"]),
            "mcpu": level if masked else cpu_of(detected),
            # Level 3 compiles a fifth longer and the kernels, vectorised already, run no faster.
            "opt-level": 2,
            "cl-opt": [_ALIGNED],
        }
    )


def reference_target(host: Any, *, level: int = 1) -> Any:  # noqa: ANN401
    """Return the target that checks the others: the family's baseline CPU, optimisation `level` 0 or 1.

    The wrong code found so far (docs/vendor_bugs.md, Apache TVM) needs LLVM's loop vectoriser for AVX-512;
    neither the baseline CPU nor these levels have it.
    """
    triple = str(host.attrs["mtriple"])
    options = {"kind": "llvm", "mtriple": triple, "opt-level": level}
    baseline = _BASELINES.get(triple.split("-", maxsplit=1)[0])
    return tvm.target.Target(options | ({"mcpu": baseline} if baseline else {}))


def cpu_of(target: Any) -> str:  # noqa: ANN401
    """Return the name of the CPU model that a target generates code for."""
    return str(target.attrs.get("mcpu", "generic"))


def registers_of(target: Any) -> Registers:  # noqa: ANN401
    """Return the vector registers of a target."""
    return Registers.of_width(int(codegen.llvm_get_vector_width(target)))
