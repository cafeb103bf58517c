"""Convert every zoo model (and ONNX files) with the Core ML adapter in fp32, fp16 and int8, and prove each package.

    python -m benchmarks.coreml_zoo [--models NAME_OR_FILE ...] [--compress NAME_OR_FILE] [--out FILE.md]

Prints a Markdown table: seconds to convert (lower, coremltools, save; no proof), megabytes, relative error (L2)
against ONNX Runtime without optimisations on one seeded feed, and what the lint predicts. Times are single runs on
whatever the machine was doing: the load average is printed with them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from compilers import CompilerError, tree_size_bytes
from compilers.coreml.build import build
from compilers.coreml.compress import METHODS
from graphs import Calibration, Graph, GraphError, load, quantise, zoo
from partition import Segment, load_device

HEAD = "| model | precision | convert s | run s | MB | error | operations | lint |\n|---|---|---|---|---|---|---|---|"


def row(graph: Graph, precision: str, compress: str = "") -> str:
    options = (("compress", compress),) if compress else ()
    segment = Segment(
        graph=graph,
        device=load_device("a17_pro"),
        processor="npu",
        compiler="coreml",
        precision=precision,
        options=options,
    )
    label = " ".join(filter(None, [precision, compress]))
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "model.mlpackage")
        started = time.perf_counter()
        try:
            built = build(segment, package, compute="fp16" if precision == "fp16" else "fp32", default_target="iOS17")
        except CompilerError as error:
            return f"| {graph.name} | {label} | refused: {error.reason} |"
        convert_s = time.perf_counter() - started - built.proof_s
        size = tree_size_bytes(package) / 1e6
    error = "not proven" if built.proof_error is None else f"{built.proof_error:.1e}"
    lint = built.lint.partition(": ")[2].replace(" leave the Neural Engine", "")
    return (
        f"| {graph.name} | {label} | {convert_s:.1f} | {built.proof_s:.1f} | {size:.1f} | {error} "
        f"| {built.operations} | {lint if precision == 'fp16' else ''} |"
    )


def graph_of(name: str) -> Graph:
    return zoo.build(name) if name in zoo.names() else load(Path(name))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(zoo.names()))
    parser.add_argument("--compress", help="a model to try every compression method on")
    arguments = parser.parse_args(argv)
    print(f"load average {', '.join(f'{n:.1f}' for n in os.getloadavg())}, {os.cpu_count()} cores\n\n{HEAD}")
    if arguments.compress:
        graph = graph_of(arguments.compress)
        print(row(graph, "fp16"), flush=True)
        for method in METHODS:
            print(row(graph, "fp16", method), flush=True)
        return 0
    for name in arguments.models:
        try:
            graph = graph_of(name)
            for precision in ("fp32", "fp16"):
                print(row(graph, precision), flush=True)
            print(row(quantise(graph, "int8", Calibration.random(graph, count=1)), "int8"), flush=True)
        except GraphError as error:
            print(f"| {name} | refused: {error} |", flush=True)
    print(f"\nload average at the end {', '.join(f'{n:.1f}' for n in os.getloadavg())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
