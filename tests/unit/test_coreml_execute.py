"""The MIL executor and the package reader: they agree with the reference, and every corruption is caught."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from compilers.adapter import CompilerError
from compilers.coreml.execute import KERNELS, Executor
from compilers.coreml.lower import lower
from compilers.coreml.package import BLOB_SENTINEL, model_file_of, read_package
from compilers.coreml.session import EmulatedSession
from compilers.coreml.suite import DISAGREEMENTS, claimed_cases, convert_and_run, judge
from compilers.coreml.vendor import coremltools
from compilers.coreml.write import package_digest, write_package
from compilers.suite import Verdict, with_constants
from graphs import Calibration, Graph, from_proto, quantise, random_inputs, zoo

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]

WEIGHTS = Path("Data/com.apple.CoreML/weights/weight.bin")


def reference(graph: Graph, feed: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(graph.proto().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def package(graph: Graph, folder: Path, compute: str) -> Path:
    path = folder / f"{compute}.mlpackage"
    write_package(lower(graph.proto(), "iOS17"), path, target="iOS17", compute=compute)
    return path


def relative(got: Array, wanted: Array) -> float:
    return float(np.linalg.norm(got.astype(float) - wanted) / np.linalg.norm(wanted.astype(float)))


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "resnet18", "resnet50"])
def test_fp32_meets_the_reference(name: str, tmp_path: Path) -> None:
    graph = zoo.build(name)
    feed = random_inputs(graph, 1)
    got = EmulatedSession(package(graph, tmp_path, "fp32")).run(feed)
    (wanted,) = reference(graph, feed)
    assert relative(got[graph.outputs()[0].name], wanted) < 1e-5


def test_fp16_rounds(tmp_path: Path) -> None:
    graph = zoo.build("resnet18")
    feed = random_inputs(graph, 1)
    got = EmulatedSession(package(graph, tmp_path, "fp16")).run(feed)
    (wanted,) = reference(graph, feed)
    assert 1e-5 < relative(got[graph.outputs()[0].name], wanted) < 1e-2


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v3_small"])
def test_int8_is_bit_exact(name: str, tmp_path: Path) -> None:
    original = zoo.build(name)
    graph = quantise(original, "int8", Calibration.random(original, count=1))
    feed = random_inputs(graph, 1)
    got = EmulatedSession(package(graph, tmp_path, "fp32")).run(feed)
    (wanted,) = reference(graph, feed)
    np.testing.assert_array_equal(got[graph.outputs()[0].name], wanted)


# -- negative controls ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Array], Array]:
    graph = zoo.build("mobilenet_v3_small")
    path = package(graph, tmp_path_factory.mktemp("coreml"), "fp32")
    feed = random_inputs(graph, 1)
    return path, feed, reference(graph, feed)[0]


def edited(path: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    """Copy a package and change its protobuf."""
    coremltools()
    from coremltools.proto import Model_pb2

    copy = folder / "edited.mlpackage"
    shutil.copytree(path, copy)
    file = model_file_of(copy)
    spec = Model_pb2.Model()
    spec.ParseFromString(file.read_bytes())
    function = spec.mlProgram.functions["main"]
    change(function.block_specializations[function.opset])
    file.write_bytes(spec.SerializeToString())
    return copy


def output(path: Path, feed: dict[str, Array]) -> Array:
    return next(iter(EmulatedSession(path).run(feed).values()))


def test_scaled_weights_are_caught(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    path, feed, wanted = small
    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(path, copy)
    raw = bytearray((copy / WEIGHTS).read_bytes())
    # The first blob's record lies at byte 64; its data follow where it says.
    _, _, size, start = struct.unpack_from("<IIQQ", raw, 64)
    scaled = np.frombuffer(bytes(raw[start : start + size]), np.float32) * np.float32(1.5)
    raw[start : start + size] = scaled.tobytes()
    (copy / WEIGHTS).write_bytes(bytes(raw))
    assert relative(output(copy, feed), wanted) > 1e-3
    assert package_digest(copy) != package_digest(path)


def test_changed_stride_is_caught(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    path, feed, _ = small

    def change(block: Any) -> None:
        strides = next(o for o in block.operations if o.outputs[0].name.endswith("conv_strides_0"))
        values = strides.attributes["val"].immediateValue.tensor.ints.values
        values[0] = 3 - values[0]

    copy = edited(path, tmp_path, change)
    with pytest.raises(CompilerError, match=r"\(conv\): result .* has shape .*, the program says"):
        output(copy, feed)


def test_swapped_activation_is_caught(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    path, feed, wanted = small

    def change(block: Any) -> None:
        next(o for o in block.operations if o.type == "relu").type = "tanh"

    assert relative(output(edited(path, tmp_path, change), feed), wanted) > 1e-3


def test_bad_sentinel_is_caught(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(small[0], copy)
    raw = bytearray((copy / WEIGHTS).read_bytes())
    assert struct.unpack_from("<I", raw, 64)[0] == BLOB_SENTINEL
    raw[64] ^= 1
    (copy / WEIGHTS).write_bytes(bytes(raw))
    with pytest.raises(CompilerError, match="bad sentinel"):
        EmulatedSession(copy)


def test_truncated_weights_are_caught(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(small[0], copy)
    raw = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CompilerError, match=r"behind the end|weight record"):
        EmulatedSession(copy)


def test_damaged_files_are_named(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(small[0], copy)
    model_file_of(copy).write_bytes(b"\xff\xfe nothing")
    with pytest.raises(CompilerError, match=r"model\.mlmodel is no Core ML model"):
        read_package(copy)
    (copy / "Manifest.json").write_text("{}")
    with pytest.raises(CompilerError, match=r"Manifest\.json is missing or damaged"):
        read_package(copy)
    with pytest.raises(CompilerError, match="missing or damaged"):
        read_package(tmp_path / "absent.mlpackage")


def test_unknown_operation_is_named(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    def change(block: Any) -> None:
        next(o for o in block.operations if o.type == "relu").type = "frobnicate"

    with pytest.raises(CompilerError, match="no kernel for frobnicate"):
        EmulatedSession(edited(small[0], tmp_path, change))


def test_unread_argument_is_refused(small: tuple[Path, dict[str, Array], Array], tmp_path: Path) -> None:
    def change(block: Any) -> None:
        relu = next(o for o in block.operations if o.type == "relu")
        relu.inputs["slope"].CopyFrom(relu.inputs["x"])

    copy = edited(small[0], tmp_path, change)
    with pytest.raises(CompilerError, match=r"arguments \['slope'\] are not handled"):
        output(copy, small[1])


def test_wrong_inputs_are_named(small: tuple[Path, dict[str, Array], Array]) -> None:
    session = EmulatedSession(small[0])
    (name,) = small[1]
    with pytest.raises(CompilerError, match=f"input '{name}' is missing"):
        session.run({})
    with pytest.raises(CompilerError, match="the model wants float32"):
        session.run({name: np.zeros(3, np.float32)})


def test_constants_equal_those_of_coremltools(small: tuple[Path, dict[str, Array], Array]) -> None:
    """Our reader of weight.bin against coremltools' own, which also re-runs its type inference."""
    coremltools()
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.proto import Model_pb2

    file = model_file_of(small[0])
    spec = Model_pb2.Model()
    spec.ParseFromString(file.read_bytes())
    program = load(
        spec, specification_version=spec.specificationVersion, file_weights_dir=str(small[0] / WEIGHTS.parent)
    )
    theirs = {o.outputs[0].name: o.outputs[0].val for o in program.functions["main"].operations if o.op_type == "const"}
    ours = {o.outputs[0].name: o.value for o in read_package(small[0]).operations if o.type == "const"}
    assert set(theirs) <= set(ours)
    for name, value in theirs.items():
        np.testing.assert_array_equal(np.asarray(ours[name]), np.asarray(value))


