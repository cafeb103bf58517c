"""A whole graph on an NPU: what a memory holds, what goes to DRAM, and that less memory is never faster."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphs import Graph, from_proto, zoo
from partition import load_device
from partition.tile import NpuMachine, TileError, npu_machine, whole_cost
from partition.tile.stages import MATRIX, VECTOR, Stage, works_of

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


def test_what_is_read_last_is_spilled_first(machine: NpuMachine) -> None:
    # conv1 and conv2 need two maps and their weights; `a`, which only the last Add reads, has no room.
    cost = whole_cost(chain(skip=True), with_memory(machine, 2.1))
    room = 0.1 * IMAGE - 32 * 32
    assert cost.spilled_bytes == pytest.approx(IMAGE - room)
    assert cost.dram_bytes == pytest.approx(ENDS + 3 * 32 * 32 + 2 * cost.spilled_bytes)
    assert whole_cost(chain(skip=False), with_memory(machine, 2.1)).spilled_bytes == 0


def without(machine: NpuMachine, **figures: object) -> NpuMachine:
    """Leave out all passes and starts, so that one effect is left by itself."""
    bare = {"passes": tuple((kind, 0.0) for kind, _ in machine.passes), "pass_start_cycles": 0.0,
            "matrix_start_cycles": 0.0, "transfer_cycles": 0.0}  # fmt: skip
    return dataclasses.replace(machine, **(bare | figures))


def test_less_memory_is_more_time(machine: NpuMachine) -> None:
    """But for the input, which a large memory leaves to one thread."""
    free_entry = dataclasses.replace(machine, passes=(*machine.passes, ("cast", 0.0), ("block", 0.0)))
    costs = [whole_cost(chain(skip=True), with_memory(free_entry, maps)) for maps in (1.2, 2.1, 4, 8)]
    latencies = [cost.latency_s for cost in costs]
    assert latencies == sorted(latencies, reverse=True)
    assert latencies[0] > 1.1 * latencies[-1]


def test_an_operator_starts_as_its_tensors_arrive_and_no_sooner(machine: NpuMachine) -> None:
    """The last of eight bands waits for all of the input; what follows is its way through three convolutions."""
    cost = whole_cost(chain(skip=False), without(with_memory(machine, 8)))
    assert machine.step_cycles is not None
    blocks = 64 * (machine.step_cycles + machine.block_cycles)
    arrived = 4 * IMAGE / machine.dma_bytes
    cycles = cost.latency_s * machine.clock_hz
    assert arrived + blocks / 8 < cycles < arrived + IMAGE / machine.dma_bytes + 3 * blocks


def test_an_input_is_cut_for_all_vector_threads_only_where_memory_is_short(machine: NpuMachine) -> None:
    slow = {"passes": tuple((kind, 2.0 if kind == "block" else 0.0) for kind, _ in machine.passes)}

    def cycles(maps: float) -> float:
        return whole_cost(chain(skip=False), with_memory(without(machine, **slow), maps)).latency_s * machine.clock_hz

    assert cycles(4) > 2 * IMAGE
    assert cycles(3.9) < 2 * IMAGE


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
    assert np.median(np.abs(ours / theirs - 1)) < 0.2
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


def stages_of(graph: Graph, machine: NpuMachine, node: str) -> tuple[Stage, ...]:
    outputs = next(n.outputs for n in graph.nodes() if n.name == node)
    return next(work.stages for work in works_of(graph, machine)[0] if set(outputs) & set(work.outputs))


def test_more_than_four_axes_are_plain_rows_on_one_thread(machine: NpuMachine) -> None:
    graph = shuffled([0, 2, 1, 3, 4])
    nbytes = 64 * 16 * 16
    for name in ("apart", "order"):
        (stage,) = stages_of(graph, machine, name)
        assert (stage.tiles, stage.whole) == (1, True)
        assert stage.cycles == pytest.approx(machine.pass_start_cycles + dict(machine.passes)["plain"] * nbytes)


def model(nodes: list[onnx.NodeProto], channels: int, size: int, out: list[int], **weights: list[int]) -> Graph:
    values = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, channels, size, size)),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, out)]  # fmt: skip
    graph = helper.make_graph(nodes, "model", ends[:1], ends[1:], values)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def silu(channels: int, size: int) -> Graph:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Sigmoid", ["c"], ["s"], name="sigmoid"),
        helper.make_node("Mul", ["c", "s"], ["p"], name="product"),
        helper.make_node("Conv", ["p", "v"], ["y"], name="end"),
    ]
    square = [channels, channels, 1, 1]
    return model(nodes, channels, size, [1, channels, size, size], w=square, v=square)


@pytest.mark.parametrize(("size", "tiles"), [(7, 1), (14, 2), (28, 4), (56, 7)])
def test_a_chain_of_functions_is_one_table_and_a_small_map_has_few_tiles(
    machine: NpuMachine, size: int, tiles: int
) -> None:
    """In the traces: HardSigmoid of 64x28x28 is four tiles, of 240x14x14 two, of 240x7x7 one, on as many threads."""
    (table,) = stages_of(silu(64, size), machine, "sigmoid")
    assert (table.unit, table.tiles) == (VECTOR, tiles)
    assert stages_of(silu(64, size), machine, "product") == ()


def test_in_fp16_the_matrix_unit_applies_a_function_to_what_it_made() -> None:
    (fused,) = stages_of(silu(64, 28), npu_machine(load_device("sa8255p"), "fp16"), "sigmoid")
    assert fused.unit == MATRIX


@pytest.mark.parametrize("constant_first", [True, False])
def test_a_constant_over_a_tensor_goes_into_no_weights(machine: NpuMachine, constant_first: bool) -> None:
    divided = ["scales", "a"] if constant_first else ["a", "scales"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], name="conv", kernel_shape=[1, 1]),
             helper.make_node("Div", divided, ["y"], name="divide")]  # fmt: skip
    graph = model(nodes, 64, 28, [1, 64, 28, 28], w=[64, 64, 1, 1], scales=[1, 64, 1, 1])
    # The last stage brings the graph's output out.
    assert len(stages_of(graph, machine, "divide")[:-1]) == int(constant_first)


def grouped(channels: int, size: int, width: int) -> Graph:
    conv = helper.make_node(
        "Conv", ["x", "w"], ["y"], name="conv", group=channels // width, kernel_shape=[3, 3], pads=[1] * 4
    )
    return model([conv], channels, size, [1, channels, size, size], w=[channels, width, 3, 3])


def test_groups_that_fill_a_block_together_need_no_copies(machine: NpuMachine) -> None:
    """In the traces: 16 groups of 8 are 4 products of 32 channels; 440 channels are 55 slices, products and 4 joins."""
    packed = stages_of(grouped(128, 32, 8), machine, "conv")
    assert [(stage.unit, stage.tiles) for stage in packed[:-1]] == [(MATRIX, 4 * 4)]
    apart = stages_of(grouped(440, 7, 8), machine, "conv")
    assert [(stage.unit, stage.tiles) for stage in apart[:-1]] == [(VECTOR, 55), (VECTOR, 1), (MATRIX, 55), (VECTOR, 4)]
    # 208 = 13 * 16: two groups at a time, not four.
    assert [stage.tiles for stage in stages_of(grouped(208, 14, 8), machine, "conv") if stage.unit == MATRIX] == [26]


def test_squeeze_and_excite_waits_for_every_step(machine: NpuMachine) -> None:
    """A sum needs the whole map in one tile, and 7x7 tiles of what follows stand in line."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("GlobalAveragePool", ["c"], ["g"], name="sum"),
        helper.make_node("Conv", ["g", "u"], ["r"], name="reduce"),
        helper.make_node("Sigmoid", ["r"], ["s"], name="gate"),
        helper.make_node("Mul", ["c", "s"], ["p"], name="scale"),
        helper.make_node("Conv", ["p", "v"], ["y"], name="end"),
    ]
    square = [64, 64, 1, 1]
    graph = model(nodes, 64, 7, [1, 64, 7, 7], w=square, u=square, v=square)
    alone = {
        name: sum(s.tiles * s.cycles for s in stages_of(graph, machine, name)) for name in ("sum", "gate", "scale")
    }
    assert stages_of(graph, machine, "sum")[0].whole
    without_gate = model([nodes[0], helper.make_node("Conv", ["c", "v"], ["y"], name="end")], 64, 7, [1, 64, 7, 7],
                         w=square, v=square)  # fmt: skip
    more = [whole_cost(g, machine).latency_s * machine.clock_hz for g in (graph, without_gate)]
    assert more[0] - more[1] > sum(alone.values())


