"""Published bugs of Core ML and its converters, each as the smallest ONNX graph that shows it.

The numbers are those of shared/notes/coreml.md, section 6 (report and cause there). Twelve can be shown wrong on
Linux: by the program that is emitted, or by what it computes. Not here: 12 (one model, two systems: needs two Macs),
15 (a process is killed: tests/unit/test_sandbox.py), 17a (the last sample's range: test_coreml_compress.py).
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers.adapter import CompilerError
from compilers.coreml.calibrate import activation_ranges
from compilers.coreml.compress import METHODS, compress
from compilers.coreml.execute import KERNELS
from compilers.coreml.execute.table import Arguments
from compilers.coreml.lint import lint
from compilers.coreml.lower import lower
from compilers.coreml.package import Ref, read_package
from compilers.coreml.session import EmulatedSession
from compilers.coreml.vendor import coremltools
from compilers.coreml.write import convert, save_model, write_package

if TYPE_CHECKING:
    from pathlib import Path

    from compilers.coreml.package import Operation

Array = np.ndarray[Any, Any]
Nodes = list[onnx.NodeProto]

node = helper.make_node


def model_of(nodes: Nodes, inputs: dict[str, Array], constants: dict[str, Array], opset: int = 18) -> onnx.ModelProto:
    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    for index, each in enumerate(nodes):
        each.name = each.name or f"node{index}"
    graph = helper.make_graph(
        nodes,
        "pattern",
        [info(n, a) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


class Converted:
    """A package of the model, what it computes, and what the reference says."""

    def __init__(
        self, nodes: Nodes, inputs: dict[str, Array], constants: dict[str, Array], folder: Path, **how: str
    ) -> None:
        target, compute = how.get("target", "iOS17"), how.get("compute", "fp32")
        model = model_of(nodes, inputs, constants, opset=21 if how.get("opset") == "21" else 18)
        path = folder / "model.mlpackage"
        write_package(lower(model, target), path, target=target, compute=compute)
        self.program = read_package(path)
        self.got = EmulatedSession(path).run(inputs)["y"]
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.wanted = np.asarray(session.run(["y"], inputs)[0])

    def operations(self, kind: str) -> list[Operation]:
        return [o for o in self.program.operations if o.type == kind]

    def arguments(self, kind: str, key: str) -> list[Any]:
        """The values of a constant argument of all operations of a kind."""
        constants = {o.outputs[0].name: o.value for o in self.program.operations if o.type == "const"}
        bound = [o.inputs[key][0] for o in self.operations(kind) if key in o.inputs]
        return [constants[b] if isinstance(b, Ref) else b for b in bound]

    def agree(self, tolerance: float = 1e-5) -> None:
        np.testing.assert_allclose(self.got, self.wanted, rtol=tolerance, atol=tolerance)


REPETITION = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_01_log_softmax_is_finite(compute: str, tmp_path: Path) -> None:
    """coremltools #2728: log(softmax) is -inf in fp16."""
    x = np.array([[0, 0, 0, 50]], np.float32)
    Converted([node("LogSoftmax", ["x"], ["y"])], {"x": x}, {}, tmp_path, compute=compute).agree(1e-3)


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_02_no_native_softplus(compute: str, tmp_path: Path) -> None:
    """coremltools #2687: MIL's softplus drops to 0 above 10.4 on the Neural Engine."""
    x = np.linspace(0, 20, 41, dtype=np.float32)
    done = Converted([node("Softplus", ["x"], ["y"])], {"x": x}, {}, tmp_path, compute=compute)
    assert not done.operations("softplus")
    done.agree(2e-3)


def test_03_no_signed_bytes_in_affine_dequantize(tmp_path: Path) -> None:
    """coremltools #2114: signed int8 in constexpr_affine_dequantize is wrong on the GPU and Neural Engine."""
    weight = np.random.default_rng(0).integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    constants = {"w": weight, "s": np.float32(0.02), "z": np.int8(3)}
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["d"]), node("Conv", ["x", "d"], ["y"])]
    done = Converted(nodes, {"x": normal(1, 3, 6, 6)}, {n: np.asarray(a) for n, a in constants.items()}, tmp_path)
    (stored,) = done.operations("constexpr_affine_dequantize")
    (data,) = stored.inputs["quantized_data"]
    assert isinstance(data, np.ndarray)
    assert data.dtype == np.uint8
    done.agree()


