"""What a GPU kernel costs by its facts, and which tiles a kernel can be written with: no TVM needed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition import load_device
from partition.tile import (
    Access,
    GpuKernel,
    GpuMachine,
    GpuTile,
    build_refusal,
    buildable_space,
    gpu_machine,
    kernel_cost,
    parse_operator,
    search_gpu,
)

CONV = parse_operator("conv2d:c=64,k=64,y=56,x=56,f=3")
DEPTHWISE = parse_operator("conv2d:c=32,k=32,y=28,x=28,f=3,g=32")
TILE = GpuTile(block_x=4, block_y=16, thread_x=4, thread_k=4, k_tile=8, staged=False, vector=4, unroll=4)


@pytest.fixture(scope="module")
def adreno() -> GpuMachine:
    return gpu_machine(load_device("sm8550"), "fp16")


def access(strides: tuple[int, int], *, vector: int = 1, shared: bool = False, times: int = 1) -> Access:
    return Access(
        buffer="x", store=False, shared=shared, element_bytes=4, vector=vector, per_thread=times, strides_bytes=strides
    )


def kernel(**change: object) -> GpuKernel:
    plain = GpuKernel(
        name="k", grid=(12, 1, 1), block=(64, 1, 1), shared_bytes=0, local_bytes=64, flops=2048, barriers=0, turns=16,
        accesses=(access((4, 0), times=64),), arguments=(("x", 1 << 16),),
    )  # fmt: skip
    return dataclasses.replace(plain, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strides", "vector", "block", "lines"),
    [
        ((4, 0), 1, (64, 1, 1), 4),  # 64 threads x 4 bytes, lines of 64
        ((16, 0), 4, (64, 1, 1), 16),
        ((0, 0), 4, (64, 1, 1), 1),  # all the same: a broadcast
        ((256, 0), 1, (64, 1, 1), 64),  # a line each
        ((4, 1024), 1, (16, 4, 1), 4),  # a row of 64 bytes for each y
        ((0, 64), 1, (16, 4, 1), 4),
    ],
)
def test_lines_of_a_warp_by_hand(
    strides: tuple[int, int], vector: int, block: tuple[int, int, int], lines: int
) -> None:
    assert access(strides, vector=vector).lines(block, 64, 64) == lines


@pytest.mark.parametrize(("stride", "ways"), [(4, 2), (8, 4), (128, 64), (0, 1), (132, 2)])
def test_bank_conflicts_by_hand(adreno: GpuMachine, stride: int, ways: int) -> None:
    # 64 threads on 32 banks of 4 bytes: two turns at best, unless they read one word.
    assert access((stride, 0), shared=True).ways((64, 1, 1), adreno) == ways


def test_arithmetic_and_issue_by_hand(adreno: GpuMachine) -> None:
    cost = kernel_cost(kernel(), adreno)
    turns = 2  # 12 blocks on 6 units
    per_thread = 1024 / adreno.macs_per_unit
    assert cost.part("arithmetic") == pytest.approx(turns * 64 * per_thread / adreno.clock_hz)
    lanes = adreno.macs_per_unit / 2  # 32-bit instructions, in float16
    assert cost.part("issue") == pytest.approx(turns * 64 * (64 + 4 * 16) / lanes / adreno.clock_hz)
    moved = 12 * 64 * 4 * 64  # blocks x loads x lines x bytes
    assert cost.part("cache") == pytest.approx(moved / adreno.cache_rate / adreno.clock_hz)
    assert cost.dram_bytes == 1 << 16


def test_scattered_loads_idle_lanes_and_barriers_cost(adreno: GpuMachine) -> None:
    base = kernel_cost(kernel(), adreno)
    scattered = kernel_cost(kernel(accesses=(access((4096, 0), times=64),)), adreno)
    assert scattered.part("cache") == pytest.approx(16 * base.part("cache"))
    half = kernel_cost(kernel(block=(32, 1, 1)), adreno)
    assert half.lane_ratio == 0.5
    assert half.part("arithmetic") == pytest.approx(base.part("arithmetic"))
    assert kernel_cost(kernel(barriers=32), adreno).latency_s > base.latency_s
    crowded = kernel_cost(kernel(shared_bytes=20_000), adreno)
    assert crowded.part("waves") > base.part("waves")


def test_a_kernel_is_read_back() -> None:
    assert GpuKernel.from_json(kernel().to_json()) == kernel()


@pytest.mark.parametrize(
    ("layer", "change", "reason"),
    [
        (CONV, {"k_tile": 24}, "k_tile 24 does not divide the 64"),
        (CONV, {"k_tile": 8, "unroll": 3}, "unroll 3 does not divide"),
        (CONV, {"vector": 8}, "vector 8 does not divide thread_k 4"),
        (parse_operator("conv2d:c=64,k=10,y=8,x=8,f=1"), {}, "vector 4 does not divide thread_k 4 and the 10 channels"),
        (DEPTHWISE, {"k_tile": 3, "unroll": 3, "staged": True}, "staged: each channel"),
        (DEPTHWISE, {"k_tile": 2, "unroll": 1}, "k_tile 2 does not divide the 3"),
    ],
)
def test_what_no_kernel_can_be_written_with_is_refused(layer: object, change: dict[str, int], reason: str) -> None:
    assert (build_refusal(layer, dataclasses.replace(TILE, **change)) or "").startswith(reason)  # type: ignore[arg-type]
    assert build_refusal(CONV, TILE) is None


@given(
    c=st.integers(1, 300), k=st.integers(1, 300), size=st.integers(3, 40), taps=st.sampled_from([1, 3, 5]),
    depthwise=st.booleans(),
)  # fmt: skip
def test_the_best_of_the_buildable_space_is_never_refused(
    c: int, k: int, size: int, taps: int, *, depthwise: bool
) -> None:
    machine = gpu_machine(load_device("sm8550"), "fp16")
    text = f"conv2d:c={c},k={c},y={size},x={size},f={taps},g={c}" if depthwise else (
        f"conv2d:c={c},k={k},y={size},x={size},f={taps}"
    )  # fmt: skip
    layer = parse_operator(text)
    found = search_gpu(layer, machine, buildable_space(layer, machine))
    assert build_refusal(layer, found.tile) is None