def test_a_normalisation_that_no_convolution_takes_up_is_one_of_its_own(machine: NpuMachine) -> None:
    scale = {name: [64] for name in ("scale", "bias", "mean", "var")}
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["d"], name="double", axis=1),
        helper.make_node("BatchNormalization", ["d", *scale], ["y"], name="norm"),
    ]
    stages = stages_of(model(nodes, 32, 28, [1, 64, 28, 28], **scale), machine, "norm")
    assert stages[0].unit == MATRIX


@given(
    channels=st.integers(8, 300), size=st.integers(4, 60), maps=st.sampled_from([0.2, 1, 3, 8]),
    precision=st.sampled_from(["int8", "fp16"]),
)  # fmt: skip
def test_no_unit_works_longer_than_the_whole(channels: int, size: int, maps: float, precision: str) -> None:
    npu = npu_machine(load_device("sa8255p"), precision, budget_bytes=maps * 2**20)
    graph = silu(channels, size)
    stages = [stage for work in works_of(graph, npu)[0] for stage in work.stages]
    busy = {unit: sum(s.tiles * s.cycles for s in stages if s.unit == unit) for unit in (MATRIX, VECTOR)}
    cost = whole_cost(graph, npu)
    cycles = cost.latency_s * npu.clock_hz * (1 + 1e-9)
    assert cycles >= busy[MATRIX]
    assert cycles >= busy[VECTOR] / npu.vector_threads
    assert cycles >= cost.dram_bytes / npu.dma_bytes
    assert cycles <= busy[MATRIX] + busy[VECTOR] + 4 * cost.dram_bytes / npu.dma_bytes + 1e4


