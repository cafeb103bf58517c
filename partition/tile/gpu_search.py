"""Find the best GPU tile, or the frontier of tiles, of one layer: every legal configuration is costed."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from partition.tile.cost import Cost, Point
from partition.tile.frontier import Front
from partition.tile.gpu import WIDEST_LOAD_BYTES, GpuSpace, GpuTile, Grid, evaluate, power_space
from partition.tile.operators import Layer, TileError
from partition.tile.search import ROUNDING, see_goal, traffic_cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partition.tile.gpu import GpuMachine

Array = np.ndarray[Any, np.dtype[Any]]

_CHUNK: Final = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuResult:
    """The best kernel of a layer in a space; `configurations` is the size of the space."""

    layer: Layer
    tile: GpuTile
    cost: Cost
    space: str
    configurations: int
    costed: int
    statement: str


def search_gpu(
    layer: Layer,
    machine: GpuMachine,
    space: GpuSpace | None = None,
    *,
    objective: str = "latency",
    at_most_s: float = math.inf,
    block: tuple[int, int] | None = None,
) -> GpuResult:
    """Return the best kernel of the space (default: powers of two).

    Only kernels that take `at_most_s` count, and with `block` only those whose blocks compute that many positions and
    channels. Of those with the least DRAM traffic it is the fastest.

    Raises:
        TileError: no kernel of the space is legal on the machine, or the objective is unknown.
    """
    see_goal(objective, at_most_s)
    space = space or power_space(layer, machine)
    best, tile, costed = float("inf"), None, 0
    for grid, legal in _grids(layer, machine, space, block):
        cost = np.where(legal, _cost(grid, objective, at_most_s), np.inf)
        costed += legal.size
        least = float(cost.min())
        if least < best:
            at = np.unravel_index(int(cost.argmin()), cost.shape)
            best, tile = least, _tile(grid, (int(at[0]), int(at[1])))
    if tile is None:
        of_block = "" if block is None else f" with blocks of {block[0]} x {block[1]}"
        raise TileError(f"{layer.name}: no kernel{of_block} of the space ({space.name}) is legal on {machine.name}")
    wanted = objective if math.isinf(at_most_s) else f"{objective} within {at_most_s:.4g} s"
    return GpuResult(
        layer=layer,
        tile=tile,
        cost=evaluate(layer, machine, tile),
        space=space.name,
        configurations=space.size,
        costed=costed,
        statement=f"least {wanted} of all {space.size} configurations ({space.name}): {costed} costed, the others "
        "refused by threads, lanes, load width or unrolling",
    )


def _cost(grid: Grid, objective: str, at_most_s: float) -> Array:
    """Return what to minimise; inf where it takes too long."""
    seconds, energy, _ = grid.costs()
    if objective == "traffic":
        cost = traffic_cost(grid.dram_bytes(), seconds, at_most_s)
    else:
        cost = energy if objective == "energy" else seconds
    return cost if math.isinf(at_most_s) else np.where(seconds <= (1.0 + ROUNDING) * at_most_s, cost, np.inf)


def frontier_gpu(layer: Layer, machine: GpuMachine, space: GpuSpace | None = None) -> tuple[Point[GpuTile], ...]:
    """Return all kernels that no other beats in latency, energy and on-chip bytes together, fastest first.

    Raises:
        TileError: no kernel of the space is legal on the machine.
    """
    space = space or power_space(layer, machine)
    front = Front()
    for grid, legal in _grids(layer, machine, space):
        front.add(grid.costs(), legal, grid)
    if not front.size:
        raise TileError(f"{layer.name}: no kernel of the space ({space.name}) is legal on {machine.name}")
    return tuple(
        Point(tile=_tile(grid, at), latency_s=latency_s, energy_j=energy_j, on_chip_bytes=on_chip)
        for (latency_s, energy_j, on_chip), at, grid in front.picks()
    )


def _grids(
    layer: Layer, machine: GpuMachine, space: GpuSpace, block: tuple[int, int] | None = None
) -> Iterator[tuple[Grid, Array]]:
    """Yield the space in pieces, without the threads and loops that are illegal whatever goes with them."""
    threads, loops = space.threads(), space.loops()
    if block is not None:
        threads = threads[:, (threads[0] * threads[2] == block[0]) & (threads[1] * threads[3] == block[1])]
    count = threads[0] * threads[1]
    threads = threads[:, (count <= machine.threads_per_block) & (count % machine.warp == 0)]
    k_tile, _, vector, unroll = loops
    loops = loops[:, (k_tile % unroll == 0) & (vector * machine.element_bytes <= WIDEST_LOAD_BYTES)]
    rows = max(1, _CHUNK // loops.shape[1])
    for start in range(0, threads.shape[1], rows):
        grid = Grid.of(layer, machine, threads[:, start : start + rows], loops)
        yield grid, grid.legal()


def _tile(grid: Grid, at: tuple[int, int]) -> GpuTile:
    row, column = at
    return GpuTile(
        block_x=int(grid.block_x[row, 0]),
        block_y=int(grid.block_y[row, 0]),
        thread_x=int(grid.thread_x[row, 0]),
        thread_k=int(grid.thread_k[row, 0]),
        k_tile=int(grid.k_tile[0, column]),
        staged=bool(grid.staged[0, column]),
        vector=int(grid.vector[0, column]),
        unroll=int(grid.unroll[0, column]),
    )
