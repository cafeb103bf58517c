"""Which candidates a run proposes: the plain ways, or with a sweep all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from compilers.coreml.compress import METHODS
from experiments.candidates import feed_file, whole_graph
from experiments.model import variant
from graphs import Calibration, Graph, from_proto, zoo
from partition import load_device

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sweep_tries_every_way_and_gives_data_to_those_that_read_it(tmp_path: Path) -> None:
    graph = zoo.build("mobilenet_v3_small")
    (spec,) = graph.inputs()
    np.save(tmp_path / "images.npy", np.zeros((2, *(spec.shape or ())), np.float32))
    feeds = feed_file(Calibration.from_path(graph, tmp_path / "images.npy"))
    assert feeds is not None

    def asked(*, sweep: bool) -> dict[str, bool]:
        found = whole_graph(
            graph, {"fp16": graph, "int8": graph}, [load_device("a17_pro")], ("coreml",), feeds, sweep=sweep
        )
        return {c.title: c.plan.segments[0].feeds is not None for c in found}

    plain = {"coreml a17_pro/npu fp16": False, "coreml a17_pro/npu int8": False}
    swept = {f"coreml a17_pro/npu fp16 compress={n}": m.activations for n, m in METHODS.items()}
    assert asked(sweep=False) == plain
    assert asked(sweep=True) == plain | swept
    assert sum(swept.values()) == 1


def test_an_option_goes_to_its_backend_alone_and_the_last_one_counts() -> None:
    graph, host = zoo.build("squeezenet1_1"), load_device("host")
    asked = [("tvm", ("tune", "8")), ("tvm", ("threads", "1")), ("tvm", ("threads", "2"))]
    found = whole_graph(graph, {"fp32": graph}, [host], ("ort_cpu", "tvm"), options=asked)
    options = {c.plan.segments[0].compiler: dict(c.plan.segments[0].options) for c in found}
    assert options == {"ort_cpu": {}, "tvm": {"tune": "8", "threads": "2"}}


def test_a_quantised_graph_is_made_once_and_again_when_its_file_is_damaged(tmp_path: Path) -> None:
    graph = small_product()
    data = Calibration.random(graph, 1)

    def quantised() -> Graph:
        return variant(graph, "int8", data, tmp_path)

    first = quantised()
    (file,) = tmp_path.rglob("*.onnx")
    written = file.stat().st_mtime_ns
    assert quantised() == first
    assert file.stat().st_mtime_ns == written
    file.write_bytes(file.read_bytes()[:100])
    assert quantised() == first


def small_product() -> Graph:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    product = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "p", [next(ends)], [next(ends)], [weight]
    )
    return from_proto(helper.make_model(product, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def test_random_data_is_no_file() -> None:
    assert feed_file(Calibration.random(zoo.build("squeezenet1_1"), 1)) is None
