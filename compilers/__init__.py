"""Segment in, Artefact out: one backend per file, behind one interface."""

from compilers.adapter import (
    Action,
    Cause,
    Compiler,
    CompilerError,
    DiedError,
    LimitError,
    PassingError,
    Session,
    StartError,
    Variant,
)
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
from compilers.child import end_with_parent
from compilers.compatibility import known_bad
from compilers.machine import cpu_model
from compilers.ort_session import reference_session
from compilers.profile import KernelTime
from compilers.registry import UnknownBackendError, compiler_names, get_compiler
from compilers.sandbox import Limits, adapters_hash, cancel_children, compile_segment, in_child, signal_name
from compilers.trace import NodeTrace, Trace, longest_chain, trace_by_node

__all__ = [
    "Action",
    "Artefact",
    "Cause",
    "Compiler",
    "CompilerError",
    "DiedError",
    "Estimate",
    "KernelTime",
    "Latency",
    "LimitError",
    "Limits",
    "NodeTrace",
    "PassingError",
    "Placement",
    "Session",
    "Source",
    "StartError",
    "Trace",
    "UnknownBackendError",
    "Variant",
    "adapters_hash",
    "cancel_children",
    "compile_segment",
    "compiler_names",
    "cpu_model",
    "end_with_parent",
    "get_compiler",
    "in_child",
    "known_bad",
    "longest_chain",
    "read_artefact",
    "reference_session",
    "signal_name",
    "trace_by_node",
    "tree_size_bytes",
    "write_artefact",
]