def test_int32_overflow_is_refused() -> None:
    add = KERNELS["add"]
    from compilers.coreml.execute.table import Arguments

    big = np.array([2**31 - 1], np.int32)
    with pytest.raises(CompilerError, match="overflows"):
        add(Arguments({"x": big, "y": big}))


@pytest.mark.parametrize(
    "node", ["LayerNormalization <axis = -1>", "LayerNormalization <axis = 1>", "InstanceNormalization"]
)
def test_normalisation_rounds_as_the_reference_does(node: str, tmp_path: Path) -> None:
    """One last bit here would move an 8-bit value after it over a step, and hide a real difference."""
    axis_1 = "axis = 1" in node
    shape = "3, 5, 7" if axis_1 else "3" if node.startswith("Instance") else "7"
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[2, 3, 5, 7] x, float[{shape}] s, float[{shape}] b)
        => (float[2, 3, 5, 7] y) {{ y = {node} (x, s, b) }}"""
    )
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (2, 3, 5, 7)).astype(np.float32)
    sizes = [int(n) for n in shape.split(",")]
    weights = [rng.normal(size=sizes).astype(np.float32) for _ in range(2)]
    fixed = with_constants(model, [x, *weights], range(1))
    (got,) = convert_and_run(fixed, [x], tmp_path)
    (wanted,) = reference(from_proto(fixed), {"x": x})
    np.testing.assert_array_equal(got, wanted)


# -- the ONNX operator suite -------------------------------------------------------------------------------------

# All cases take two minutes: `python -m benchmarks.coreml_nodes` runs them and writes docs/coreml_operators.md.
SAMPLE_EVERY = 14
GOLDEN = Path(__file__).parent.parent / "golden" / "coreml_nodes.json"


def test_operator_suite_sample(tmp_path: Path) -> None:
    before = json.loads(GOLDEN.read_text(encoding="utf-8"))
    cases = list(claimed_cases())
    outcomes = [judge(case, tmp_path) for case in cases[::SAMPLE_EVERY]]
    wrong = {o.name: o.reason for o in outcomes if o.verdict is Verdict.WRONG}
    assert set(wrong) <= DISAGREEMENTS, wrong
    lost = {o.name: o.reason for o in outcomes if before.get(o.name) == "ok" and o.verdict is not Verdict.OK}
    assert not lost, "what converts may only grow"
    assert all(o.reason for o in outcomes if o.verdict is Verdict.REFUSED)


def test_operator_suite_as_last_counted() -> None:
    verdicts = Counter(json.loads(GOLDEN.read_text(encoding="utf-8")).values())
    assert verdicts["ok"] >= 1000
    assert verdicts["wrong"] <= len(DISAGREEMENTS)


def test_executor_loads_what_the_reader_gives(small: tuple[Path, dict[str, Array], Array]) -> None:
    program = read_package(small[0])
    assert program.specification_version == 8
    assert program.opset == "CoreML7"
    executor = Executor(program)
    (declared,) = program.inputs
    result = executor.run({declared.name: next(iter(small[1].values()))})
    assert set(result) == set(program.outputs)
