"""The DLC reader, against a file written by the QNN IR library of onnxruntime-qnn 2.7.0."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilers import CompilerError
from compilers.qnn.dlc import read_dlc
from compilers.qnn.dlc_report import difference, main

GOLDEN = Path(__file__).parent.parent / "golden" / "conv_relu.dlc"


def test_operators_and_tensors_of_a_convolution() -> None:
    (graph,) = read_dlc(GOLDEN)
    assert graph.operators() == {"Transpose": 1, "Conv2d": 1, "Neuron": 1}
    conv = next(node for node in graph.nodes if node.op_type == "Conv2d")
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    weight = tensors[conv.inputs[1]]
    assert (weight.shape, weight.role, weight.dtype) == ((3, 3, 8, 8), "static", "float32")
    assert "stride" in conv.attributes
    assert [(t.name, t.shape, t.dtype) for t in graph.by_role("input")] == [("x", (1, 8, 16, 16), "float32")]


@pytest.mark.parametrize("keep", [0, 10, 1000, 6000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.dlc"
    path.write_bytes(GOLDEN.read_bytes()[:keep])
    with pytest.raises(CompilerError, match=r"cut\.dlc"):
        read_dlc(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"none\.dlc"):
        read_dlc(tmp_path / "none.dlc")


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v3.dlc"
    path.write_bytes(GOLDEN.read_bytes().replace(b"\xd5\x0a\x04\x00", b"\xd5\x0a\x03\x00"))
    with pytest.raises(CompilerError, match="format 4"):
        read_dlc(path)


@given(place=st.integers(0, GOLDEN.stat().st_size - 1), value=st.integers(0, 255))
def test_a_damaged_byte_is_read_or_refused_but_never_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("dlc") / "damaged.dlc"
    shutil.copy(GOLDEN, path)
    content = bytearray(path.read_bytes())
    content[place] = value
    path.write_bytes(content)
    try:
        read_dlc(path)
    except CompilerError as error:
        assert "damaged.dlc" in error.reason  # noqa: PT017 - both outcomes are right


def test_the_summary_names_edges_operators_and_encodings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(GOLDEN)]) == 0
    printed = capsys.readouterr().out
    assert "input x [1, 8, 16, 16] float32" in printed
    assert "1 Conv2d" in printed
    assert main([str(GOLDEN), "--tensors"]) == 0
    assert "operator " in capsys.readouterr().out


def test_two_dlcs_are_compared_by_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (graph,) = read_dlc(GOLDEN)
    renamed = dataclasses.replace(graph, name="another compile")
    assert list(difference(graph, renamed)) == []
    tensors = (dataclasses.replace(graph.tensors[0], dtype="ufixed8"), *graph.tensors[1:])
    changed = dataclasses.replace(graph, nodes=graph.nodes[1:], tensors=tensors)
    lines = list(difference(graph, changed))
    assert lines[0] == f"- operator {graph.nodes[0].name}"
    assert lines[1].endswith("dtype float32 -> ufixed8")
    assert {line[0] for line in difference(changed, graph)} == {"+", "!"}
    assert main([str(GOLDEN), str(GOLDEN)]) == 0
    assert "hold the same" in capsys.readouterr().out


def test_a_file_that_is_no_dlc_is_an_argument_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.dlc").write_bytes(b"nothing")
    assert main([str(GOLDEN), str(tmp_path / "x.dlc")]) == 2
    assert "x.dlc" in capsys.readouterr().err
