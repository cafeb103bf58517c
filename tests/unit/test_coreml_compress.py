"""Compression: every method decompresses as coremltools does, activations get the ranges of all samples."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compilers import CompilerError, get_compiler
from compilers.coreml.calibrate import _joined, activation_ranges
from compilers.coreml.compress import METHODS, cluster, compress, method, target_for
from compilers.coreml.execute import KERNELS
from compilers.coreml.execute.table import Arguments
from compilers.coreml.lower import lower
from compilers.coreml.package import unpack_bits
from compilers.coreml.session import EmulatedSession
from compilers.coreml.vendor import coremltools
from compilers.coreml.write import convert, save_model
from graphs import Calibration, Graph, from_proto, quantise, random_inputs
from partition import FeedFile, Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

    from compilers.artefact import Artefact

Array = np.ndarray[Any, Any]


def small_net() -> Graph:
    """Two convolutions, a concat and a matrix product, each with more weights than the least that is compressed."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (64, 32, 3, 3), "w2": (64, 64, 1, 1), "w3": (128, 96), "b3": (128,)}
    weights = {name: (rng.normal(size=shape) / 8).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2"),
        helper.make_node("Concat", ["c", "x"], ["d"], name="concat", axis=1),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="pool"),
        helper.make_node("Flatten", ["e"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="gemm", transB=1),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "small",
        [info("x", TensorProto.FLOAT, (1, 32, 8, 8))],
        [info("y", TensorProto.FLOAT, (1, 128))],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


@pytest.fixture(scope="module")
def net() -> Graph:
    return small_net()


def compiled(
    graph: Graph, folder: Path, precision: str = "fp16", feeds: FeedFile | None = None, **options: str
) -> Artefact:
    segment = Segment(
        graph=graph,
        device=load_device("a17_pro"),
        processor="npu",
        compiler="coreml",
        precision=precision,
        options=tuple(options.items()),
        feeds=feeds,
    )
    folder.mkdir(exist_ok=True)
    return get_compiler("coreml").compile(segment, folder)


@pytest.fixture(scope="module")
def plain(net: Graph, tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    return compiled(net, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if not m.activations])
def test_decompressed_as_coremltools_does(net: Graph, name: str, tmp_path: Path) -> None:
    target = max("iOS17", METHODS[name].target)
    lowered = lower(net.proto(), target)
    model = compress(convert(lowered, target=target, compute="fp16"), METHODS[name])
    save_model(model, lowered, tmp_path / "a.mlpackage")
    coremltools()
    import coremltools.optimize.coreml as optimize

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # coremltools leaves its scratch folder to Python
        dense = optimize.decompress_weights(model)
    save_model(dense, lowered, tmp_path / "b.mlpackage")
    feed = random_inputs(net, 1)
    ours, theirs = (EmulatedSession(tmp_path / f"{n}.mlpackage").run(feed)["y"] for n in "ab")
    np.testing.assert_array_equal(ours, theirs)


# Relative errors of this net, rounded up: a wrong scale or a permuted table is far outside.
ERRORS = {"w8": 0.01, "palette8": 0.01, "palette6": 0.04, "w4": 0.2, "palette4": 0.2, "prune50": 0.6, "w8a8": 0.03}


@pytest.mark.parametrize("name", ERRORS)
def test_methods_shrink_and_stay_near(net: Graph, plain: Artefact, name: str, tmp_path: Path) -> None:
    small = compiled(net, tmp_path / "small", compress=name)
    assert small.size_bytes < plain.size_bytes
    assert float(plain.fact("proof_error")) < float(small.fact("proof_error")) < ERRORS[name]
    assert small.fact("compress") == name
    assert int(small.fact("compressed_weights")) == 3
    assert small.fact("target") == max("iOS17", METHODS[name].target)
    assert small.fact("arithmetic") == ("int8" if name == "w8a8" else "fp16")


def test_activations_are_eight_bit_and_modelled_so(net: Graph, plain: Artefact, tmp_path: Path) -> None:
    artefact = compiled(net, tmp_path / "a", compress="w8a8", samples="2")
    operations = [o.type for o in EmulatedSession(artefact.main_file).program.operations]
    assert operations.count("quantize") >= 4
    estimate = get_compiler("coreml").estimate
    assert estimate(artefact).latency.typical_s < estimate(plain).latency.typical_s
    # Weights alone bring no speed that Apple's figures bear out, and none is claimed.
    weights = compiled(net, tmp_path / "c", compress="w8")
    assert estimate(weights).latency == estimate(plain).latency


def test_ranges_come_from_the_users_data(net: Graph, tmp_path: Path) -> None:
    """Data a hundred times as wide as the random feeds gives the input a hundred times the step."""
    wide = np.concatenate([random_inputs(net, seed)["x"] for seed in range(3)]) * np.float32(100)
    np.save(tmp_path / "wide.npy", wide)
    digest = Calibration.from_path(net, tmp_path / "wide.npy").digest
    feeds = FeedFile(path=str(tmp_path / "wide.npy"), digest=digest)
    steps = []
    for name, data in (("random", None), ("wide", feeds)):
        artefact = compiled(net, tmp_path / name, feeds=data, compress="w8a8", samples="3")
        operations = EmulatedSession(artefact.main_file).program.operations
        constants = {o.name: o.value for o in operations if o.type == "const"}
        (scale,) = next(o for o in operations if o.type == "quantize").inputs["scale"]
        steps.append(float(np.asarray(constants[str(scale)])))
    assert steps[1] == pytest.approx(100 * steps[0], rel=0.01)
    assert artefact.fact("activation_ranges") == f"3 feeds of {feeds.path}"
    assert artefact.precision == "int8"
    np.save(tmp_path / "wide.npy", wide / 2)
    with pytest.raises(CompilerError, match="has changed since"):
        compiled(net, tmp_path / "c", feeds=feeds, compress="w8a8")
    (tmp_path / "wide.npy").unlink()
    with pytest.raises(CompilerError, match="no calibration data at"):
        compiled(net, tmp_path / "d", feeds=feeds, compress="w8a8")


def test_ranges_hold_every_sample(net: Graph, tmp_path: Path) -> None:
    """coremltools 9.0 keeps the last sample's range; here [-100, 100] then [-1, 1] stays [-100, 100]."""
    lowered = lower(net.proto(), "iOS17")
    save_model(convert(lowered, target="iOS17", compute="fp16"), lowered, tmp_path / "a.mlpackage")
    session = EmulatedSession(tmp_path / "a.mlpackage")
    shape = net.inputs()[0].shape
    assert shape is not None
    wide = np.linspace(-100, 100, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    ranges = activation_ranges(session, [{"x": wide}, {"x": wide / 100}])
    assert ranges["x"] == (-100, 100)
    (joined,) = [o for o in session.program.operations if o.type == "concat"]
    names = [str(v) for v in joined.inputs["values"]] + [joined.outputs[0].name]
    assert len({ranges[name] for name in names}) == 1
    with pytest.raises(CompilerError, match="at least one feed"):
        activation_ranges(session, [])
    with pytest.raises(CompilerError, match="not finite"):
        activation_ranges(session, [{"x": wide * np.float32(np.inf)}])


def test_concats_that_share_a_tensor_share_the_range() -> None:
    ranges = {name: (-float(i), float(i)) for i, name in enumerate("abcde", start=1)}
    joined = _joined(dict(ranges), [{"a", "b"}, {"d", "e"}, {"b", "d"}])
    assert {joined[name] for name in "abde"} == {(-5.0, 5.0)}
    assert joined["c"] == ranges["c"]


def test_refusals(net: Graph, tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="'zip' is not known; there are w8"):
        method("zip")
    with pytest.raises(CompilerError, match="needs target iOS18, not iOS17"):
        target_for(METHODS["w4"], "iOS17", "iOS17")
    assert target_for(METHODS["w8"], None, "iOS17") == "iOS17"
    with pytest.raises(CompilerError, match="is no count of feeds"):
        compiled(net, tmp_path, compress="w8a8", samples="few")
    with pytest.raises(CompilerError, match="quantised already"):
        compiled(net, tmp_path, "int8", compress="w8")


def test_nothing_to_compress_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "relu", [info("x", TensorProto.FLOAT, (1, 4))], [info("y", TensorProto.FLOAT, (1, 4))]
    )
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    with pytest.raises(CompilerError, match="left every weight as it was"):
        compiled(model, tmp_path, compress="w8")


def test_eight_bit_activations_in_fp32_are_refused(net: Graph, tmp_path: Path) -> None:
    from compilers.coreml.build import build

    segment = Segment(
        graph=net,
        device=load_device("a17_pro"),
        processor="npu",
        compiler="coreml",
        precision="fp32",
        options=(("compress", "w8a8"),),
    )
    with pytest.raises(CompilerError, match="need precision fp16"):
        build(segment, tmp_path / "a.mlpackage", compute="fp32", default_target="iOS17")


# -- recipes of graphs.quantise --------------------------------------------------------------------------------


def test_block_int4_recipe_keeps_four_bits(net: Graph, tmp_path: Path) -> None:
    graph = quantise(net, "w4", None)
    artefact = compiled(graph, tmp_path)
    assert artefact.fact("target") == "iOS18"
    assert int(artefact.fact("compressed_weights")) == 3
    assert float(artefact.fact("proof_error")) < 2e-3, "the reference has the same int4 weights"
    assert artefact.size_bytes < 30_000
    with pytest.raises(CompilerError, match="need target iOS18"):
        compiled(graph, tmp_path, target="iOS17")


@pytest.mark.parametrize("block", [0, 8, 10, 12])
def test_int4_blocks_of_any_size_are_exact(block: int, tmp_path: Path) -> None:
    """Blocks that do not divide the axis too: ONNX has a shorter last one, MIL has not."""
    rng = np.random.default_rng(block)
    count = -(-24 // block) if block else 24
    data = rng.integers(-7, 8, (24, 6)).astype(np.int8)
    scale = rng.uniform(0.1, 1, (count, 6) if block else (24,)).astype(np.float32)
    packed = helper.make_tensor("w", TensorProto.INT4, data.shape, data.reshape(-1).tolist())
    info = helper.make_tensor_value_info
    blocks = {"block_size": block} if block else {}
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], name="dequantise", axis=0, **blocks),
            helper.make_node("MatMul", ["x", "d"], ["y"], name="product"),
        ],
        "int4",
        [info("x", TensorProto.FLOAT, (1, 24))],
        [info("y", TensorProto.FLOAT, (1, 6))],
        [packed, numpy_helper.from_array(scale, "s")],
    )
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    )
    lowered = lower(model, "iOS18")
    save_model(convert(lowered, target="iOS18", compute="fp32"), lowered, tmp_path / "a.mlpackage")
    x = rng.normal(size=(1, 24)).astype(np.float32)
    spread = np.repeat(scale, block, axis=0)[:24] if block else scale[:, None]
    got = EmulatedSession(tmp_path / "a.mlpackage").run({"x": x})["y"]
    np.testing.assert_allclose(got, x @ (data * spread), rtol=1e-5, atol=1e-5)


