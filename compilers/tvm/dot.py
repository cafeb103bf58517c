"""Dot-product instructions: four products of bytes added to each 32-bit lane, and the TVM intrinsics for them.

Imports TVM; only reached through the methods of `TvmCompiler`.

TVM ships intrinsics of this kind. The ones for VNNI do not fit the wheel's LLVM (docs/vendor_bugs.md, Apache TVM),
and importing their package costs 15 s of CPU; so these are our own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import tvm
from tvm.s_tir import TensorIntrin
from tvm.script import tirx
from tvm.target import codegen

BYTES: Final = 4
"""Products that one lane adds."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A family of instructions: the type of the data ("" for either), and widths in 32-bit lanes, the widest first.

    Weights are int8. `llvm` has LLVM's name for each width, and `words` tells that LLVM types the operands as 32-bit
    lanes instead of bytes; a GPU's code is in a language of its own.
    """

    name: str
    data: str
    lanes: tuple[int, ...]
    llvm: tuple[str, ...] = ()
    words: bool = False


_VNNI512: Final = Dot(
    name="vnni512",
    data="uint8",
    lanes=(16, 8, 4),
    llvm=tuple(f"llvm.x86.avx512.vpdpbusd.{bits}" for bits in (512, 256, 128)),
)
_VNNI: Final = Dot(name="vnni", data="uint8", lanes=(8, 4), llvm=_VNNI512.llvm[1:])
_SDOT: Final = Dot(name="sdot", data="int8", lanes=(4,), llvm=("llvm.aarch64.neon.sdot.v4i32.v16i8",))
# HVX vectors of 128 bytes: unsigned data times signed weights.
_VRMPY: Final = Dot(name="vrmpy", data="uint8", lanes=(32,), llvm=("llvm.hexagon.V6.vrmpybusv.acc.128B",), words=True)
# Whether a GPU has such an instruction or multiplies byte by byte is for `gpu_dot`; the layout serves both.
_GPU: Final = Dot(name="gpu", data="", lanes=(4, 1))
_GPU_KINDS: Final = ("opencl", "metal", "cuda")
# The first whose features a target has is the one it gets.
_FEATURES: Final = (
    (("avx512vnni", "avx512vl"), _VNNI512),
    (("avxvnni",), _VNNI),
    (("dotprod",), _SDOT),
    (("hvx-length128b",), _VRMPY),
)
_FAMILIES: Final = {dot.name: dot for dot in (*(dot for _, dot in _FEATURES), _GPU)}


def dot_of(target: Any) -> Dot | None:  # noqa: ANN401
    """Return the dot-product instructions that code for a target may use, if it has any."""
    if str(target.kind.name) in _GPU_KINDS:
        return _GPU
    found = (dot for features, dot in _FEATURES if all(codegen.target_has_features(f, target) for f in features))
    return next(found, None)


def family(name: str) -> Dot:
    """Return the instructions of a name."""
    return _FAMILIES[name]


def intrinsic(dot: Dot, lanes: int) -> str:
    """Return the name of the TVM intrinsic for one width, registered on first use."""
    name = f"edgefrontier.{dot.name}.{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, meaning(dot.data, lanes), _code(dot, lanes))
    return name


def meaning(data: str, lanes: int, operands: str = "global") -> Any:  # noqa: ANN401
    """Return what an instruction computes, for TVM to find it in a function; `operands` is the scope they lie in."""

    @tirx.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def meaning(
        a: tirx.Buffer((4,), data, offset_factor=1, scope=operands),  # type: ignore[valid-type]
        b: tirx.Buffer((lanes, 4), "int8", offset_factor=1, scope=operands),  # type: ignore[valid-type]
        c: tirx.Buffer((lanes,), "int32", offset_factor=1, scope="local"),  # type: ignore[valid-type]
    ) -> None:
        with tirx.sblock("root"):
            tirx.reads(c[0:lanes], a[0:4], b[0:lanes, 0:4])
            tirx.writes(c[0:lanes])
            for i in tirx.serial(0, lanes):
                for k in tirx.serial(0, 4):
                    with tirx.sblock("update"):
                        vi, vk = tirx.axis.remap("SR", [i, k])
                        c[vi] = c[vi] + tirx.cast(a[vk], "int32") * tirx.cast(b[vi, vk], "int32")

    return meaning


def _code(dot: Dot, lanes: int) -> Any:  # noqa: ANN401
    number = tvm.target.codegen.llvm_lookup_intrinsic_id(dict(zip(dot.lanes, dot.llvm, strict=True))[lanes])
    data, wide = dot.data, lanes * 4
    operand = f"int32x{lanes}" if dot.words else f"int8x{wide}"

    @tirx.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def code(
        a: tirx.Buffer((4,), data, offset_factor=1),  # type: ignore[valid-type]
        b: tirx.Buffer((lanes, 4), "int8", offset_factor=1),  # type: ignore[valid-type]
        c: tirx.Buffer((lanes,), "int32", offset_factor=1, scope="local"),  # type: ignore[valid-type]
    ) -> None:
        with tirx.sblock("root"):
            tirx.reads(c[0:lanes], a[0:4], b[0:lanes, 0:4])
            tirx.writes(c[0:lanes])
            c[tirx.ramp(tirx.int32(0), 1, lanes)] = tirx.call_llvm_pure_intrin(
                number,
                c.vload([0], dtype=f"int32x{lanes}"),
                tirx.reinterpret(
                    tirx.broadcast(tirx.reinterpret(a.vload([0], f"{data}x4"), dtype="int32"), lanes),
                    dtype=operand,
                ),
                tirx.reinterpret(b.vload([0, 0], dtype=f"int8x{wide}"), dtype=operand),
                dtype=f"int32x{lanes}",
            )

    return code
