"""A whole graph on an NPU: what a memory holds, what goes to DRAM, and that less memory is never faster."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import Graph, from_proto, zoo
from partition import load_device
from partition.tile import NpuMachine, TileError, npu_machine, whole_cost

IMAGE = 32 * 64 * 64  # bytes of one feature map in int8: whole blocks
ENDS = 4 * IMAGE + IMAGE  # the graph's input is float32 in DRAM


@pytest.fixture(scope="module")
def machine() -> NpuMachine:
    return npu_machine(load_device("sa8255p"), "int8")


def chain(skip: bool) -> Graph:
    """Three 1x1 convolutions of [1,32,64,64]; with `skip` the first one's result is added at the end."""
    weights = [numpy_helper.from_array(np.ones((32, 32, 1, 1), np.float32), f"w{i}") for i in range(3)]
    names = ["x", "a", "b", "c"]
    nodes = [helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], name=f"conv{i}") for i in range(3)]
    if skip:
        nodes.append(helper.make_node("Add", ["c", "a"], ["y"], name="add"))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 32, 64, 64)) for n in ("x", "y" if skip else "c")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def with_memory(machine: NpuMachine, maps: float) -> NpuMachine:
    return dataclasses.replace(machine, budget_bytes=maps * IMAGE)


def test_a_memory_that_holds_all_moves_each_end_and_weight_once(machine: NpuMachine) -> None:
    cost = whole_cost(chain(skip=True), with_memory(machine, 8))
    assert cost.spilled_bytes == 0
    assert cost.dram_bytes == ENDS + 3 * 32 * 32
    assert cost.windows == 1


def test_what_is_read_last_is_spilled_first(machine: NpuMachine) -> None:
    # conv1 and conv2 need two maps and their weights; `a`, which only the last Add reads, has no room.
    cost = whole_cost(chain(skip=True), with_memory(machine, 2.1))
    room = 0.1 * IMAGE - 32 * 32
    assert cost.spilled_bytes == pytest.approx(IMAGE - room)
    assert cost.dram_bytes == pytest.approx(ENDS + 3 * 32 * 32 + 2 * cost.spilled_bytes)
    assert whole_cost(chain(skip=False), with_memory(machine, 2.1)).spilled_bytes == 0


def test_less_memory_is_more_windows_and_more_time(machine: NpuMachine) -> None:
    free_entry = dataclasses.replace(machine, in_cycles_per_byte=0.0)
    costs = [whole_cost(chain(skip=True), with_memory(free_entry, maps)) for maps in (1.2, 2.1, 4, 8)]
    windows = [cost.windows for cost in costs]
    latencies = [cost.latency_s for cost in costs]
    assert windows == sorted(windows, reverse=True)
    assert latencies == sorted(latencies, reverse=True)
    assert latencies[0] > 1.1 * latencies[-1]


def test_a_window_of_one_operator_has_no_overlap(machine: NpuMachine) -> None:
    plain = dataclasses.replace(machine, transfer_cycles=0.0, tile_cycles=0.0, in_cycles_per_byte=0.0)
    one = whole_cost(chain(skip=False), with_memory(plain, 1.01))
    assert one.windows == 3
    assert machine.step_cycles is not None
    matrix = 3 * 64 * (machine.step_cycles + machine.block_cycles)
    assert one.latency_s * plain.clock_hz == pytest.approx(one.dram_bytes / plain.dma_bytes + matrix)


def test_an_input_is_cut_for_all_vector_threads_only_where_memory_is_short(machine: NpuMachine) -> None:
    def entry(maps: float) -> float:
        free = dataclasses.replace(machine, in_cycles_per_byte=0.0)
        costs = [whole_cost(chain(skip=False), with_memory(m, maps)).latency_s for m in (machine, free)]
        return (costs[0] - costs[1]) * machine.clock_hz / machine.in_cycles_per_byte

    assert entry(4) == pytest.approx(IMAGE)
    assert entry(3.9) == pytest.approx(IMAGE / machine.vector_threads)


@pytest.mark.parametrize(
    ("precision", "simulated_us"), [("fp16", (744, 581, 521, 420)), ("int8", (184, 143, 142, 200))]
)
def test_the_order_of_memory_sizes_is_the_simulators(precision: str, simulated_us: tuple[int, ...]) -> None:
    """SqueezeNet 1.1 at 1, 2, 4 and 8 MB; in int8 the largest memory is the slowest."""
    device, graph = load_device("sa8255p"), zoo.build("squeezenet1_1")
    costs = [whole_cost(graph, npu_machine(device, precision, budget_bytes=mb * 2**20)) for mb in (1, 2, 4, 8)]
    ours = np.array([cost.latency_s * 1e6 for cost in costs])
    theirs = np.array(simulated_us)
    for i in range(4):
        for j in range(4):
            if theirs[i] > 1.05 * theirs[j]:
                assert ours[i] > ours[j]
    assert np.median(np.abs(ours / theirs - 1)) < 0.25
    assert (costs[0].spilled_bytes > 0) == (precision == "fp16")
    assert costs[-1].spilled_bytes == 0


def shuffled(order: list[int]) -> Graph:
    """A map of 64 channels in two groups, its five axes in that order, as four axes again."""
    shape = [1, 2, 32, 16, 16]
    sizes = {"apart": shape, "back": [1, 64, 16, 16]}
    nodes = [
        helper.make_node("Reshape", ["x", "apart"], ["a"], name="apart"),
        helper.make_node("Transpose", ["a"], ["b"], name="order", perm=order),
        helper.make_node("Reshape", ["b", "back"], ["y"], name="back"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 64, 16, 16)) for n in ("x", "y")]
    weights = [numpy_helper.from_array(np.array(size), name) for name, size in sizes.items()]
    graph = helper.make_graph(nodes, "shuffled", ends[:1], ends[1:], weights)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def test_a_channel_shuffle_is_plain_rows_on_one_thread(machine: NpuMachine) -> None:
    """1.4 cycles a byte; another order of axes is a pass on all threads, beside the output's way to DRAM."""
    cycles = {
        name: whole_cost(shuffled(order), machine).latency_s * machine.clock_hz
        for name, order in (("shuffle", [0, 2, 1, 3, 4]), ("other", [0, 2, 1, 4, 3]))
    }
    nbytes = 64 * 16 * 16
    one_pass = 2 * nbytes * machine.in_cycles_per_byte / machine.vector_threads
    assert cycles["shuffle"] - cycles["other"] == pytest.approx(
        1.4 * nbytes - max(one_pass, nbytes / machine.dma_bytes), rel=1e-3
    )


def test_a_shape_that_is_not_known_is_named(machine: NpuMachine) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"], name="found")
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 4)),
            helper.make_tensor_value_info("y", TensorProto.INT64, (2, None))]  # fmt: skip
    graph = helper.make_graph([node], "open", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(TileError, match="the shape of y is not known"):
        whole_cost(from_proto(model), machine)
