"""Segment in, Artefact out: one backend per file, behind one interface."""

from compilers.adapter import Action, Compiler, CompilerError, Session
from compilers.artefact import (
    Artefact,
    Estimate,
    Latency,
    Placement,
    Source,
    read_artefact,
    tree_size_bytes,
    write_artefact,
)
from compilers.ort_session import reference_session
from compilers.registry import compiler_names, get_compiler
from compilers.sandbox import Limits, cancel_children, compile_segment, in_child

__all__ = [
    "Action",
    "Artefact",
    "Compiler",
    "CompilerError",
    "Estimate",
    "Latency",
    "Limits",
    "Placement",
    "Session",
    "Source",
    "cancel_children",
    "compile_segment",
    "compiler_names",
    "get_compiler",
    "in_child",
    "read_artefact",
    "reference_session",
    "tree_size_bytes",
    "write_artefact",
]