@pytest.mark.parametrize(("a", "b"), [((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((3,), (3,))])
def test_04_vectors_become_matrices(a: tuple[int, ...], b: tuple[int, ...], tmp_path: Path) -> None:
    """coremltools #2263: matmul infers a wrong shape for a rank-1 operand."""
    done = Converted([node("MatMul", ["a", "b"], ["y"])], {"a": normal(*a)}, {"b": normal(*b)}, tmp_path)
    assert done.got.shape == done.wanted.shape
    done.agree()


@pytest.mark.parametrize("counted", [0, 1])
def test_05_ceil_mode_never_enters_an_average(counted: int, tmp_path: Path) -> None:
    """coremltools #2772: avg_pool divides what ceil_mode adds by the whole kernel."""
    pool = node(
        "AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=counted
    )
    # 18 is the last opset whose definition ONNX Runtime follows here.
    done = Converted([pool], {"x": np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)}, {}, tmp_path)
    np.testing.assert_array_equal(done.got, [[[[2, 3.5], [6.5, 8]]]])
    assert not any(map(bool, done.arguments("avg_pool", "ceil_mode")))


@pytest.mark.parametrize("how", [{"output_shape": [11, 11]}, {"output_padding": [1, 1]}])
def test_06_transposed_convolution_says_no_ambiguous_shape(how: dict[str, list[int]], tmp_path: Path) -> None:
    """coremltools #2281: an output_shape that the pads do not give differs between CPU and GPU."""
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **how)]
    # The executor refuses the package when its output_shape is not what pads and strides give.
    Converted(nodes, {"x": normal(1, 2, 5, 5)}, {"w": normal(2, 3, 3, 3)}, tmp_path).agree(1e-4)


@pytest.mark.parametrize("lowest", [-3.4e38, -1e9])
def test_07_masks_stay_finite(lowest: float, tmp_path: Path) -> None:
    """coremltools PR #2669: finfo(float32).min turns into -inf in fp16, and a row masked as a whole into NaN."""
    mask = np.array([[0, lowest, 0], [lowest] * 3], np.float32)
    nodes = [node("Add", ["x", "mask"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)]
    done = Converted(nodes, {"x": normal(2, 3)}, {"mask": mask}, tmp_path, compute="fp16")
    np.testing.assert_allclose(done.got, done.wanted, atol=1e-3)


def test_07_masks_that_are_multiplied_in(tmp_path: Path) -> None:
    """The same as BERT exports have it: (1 - mask) * finfo.min, where 0 * -inf would be NaN."""
    nodes = [
        node("Sub", ["one", "mask"], ["gone"]),
        node("Mul", ["gone", "lowest"], ["bias"]),
        node("Add", ["x", "bias"], ["m"]),
        node("Softmax", ["m"], ["y"], axis=-1),
    ]
    inputs = {"x": normal(2, 3), "mask": np.array([[1, 0, 1], [1, 1, 0]], np.float32)}
    constants = {"one": np.array(1, np.float32), "lowest": np.array(np.finfo(np.float32).min, np.float32)}
    done = Converted(nodes, inputs, constants, tmp_path, compute="fp16")
    np.testing.assert_allclose(done.got, done.wanted, atol=1e-3)


def test_07_infinity_itself_is_flagged(tmp_path: Path) -> None:
    """-inf is what the graph says, so it stays; Apple says that the Neural Engine does not handle it."""
    mask = np.array([[0, -np.inf, 0]], np.float32)
    nodes = [node("Add", ["x", "mask"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)]
    done = Converted(nodes, {"x": normal(1, 3)}, {"mask": mask}, tmp_path, compute="fp16")
    assert "minus infinity" in lint(done.program).by_rule()
    np.testing.assert_allclose(done.got, done.wanted, atol=1e-3)


def test_08_kernel_3_by_2(tmp_path: Path) -> None:
    """coremltools #2515: the last element of a (3, 2) convolution with pad 1 and stride 2 is wrong."""
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])]
    x = np.arange(50, dtype=np.float32).reshape(1, 2, 5, 5)
    w = np.arange(12, dtype=np.float32).reshape(1, 2, 3, 2)
    done = Converted(nodes, {"x": x}, {"w": w}, tmp_path)
    assert done.arguments("conv", "pad_type") == ["custom"]
    np.testing.assert_array_equal(done.got, done.wanted)


