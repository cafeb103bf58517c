"""Carry a tile from one memory hierarchy to the other unchanged, and say what that costs or why it cannot be built."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Final

from partition.tile import (
    Cost,
    GpuMachine,
    GpuResult,
    GpuTile,
    Layer,
    NpuMachine,
    NpuResult,
    NpuTile,
    TileError,
    evaluate_gpu,
    evaluate_npu,
    npu_refusal,
    search_gpu,
    search_npu,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Parts of a cost as causes of a loss.
_WORDS: Final = {
    "not overlapped": "transfers that nothing hides",
    "layout changes": "layout changes on fewer vector threads",
    "compute": "more computing",
    "arithmetic": "more arithmetic",
    "issue": "more instructions",
    "cache": "more cache traffic",
    "DRAM": "more DRAM traffic",
    "barriers": "waiting at barriers",
}
# Share of the time below which a part that grew explains nothing.
_WORTH_NAMING: Final = 0.01
_NO_CAUSE: Final = frozenset({"exposed", "waves", "bank conflict ways"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """One layer on both machines; a cost of None is a tile that the other machine cannot run, with the reason."""

    layer: Layer
    count: int
    npu: NpuResult
    gpu: GpuResult
    gpu_tile_on_npu: NpuTile
    on_npu: Cost | None
    on_npu_reason: str
    npu_tile_on_gpu: GpuTile | None
    on_gpu: Cost | None
    on_gpu_reason: str

    @property
    def npu_loss_ratio(self) -> float | None:
        """Throughput that the NPU loses with the GPU's tile; None when it cannot run it."""
        return None if self.on_npu is None else 1 - self.npu.cost.latency_s / self.on_npu.latency_s

    @property
    def gpu_loss_ratio(self) -> float | None:
        """Throughput that the GPU loses with the NPU's tile; None when it cannot run it."""
        return None if self.on_gpu is None else 1 - self.gpu.cost.latency_s / self.on_gpu.latency_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The losses of one kind of operator in one direction; `total_ratio` weighs each layer by its time and count."""

    kind: str
    direction: str
    layers: int
    refused: int
    median_ratio: float | None
    total_ratio: float | None
    cause: str


def cross(layer: Layer, count: int, npu: NpuMachine, gpu: GpuMachine, objective: str) -> Crossing:
    """Find both best tiles of a layer and cost each on the other machine.

    Raises:
        TileError: one of the machines has no legal tile for the layer.
    """
    best_npu = search_npu(layer, npu, objective=objective)
    best_gpu = search_gpu(layer, gpu, objective=objective)
    to_npu = gpu_tile_for_npu(layer, best_gpu.tile)
    on_npu, npu_reason = _try_npu(layer, npu, to_npu)
    to_gpu, gpu_reason = npu_tile_for_gpu(layer, best_npu.tile, gpu)
    on_gpu = None if to_gpu is None else evaluate_gpu(layer, gpu, to_gpu)
    return Crossing(
        layer=layer, count=count, npu=best_npu, gpu=best_gpu, gpu_tile_on_npu=to_npu, on_npu=on_npu,
        on_npu_reason=npu_reason, npu_tile_on_gpu=to_gpu, on_gpu=on_gpu, on_gpu_reason=gpu_reason,
    )  # fmt: skip


def gpu_tile_for_npu(layer: Layer, tile: GpuTile) -> NpuTile:
    """Return the block of a kernel as an NPU tile: whole rows first, all input channels, one buffer, no blocking.

    A GPU's blocks are independent and hide their loads behind each other's threads; on an NPU nothing does that
    for them, and the planar layout has no channel blocks.
    """
    x = min(layer.x, tile.positions)
    return NpuTile(
        y=min(layer.y, max(1, tile.positions // layer.x)),
        x=x,
        k=min(layer.k, tile.channels),
        c=layer.c,
        double=(False, False, False),
        blocked=False,
    )


def npu_tile_for_gpu(layer: Layer, tile: NpuTile, gpu: GpuMachine) -> tuple[GpuTile | None, str]:
    """Return the best kernel whose blocks are as large as an NPU tile, rounded up to powers of two, or why none is.

    The size of the tile is what is carried over; threads, staging and loads are the GPU's own choice.
    """
    block = (_power_above(tile.y * tile.x), _power_above(tile.k))
    try:
        return search_gpu(layer, gpu, block=block).tile, ""
    except TileError:
        sums, most = block[0] * block[1], gpu.threads_per_block * gpu.registers_per_thread
        why = (
            f"{block[0]} x {block[1]} sums for {gpu.threads_per_block} threads of {gpu.registers_per_thread} registers"
        )
        return None, f"{'registers' if sums > most / 2 else 'no such kernel'}: {why}"


def losses(crossings: Sequence[Crossing]) -> tuple[Loss, ...]:
    """Return the loss matrix: for each kind of operator, both directions."""
    kinds = dict.fromkeys(c.layer.kind for c in crossings)
    found = []
    for kind in kinds:
        members = [c for c in crossings if c.layer.kind == kind]
        npu = [(c.count, c.npu.cost, c.on_npu, c.on_npu_reason) for c in members]
        gpu = [(c.count, c.gpu.cost, c.on_gpu, c.on_gpu_reason) for c in members]
        found.append(_loss(kind, "GPU tile on NPU", npu))
        found.append(_loss(kind, "NPU tile on GPU", gpu))
    return tuple(found)


def _loss(kind: str, direction: str, rows: Iterable[tuple[int, Cost, Cost | None, str]]) -> Loss:
    rows = list(rows)
    ran = [(count, best, carried) for count, best, carried, _ in rows if carried is not None]
    ratios = [1 - best.latency_s / carried.latency_s for _, best, carried in ran]
    before = sum(count * best.latency_s for count, best, _ in ran)
    after = sum(count * carried.latency_s for count, _, carried in ran)
    return Loss(
        kind=kind,
        direction=direction,
        layers=len(rows),
        refused=len(rows) - len(ran),
        median_ratio=statistics.median(ratios) if ratios else None,
        total_ratio=1 - before / after if ran else None,
        cause=_cause([(best, carried) for _, best, carried in ran], [reason for *_, reason in rows if reason]),
    )


def _cause(ran: Sequence[tuple[Cost, Cost]], reasons: Sequence[str]) -> str:
    """Name the part of the time that grew most, or why none could be built."""
    grown: dict[str, float] = {}
    for best, carried in ran:
        for name, seconds in carried.parts:
            if name not in _NO_CAUSE:
                grown[name] = grown.get(name, 0.0) + seconds - dict(best.parts)[name]
        # Idle lanes are computation that does nothing: tell them from conflicts and from waiting.
        if "compute" in grown and carried.lane_ratio < best.lane_ratio:
            idle = carried.part("compute") * (1 - carried.lane_ratio / best.lane_ratio)
            grown["idle lanes"] = grown.get("idle lanes", 0.0) + idle
            grown["compute"] -= idle
    most = max(grown, key=lambda name: grown[name], default="")
    refused = {reason.partition(":")[0] for reason in reasons}
    least = _WORTH_NAMING * sum(best.latency_s for best, _ in ran)
    told = [_WORDS.get(most, most)] if most and grown[most] > least else []
    return "; ".join([*told, *(f"refused: {r}" for r in sorted(refused))])


def _try_npu(layer: Layer, machine: NpuMachine, tile: NpuTile) -> tuple[Cost | None, str]:
    try:
        return evaluate_npu(layer, machine, tile), ""
    except TileError:
        return None, npu_refusal(layer, machine, tile) or ""


def _power_above(number: int) -> int:
    return 1 << (number - 1).bit_length()
