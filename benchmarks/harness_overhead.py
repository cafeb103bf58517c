"""What our session adds to a bare ONNX Runtime loop, and how far the reported median repeats.

`python -m benchmarks.harness_overhead [MODEL] [RUNS]`: first the two in turns (bar: 2 % on ResNet-18), then RUNS fresh
processes as the main job starts them (default 10; bar: medians within 5 %, and said where they are not). Needs a quiet
core.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from compilers import Artefact, Limits, compile_segment, get_compiler
from experiments.evaluator.modes import duel
from experiments.evaluator.run import fresh_median, run_artefact
from graphs import Graph, random_inputs, save, zoo
from partition import Segment, load_device

LIMITS = Limits(time_s=300.0)


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "resnet18"
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    graph = zoo.build(model)
    segment = Segment(graph=graph, device=load_device("host"), processor="cpu", compiler="ort_cpu", precision="fp32")
    with tempfile.TemporaryDirectory() as folder:
        artefact = compile_segment(segment, Path(folder), LIMITS)
        overhead = in_turns(model, graph, artefact, Path(folder))
        repeated = between_runs(model, graph, artefact, runs)
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0 if overhead and repeated else 1


def in_turns(model: str, graph: Graph, artefact: Artefact, folder: Path) -> bool:
    feed = random_inputs(graph, 0)
    save(graph, folder / "bare.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(artefact.fact("threads", "1"))
    bare = onnxruntime.InferenceSession(folder / "bare.onnx", options, providers=["CPUExecutionProvider"])
    with get_compiler("ort_cpu").load(artefact) as session:
        ratio = duel(lambda: bare.run(None, feed), lambda: session.run(feed), rounds=100, warmups=10).ratio
    print(f"{model}: ours over bare {ratio.typical:.4f} ({ratio.low:.4f} to {ratio.high:.4f}, 99 %), bar 1.02")
    return ratio.typical <= 1.02


def between_runs(model: str, graph: Graph, artefact: Artefact, runs: int) -> bool:
    """Spread of the first process's median over fresh runs, and of the shorter repeats that the main job adds."""
    feed = random_inputs(graph, 0)
    full = [run_artefact(artefact, feed, limits=LIMITS, budget_s=5.0).samples for _ in range(runs)]
    medians = {
        "100 samples": [samples.medians_s[0] for samples in full if samples],
        "30 samples": [fresh_median(artefact, feed, limits=LIMITS) for _ in range(runs)],
    }
    for name, values in medians.items():
        spread, deviation = np.ptp(values) / np.median(values), np.std(values, ddof=1) / np.median(values)
        print(
            f"{model}: median of {name} in {runs} fresh processes: {np.median(values) * 1e3:.2f} ms,"
            f" largest over smallest {spread:.1%} apart, deviation {deviation:.1%}, bar 5 %"
        )
    return bool(np.ptp(medians["100 samples"]) / np.median(medians["100 samples"]) < 0.05)


if __name__ == "__main__":
    raise SystemExit(main())
