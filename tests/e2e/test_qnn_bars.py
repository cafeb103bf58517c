"""The bars of the main job on Qualcomm's own compiler: ResNets in INT8 on the SA8255P."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from compilers import Action, Limits, compile_segment, get_compiler, in_child
from compilers.ort_session import reference_session
from graphs import Calibration, Graph, quantise, random_inputs, zoo
from partition import Segment, load_device

if TYPE_CHECKING:
    from pathlib import Path

    from compilers import Artefact

LIMITS = Limits(time_s=300)
SA8255P = load_device("sa8255p")

pytestmark = pytest.mark.skipif(
    not get_compiler("ort_qnn").available(Action.ESTIMATE, SA8255P, "npu"), reason="the QNN wheel does not work here"
)


def int8(name: str) -> tuple[Graph, Graph]:
    graph = zoo.build(name)
    return graph, quantise(graph, "int8", Calibration.random(graph, count=1))


def compiled(graph: Graph, compiler: str, root: Path, vtcm_mb: str) -> Artefact:
    asked = Segment(
        graph=graph,
        device=SA8255P,
        processor="npu",
        compiler=compiler,
        precision="int8",
        options=(("vtcm_mb", vtcm_mb),),
    )
    return compile_segment(asked, root, LIMITS)


def run_artefact(artefact: Artefact, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with get_compiler(artefact.compiler).load(artefact) as session:
        return session.run(feed)


def test_resnet50_is_simulated_at_its_known_cost(tmp_path: Path) -> None:
    qnn = get_compiler("ort_qnn")
    _, graph = int8("resnet50")
    artefact = compiled(graph, "ort_qnn", tmp_path, "8")
    full = qnn.estimate(artefact)
    small = qnn.estimate(compiled(graph, "ort_qnn", tmp_path, "1"))
    assert qnn.placement(artefact).elsewhere("npu") == ()
    assert 0.5e-3 < full.latency.typical_s < 0.9e-3
    assert full.dram_bytes == pytest.approx(26e6, rel=0.05)
    assert 0.98 < float(artefact.fact("input_fill_over_weights")) < 1.1
    assert full.spill_bytes == 0
    assert small.latency.typical_s > full.latency.typical_s
    assert small.spill_bytes is not None
    assert small.spill_bytes > 1_000_000


def test_resnet18_int8_on_the_emulator_keeps_to_the_float_reference(tmp_path: Path) -> None:
    graph, quantised = int8("resnet18")
    feed = random_inputs(graph, 5)
    artefact = compiled(quantised, "ort_qnn", tmp_path, "8")
    (found,) = in_child(run_artefact, artefact, feed, limits=LIMITS).values()
    with reference_session(graph) as session:
        (right,) = session.run(feed).values()
    cosine = float((found * right).sum() / np.linalg.norm(found) / np.linalg.norm(right))
    assert cosine >= 0.99
