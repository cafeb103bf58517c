"""What our session adds to a bare ONNX Runtime loop, in turns: `python -m benchmarks.harness_overhead [MODEL]`.

The bar is 2 % on ResNet-18; needs a quiet core.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnxruntime

from compilers import Limits, compile_segment, get_compiler
from experiments.evaluator.modes import duel
from graphs import random_inputs, save, zoo
from partition import Segment, load_device


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "resnet18"
    graph = zoo.build(model)
    feed = random_inputs(graph, 0)
    segment = Segment(graph=graph, device=load_device("host"), processor="cpu", compiler="ort_cpu", precision="fp32")
    with tempfile.TemporaryDirectory() as folder:
        artefact = compile_segment(segment, Path(folder), Limits(time_s=300.0))
        save(graph, Path(folder) / "bare.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(artefact.fact("threads", "1"))
        bare = onnxruntime.InferenceSession(Path(folder) / "bare.onnx", options, providers=["CPUExecutionProvider"])
        with get_compiler("ort_cpu").load(artefact) as session:
            found = duel(lambda: bare.run(None, feed), lambda: session.run(feed), rounds=100, warmups=10)
    ratio = found.ratio
    print(f"{model}: ours over bare {ratio.typical:.4f} ({ratio.low:.4f} to {ratio.high:.4f}, 99 %), bar 1.02")
    return 0 if ratio.typical <= 1.02 else 1


if __name__ == "__main__":
    raise SystemExit(main())
