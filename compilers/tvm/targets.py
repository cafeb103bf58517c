"""The LLVM targets: this machine's CPU, and a baseline that every machine of its family runs.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
from tvm.target import codegen
from tvm.target.detect_target import detect_target_from_device

from compilers.tvm.tiles import Registers

_BASELINES: Final = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}
# A hypervisor may mask what the CPU model implies; code for the model would then die of an illegal instruction.
_MASKABLE: Final = ("avx512f", "avx512vl", "avx512bw", "avx512dq", "avx2", "fma")


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
