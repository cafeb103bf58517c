"""TVM against ONNX Runtime on one thread: cold and warm compile, latency in alternating blocks, output error.

    python -m benchmarks.tvm_latency mobilenet_v3_small resnet18 resnet50

Run it on an idle machine; a ratio is of medians taken in turns, so that both see the same disturbance.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from compilers import Limits, compile_segment, get_compiler
from graphs import compare, random_inputs, zoo
from partition import Segment, load_device

if TYPE_CHECKING:
    from compilers import Session
    from graphs import Graph

BLOCKS, RUNS = 20, 5


def main(names: list[str]) -> None:
    os.environ["EDGEFRONTIER_CACHE"] = tempfile.mkdtemp()
    for name in names or ["mobilenet_v3_small", "resnet18", "resnet50"]:
        graph = zoo.build(name)
        cold = _compile(graph, "tvm")
        warm = _compile(graph, "tvm")
        with cold[0] as tvm, _compile(graph, "ort_cpu")[0] as ort:
            tvm_s, ort_s = _latencies(graph, tvm, ort)
            feed = random_inputs(graph, 1)
            errors = compare(ort.run(feed), tvm.run(feed)).values()
        worst = max(error.relative_max or 0.0 for error in errors)
        print(
            f"{name}: compile {cold[1]:.1f} s, with tiles cached {warm[1]:.1f} s; "
            f"tvm {tvm_s * 1e3:.2f} ms, ort {ort_s * 1e3:.2f} ms, ratio {tvm_s / ort_s:.2f}; error {worst:.1e}"
        )


def _compile(graph: Graph, compiler: str) -> tuple[Session, float]:
    segment = Segment(graph=graph, device=load_device("host"), processor="cpu", compiler=compiler, precision="fp32")
    artefact = compile_segment(segment, Path(tempfile.mkdtemp()), Limits())
    return get_compiler(compiler).load(artefact), artefact.compile_s


def _latencies(graph: Graph, first: Session, second: Session) -> tuple[float, float]:
    feed = random_inputs(graph, 0)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(BLOCKS):
        for session, taken in zip((first, second), times, strict=True):
            session.run(feed)
            for _ in range(RUNS):
                start = time.perf_counter()
                session.run(feed)
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main(sys.argv[1:])
