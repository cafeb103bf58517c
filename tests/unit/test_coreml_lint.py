"""The lint: each rule fires on what it is about and on nothing else, and never poses as a placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers.coreml.__main__ import main
from compilers.coreml.lint import PADDING, RULES, Severity, lint
from compilers.coreml.package import Operation, Program, Ref, Tensor
from compilers.coreml.write import NODES_KEY
from graphs import from_proto, save

if TYPE_CHECKING:
    from pathlib import Path

    from compilers.coreml.lint import Report

Array = np.ndarray[Any, Any]


def tensor(name: str, *shape: int, dtype: str = "float16") -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape)


def operation(kind: str, result: Tensor, /, **inputs: Any) -> Operation:
    bound = {k: v if isinstance(v, tuple) else (v,) for k, v in inputs.items()}
    return Operation(type=kind, name=result.name, inputs=bound, outputs=(result,), value=None)


def constant(name: str, value: Array) -> Operation:
    declared = tensor(name, *value.shape, dtype=str(value.dtype))
    return Operation(type="const", name=name, inputs={}, outputs=(declared,), value=value)


def program(*operations: Operation, x: Tensor, metadata: dict[str, str] | None = None) -> Program:
    return Program(
        inputs=(x,),
        outputs=(operations[-1].outputs[0].name,),
        operations=operations,
        opset="CoreML7",
        specification_version=8,
        metadata=metadata or {},
    )


X = tensor("x", 1, 8, 16, 16)
WEIGHT = constant("w", np.zeros((4, 8, 3, 3), np.float16))


def conv(*, strides: int = 1, dilations: int = 1, weight: str = "w") -> Operation:
    return operation(
        "conv",
        tensor("y", 1, 4, 8, 8),
        x=Ref("x"),
        weight=Ref(weight),
        strides=np.array([strides] * 2),
        dilations=np.array([dilations] * 2),
    )


def pool(*, strides: int, kernel: int) -> Operation:
    return operation(
        "max_pool",
        tensor("y", 1, 8, 4, 4),
        x=Ref("x"),
        kernel_sizes=np.array([kernel] * 2),
        strides=np.array([strides] * 2),
    )


def add(value: float) -> tuple[Operation, ...]:
    return (
        constant("c", np.array([0, value], np.float32)),
        operation("add", tensor("y", 1, 8, 16, 16), x=Ref("x"), y=Ref("c")),
    )


def after(kind: str, shape: tuple[int, ...], **inputs: Any) -> Program:
    return program(operation(kind, tensor("y", *shape), x=Ref("x"), **inputs), x=tensor("x", *shape))


TABLE = operation("constexpr_lut_to_dense", tensor("t", 4, 8, 3, 3))
COMPUTED = operation("relu", tensor("v", 4, 8, 3, 3), x=Ref("x"))
CASES: dict[str, tuple[Program, Program]] = {  # rule -> (fires, does not)
    "float32": (
        program(operation("relu", tensor("y", 1, 4, dtype="float32"), x=Ref("x")), x=X),
        program(operation("cast", tensor("y", 1, 4, dtype="float32"), x=Ref("x")), x=X),
    ),
    "rank": (after("relu", (1, 1, 2, 2, 2, 2)), after("relu", (1, 2, 2, 2, 2))),
    "dimension": (after("relu", (1, 16385)), after("relu", (1, 16384))),
    "gather": (after("gather_nd", (1, 8)), after("split", (1, 8))),
    "recurrent": (after("lstm", (1, 8)), after("tanh", (1, 8))),
    "stride": (program(WEIGHT, conv(strides=5), x=X), program(WEIGHT, conv(strides=6), x=X)),
    "palettised stride": (
        program(TABLE, conv(strides=3, weight="t"), x=X),
        program(TABLE, conv(strides=2, weight="t"), x=X),
    ),
    "computed weight": (program(COMPUTED, conv(weight="v"), x=X), program(TABLE, conv(weight="t"), x=X)),
    "dilation": (program(WEIGHT, conv(dilations=3), x=X), program(WEIGHT, conv(dilations=2), x=X)),
    "pool stride": (program(pool(strides=3, kernel=3), x=X), program(pool(strides=4, kernel=3), x=X)),
    "pool kernel": (program(pool(strides=2, kernel=14), x=X), program(pool(strides=2, kernel=13), x=X)),
    "minus infinity": (program(*add(-3.4e38), x=X), program(*add(-40000), x=X)),
    "linear": (
        program(WEIGHT, operation("linear", tensor("y", 1, 4), x=Ref("x"), weight=Ref("w")), x=X),
        program(WEIGHT, conv(), x=X),
    ),
    "softmax axis": (
        after("softmax", (1, 8, 4, 4), axis=np.array(-1)),
        after("softmax", (1, 8, 4, 4), axis=np.array(-3)),
    ),
    "flat sequence": (after("layer_norm", (1, 7, 8)), after("layer_norm", (1, 8, 2, 7))),
}


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_rule(name: str) -> None:
    fires, silent = CASES[name]
    assert name in lint(fires).by_rule()
    assert name not in lint(silent).by_rule()


@pytest.mark.parametrize("rule", [*RULES, PADDING], ids=lambda r: r.name)
def test_every_rule_names_its_source_and_a_way_out(rule: Any) -> None:
    assert len(rule.source) > 10
    assert len(rule.rewrite) > 10


def test_padded_border() -> None:
    report = lint(program(operation("relu", tensor("y", 1, 8, 1), x=Ref("x")), x=tensor("x", 1, 8, 1)))
    found = [f.reason for f in report.findings if f.rule is PADDING]
    assert len(found) == 2
    assert "32 times the memory" in found[0]


def mixed() -> Report:
    """A convolution, a gather, a convolution: three parts, two thirds of the operations and all MACs stay."""
    second = operation("conv", tensor("z", 1, 4, 8, 8), x=Ref("g"), weight=Ref("w"))
    gather = operation("gather", tensor("g", 1, 8, 16, 16), x=Ref("y"))
    nodes = {NODES_KEY: '{"y": "node one", "g": "the gather"}'}
    return lint(program(WEIGHT, conv(), gather, second, x=X, metadata=nodes))


def test_counts_share_and_parts() -> None:
    report = mixed()
    assert (report.operations, report.leaving, report.parts) == (3, 1, 3)
    assert report.macs == 2 * (4 * 8 * 8) * (8 * 3 * 3)
    assert report.leaving_macs == 0
    assert report.summary().startswith("predicted, not observed: 1 of 3 operations and 0.0% of the MACs leave")
    (finding,) = report.by_rule()["gather"]
    assert (finding.node, finding.rule.severity) == ("the gather", Severity.LEAVES)


def test_macs_of_products() -> None:
    w = constant("w", np.zeros((3, 5), np.float16))
    linear = operation("linear", tensor("y", 2, 3), x=Ref("x"), weight=Ref("w"))
    assert lint(program(w, linear, x=tensor("x", 2, 5))).macs == 2 * 3 * 5
    product = operation("matmul", tensor("y", 5, 5), x=Ref("x"), y=Ref("x"), transpose_x=np.array(1))
    assert lint(program(product, x=tensor("x", 2, 5))).macs == 5 * 5 * 2


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["e"], name="embed"),
        helper.make_node("Gemm", ["e", "w"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("i", TensorProto.INT64, (3,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 64))],
        [numpy_helper.from_array(weight, "table"), numpy_helper.from_array(weight, "w")],
    )
    model = tmp_path / "embedding.onnx"
    save(from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)), model)
    assert main([str(model), "--out", str(tmp_path / "out"), "--compress", "w8"]) == 0
    text = capsys.readouterr().out
    assert "predicted, not observed" in text
    assert "embed (gather) gathers by index" in text
    assert "latency on a17_pro as if all ran on the Neural Engine, modelled" in text
    assert "nothing here was measured" in text
    assert main([str(tmp_path / "out" / "model.mlpackage")]) == 0
    assert "gathers by index" in capsys.readouterr().out
    assert main([str(tmp_path / "absent.onnx")]) == 1
    assert "refused" in capsys.readouterr().err
    with pytest.raises(SystemExit) as wrong:
        main([str(model), "--compress", "zip"])
    assert wrong.value.code == 2
