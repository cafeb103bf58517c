"""Many compiles in one sweep: does the parent grow in memory, file handles, threads or left-over files?

    python -m benchmarks.qnn_soak --compiles 500

Each compile is another content (seed of the weights), so nothing comes from the cache; every fiftieth line is printed.
The artefact of each compile is removed afterwards: what is measured is the process, not the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper

from compilers import CompilerError, Limits, compile_segment
from graphs import Graph, from_proto
from partition import Segment, load_device

# The first compiles load modules and fill caches; growth counts from here on.
WARM = 10
MOST_GROWTH_BYTES = 8 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiles", type=int, default=500)
    parser.add_argument("--backend", default="ort_qnn", choices=("ort_qnn", "snpe"))
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="edgefrontier-soak-"))
    tempfile.tempdir = str(scratch / "tmp")  # so that what the sandbox leaves can be told from other programs' files
    Path(tempfile.tempdir).mkdir()
    start, warm = time.monotonic(), None
    print("compile   RSS MB  handles  threads  children  left files  seconds")
    for number in range(1, options.compiles + 1):
        compile_once(number, options.backend, scratch / "build")
        if number == WARM:
            warm = state()
        if number in {1, WARM, options.compiles} or number % 50 == 0:
            rss, handles, threads, children, left = state()
            elapsed = time.monotonic() - start
            print(
                f"{number:7} {rss / 1e6:8.1f} {handles:8} {threads:8} {children:9} {left:10} {elapsed:8.1f}", flush=True
            )
    last = state()
    shutil.rmtree(scratch)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    per_compile = (time.monotonic() - start) / options.compiles
    print(f"{per_compile:.2f} s per compile, load average {load}, {os.cpu_count()} CPUs")
    return verdict(warm or last, last)


def verdict(warm: tuple[int, ...], last: tuple[int, ...]) -> int:
    grown = last[0] - warm[0]
    changes = f"memory {grown / 1e6:+.1f} MB, handles {last[1] - warm[1]:+}, threads {last[2] - warm[2]:+}"
    print(f"from compile {WARM} on: {changes}")
    steady = grown < MOST_GROWTH_BYTES and last[1] <= warm[1] and last[2] <= warm[2] and last[3:] == (0, 0)
    print("steady" if steady else "GROWS")
    return 0 if steady else 1


def compile_once(seed: int, backend: str, root: Path) -> None:
    segment = Segment(
        graph=graph(seed), device=load_device("sa8255p"), processor="npu", compiler=backend, precision="fp16"
    )
    try:
        artefact = compile_segment(segment, root, Limits(time_s=120))
    except CompilerError as error:
        sys.exit(f"compile {seed} failed: {error.reason}\n{error.log}")
    shutil.rmtree(artefact.directory.parent)


def graph(seed: int) -> Graph:
    weights: np.ndarray[Any, Any] = np.random.default_rng(seed).normal(0, 0.1, (32, 32, 3, 3)).astype(np.float32)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    body = helper.make_graph(
        nodes, "soak", [value("x", TensorProto.FLOAT, [1, 32, 32, 32])],
        [value("y", TensorProto.FLOAT, [1, 32, 32, 32])], [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return from_proto(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def state() -> tuple[int, int, int, int, int]:
    """Return resident bytes, file handles, threads and children of this process, and its left temporary files."""
    process = psutil.Process()
    left = sum(1 for _ in Path(tempfile.gettempdir()).iterdir())
    return process.memory_info().rss, process.num_fds(), process.num_threads(), len(process.children()), left


if __name__ == "__main__":
    sys.exit(main())