# -- tables and bits -------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.lists(st.integers(0, 255), min_size=1, max_size=40))
def test_unpacking_inverts_packing(bits: int, codes: list[int]) -> None:
    values = np.array(codes, np.uint8) & np.uint8((1 << bits) - 1)
    flat = "".join(format(v, f"0{bits}b")[::-1] for v in values)
    flat += "0" * (-len(flat) % 8)
    packed = np.array([int(flat[i : i + 8][::-1], 2) for i in range(0, len(flat), 8)], np.uint8)
    np.testing.assert_array_equal(unpack_bits(packed, bits, len(values)), values)


def test_clustering_is_exact_for_few_values_and_near_for_many() -> None:
    coremltools()
    few = np.array([[1, 2], [2, -3]], np.float16)
    table, indices = cluster(few, 2)
    np.testing.assert_array_equal(table[indices].reshape(2, 2), few)
    many = np.random.default_rng(0).normal(size=5000).astype(np.float16)
    table, indices = cluster(many, 4)
    uniform = np.linspace(many.min(), many.max(), 16)
    nearest = np.abs(many[:, None] - uniform).min(axis=1)
    assert np.sum(np.square(table[indices].astype(float) - many)) < 0.7 * np.sum(np.square(nearest.astype(float)))


def test_grouped_table_of_the_documentation() -> None:
    """coremltools, constexpr_lut_to_dense (iOS18), case 1."""
    indices = np.array([2, 3, 3, 0, 1, 0, 3, 0, 2, 1, 0, 3], np.uint8).reshape(6, 2)
    lut = np.array([1, 5, 9, 13, 2, 10, 18, 26], np.float32).reshape(2, 1, 4, 1)
    dense = KERNELS["constexpr_lut_to_dense"](Arguments({"indices": indices, "lut": lut}))
    np.testing.assert_array_equal(dense, [[9, 13], [13, 1], [5, 1], [26, 2], [18, 10], [2, 26]])