# At 8 MB; `python -m benchmarks.tiles simulate`. No figure is fitted to these models.
SIMULATED_CYCLES = {
    ("mobilenet_v3_small", "int8"): 502_133, ("mobilenet_v3_small", "fp16"): 777_969,
    ("regnet_y_400mf", "int8"): 1_315_756, ("regnet_y_400mf", "fp16"): 2_234_660,
    ("mobilevit_v2", "int8"): 5_231_856, ("mobilevit_v2", "fp16"): 24_077_938,
}  # fmt: skip


@pytest.mark.parametrize(("name", "precision"), list(SIMULATED_CYCLES))
def test_gates_groups_and_functions_are_within_30_percent(name: str, precision: str) -> None:
    npu = npu_machine(load_device("sa8255p"), precision)
    cycles = whole_cost(zoo.build(name), npu).latency_s * npu.clock_hz
    assert cycles == pytest.approx(SIMULATED_CYCLES[name, precision], rel=0.3)


def test_a_shape_that_is_not_known_is_named(machine: NpuMachine) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"], name="found")
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 4)),
            helper.make_tensor_value_info("y", TensorProto.INT64, (2, None))]  # fmt: skip
    graph = helper.make_graph([node], "open", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(TileError, match="the shape of y is not known"):
        whole_cost(from_proto(model), machine)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize(
    "made",
    [
        helper.make_node("RandomNormal", [], ["c"], name="made", shape=(1, 8, 16, 16)),
        helper.make_node("Add", ["one", "one"], ["c"], name="made"),
        helper.make_node("Clip", ["one"], ["c"], name="made"),
    ],
    ids=lambda node: str(node.op_type),
)
def test_what_no_activation_flows_into_takes_no_time(made: onnx.NodeProto, precision: str) -> None:
    """A gate in front of the constant asks which layer made it."""
    npu = npu_machine(load_device("sa8255p"), precision)
    nodes = [made, helper.make_node("Sigmoid", ["c"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8, 16, 16)) for name in "xy"]
    one = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "one")
    held = helper.make_graph(nodes, "constants", ends[:1], ends[1:], [one])
    graph = from_proto(helper.make_model(held, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    works = {node.name: work for node, work in zip(graph.nodes(), works_of(graph, npu)[0][1:], strict=True)}
    assert not works["made"].stages
    assert whole_cost(graph, npu).latency_s > 0


def between(op_type: str, channels: int, size: int, *, of: str = "", **attributes: object) -> Graph:
    """Return `op_type` (its node is `op`) of two convolutions' product or sum, of two, or of one."""
    rng = np.random.default_rng(0)
    by_channel = {"Mul": [(1, channels, 1, 1)], "BatchNormalization": [(channels,)] * 4}.get(op_type, [])
    weights = [numpy_helper.from_array(rng.random((channels, channels, 1, 1), np.float32), f"w{i}") for i in "ab"]
    weights += [numpy_helper.from_array(rng.random(s, np.float32) + 0.5, f"c{i}") for i, s in enumerate(by_channel)]
    nodes = [helper.make_node("Conv", ["x", f"w{i}"], [i], name=i) for i in "ab"]
    if of:
        nodes.append(helper.make_node(of, ["a", "b"], ["both"], name="both"))
    inputs = ["both"] if of else (["a", "b"] if op_type == "Add" else ["a"])
    constants = [f"c{i}" for i in range(len(by_channel))]
    nodes.append(helper.make_node(op_type, [*inputs, *constants], ["y"], name="op", **attributes))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, channels, size, size)) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "between", ends[:1], ends[1:], weights)
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def own_stages(graph: Graph, machine: NpuMachine) -> tuple[Stage, ...]:
    """Return the stages of `op` without those that bring the graph's result out."""
    return stages_of(graph, machine, "op")[:-1]


