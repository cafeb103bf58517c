"""The question asked of the search: nodes, places, costs, transfers, constraints; and the answer's values.

Everything here is abstract: a node is a name, a place is a (processor, backend, precision) and costs are
given. Where they come from (compiles, simulation, a model) is the caller's business.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


class ProblemError(ValueError):
    """Say in one sentence what makes a problem meaningless: a cycle, a cost that is missing, NaN or negative."""


class Infeasible(ValueError):  # noqa: N818 - it is an answer, not a mistake of the caller
    """Say that no plan meets the constraints; `conflicts` names each one and by how much it fails."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        super().__init__("no plan meets the constraints: " + "; ".join(c.sentence for c in conflicts))
        self.conflicts = conflicts


class TooWide(RuntimeError):  # noqa: N818 - a limit reached, with a way out in its message
    """Say that the exact state space passed its limit, how far it came, and which smaller space to ask for."""


class Space(enum.StrEnum):
    """The set of plans an answer is exact over; each is contained in the next."""

    SINGLE_TENSOR_CUTS = "single-tensor cuts"
    FUSED_GROUP_BORDERS = "fused-group borders"
    ORDER_CUTS = "all cuts of one order"
    CONVEX_CUTS = "all convex cuts"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """One constraint that cannot be met: its name, its limit, the best reachable value, in `unit`."""

    constraint: str
    limit: float
    best: float
    unit: str
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One way to execute a node. `memory` is where, and in which format, its tensors live.

    Two places with the same `home` hand tensors over for nothing; the default home is the processor.
    """

    processor: str
    backend: str = ""
    precision: str = ""
    memory: str = ""

    @property
    def home(self) -> str:
        """Name the memory that this place reads from and writes to."""
        return self.memory or self.processor

    def __str__(self) -> str:
        return "/".join(part for part in (self.processor, self.backend, self.precision) if part)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A tensor that can cross a cut.

    `producer` None: a graph input, which lives in memory `source` (None: wherever it is wanted, at no cost).
    `target`: the memory in which a graph output must end (None: it may stay where it was made).
    """

    name: str
    size_bytes: int
    producer: str | None
    consumers: tuple[str, ...]
    source: str | None = None
    target: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """What it costs to bring a tensor from one memory to another.

    A hand-over in shared DRAM has an infinite `bytes_per_s` and keeps the latency of its synchronisation.
    """

    latency_s: float
    bytes_per_s: float = math.inf
    energy_j: float = 0.0
    energy_j_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise ProblemError(f"a transfer has bytes_per_s={self.bytes_per_s}; a bandwidth is above zero")
        self.cost(0)  # negative or not finite: refused there
        if not (math.isfinite(self.energy_j_per_byte) and self.energy_j_per_byte >= 0):
            raise ProblemError(f"a transfer has energy_j_per_byte={self.energy_j_per_byte}; it is not negative")

    def cost(self, size_bytes: float) -> Cost:
        """Return the cost of moving `size_bytes`."""
        return Cost(
            latency_s=self.latency_s + size_bytes / self.bytes_per_s,
            energy_j=self.energy_j + size_bytes * self.energy_j_per_byte,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Latency and energy add up along a plan, so does `error`; `memory_bytes` is a peak, so its maximum counts."""

    latency_s: float
    energy_j: float
    memory_bytes: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        for name, value in zip(
            COST_FIELDS, (self.latency_s, self.energy_j, self.memory_bytes, self.error), strict=True
        ):
            if not (math.isfinite(value) and value >= 0):
                raise ProblemError(f"a cost has {name}={value}; costs are finite and not negative")


COST_FIELDS: Final = ("latency_s", "energy_j", "memory_bytes", "error")
FREE: Final = Cost(latency_s=0.0, energy_j=0.0)

Objective = Literal["latency", "energy", "memory", "error", "period"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """Limits every plan must keep; None means no limit.

    `power_cap_w` bounds energy / latency. `pinned` maps node -> processor. Refusals belong to the Problem.
    """

    deadline_s: float | None = None
    energy_cap_j: float | None = None
    power_cap_w: float | None = None
    memory_cap_bytes: float | None = None
    error_cap: float | None = None
    period_s: float | None = None
    max_segments: int | None = None
    pinned: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One graph on one device.

    `nodes` are in topological order. `costs` maps (node, place) -> Cost for every pair that `refusals`,
    node -> {place: reason}, does not exclude; for interval costs it may be empty. `dispatch` is paid once per
    segment. `transfers` maps (memory, memory) -> Transfer. When nodes stand for groups of operators (`coarsen`),
    `members` lists them and `restriction` names the borders to which cuts are restricted; `grain` then holds the steps
    (seconds, joules) in which the costs of the operators are counted, so that a group costs what its members do.
    Raise ProblemError when any of it is meaningless.
    """

    nodes: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    places: tuple[Place, ...]
    transfers: Mapping[tuple[str, str], Transfer]
    costs: Mapping[tuple[str, Place], Cost] = dataclasses.field(default_factory=dict)
    dispatch: Mapping[Place, Cost] = dataclasses.field(default_factory=dict)
    refusals: Mapping[str, Mapping[Place, str]] = dataclasses.field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    restriction: Space | None = None
    grain: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_names(self)
        _check_order(self)
        _check_homes(self)

    def space_name(self, space: str) -> str:
        """Name the plans searched, with the restriction that coarser nodes mean."""
        return str(space) if self.restriction is None else f"{self.restriction} ({space})"

    def homes(self) -> tuple[str, ...]:
        """List the memories, those of the places first, in order of appearance."""
        named = [place.home for place in self.places]
        named += [home for tensor in self.tensors for home in (tensor.source, tensor.target) if home is not None]
        return tuple(dict.fromkeys(named))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One segment of a plan: a convex set of nodes, in execution order, and its place."""

    place: Place
    nodes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """One plan and its cost. `space` is the one in which nothing beats it, up to `gap_ratio`.

    `gap_ratio` 0.01 means: any plan of that space, made 1 % better in no objective, is matched (0: exact).
    """

    segments: tuple[Piece, ...]
    latency_s: float
    energy_j: float
    memory_bytes: float | None = None
    error: float | None = None
    period_s: float | None = None
    space: str
    gap_ratio: float = 0.0


def _check_names(problem: Problem) -> None:
    if not problem.nodes or not problem.places:
        raise ProblemError("a problem needs at least one node and one place")
    if len(set(problem.nodes)) != len(problem.nodes) or len(set(problem.places)) != len(problem.places):
        raise ProblemError("a node or a place is listed twice")
    known = set(problem.nodes)
    for tensor in problem.tensors:
        for name in (*tensor.consumers, *([] if tensor.producer is None else [tensor.producer])):
            if name not in known:
                raise ProblemError(f"tensor {tensor.name!r} names {name!r}, which is no node of the problem")
        if not (math.isfinite(tensor.size_bytes) and tensor.size_bytes >= 0):
            raise ProblemError(f"tensor {tensor.name!r} has size {tensor.size_bytes}; sizes are not negative")
    if unknown := [name for name in problem.refusals if name not in known]:
        raise ProblemError(f"refusals name {unknown[0]!r}, which is no node of the problem")


def _check_order(problem: Problem) -> None:
    position = {node: index for index, node in enumerate(problem.nodes)}
    for tensor in problem.tensors:
        for consumer in tensor.consumers:
            if tensor.producer is not None and position[tensor.producer] >= position[consumer]:
                raise ProblemError(
                    f"{consumer!r} needs {tensor.name!r} of {tensor.producer!r}, which is not before it: "
                    "the graph has a cycle or `nodes` are not in topological order"
                )


def _check_homes(problem: Problem) -> None:
    wanted = {place.home for place in problem.places} | {t.target for t in problem.tensors if t.target is not None}
    held = {place.home for place in problem.places} | {t.source for t in problem.tensors if t.source is not None}
    for start in sorted(held):
        for stop in sorted(wanted - {start}):
            if (start, stop) not in problem.transfers:
                raise ProblemError(f"no transfer cost from memory {start!r} to {stop!r}")