def test_table_of_vectors_of_the_documentation() -> None:
    """The same, case 2.1 and 2.2."""
    indices = np.array([0, 0, 1, 0, 1, 1, 0, 0], np.uint8).reshape(2, 2, 2)
    lut = np.array([1, 2, 3, -1, -2, -3], np.float32).reshape(1, 1, 1, 2, 3)
    arguments = {"indices": indices, "lut": lut}
    along_1 = KERNELS["constexpr_lut_to_dense"](Arguments({**arguments, "vector_axis": np.int32(1)}))
    np.testing.assert_array_equal(along_1[0], [[1, 1], [2, 2], [3, 3], [-1, 1], [-2, 2], [-3, 3]])
    along_2 = KERNELS["constexpr_lut_to_dense"](Arguments({**arguments, "vector_axis": np.int32(2)}))
    np.testing.assert_array_equal(along_2[0], [[1, 2, 3, 1, 2, 3], [-1, -2, -3, 1, 2, 3]])


def test_damaged_tables_are_refused() -> None:
    lookup, spread = KERNELS["constexpr_lut_to_dense"], KERNELS["constexpr_sparse_to_dense"]
    indices = np.zeros((3, 2), np.uint8)
    with pytest.raises(CompilerError, match="2 blocks do not divide an axis of 3"):
        lookup(Arguments({"indices": indices, "lut": np.zeros((2, 1, 4, 1), np.float32)}))
    with pytest.raises(CompilerError, match="table of 3 entries"):
        lookup(Arguments({"indices": indices, "lut": np.zeros((1, 1, 3, 1), np.float32)}))
    with pytest.raises(CompilerError, match="2 bits for 1 values"):
        spread(Arguments({"nonzero_data": np.zeros(1, np.float32), "mask": np.array([1, 1], np.uint8)}))
