"""Where each node went, from the partitioned session, and why, from the provider's verbose log."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Final

from compilers.artefact import Placement
from compilers.ort_session import assigned_units, source_names
from compilers.qnn import wheel

if TYPE_CHECKING:
    from pathlib import Path

    import onnxruntime as ort

    from graphs import Graph

UNITS: Final = {wheel.PROVIDER: "npu", "CPUExecutionProvider": "cpu"}
NO_REASON: Final = "claimed by no QNN partition; the provider gave no reason"

_MEMBER: Final = re.compile(r"^\tOperator type: (?P<op>\S+) Node name: (?P<name>.*?) Node index: \d+\s*$")
_REASON: Final = re.compile(r"^\tREASON : (?P<reason>.*)$")
# "QNN EP is configured to not take Q nodes that consume a graph input" (or DQ nodes ... output).
_LEFT_BY_OPTION: Final = "is configured to not take"
_FAILED: Final = "Validation FAILED for "
_TRAILER: Final = re.compile(r"\S* node `[^`]*` will not be assigned to QNN EP\.?\s*$")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Partitioning:
    """How the provider cut the graph.

    `boundary` are the nodes left to the CPU because an option says so: they only quantise a graph input or
    dequantise a graph output. `absorbed` are nodes of the source graph that ONNX Runtime's optimiser folded or
    fused before placement.
    """

    placement: Placement
    partitions: int
    boundary: tuple[str, ...]
    absorbed: tuple[str, ...]

    def left_out(self) -> tuple[str, ...]:
        """List the nodes off the NPU, without the boundary ones."""
        return tuple(n for n in self.placement.elsewhere("npu") if n not in self.boundary)


def partitioning(session: ort.InferenceSession, log: Path, graph: Graph) -> Partitioning:
    """Read the session's own record of which provider got which node, and the reasons from its log."""
    assigned = assigned_units(session, UNITS)
    names = source_names((name for name, _, _ in assigned), {node.name for node in graph.nodes()})
    units = {names[name]: unit for name, _, unit in assigned}
    logged = {names.get(name, name): reason for name, reason in refusals(log).items()}
    reasons = {name: logged.get(name, NO_REASON) for name, unit in units.items() if unit != "npu"}
    parts = session.get_provider_graph_assignment_info()
    return Partitioning(
        placement=Placement(units=units, reasons=reasons),
        partitions=sum(1 for part in parts if part.ep_name == wheel.PROVIDER),
        boundary=tuple(name for name, reason in reasons.items() if _LEFT_BY_OPTION in reason),
        absorbed=tuple(node.name for node in graph.nodes() if node.name not in units),
    )


def refusals(log: Path) -> dict[str, str]:
    """Map each node that the provider's log says it refused to the reason it gives, the last one counting."""
    reasons: dict[str, str] = {}
    members: list[str] | None = None
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if _FAILED in line:
            members = []
        elif members is not None and (member := _MEMBER.match(line)):
            members.append(member["name"])
        elif members is not None and (found := _REASON.match(line)):
            reasons.update(dict.fromkeys(members, _TRAILER.sub("", found["reason"]).strip()))
            members = None
    return reasons


def write_partitioning(found: Partitioning, path: Path) -> None:
    """Write it as JSON."""
    content = {
        "units": dict(found.placement.units),
        "reasons": dict(found.placement.reasons),
        "partitions": found.partitions,
        "boundary": found.boundary,
        "absorbed": found.absorbed,
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_partitioning(path: Path) -> Partitioning:
    """Read what `write_partitioning` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return Partitioning(
        placement=Placement(units=content["units"], reasons=content["reasons"]),
        partitions=content["partitions"],
        boundary=tuple(content["boundary"]),
        absorbed=tuple(content["absorbed"]),
    )