@pytest.mark.parametrize("counted", [0, 1])
def test_09_wide_average_pool(counted: int, tmp_path: Path) -> None:
    """coremltools #1901: AveragePool 7x7, pads 3, strides 4."""
    pool = node(
        "AveragePool",
        ["x"],
        ["y"],
        kernel_shape=[7, 7],
        pads=[3, 3, 3, 3],
        strides=[4, 4],
        count_include_pad=counted,
    )
    Converted([pool], {"x": normal(1, 2, 14, 14)}, {}, tmp_path).agree()


@pytest.mark.parametrize("batch", [9, 10])
def test_10_attention_is_not_fused(batch: int, tmp_path: Path) -> None:
    """coremltools #2650: the GPU's fused attention is wrong from batch 10 on."""
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Add", ["s", "mask"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = {"q": normal(batch, 2, 4, 8), "k": normal(batch, 2, 8, 4), "v": normal(batch, 2, 4, 8, seed=1)}
    done = Converted(nodes, inputs, {"mask": normal(4, 4)}, tmp_path, target="iOS18")
    assert not done.operations("scaled_dot_product_attention")
    done.agree()


def test_11_gather_nd_by_computed_and_negative_indices(tmp_path: Path) -> None:
    """ONNX Runtime PR #28598: indices known at run time only, and indices from the end."""
    indices = np.array([[0, -1], [-2, 1]])
    nodes = [node("GatherND", ["x", "i"], ["y"])]
    np.testing.assert_array_equal(*vars_of(Converted(nodes, {"x": normal(3, 4, 5), "i": indices}, {}, tmp_path)))


def vars_of(done: Converted) -> tuple[Array, Array]:
    return done.got, done.wanted


def test_13_reflecting_pads_and_scales_stay_inside(tmp_path: Path) -> None:
    """ONNX Runtime #28022, #27696: its Core ML provider leaves Pad(reflect) and Resize(scales) to the CPU."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Pad", ["a", "pads"], ["b"], mode="reflect"),
        node("Conv", ["b", "w"], ["c"]),
        node("Resize", ["c", "", "scales"], ["y"], mode="nearest", **REPETITION),
    ]
    constants = {
        "w": normal(3, 3, 3, 3),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    done = Converted(nodes, {"x": normal(1, 3, 6, 6)}, constants, tmp_path, compute="fp16")
    report = lint(done.program)
    assert (report.leaving, report.parts) == (0, 1)
    done.agree(0.1)


def test_14_a_quantised_convolution_and_a_product_of_activations_convert(tmp_path: Path) -> None:
    """gigastt #42: another path to Core ML takes no DequantizeLinear and runs the whole INT8 model on the CPU."""
    weight = np.random.default_rng(0).integers(-127, 128, (2, 2, 1, 1)).astype(np.int8)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "wz"], ["wd"]),
        node("Conv", ["d", "wd"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["c", "t"], ["y"]),
    ]
    constants = {"s": np.array(0.02, np.float32), "z": np.array(128, np.uint8), "w": weight, "wz": np.array(0, np.int8)}
    done = Converted(nodes, {"x": normal(1, 2, 4, 4)}, constants, tmp_path)
    assert done.operations("quantize")
    assert done.operations("matmul")
    np.testing.assert_array_equal(done.got, done.wanted)