@pytest.fixture(scope="module")
def halves() -> NpuMachine:
    return npu_machine(load_device("sa8255p"), "fp16")


@pytest.mark.parametrize(
    ("channels", "size", "tiles", "cycles"), [(64, 56, 14, 726), (128, 28, 16, 436), (288, 7, 9, 442)]
)
def test_a_sum_in_fp16_takes_the_matrix_unit_what_its_trace_says(
    halves: NpuMachine, channels: int, size: int, tiles: int, cycles: float
) -> None:
    (stage,) = own_stages(between("Add", channels, size), halves)
    assert (stage.unit, stage.tiles) == (MATRIX, tiles)
    assert stage.cycles == pytest.approx(cycles, rel=0.1)


def test_what_goes_into_the_weights_costs_nothing_and_elsewhere_what_its_trace_says(
    machine: NpuMachine, halves: NpuMachine
) -> None:
    """BatchNormalization, Relu and a factor by channel; the cycles of all tiles in fp16, in the simulator's traces."""
    for op_type, simulated in (("BatchNormalization", 26254), ("Relu", 11_700), ("Mul", 274_144)):
        assert not own_stages(between(op_type, 128, 28), halves)
        (stage,) = own_stages(between(op_type, 128, 28, of="Mul"), halves)
        assert stage.unit == VECTOR
        assert stage.tiles * stage.cycles == pytest.approx(simulated, rel=0.35)
    assert not own_stages(between("Relu", 128, 28, of="Add"), halves)
    assert not own_stages(between("Relu", 128, 28, of="Mul"), machine)
    (stage,) = own_stages(between("BatchNormalization", 128, 28, of="Mul"), machine)
    assert stage.unit == MATRIX


@pytest.mark.parametrize(("counted", "unit"), [(1, MATRIX), (0, VECTOR)])
def test_a_mean_over_windows_that_counts_its_border_is_a_convolution(
    machine: NpuMachine, counted: int, unit: str
) -> None:
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": counted}
    stages = own_stages(between("AveragePool", 96, 28, **window), machine)
    assert stages[-1].unit == unit


def test_a_pool_of_few_bands_goes_by_channels_too(machine: NpuMachine) -> None:
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    assert own_stages(between("MaxPool", 512, 14, **window), machine)[0].tiles == 2 * 4
    assert own_stages(between("MaxPool", 192, 28, **window), machine)[0].tiles == 4


def test_a_product_starts_on_the_first_of_its_weights(machine: NpuMachine) -> None:
    """The last of four tiles of channels waits for all weights; the others are done by then."""
    weights = numpy_helper.from_array(np.ones((1024, 1024, 1, 1), np.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 1024, 8, 8)) for n in ("x", "y")]
    proto = helper.make_graph(nodes, "product", ends[:1], ends[1:], [weights])
    graph = from_proto(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    slow = dataclasses.replace(without(machine), step_cycles=machine.dma_bytes)  # as long as the transfer of weights
    (compute,) = (stage.tiles * stage.cycles for stage in stages_of(graph, slow, "conv") if stage.unit == MATRIX)
    moved = (1024 * 1024 + (4 + 1) * 1024 * 64) / slow.dma_bytes
    assert moved < whole_cost(graph, slow).latency_s * slow.clock_hz < moved + compute / 2


def test_the_tiles_of_one_band_are_for_all_vector_threads(machine: NpuMachine) -> None:
    """A strided convolution with next to no memory: one band at a time, four blocks of channels in it."""
    weights = numpy_helper.from_array(np.ones((128, 128, 3, 3), np.float32), "w")
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **window)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 128, s, s)) for n, s in (("x", 64), ("y", 32))]
    proto = helper.make_graph(nodes, "strided", ends[:1], ends[1:], [weights])
    graph = from_proto(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    passes = tuple((kind, 50.0 if kind == "strided" else 0.0) for kind, _ in machine.passes)
    small = dataclasses.replace(without(machine, passes=passes), budget_bytes=128 << 10)
    four, one = (whole_cost(graph, dataclasses.replace(small, vector_threads=n)).latency_s for n in (4, 1))
    assert four < 0.4 * one
