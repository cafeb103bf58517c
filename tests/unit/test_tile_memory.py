"""Whose error is printed beside the modelled times of a whole model."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import onnx.parser
import pytest
from rich.console import Console

from experiments.tiles_memory import print_memories
from graphs import from_proto
from partition import load_device
from partition.tile import npu_machine

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = '<ir_version: 9, opset_import: ["" : 18]> '


_ATTENTION = """g (float[1,64,32] q, float[1,32,64] k, float[1,64,32] v) => (float[1,64,32] y)
{ s = MatMul (q, k) w = Softmax <axis = -1> (s) y = MatMul (w, v) }"""
_CLASSIFIER = """g (float[8,4] x) => (float[8,2] y) <float[4,2] k = {1, 2, 3, 4, 5, 6, 7, 8}>
{ s = MatMul (x, k) y = Softmax <axis = -1> (s) }"""


@pytest.mark.parametrize(("body", "warned"), [(_ATTENTION, True), (_CLASSIFIER, False)])
def test_an_error_of_convolutional_networks_is_not_a_transformers(body: str, warned: bool, tmp_path: Path) -> None:
    graph, out = from_proto(onnx.parser.parse_model(_HEAD + body)), io.StringIO()
    machine = npu_machine(load_device("sa8255p"), "fp16")
    assert print_memories(graph, machine, tmp_path, Console(file=out, width=400))
    assert "median error" in out.getvalue()
    assert ("far outside it" in out.getvalue()) == warned
