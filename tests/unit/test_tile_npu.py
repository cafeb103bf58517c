"""NPU tiles: legality, traffic, the published behaviour (R4, R5, R6) and the search with its proof."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from partition import DeviceError, load_device
from partition.tile import (
    BandwidthBound,
    Layer,
    NpuMachine,
    NpuSpace,
    NpuTile,
    TileError,
    balanced_space,
    evaluate_npu,
    every_space,
    frontier_npu,
    largest_tile,
    npu_machine,
    npu_refusal,
    operand_conflicts,
    parse_operator,
    row_space,
    rows_fetched,
    search_npu,
)

REPORT = Path(__file__).parents[2] / "experiments" / "published" / "report_npu.toml"
SINGLE = (False, False, False)
DOUBLE = (True, True, True)


@pytest.fixture(scope="module")
def hexagon() -> NpuMachine:
    return npu_machine(load_device("sa8255p"), "fp16")


@pytest.fixture(scope="module")
def reported() -> NpuMachine:
    return npu_machine(load_device(str(REPORT)), "fp16")


def test_the_largest_row_tile_of_a_1_mib_scratchpad() -> None:
    # Weights 73,728 B; 13 output rows need 15 input rows: 491,520 + 425,984 B; a 14th does not fit.
    machine = npu_machine(load_device("sa8255p"), "fp16", budget_bytes=1 << 20)
    layer = parse_operator("conv2d:c=64,k=64,y=256,x=256,f=3")
    tile = largest_tile(layer, machine, row_space(layer))
    assert tile is not None
    assert (tile.y, tile.x, tile.k, tile.c) == (13, 256, 64, 64)
    assert evaluate_npu(layer, machine, tile).tiles == 20
    assert rows_fetched(layer, 13) == 294
    one_more = dataclasses.replace(tile, y=14)
    assert npu_refusal(layer, machine, one_more) == "capacity: 1056768 bytes of 1048576 on the chip"


def test_bytes_passes_and_bandwidth_give_the_published_latency() -> None:
    bound = BandwidthBound(moved_bytes=192e6, passes=3, bytes_per_s=200e9, compute_s=0.3e-3)
    assert bound.latency_s == pytest.approx(2.88e-3)
    assert bound.bound == "memory"
    assert bound.memory_s / bound.compute_s == pytest.approx(9.6)


def test_operands_in_eight_banks_conflict_at_the_published_rate() -> None:
    assert operand_conflicts(8) == pytest.approx(0.359375)  # published: 37 %
    assert operand_conflicts(8) == pytest.approx(0.37, abs=0.02)
    assert operand_conflicts(1) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("operator", "own", "carried", "published"),
    [
        # x 16, y 8: 128 positions for 128 lanes. x 32, y 32, z 1: whole channels, one output channel at a time.
        ("matmul:m=2048,c=2048,k=1024", {"y": 1, "x": 128, "k": 32}, {"y": 1, "x": 1024, "k": 1}, (12.4, 8.9)),
        ("conv2d:c=128,k=128,y=56,x=56,f=3", {"y": 8, "x": 16, "k": 32}, {"y": 32, "x": 32, "k": 1}, (10.7, 5.3)),
    ],
)
def test_a_gpu_tile_on_the_reported_npu_loses_what_was_published(
    reported: NpuMachine, operator: str, own: dict[str, int], carried: dict[str, int], published: tuple[float, float]
) -> None:
    layer = parse_operator(operator)
    ours = evaluate_npu(layer, reported, NpuTile(**own, c=layer.c, resident=True))
    theirs = evaluate_npu(layer, reported, NpuTile(**carried, c=layer.c, double=SINGLE, blocked=False))
    flops = [2 * layer.macs / cost.latency_s / 1e12 for cost in (ours, theirs)]
    assert flops[0] == pytest.approx(published[0], rel=0.2)
    assert flops[1] == pytest.approx(published[1], rel=0.25)
    assert 0.28 <= 1 - flops[1] / flops[0] <= 0.51
    # The mechanism: conflicts of unblocked operands, DMA that nothing hides, weights padded to 4 KiB.
    compute = theirs.part("compute") + theirs.part("operand conflicts")
    assert theirs.part("operand conflicts") / theirs.part("compute") == pytest.approx(0.359375)
    assert ours.part("operand conflicts") == 0
    assert theirs.latency_s > compute + 0.9 * theirs.part("not overlapped")
    assert ours.part("not overlapped") == 0


def test_the_gpu_tiles_weights_are_padded_to_the_alignment(reported: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3")
    tile = NpuTile(y=32, x=32, k=1, c=64, double=SINGLE, blocked=False)
    # 64 blocks of 1,152 B take 4,096 B each, once for each of four tiles.
    assert evaluate_npu(layer, reported, tile).part("weight DMA") == pytest.approx(4 * 64 * 4096 / 200e9)
    assert npu_refusal(layer, reported, tile) == "alignment: a weight block of 1152 bytes is no multiple of 4096"


def test_a_misaligned_weight_block_costs_the_published_stall(reported: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3")
    cost = evaluate_npu(layer, reported, NpuTile(y=32, x=32, k=1, c=64, double=SINGLE))
    assert cost.part("weight-buffer conflict") == 12.7e-6


def test_a_full_activation_fifo_costs_the_published_stall(reported: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=4,k=256,y=56,x=56,f=1")
    tile = NpuTile(y=8, x=16, k=256, c=4, resident=True)
    without = evaluate_npu(layer, dataclasses.replace(reported, fifo_full_s=0.0), tile)
    assert evaluate_npu(layer, reported, tile).latency_s - without.latency_s == pytest.approx(89.3e-6)


@pytest.mark.parametrize(
    ("tile", "reason"),
    [
        ({"y": 200}, "axis y"),
        ({"k": 16}, "lanes: k"),
        ({"c": 16}, "lanes: c"),
        ({"y": 112, "x": 112}, "capacity"),
    ],
)
def test_each_refusal_names_its_reason(tile: dict[str, int], reason: str) -> None:
    machine = npu_machine(load_device("sa8255p"), "fp16", budget_bytes=1 << 20)
    layer = parse_operator("conv2d:c=64,k=64,y=112,x=112,f=3")
    refused = npu_refusal(layer, machine, NpuTile(**{"y": 8, "x": 8, "k": 64, "c": 64, **tile}))
    assert refused is not None
    assert refused.startswith(reason)


def test_a_row_that_a_normalisation_spans_is_not_cut(hexagon: NpuMachine) -> None:
    layer = parse_operator("softmax:m=196,k=196")
    with pytest.raises(TileError, match="needs all 196 elements of a row, or a second pass"):
        evaluate_npu(layer, hexagon, NpuTile(y=1, x=8, k=98, c=1))
    assert search_npu(layer, hexagon).tile.k == 196


def test_reuse_follows_the_loop_order(hexagon: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=64,k=128,y=64,x=64,f=1")
    width = 2

    def dram(order: str, *, resident: bool = False) -> float:
        tile = NpuTile(y=16, x=16, k=64, c=32, order=order, resident=resident)
        return evaluate_npu(layer, hexagon, tile).dram_bytes

    inputs, weights, outputs = (n * width for n in (layer.inputs, layer.weights, layer.outputs))
    sums = 2 * layer.outputs * 4  # two input-channel tiles: written and read once more, 4 bytes each
    assert dram("skc") == 2 * inputs + 16 * weights + outputs
    assert dram("sck") == inputs + 16 * weights + outputs + sums
    assert dram("ksc") == 2 * inputs + 16 * weights + outputs
    assert dram("kcs") == 2 * inputs + weights + outputs + sums
    assert dram("cks") == 2 * inputs + weights + outputs + sums
    assert dram("csk") == inputs + 16 * weights + outputs + sums
    assert dram("skc", resident=True) == 2 * inputs + weights + outputs


def test_strides_and_dilation_decide_the_halo(hexagon: NpuMachine) -> None:
    strided = parse_operator("conv2d:c=32,k=32,y=64,x=64,f=3,s=2")
    assert rows_fetched(strided, 8) == 4 * 17 - 1  # one row is padding
    dilated = parse_operator("conv2d:c=32,k=32,y=64,x=64,f=3,d=2")
    assert rows_fetched(dilated, 16) == 64 + 3 * 4
    assert evaluate_npu(strided, hexagon, NpuTile(y=8, x=32, k=32, c=32)).tiles == 4


def test_double_buffers_cost_memory_and_save_time(hexagon: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3")
    one = evaluate_npu(layer, hexagon, NpuTile(y=8, x=56, k=64, c=64, double=SINGLE))
    two = evaluate_npu(layer, hexagon, NpuTile(y=8, x=56, k=64, c=64, double=DOUBLE))
    assert two.on_chip_bytes == 2 * one.on_chip_bytes
    assert two.latency_s < one.latency_s


@pytest.mark.parametrize("objective", ["latency", "energy"])
@pytest.mark.parametrize(
    "operator",
    ["conv2d:c=64,k=96,y=20,x=20,f=3", "conv2d:c=64,k=64,y=28,x=28,f=3,s=2,g=64", "matmul:m=50,c=96,k=64",
     "maxpool:c=64,y=28,x=28,f=2", "softmax:m=40,k=64"],
)  # fmt: skip
def test_the_search_finds_what_costing_each_tile_finds(operator: str, objective: str) -> None:
    machine = npu_machine(load_device("sa8255p"), "fp16", budget_bytes=1 << 17)
    layer = parse_operator(operator)
    full = balanced_space(layer, machine)
    space = dataclasses.replace(full, y=full.y[-3:], x=full.x[-3:], k=full.k[-2:], c=full.c[-2:])
    field = "latency_s" if objective == "latency" else "energy_j"
    costs = [getattr(evaluate_npu(layer, machine, tile), field) for tile in _legal(layer, machine, space)]
    by_bound = search_npu(layer, machine, space, objective=objective, exhaustive_limit=0)
    by_all = search_npu(layer, machine, space, objective=objective)
    assert getattr(by_all.cost, field) == pytest.approx(min(costs), rel=1e-12)
    assert getattr(by_bound.cost, field) == pytest.approx(min(costs), rel=1e-12)
    assert by_bound.costed <= by_all.costed
    assert "excluded by their lower bound" in by_bound.statement
    assert "excluded" not in by_all.statement


def _legal(layer: Layer, machine: NpuMachine, space: NpuSpace) -> list[NpuTile]:
    axes = (space.y, space.x, space.k, space.c, space.orders, space.double, space.resident)
    tiles = [
        NpuTile(y=y, x=x, k=k, c=c, order=order, double=double, resident=resident)
        for y, x, k, c, order, double, resident in itertools.product(*axes)
    ]
    return [tile for tile in tiles if npu_refusal(layer, machine, tile) is None]


def test_the_bound_proves_a_space_too_large_to_enumerate(hexagon: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=64,k=64,y=112,x=112,f=3")
    found = search_npu(layer, hexagon, every_space(layer, hexagon), exhaustive_limit=0)
    assert found.configurations == 112 * 112 * 2 * 2 * 96
    assert found.costed < found.configurations / 4
    assert found.cost.latency_s <= search_npu(layer, hexagon).cost.latency_s


def test_no_tile_on_the_frontier_beats_another_and_the_fastest_is_the_best(hexagon: NpuMachine) -> None:
    layer = parse_operator("conv2d:c=32,k=64,y=28,x=28,f=3")
    points = frontier_npu(layer, hexagon)
    costs = np.array([[p.latency_s, p.energy_j, p.on_chip_bytes] for p in points])
    for i, row in enumerate(costs):
        others = np.delete(costs, i, axis=0)
        assert not ((others <= row).all(axis=1) & (others < row).any(axis=1)).any()
    assert costs[0, 0] == pytest.approx(search_npu(layer, hexagon).cost.latency_s)
    for point in points[:: len(points) // 5]:
        cost = evaluate_npu(layer, hexagon, point.tile)
        assert (cost.latency_s, cost.on_chip_bytes) == pytest.approx((point.latency_s, point.on_chip_bytes))


def test_a_memory_smaller_than_one_row_is_named() -> None:
    machine = npu_machine(load_device("sa8255p"), "fp16", budget_bytes=100)
    with pytest.raises(TileError, match="the smallest that lanes and weight alignment allow needs"):
        search_npu(parse_operator("softmax:m=196,k=196"), machine)


def test_a_device_without_geometry_or_precision_is_named(tmp_path: Path) -> None:
    with pytest.raises(TileError, match=r"a17_pro has no tile geometry .* \[processors.npu.tile\]"):
        npu_machine(load_device("a17_pro"), "fp16")
    with pytest.raises(TileError, match="no tile geometry for fp32; it has fp16, int8"):
        npu_machine(load_device("sa8255p"), "fp32")
    broken = tmp_path / "broken.toml"
    broken.write_text(REPORT.read_text().replace("clock_hz", "klock_hz"))
    with pytest.raises(DeviceError, match="clock_hz"):
        load_device(str(broken))


def test_sizes_of_zero_are_named() -> None:
    with pytest.raises(TileError, match="every size must be at least 1"):
        NpuTile(y=0, x=1, k=1, c=1)


def largest_band_by_hand(layer: Layer, budget: float, width: int, align: int) -> tuple[int, int, int]:
    """Count rows, tiles and input rows of the largest band one by one, from what a convolution is."""
    weights = math.ceil(layer.k * layer.c * math.prod(layer.kernel) * width / align) * align
    columns = min((layer.x - 1) * layer.stride[1] + (layer.kernel[1] - 1) * layer.dilation[1] + 1, layer.in_x)
    for rows in range(layer.y, 0, -1):
        span = min((rows - 1) * layer.stride[0] + (layer.kernel[0] - 1) * layer.dilation[0] + 1, layer.in_y)
        if (span * columns * layer.c + rows * layer.x * layer.k) * width + weights > budget:
            continue
        fetched = 0
        starts = range(0, layer.y, rows)
        for start in starts:
            read = [
                row * layer.stride[0] + tap * layer.dilation[0] - layer.pads[0]
                for row in range(start, min(start + rows, layer.y))
                for tap in range(layer.kernel[0])
            ]
            # A transfer is one run of rows; what lies between taps and strides comes along.
            fetched += len(set(range(min(read), max(read) + 1)) & set(range(layer.in_y)))
        return rows, len(starts) * layer.groups, fetched
    return 0, 0, 0


@pytest.mark.parametrize(
    ("text", "kib"),
    [
        ("conv2d:c=64,k=64,y=256,x=256,f=3", 1024),
        ("conv2d:c=64,k=64,y=255,x=253,f=3,s=2", 1024),
        ("conv2d:c=32,k=96,y=112,x=112,f=5,s=2", 700),
        ("conv2d:c=64,k=64,y=97,x=101,f=3,d=4,p=4", 900),
        ("conv2d:c=128,k=64,y=61,x=67,f=3,g=2", 500),
        ("conv2d:c=96,k=96,y=55,x=57,f=7,g=3,s=2", 800),
        ("conv2d:c=3,k=64,y=223,x=225,f=7,s=2", 400),
        ("conv2d:c=16,k=24,y=70,x=90,f=1", 64),
        ("conv2d:c=32,k=32,y=40,x=300,f=3,s=3,p=0", 300),
        ("conv2d:c=48,k=48,y=33,x=35,f=5,d=2,g=4,p=2", 200),
        ("conv2d:c=256,k=256,y=14,x=14,f=3", 2048),
    ],
)
def test_largest_bands_are_those_counted_by_hand(hexagon: NpuMachine, text: str, kib: int) -> None:
    layer, machine = parse_operator(text), dataclasses.replace(hexagon, budget_bytes=kib * 1024)
    rows, tiles, fetched = largest_band_by_hand(layer, kib * 1024, 2, machine.alignment_bytes)
    tile = largest_tile(layer, machine, row_space(layer))
    assert tile is not None
    assert 0 < rows == tile.y
    assert tiles == evaluate_npu(layer, machine, tile).tiles
    assert fetched == rows_fetched(layer, tile.y)
