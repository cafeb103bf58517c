"""The two ways a context binary is kept: beside its ONNX file (external), or inside it (embedded)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from compilers.adapter import CompilerError

EMBEDDED_FILE: Final = "context_embedded.onnx"


def embed_context(context: Path, target: Path) -> None:
    """Write an ONNX file that holds the context binaries which `context` names beside it.

    Raises:
        CompilerError: `context` is no file with an external context binary, or the binary is gone.
    """
    import onnx

    model = onnx.load(str(context), load_external_data=False)
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    embedded = 0
    for node in nodes:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        attributes["embed_mode"].i = 1
        if attributes["main_context"].i:
            attributes["ep_cache_context"].s = _binary(context.parent, attributes["ep_cache_context"].s.decode())
            embedded += 1
    if not embedded:
        raise CompilerError(f"{context} names no context binary (it has {len(nodes)} EPContext nodes)")
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    onnx.save(model, str(scratch))
    scratch.replace(target)


def _binary(folder: Path, name: str) -> bytes:
    path = folder / Path(name).name  # what an ONNX file names must not lead out of its folder
    if not path.is_file():
        raise CompilerError(f"the context binary {path} is gone; compile again")
    return path.read_bytes()
