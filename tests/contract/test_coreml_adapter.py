"""The Core ML adapter through the interface that the framework uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from compilers import Action, CompilerError, Limits, Source, get_compiler, in_child
from graphs import Calibration, Graph, quantise, random_inputs, save, zoo
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

    from compilers.artefact import Artefact

Array = np.ndarray[Any, Any]


def compiled(graph: Graph, folder: Path, precision: str, **options: str) -> Artefact:
    save(graph, folder / "segment.onnx")
    segment = Segment(
        graph=graph,
        device=load_device("a17_pro"),
        processor="npu",
        compiler="coreml",
        precision=precision,
        options=tuple(options.items()),
    )
    return get_compiler("coreml").compile(segment, folder)


def test_why_not() -> None:
    compiler, phone, host = get_compiler("coreml"), load_device("a17_pro"), load_device("host")
    assert [compiler.why_not(action, phone, "npu") for action in Action] == [None, None, None]
    reason = compiler.why_not(Action.COMPILE, host, "cpu")
    assert reason is not None
    assert "Apple devices only" in reason


def test_version_names_both_packages() -> None:
    assert get_compiler("coreml").version().startswith("coremltools 9.")


def test_compile_run_estimate(tmp_path: Path) -> None:
    graph = zoo.build("mobilenet_v3_small")
    artefact = compiled(graph, tmp_path, "fp16")
    assert artefact.main_file.is_dir()
    assert artefact.fact("runs_on") == "MIL semantics, not Apple kernels"
    assert artefact.size_bytes > 2 * 2_500_000, "fp16 weights"
    compiler = get_compiler("coreml")
    with compiler.load(artefact) as session:
        assert not session.on_device
        (result,) = session.run(random_inputs(graph, 0)).values()
    assert result.shape == (1, 1000)
    found = compiler.estimate(artefact)
    assert found.latency.source is Source.MODELLED
    assert 5e-5 < found.latency.typical_s < 1e-3
    assert compiler.unsupported(graph) == {}


def test_int8_keeps_eight_bits_and_is_modelled_faster(tmp_path: Path) -> None:
    original = zoo.build("mobilenet_v3_small")
    graph = quantise(original, "int8", Calibration.random(original, count=1))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    artefact = compiled(graph, tmp_path / "a", "int8")
    assert artefact.size_bytes < 1.4 * 2_550_000
    assert artefact.fact("compute") == "fp16"
    fp16 = compiled(original, tmp_path / "b", "fp16")
    compiler = get_compiler("coreml")
    assert compiler.estimate(artefact).latency.typical_s < compiler.estimate(fp16).latency.typical_s


def test_fp32_on_the_neural_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="fp16 and int8 only"):
        compiled(zoo.build("squeezenet1_1"), tmp_path, "fp32")


def test_options_are_checked(tmp_path: Path) -> None:
    graph = zoo.build("squeezenet1_1")
    with pytest.raises(CompilerError, match="deployment target 'iOS99'"):
        compiled(graph, tmp_path, "fp16", target="iOS99")
    with pytest.raises(CompilerError, match="is not fp16 or fp32"):
        compiled(graph, tmp_path, "fp16", compute="bf16")


def test_import_brings_no_vendor_code() -> None:
    import subprocess
    import sys

    code = (
        "import sys, compilers.coreml; print([m for m in ('coremltools', 'onnxruntime', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_package_imports_no_converters_and_the_whole_may_come_later(tmp_path: Path) -> None:
    compiled(zoo.build("squeezenet1_1"), tmp_path, "fp16")
    operations, with_schema, without, same = in_child(read_then_import, tmp_path / "model.mlpackage", limits=Limits())
    assert operations > 50
    assert (with_schema, without, same) == (True, False, True)


def read_then_import(package: Path) -> tuple[int, bool, bool, bool]:
    import sys

    from compilers.coreml.package import read_package
    from compilers.coreml.vendor import coremltools, schema

    operations = len(read_package(package).operations)
    early, bare = "coremltools.proto.Model_pb2" in sys.modules, "coremltools" in sys.modules
    model = schema()[0].Model()
    coremltools()
    from coremltools.proto import Model_pb2

    return operations, early, bare, type(model) is Model_pb2.Model
