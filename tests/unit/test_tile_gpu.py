"""GPU tiles: legality, occupancy, waves, coalescing, bank conflicts and the search."""

from __future__ import annotations

import dataclasses

import pytest

from partition import load_device
from partition.tile import (
    GpuMachine,
    GpuTile,
    TileError,
    evaluate_gpu,
    frontier_gpu,
    gpu_machine,
    gpu_refusal,
    parse_operator,
    power_space,
    search_gpu,
)

CONV = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3")
TILE = GpuTile(block_x=16, block_y=8, thread_x=4, thread_k=4, k_tile=16, vector=4, unroll=4)


@pytest.fixture(scope="module")
def adreno() -> GpuMachine:
    return gpu_machine(load_device("sm8650"), "fp16")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_x": 256}, "threads"),
        ({"block_x": 5}, "lanes"),
        ({"thread_x": 16, "thread_k": 16}, "registers"),
        ({"k_tile": 512, "thread_x": 8}, "capacity"),
        ({"vector": 8}, "vector"),
        ({"k_tile": 2}, "unroll"),
    ],
)
def test_each_refusal_names_its_reason(adreno: GpuMachine, change: dict[str, int], reason: str) -> None:
    tile = dataclasses.replace(TILE, **change)
    assert (gpu_refusal(CONV, adreno, tile) or "").startswith(reason)
    with pytest.raises(TileError, match=reason):
        evaluate_gpu(CONV, adreno, tile)
    assert gpu_refusal(CONV, adreno, TILE) is None


def test_one_block_more_than_the_units_hold_starts_another_turn(adreno: GpuMachine) -> None:
    # 64 positions and 64 channels to a block: as many blocks as units, and one more.
    tile = GpuTile(block_x=16, block_y=16, thread_x=4, thread_k=4, k_tile=16, vector=4, unroll=4)

    def arithmetic(blocks: int) -> float:
        cost = evaluate_gpu(parse_operator(f"matmul:m={64 * blocks},c=4096,k=64"), adreno, tile)
        return sum(cost.part(name) for name in ("arithmetic", "issue", "latency not hidden"))

    assert arithmetic(adreno.units) == pytest.approx(arithmetic(1))
    assert arithmetic(adreno.units + 1) == pytest.approx(2 * arithmetic(adreno.units))


def test_rows_a_power_of_two_apart_conflict_in_the_banks(adreno: GpuMachine) -> None:
    def ways(k_tile: int) -> float:
        return evaluate_gpu(CONV, adreno, dataclasses.replace(TILE, k_tile=k_tile, unroll=1)).part("bank conflict ways")

    assert ways(2) == 1  # one word of two halves: neighbours in neighbouring banks
    assert ways(16) == 8
    assert ways(12) == 2  # six words apart: gcd(6, 32)
    unstaged = evaluate_gpu(CONV, adreno, dataclasses.replace(TILE, staged=False))
    assert unstaged.part("bank conflict ways") == 1


def test_wide_loads_use_more_of_a_line(adreno: GpuMachine) -> None:
    narrow = evaluate_gpu(CONV, adreno, dataclasses.replace(TILE, staged=False, vector=1))
    wide = evaluate_gpu(CONV, adreno, dataclasses.replace(TILE, staged=False, vector=4))
    assert wide.part("cache") < narrow.part("cache")


def test_staging_loads_each_element_once_for_a_block(adreno: GpuMachine) -> None:
    tall = GpuTile(block_x=64, block_y=8, thread_x=1, thread_k=8, k_tile=32, vector=8)
    staged, direct = (evaluate_gpu(CONV, adreno, dataclasses.replace(tall, staged=s)) for s in (True, False))
    assert staged.part("cache") < direct.part("cache")


def test_a_block_that_no_warp_fills_is_padded_only_when_asked(adreno: GpuMachine) -> None:
    tile = dataclasses.replace(TILE, block_x=5)
    padded = evaluate_gpu(CONV, adreno, tile, strict=False)
    assert padded.lane_ratio < 1


def test_the_best_kernel_is_legal_and_no_legal_neighbour_beats_it(adreno: GpuMachine) -> None:
    found = search_gpu(CONV, adreno)
    assert gpu_refusal(CONV, adreno, found.tile) is None
    space = power_space(CONV, adreno)
    for field in ("block_x", "block_y", "thread_x", "thread_k", "k_tile", "staged", "vector", "unroll"):
        for value in getattr(space, field):
            other = dataclasses.replace(found.tile, **{field: value})
            if gpu_refusal(CONV, adreno, other) is None:
                assert evaluate_gpu(CONV, adreno, other).latency_s >= found.cost.latency_s
    assert frontier_gpu(CONV, adreno)[0].latency_s == pytest.approx(found.cost.latency_s)
    assert "each" not in found.statement or "costed" in found.statement


def test_the_least_energy_is_no_more_than_that_of_the_fastest(adreno: GpuMachine) -> None:
    assert search_gpu(CONV, adreno, objective="energy").cost.energy_j <= search_gpu(CONV, adreno).cost.energy_j


def test_a_device_without_geometry_is_named() -> None:
    with pytest.raises(TileError, match="no tile geometry for int8; it has fp16, fp32"):
        gpu_machine(load_device("sm8650"), "int8")
    with pytest.raises(TileError, match=r"add \[processors.npu.tile\]"):
        gpu_machine(load_device("a17_pro"), "fp16", processor="npu")


def test_a_layer_smaller_than_a_warp_has_a_kernel(adreno: GpuMachine) -> None:
    assert search_gpu(parse_operator("matmul:m=1,c=16,k=8"), adreno).tile.threads == adreno.warp
