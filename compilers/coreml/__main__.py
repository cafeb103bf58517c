"""Convert one model, prove the package, and hold it against the rules of the Neural Engine.

    python -m compilers.coreml MODEL.onnx [--precision fp16] [--target iOS17] [--compress w8] [--out FOLDER]
    python -m compilers.coreml MODEL.onnx --compress w8a8 --calibration IMAGES

MODEL is an ONNX file, a zoo name, or a finished `.mlpackage` (then only the lint runs). The lint predicts; where
an operation really runs is known on the device only. The latency is modelled, with its interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from compilers.adapter import CompilerError
from compilers.coreml import latency
from compilers.coreml.adapter import DEFAULT_TARGET, PACKAGE, RUNS_ON, compute_precision
from compilers.coreml.compress import METHODS
from compilers.coreml.lint import lint
from compilers.coreml.package import read_package
from compilers.coreml.vendor import TARGETS
from compilers.coreml.work import count_work
from graphs import Calibration, Graph, GraphError, load, zoo
from partition import FeedFile, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compilers.coreml.lint import Report

EXAMPLES = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; 0 done, 1 the model is refused, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m compilers.coreml", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="ONNX file, zoo name or .mlpackage")
    parser.add_argument("--precision", choices=("fp16", "fp32"), default="fp16", help="of a float graph")
    parser.add_argument("--target", choices=TARGETS, help=f"deployment target (default: {DEFAULT_TARGET} or later)")
    parser.add_argument("--compress", choices=tuple(METHODS), help="compress the weights of a float graph")
    parser.add_argument("--calibration", type=Path, metavar="PATH", help="data for w8a8 (default: random)")
    parser.add_argument("--chip", choices=tuple(latency.PUBLISHED), default="a17_pro", help="for the modelled latency")
    parser.add_argument("--bind", action="append", default=[], metavar="NAME=SIZE", help="fix a symbolic dimension")
    parser.add_argument("--out", type=Path, help="keep the package in this folder")
    arguments = parser.parse_args(argv)
    try:
        _run(arguments)
    except (CompilerError, GraphError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if arguments.model.endswith(".mlpackage"):
        _print_lint(lint(read_package(Path(arguments.model))))
        return
    graph = _graph(arguments)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        _convert(graph, arguments, arguments.out)
        return
    with tempfile.TemporaryDirectory(prefix="edgefrontier-") as folder:
        _convert(graph, arguments, Path(folder))


def _graph(arguments: argparse.Namespace) -> Graph:
    if arguments.model in zoo.names():
        return zoo.build(arguments.model)
    pairs = [text.partition("=") for text in arguments.bind]
    bad = [name for name, _, size in pairs if not size.isdecimal()]
    if bad:
        raise GraphError(f"--bind {bad[0]} wants NAME=SIZE with a whole number")
    return load(arguments.model, bind={name: int(size) for name, _, size in pairs})


def _convert(graph: Graph, arguments: argparse.Namespace, folder: Path) -> None:
    from compilers.coreml.build import NOT_PROVEN, build

    stated = {"target": arguments.target, "compress": arguments.compress}
    segment = Segment(
        graph=graph,
        device=load_device("a17_pro"),
        processor="npu",
        compiler="coreml",
        precision="int8" if graph.is_quantised else arguments.precision,
        options=tuple((key, value) for key, value in stated.items() if value),
        feeds=_feeds(graph, arguments.calibration) if arguments.calibration else None,
    )
    # fp32 is for looking at: the Neural Engine has none, and the lint says so for each operation.
    compute = "fp32" if segment.precision == "fp32" else compute_precision(segment)
    built = build(segment, folder / PACKAGE, compute=compute, default_target=DEFAULT_TARGET)
    print(f"{graph.name}: {built.operations} operations for {built.target}, {built.arithmetic}")
    error = NOT_PROVEN if built.proof_error is None else f"{built.proof_error:.2g}"
    print(f"output error against ONNX Runtime {error} (relative L2; {RUNS_ON})")
    if built.compressed:
        print(f"{built.compressed} weights compressed")
    if built.ranges:
        print(f"ranges of activations from {built.ranges}")
    _print_lint(lint(read_package(folder / PACKAGE)))
    if built.arithmetic in latency.WIDTH_BYTES:
        _print_latency(graph, arguments.chip, built.arithmetic)
    if arguments.out is not None:
        print(f"package: {folder / PACKAGE}")


def _feeds(graph: Graph, path: Path) -> FeedFile:
    return FeedFile(path=str(path.resolve()), digest=Calibration.from_path(graph, path).digest)


def _print_latency(graph: Graph, chip: str, arithmetic: str) -> None:
    modelled = latency.estimate(count_work(graph), chip=chip, precision=arithmetic).latency
    fit = latency.fit(chip)
    print(
        f"\nlatency on {chip} as if all ran on the Neural Engine, modelled: "
        f"{modelled.low_s:.1e} to {modelled.high_s:.1e} s"
    )
    print(
        f"  the model misses its {len(latency.PUBLISHED[chip])} points by {fit.fit_ratio - 1:.0%} at most, "
        f"a point left out of the fit by {fit.left_out_ratio - 1:.0%}; nothing here was measured"
    )


def _print_lint(report: Report) -> None:
    print(f"lint: {report.summary()}")
    for name, found in report.by_rule().items():
        rule = found[0].rule
        print(f"\n{name}: {len(found)} x, {rule.severity}")
        print(f"  do: {rule.rewrite}")
        print(f"  source: {rule.source}")
        for finding in found[:EXAMPLES]:
            print(f"  {finding.node or finding.operation} ({finding.type}) {finding.reason}")


if __name__ == "__main__":
    sys.exit(main())
