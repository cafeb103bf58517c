"""The dot product of four bytes and four signed ones on GPUs: its name in each language, and TVM's intrinsic for it.

Imports TVM; only reached through the methods of `TvmCompiler`.

CUDA has the instruction `dp4a`, called by its name: TVM's own `__dp4a` for bytes of two kinds is declared and not
defined under NVRTC (docs/vendor_bugs.md). OpenCL has `dot` where the device says `cl_khr_integer_dot_product`: the
source asks when it is compiled, and multiplies byte by byte elsewhere, so one artefact serves all devices. Metal has
none.

Not used: Qualcomm's older `qcom_dot8_acc` (`cl_qcom_dot_product8`), whose first operand is signed in one public use and
unsigned in another, and for which there is no device here to ask.
"""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from tvm.s_tir import SBlockRealize, Schedule, TensorIntrin
from tvm.script import tirx

from compilers.tvm.dot import meaning

_NAME: Final = "edgefrontier_dot4"
# TVM asks for it kernel by kernel, and the file has them all.
_OPENCL: Final = f"""\
#ifndef EDGEFRONTIER_DOT4
#define EDGEFRONTIER_DOT4
#if defined(cl_khr_integer_dot_product) && defined(__opencl_c_integer_dot_product_input_4x8bit)
#define {_NAME}_int8(a, b, c) ((c) + dot(a, b))
#define {_NAME}_uint8(a, b, c) ((c) + dot(a, b))
#else
static inline int {_NAME}_int8(char4 a, char4 b, int c) {{
  return c + a.s0 * b.s0 + a.s1 * b.s1 + a.s2 * b.s2 + a.s3 * b.s3;
}}
static inline int {_NAME}_uint8(uchar4 a, char4 b, int c) {{
  return c + a.s0 * b.s0 + a.s1 * b.s1 + a.s2 * b.s2 + a.s3 * b.s3;
}}
#endif
#endif
"""


_CUDA: Final = "".join(
    f"""\
static __device__ __forceinline__ int {_NAME}_{data}({word} a, int b, int c) {{
#if __CUDA_ARCH__ >= 610
  asm("dp4a.{kind}.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
#else
  for (int i = 0; i < 32; i += 8) c += (int)({byte})(a >> i) * (int)(signed char)(b >> i);
#endif
  return c;
}}
"""
    for data, word, kind, byte in (("int8", "int", "s32", "signed char"), ("uint8", "unsigned", "u32", "unsigned char"))
)


def gpu_intrinsic(target: Any, data: str, lanes: int) -> str | None:  # noqa: ANN401
    """Return the name of the intrinsic for that many neighbouring channels, None where the language has none.

    `data` is the type of the data, "int8" or "uint8".
    """
    kind = str(target.kind.name)
    if kind not in ("cuda", "opencl"):
        return None
    name = f"edgefrontier.{kind}.{data}.{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, meaning(data, lanes, "local"), _code(f"{_NAME}_{data}", data, lanes))
    return name


def with_dots(func: Any, block: str, intrinsic: str) -> Any:  # noqa: ANN401
    """Return a scheduled function whose sums are the intrinsic, in the last two loops around `block`.

    An instruction has no condition, so a thread adds up beyond the last position as well: what it reads there are
    registers that nothing was loaded into, and the store, which has its own condition, leaves the sum out.
    """

    def always(realize: Any) -> Any:  # noqa: ANN401
        if str(realize.block.name_hint) != block:
            return realize
        return SBlockRealize(realize.iter_values, tvm.tirx.IntImm("bool", 1), realize.block)

    owner = tvm.IRModule({"main": tvm_ffi.structural_map(func, [(SBlockRealize, always)])})
    sch = Schedule(owner)
    sch.tensorize(sch.get_loops(sch.get_sblock(block))[-2], intrinsic)
    return sch.mod["main"]


# What TVM asks for after it has written the source of a language.
@tvm.register_global_func("tvm_callback_opencl_postproc", override=True)  # type: ignore[untyped-decorator]
def _for_opencl(source: str, _target: Any) -> str:  # noqa: ANN401
    return _OPENCL + source if _NAME in source else source


@tvm.register_global_func("tvm_callback_cuda_postproc", override=True)  # type: ignore[untyped-decorator]
def _for_cuda(source: str, _target: Any) -> str:  # noqa: ANN401
    return _CUDA + source if _NAME in source else source


def _code(function: str, data: str, lanes: int) -> Any:  # noqa: ANN401
    @tirx.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def code(
        a: tirx.Buffer((4,), data, offset_factor=1, scope="local"),  # type: ignore[valid-type]
        b: tirx.Buffer((lanes, 4), "int8", offset_factor=1, scope="local"),  # type: ignore[valid-type]
        c: tirx.Buffer((lanes,), "int32", offset_factor=1, scope="local"),  # type: ignore[valid-type]
    ) -> None:
        with tirx.sblock("root"):
            tirx.reads(c[0:lanes], a[0:4], b[0:lanes, 0:4])
            tirx.writes(c[0:lanes])
            for i in tirx.unroll(0, lanes):
                c[i] = tirx.call_pure_extern(
                    function, a.vload([0], dtype=f"{data}x4"), b.vload([i, 0], dtype="int8x4"), c[i], dtype="int32"
                )

    return code
