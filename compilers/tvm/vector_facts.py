"""Static facts of a CPU's or a vector unit's code: memory traffic from the scheduled loops, instructions from LLVM.

Imports TVM; only reached through the methods of `TvmCompiler`.

Loads and stores are counted as executed, a vector's as one each, before LLVM keeps some in registers or takes loops
apart. Instructions are those in the assembly that TVM's own LLVM writes, each counted once however often it runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from compilers.tvm.gpu_facts import Split, read_function

if TYPE_CHECKING:
    from collections.abc import Mapping

# By architecture: a register of the vector unit, an instruction that multiplies vectors and adds, and a stack frame.
_VECTOR: Final = {"hexagon": re.compile(r"\bv\d+(:\d+)?\b"), "aarch64": re.compile(r"\bv\d+\.\d*[bhsd]|\bq\d+\b")}
_PRODUCTS: Final = {
    "hexagon": re.compile(r"\bvr?mpy\w*\("),
    "aarch64": re.compile(r"\b(fml[as]|[su]dot|[su]?mlal?2?)\b"),
}
_FRAME: Final = {
    "hexagon": re.compile(r"allocframe\((?:r29,)?#(\d+)\)"),
    "aarch64": re.compile(r"sub\s+sp, sp, #(\d+)"),
}
_LABEL: Final = re.compile(r"^([A-Za-z_][\w$.]*):", re.MULTILINE)
# The part of a function that computes, apart from what checks its arguments.
_BODY: Final = "_compute_"


def code_facts(executable: Any, split: Split, triple: str) -> dict[str, dict[str, int]]:  # noqa: ANN401
    """Return the facts of each function by its name; those of the assembly where the architecture is known here.

    `split` was an instrument of the build.
    """
    architecture = triple.split("-", maxsplit=1)[0]
    assembly = _functions(_assembly(executable)) if architecture in _VECTOR else {}
    found = {}
    for name, function in split.functions.items():
        try:
            kernel = read_function(name, function)
        except NotImplementedError:
            continue  # a function that was left as TVM lowers it
        facts = {
            "flops": kernel.flops,
            "loads": sum(a.per_thread for a in kernel.accesses if not a.store),
            "stores": sum(a.per_thread for a in kernel.accesses if a.store),
            "vector_bytes": max((a.vector * a.element_bytes for a in kernel.accesses), default=0),
            "buffer_bytes": kernel.local_bytes,
        }
        text = assembly.get(name + _BODY, assembly.get(f"__tvm_ffi_{name}", ""))
        found[name] = facts | (_counts(text, architecture) if text else {})
    return found


def _counts(text: str, architecture: str) -> dict[str, int]:
    code = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith((".", "//", "{", "}"))]
    return {
        "vector_instructions": sum(bool(_VECTOR[architecture].search(line)) for line in code),
        "vector_products": sum(bool(_PRODUCTS[architecture].search(line)) for line in code),
        "stack_bytes": sum(int(size) for size in _FRAME[architecture].findall(text)),
    }


def _assembly(executable: Any) -> str:  # noqa: ANN401
    pending, texts = [executable.mod], []
    while pending:
        module = pending.pop()
        pending += list(module.imports)
        if module.kind == "llvm":
            texts.append(str(module.inspect_source("asm")))
    return "\n".join(texts)


def _functions(assembly: str) -> Mapping[str, str]:
    """Cut the assembly at its labels of functions."""
    starts = [*_LABEL.finditer(assembly)]
    ends = [*(match.start() for match in starts[1:]), len(assembly)]
    return {match[1]: assembly[match.end() : end] for match, end in zip(starts, ends, strict=True)}
