"""Find the best NPU tile, or the frontier of tiles, of one layer; the result says in which space it is best and why.

All loop orders, buffers and residencies of one tile shape share its arrays. A large space is searched by branch
and bound: the bound of a tile shape is its computation and each tensor moved once, all overlapped, which no order
and no buffers can beat. Bands of shapes are taken in the order of their bounds until none is below the best found.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from partition.tile.cost import Cost, Point
from partition.tile.frontier import Front
from partition.tile.npu import NpuSpace, NpuTile, balanced_space
from partition.tile.npu_cost import Grid, Streams, evaluate
from partition.tile.operators import Layer, TileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partition.tile.npu import NpuMachine

Array = np.ndarray[Any, np.dtype[Any]]

OBJECTIVES: Final = ("latency", "energy", "traffic")
# Up to this many configurations all are costed; beyond, the bound decides which.
EXHAUSTIVE_LIMIT: Final = 4_000_000
# A bound on the time is the time of a tile, and must not lose that tile to the last digit.
ROUNDING: Final = 1e-9
# Elements of one array: small enough that the dozen arrays of a step stay in the second-level cache.
_CHUNK: Final = 1 << 12


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NpuResult:
    """The best tile of a layer in a space; `configurations` is the size of the space."""

    layer: Layer
    tile: NpuTile
    cost: Cost
    space: str
    configurations: int
    costed: int
    statement: str


def search_npu(
    layer: Layer,
    machine: NpuMachine,
    space: NpuSpace | None = None,
    *,
    objective: str = "latency",
    at_most_s: float = math.inf,
    exhaustive_limit: int = EXHAUSTIVE_LIMIT,
) -> NpuResult:
    """Return the best tile of the space (default: balanced sizes), with the proof that it is.

    Only tiles that take `at_most_s` count. Of those with the least DRAM traffic it is the fastest.

    Raises:
        TileError: no tile of the space is legal on the machine, or the objective is unknown.
    """
    see_goal(objective, at_most_s)
    space = space or balanced_space(layer, machine)
    channels = _legal_channels(layer, machine, space)
    positions = np.array(list(itertools.product(space.y, space.x))).T
    goal = _Goal(objective=objective, at_most=at_most_s * machine.clock_hz)
    search = _BestOnly(goal)
    chunks = _chunks(positions, channels.shape[1])
    exhaustive = space.size <= exhaustive_limit
    if not exhaustive:
        chunks = _by_bound(layer, machine, chunks, channels, goal)
    costed = 0
    for bound, chunk in chunks:
        if bound >= search.best:
            break
        grid = Grid.of(layer, machine, chunk, channels)
        search.look(grid, space, chunk, channels)
        costed += chunk.shape[1] * channels.shape[1] * _variants(space)
    if search.tile is None:
        within = "" if math.isinf(at_most_s) else f"; none takes at most {at_most_s:.4g} s"
        raise TileError(_why_none(layer, machine, space) + within)
    wanted = objective if math.isinf(at_most_s) else f"{objective} within {at_most_s:.4g} s"
    return NpuResult(
        layer=layer,
        tile=search.tile,
        cost=evaluate(layer, machine, search.tile),
        space=space.name,
        configurations=space.size,
        costed=costed,
        statement=_statement(space, costed, channels.shape[1], wanted, exhaustive=exhaustive),
    )


def frontier_npu(layer: Layer, machine: NpuMachine, space: NpuSpace | None = None) -> tuple[Point[NpuTile], ...]:
    """Return all tiles that no other beats in latency, energy and on-chip bytes together, fastest first.

    Of tiles equal in all three, one is kept.

    Raises:
        TileError: no tile of the space is legal on the machine.
    """
    space = space or balanced_space(layer, machine)
    channels = _legal_channels(layer, machine, space)
    positions = np.array(list(itertools.product(space.y, space.x))).T
    front = Front()
    for _, chunk in _chunks(positions, channels.shape[1], elements=4 * _CHUNK):
        grid = Grid.of(layer, machine, chunk, channels)
        memories = _memories(grid, space)
        for order, resident in itertools.product(space.orders, space.resident):
            streams = Streams.of(grid, order, resident=resident)
            for double, cycles in streams.all_cycles(space.double).items():
                memory = memories[double, resident]
                energy = streams.energy_j(cycles)
                legal = memory <= machine.budget_bytes
                front.add((cycles, energy, memory), legal, (chunk, channels, order, double, resident))
    if not front.size:
        raise TileError(_why_none(layer, machine, space))
    return tuple(
        Point(tile=_tile(at, block), latency_s=cycles / machine.clock_hz, energy_j=energy, on_chip_bytes=memory)
        for (cycles, energy, memory), at, block in front.picks()
    )


def see_goal(objective: str, at_most_s: float) -> None:
    """Refuse an objective that is none, and the least traffic at any cost of time.

    Raises:
        TileError: it is refused.
    """
    if objective not in OBJECTIVES:
        raise TileError(f"unknown objective {objective!r}; use one of {', '.join(OBJECTIVES)}")
    if objective == "traffic" and math.isinf(at_most_s):
        raise TileError("the least traffic is looked for within a bound on the time")


def _memories(grid: Grid, space: NpuSpace) -> dict[tuple[tuple[bool, bool, bool], bool], Array]:
    choices = itertools.product(space.double, space.resident)
    return {(double, resident): grid.memory(double, resident=resident) for double, resident in choices}


def _variants(space: NpuSpace) -> int:
    return len(space.orders) * len(space.double) * len(space.resident)


def _legal_channels(layer: Layer, machine: NpuMachine, space: NpuSpace) -> Array:
    """Return the pairs (output channels, input channels) that lanes and alignment allow, as (2, n)."""
    pairs = np.array(list(itertools.product(space.k, space.c))).T
    k, c = pairs
    whole = (k == layer.k) & (c == layer.c)
    legal = (k <= layer.k) & (c <= layer.c)
    if layer.weights:
        legal &= whole | (k * c * layer.taps * machine.element_bytes % machine.alignment_bytes == 0)
    if machine.uses_matrix(layer):
        legal &= ((k % machine.columns == 0) | (k == layer.k)) & ((c % machine.depth == 0) | (c == layer.c))
    if not legal.any():
        raise TileError(f"{layer.name}: no channel block of the space fits the lanes and the weight alignment")
    return np.asarray(pairs[:, legal])


def _chunks(positions: Array, across: int, elements: int = _CHUNK) -> Iterator[tuple[float, Array]]:
    rows = max(1, elements // across)
    for start in range(0, positions.shape[1], rows):
        yield 0.0, positions[:, start : start + rows]


def _by_bound(
    layer: Layer, machine: NpuMachine, chunks: Iterator[tuple[float, Array]], channels: Array, goal: _Goal
) -> Iterator[tuple[float, Array]]:
    """Order the position pairs by the lowest bound over all channels, and cut them into chunks anew."""
    bounds, positions = [], []
    for _, chunk in chunks:
        grid = Grid.of(layer, machine, chunk, channels)
        bounds.append(_bound(grid, goal).min(axis=1))
        positions.append(chunk)
    bound, every = np.concatenate(bounds), np.concatenate(positions, axis=1)
    order = np.argsort(bound, kind="stable")
    start = 0
    for _, chunk in _chunks(every[:, order], channels.shape[1]):
        yield float(bound[order[start]]), chunk
        start += chunk.shape[1]


def _bound(grid: Grid, goal: _Goal) -> Array:
    """Return what no loop order, buffers or residency can beat for each tile shape; inf where it cannot fit."""
    machine, layer = grid.machine, grid.layer
    weights = np.full((1, 1), grid.resident_bytes * layer.groups if layer.weights else 0.0)
    moved = (grid.in_bytes, weights, np.full((1, 1), float(grid.out_bytes)))
    streams = Streams.moving(grid, moved, setups=0.0)
    cycles = streams.cycles((True, True, True))
    least = np.minimum(grid.memory((False,) * 3, resident=False), grid.memory((False,) * 3, resident=True))
    bound = goal.cost(streams, cycles)
    return np.where(least <= machine.budget_bytes, bound, np.inf)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Goal:
    """What is to be least, among what takes at most so many cycles."""

    objective: str
    at_most: float

    def cost(self, streams: Streams, cycles: Array) -> Array:
        """Return what to minimise; inf where it takes too long."""
        cost = cycles
        if self.objective == "energy":
            cost = streams.energy_j(cycles)
        elif self.objective == "traffic":
            cost = traffic_cost(streams.dram_bytes, cycles, self.at_most)
        return cost if math.isinf(self.at_most) else np.where(cycles <= (1.0 + ROUNDING) * self.at_most, cost, np.inf)


def traffic_cost(traffic: Array, time: Array, at_most: float) -> Array:
    """Return the traffic and less than a byte for the time, so that of equal traffic the fastest is the best."""
    return np.asarray(traffic + 0.5 * time / at_most)


class _BestOnly:
    """Keeps the best configuration over the chunks of a space."""

    def __init__(self, goal: _Goal) -> None:
        self._goal = goal
        self.best = float("inf")
        self.tile: NpuTile | None = None

    def look(self, grid: Grid, space: NpuSpace, positions: Array, channels: Array) -> None:
        """Cost all configurations of the grid."""
        budget = grid.machine.budget_bytes
        barred = {key: np.where(need <= budget, 0.0, np.inf) for key, need in _memories(grid, space).items()}
        open_to = {key: bar for key, bar in barred.items() if np.isfinite(bar).any()}
        for order, resident in itertools.product(space.orders, space.resident):
            streams = Streams.of(grid, order, resident=resident)
            costs = streams.all_cycles(space.double)
            for double in space.double:
                bar = open_to.get((double, resident))
                if bar is None:
                    continue
                cost = self._goal.cost(streams, costs[double]) + bar
                least = float(cost.min())
                if least < self.best:
                    self.best = least
                    at = np.unravel_index(int(cost.argmin()), cost.shape)
                    self.tile = _tile((int(at[0]), int(at[1])), (positions, channels, order, double, resident))


def _tile(at: tuple[int, int], where: tuple[Array, Array, str, tuple[bool, bool, bool], bool]) -> NpuTile:
    positions, channels, order, double, resident = where
    (y, x), (k, c) = positions[:, at[0]].tolist(), channels[:, at[1]].tolist()
    return NpuTile(y=y, x=x, k=k, c=c, order=order, double=double, resident=resident)


def _why_none(layer: Layer, machine: NpuMachine, space: NpuSpace) -> str:
    grid = Grid.of(layer, machine, np.array([[min(space.y)], [min(space.x)]]), _legal_channels(layer, machine, space))
    need = min(float(grid.memory((False,) * 3, resident=resident).min()) for resident in (False, True))
    return (
        f"{layer.name}: none of the {space.size} configurations of the space ({space.name}) fits the "
        f"{machine.budget_bytes:.0f} bytes of {machine.name}; the smallest that lanes and weight alignment allow "
        f"needs {need:.0f}"
    )


def _statement(space: NpuSpace, costed: int, pairs: int, objective: str, *, exhaustive: bool) -> str:
    formed = len(space.y) * len(space.x) * pairs * _variants(space)
    refused = space.size - formed
    head = f"least {objective} of all {space.size} configurations ({space.name}): {costed} costed"
    rest = f", {refused} refused by lanes or alignment" if refused else ""
    return head + rest if exhaustive else f"{head}{rest}, {formed - costed} excluded by their lower bound"
