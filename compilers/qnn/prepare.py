"""One compile by the QNN provider: context binary, profile and placement in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compilers.adapter import CompilerError, StartError
from compilers.qnn.estimate import PLACEMENT_FILE, PROFILE_FILE
from compilers.qnn.placement import Partitioning, partitioning, write_partitioning
from compilers.qnn.session import npu_session, setup_failure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from graphs import Graph

CONTEXT_FILE: Final = "context.onnx"
LOG_FILE: Final = "qnn.log"


def compile_context(
    graph: Graph, model: Path, out_dir: Path, options: Mapping[str, str], *, profiling: str = "detailed"
) -> Partitioning:
    """Compile `model` to a context binary with profile and placement in `out_dir`; `graph` names the nodes.

    With `profiling` "optrace" the simulator's trace comes with it: the log beside the profile, the schematic in
    the current folder, which of a compile in a child process is `out_dir`.

    Raises:
        CompilerError: nothing of the graph is on the NPU, which ONNX Runtime itself does not report.
    """
    profile = {"profiling_level": profiling, "profiling_file_path": str(out_dir / PROFILE_FILE)}
    log = out_dir / LOG_FILE
    session = npu_session(model, {**options, **profile}, log=log, context=out_dir / CONTEXT_FILE)
    found = partitioning(session, log, graph)
    require_npu(found, log, options)
    write_partitioning(found, out_dir / PLACEMENT_FILE)
    return found


def require_npu(found: Partitioning, log: Path, options: Mapping[str, str]) -> None:
    """Refuse a graph of which nothing reached the NPU; `options` are those that the session was given.

    Raises:
        CompilerError: with the provider's own reason: it could not start, or it refused every node.
    """
    if found.partitions:
        return
    failure = setup_failure(log)
    if failure:
        raise StartError(
            f"the QNN provider could not start for soc_model {options['soc_model']}, and left all to the CPU: "
            f"{failure} (invalid config values mean a chip id that this compiler does not know)"
        )
    if not found.placement.units:
        raise CompilerError("no node is on the NPU: the graph has none after ONNX Runtime's optimisation")
    node, reason = next(iter(found.placement.reasons.items()))
    raise CompilerError(
        f"no node is on the NPU: all {len(found.placement.units)} are left to the CPU; the first is {node}: {reason}",
        nodes=found.placement.reasons,
    )