def test_16_fp16_drift_shows(tmp_path: Path) -> None:
    """coremltools #1023, #1809, #2603: rounding to fp16 moves large activations; it is no bug, and it must show."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["a"], ["b"], alpha=0.1),
        node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["c"], ["y"], alpha=0.1),
    ]
    done = Converted(nodes, {"x": 20 * normal(1, 8, 8, 8)}, {"w": normal(8, 8, 3, 3)}, tmp_path, compute="fp16")
    assert np.max(np.abs(done.wanted)) > 100
    drift = np.max(np.abs(done.got - done.wanted))
    assert 0.01 < drift < 10


def test_17_folding_keeps_the_mode_of_a_scatter(tmp_path: Path) -> None:
    """coremltools 9.0 folds scatter_along_axis as if its mode were "update"."""
    constants = {"d": np.zeros(3, np.float32), "i": np.array([0, 0]), "u": np.array([1, 2], np.float32)}
    nodes = [node("ScatterElements", ["d", "i", "u"], ["s"], axis=0, reduction="add"), node("Add", ["x", "s"], ["y"])]
    done = Converted(nodes, {"x": np.zeros(3, np.float32)}, constants, tmp_path)
    np.testing.assert_array_equal(done.got, [3, 0, 0])


def test_17_select_broadcasts(tmp_path: Path) -> None:
    """coremltools 9.0 infers the shape of select from its values and ignores the condition."""
    constants = {"a": np.ones(1, np.float32), "b": np.zeros(1, np.float32)}
    condition = np.eye(4, 6, dtype=bool)
    done = Converted([node("Where", ["c", "a", "b"], ["y"])], {"c": condition}, constants, tmp_path)
    np.testing.assert_array_equal(done.got, np.eye(4, 6))


# -- what docs/vendor_bugs.md says of coremltools 9.0: the reproducers, so that a fixed version is noticed ---------


def value_of(build: str) -> Any:
    """Run `build` in a MIL program and return the variable that it makes."""
    coremltools()
    from coremltools.converters.mil import Builder as mb  # noqa: N813 - the name in the reproducers
    from coremltools.converters.mil.mil import types

    found: list[Any] = []
    specs = [mb.TensorSpec((3,)), mb.TensorSpec((4, 6), dtype=types.bool)]

    @mb.program(input_specs=specs, opset_version=coremltools().target.iOS17)
    def _program(x: Any, c: Any) -> Any:
        found.append(eval(build, {"mb": mb, "np": np, "x": x, "c": c}))  # noqa: S307 - our own text
        return mb.identity(x=x)

    return found[0]


def test_vendor_1_matmul_infers_a_wrong_shape() -> None:
    assert value_of("mb.matmul(x=x, y=np.zeros((2, 3, 4), np.float32))").shape == (1, 4)


def test_vendor_2_select_ignores_the_condition() -> None:
    build = "mb.select(cond=c, a=np.zeros(1, np.float32), b=np.ones(1, np.float32))"
    assert value_of(build).shape == (1,)


def test_vendor_3_scatter_folds_as_update() -> None:
    build = (
        "mb.scatter_along_axis(data=np.zeros(3, np.float32), indices=np.array([0, 0], np.int32), "
        "updates=np.array([1, 2], np.float32), axis=0, mode='add')"
    )
    np.testing.assert_array_equal(value_of(build).val, [2, 0, 0])


def test_vendor_4_inverse_and_log_have_an_epsilon(tmp_path: Path) -> None:
    assert value_of("mb.inverse(x=np.float32(1e-3))").val == pytest.approx(909, abs=1)
    assert np.isfinite(value_of("mb.log(x=np.float32(0))").val)
    done = Converted([node("Log", ["x"], ["y"])], {"x": np.array([0, 1], np.float32)}, {}, tmp_path)
    np.testing.assert_array_equal(done.got, [-np.inf, 0])


def test_vendor_7_an_output_shape_against_the_pads_is_refused() -> None:
    arguments = {
        "x": normal(1, 2, 5, 5),
        "weight": normal(2, 3, 3, 3),
        "strides": np.array([2, 2]),
        "output_shape": np.array([1, 3, 10, 10]),
    }
    with pytest.raises(CompilerError, match=r"output_shape \[1, 3, 10, 10\] is not"):
        KERNELS["conv_transpose"](Arguments(arguments))


def test_vendor_11_the_door_to_coremltools_is_quiet() -> None:
    code = "from compilers.coreml.vendor import coremltools; coremltools()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_vendor_12_eight_bit_activations_need_fp16(tmp_path: Path) -> None:
    """The pass writes fp16 scales into a float32 program, which then fails; so the adapter asks for fp16."""
    model = model_of([node("Conv", ["x", "w"], ["y"])], {"x": normal(1, 64, 4, 4)}, {"w": normal(64, 64, 1, 1)})
    lowered = lower(model, "iOS17")
    wide = convert(lowered, target="iOS17", compute="fp32")
    save_model(wide, lowered, tmp_path / "a.mlpackage")
    ranges = activation_ranges(EmulatedSession(tmp_path / "a.mlpackage"), [{"x": normal(1, 64, 4, 4)}])
    with pytest.raises(CompilerError, match="must have the same data type"):
        compress(wide, METHODS["w8a8"], ranges)
