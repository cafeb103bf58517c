"""Build the module and pack it into files.

Imports TVM; only reached through the methods of `TvmCompiler`.

With a C++ compiler on the PATH the code becomes a shared library (`model.so`). Without one, there is nothing to
link with, so the bytecode and weights go to `model.vm` and the code as optimised LLVM IR to `code0.ll`, which
TVM's own LLVM turns into machine code when it is loaded (seconds instead of milliseconds).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline

from compilers.tvm.nans import PIPELINE
from compilers.tvm.weights import lay_out_constants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NO_ASSERTS: Final = {"tirx.disable_assert": True}
"""For a PassContext. The checks of shapes and strides at each function's entry are a fifth of all that LLVM compiles,
and say nothing new: the virtual machine checks what the user passes to `main`."""

_COMPILERS: Final = ("g++", "gcc", "c++", "cc", "clang++", "clang")
SAFE_SUFFIX: Final = "_safe"


def assemble(
    module: Any,  # noqa: ANN401
    tuned: Mapping[str, Any],
    safe: Mapping[str, Any],
    target: Any,  # noqa: ANN401
    baseline: Any,  # noqa: ANN401
    *,
    instruments: Sequence[Any] = (),
    lowering: str = PIPELINE,
) -> Any:  # noqa: ANN401
    """Build the executable from the module with its functions as tuned; `instruments` see the passes of the build.

    `lowering` names TVM's pipeline for the functions.

    `safe` are the functions that only the baseline target compiles right; they become a library of their own
    and the main function calls them by name.
    """
    functions = {gv: func for gv, func in module.functions.items() if gv.name_hint not in safe}
    functions = {gv: tuned.get(gv.name_hint, func) for gv, func in functions.items()}
    whole = tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
    if safe:
        whole["main"] = _Externaliser(module, frozenset(safe)).visit_expr(whole["main"])
        named = {name + SAFE_SUFFIX: func for name, func in safe.items()}
        external = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in named.items()})
        whole = whole.with_attr("external_mods", [tvm.tirx.build(external, target=baseline, pipeline=PIPELINE)])
    whole = lay_out_constants(whole)
    # Not TVM's default pipeline: that would fuse again, across the functions as scheduled.
    passes = pipeline.dataflow_lower_passes(target) + pipeline.finalize_passes(target)
    with target, tvm.transform.PassContext(opt_level=3, config=NO_ASSERTS, instruments=list(instruments)):
        return relax.build(whole, target=target, relax_pipeline=tvm.transform.Sequential(passes), tir_pipeline=lowering)


def export(executable: Any, folder: Path) -> tuple[str, ...]:  # noqa: ANN401
    """Write the executable into `folder` and return the files' names, the main one first."""
    if any(shutil.which(name) for name in _COMPILERS):
        executable.export_library(str(folder / "model.so"))
        return ("model.so",)
    executable.mod.write_to_file(str(folder / "model.vm"), "relax.VMExecutable")
    codes = [imported for imported in executable.mod.imports if imported.kind == "llvm"]
    names = [f"code{index}.ll" for index in range(len(codes))]
    for name, code in zip(names, codes, strict=True):
        code.write_to_file(str(folder / name), "ll")
    return ("model.vm", *names)


@relax.expr_functor.mutator
class _Externaliser(relax.PyExprMutator):  # type: ignore[misc]
    """Call some functions by the name of their external twin instead."""

    def __init__(self, module: Any, names: frozenset[str]) -> None:  # noqa: ANN401
        super().__init__(module)
        self._names = names

    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        call = self.visit_expr_post_order(call)
        if call.op != tvm.ir.Op.get("relax.call_tir") or call.args[0].name_hint not in self._names:
            return call
        (kind,) = call.ty_args
        kinds = list(kind.fields) if isinstance(kind, tvm.ir.TupleType) else kind
        return relax.call_dps_packed(call.args[0].name_hint + SAFE_SUFFIX, call.args[1], kinds)
