"""TVM against ONNX Runtime: compile cold and warm, latency in turns, output error, stability of the sweep's choice.

    python -m benchmarks.tvm_latency mobilenet_v2 resnet18 --precision int8 --threads 1 2
    python -m benchmarks.tvm_latency mobilenet_v2 --threads --stability

A ratio is of medians (and of shortest runs) taken in turns, in a process each; compile time is CPU time. Stability
builds the candidates of the sweep again, at most eight for a function, and measures them in turns with what the sweep
chose, with tensors in five places of memory: how much faster is the best of them in the median?
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import resource
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compilers import Limits, compile_segment, get_compiler
from graphs import Calibration, compare, quantise, random_inputs, zoo
from partition import Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    import numpy as np

    from compilers import Artefact
    from graphs import Graph

    Outputs = dict[str, np.ndarray[Any, Any]]

BLOCKS, RUNS = 60, 3
REMEASURED = 8
PLACES = 5


def main() -> None:
    options = _parser().parse_args()
    os.environ["EDGEFRONTIER_CACHE"] = tempfile.mkdtemp()
    for name in options.models:
        graph = zoo.build(name)
        if options.precision == "int8":
            graph = quantise(graph, "int8", Calibration.random(graph))
        for threads in options.threads:
            _apart(_report, graph, options.precision, threads, options.tune)
        if options.stability:
            _apart(_report_stability, graph)


def _apart(report: Callable[..., None], *arguments: object) -> None:
    """Report in a process of its own: TVM's pool of threads does not grow once it runs."""
    process = multiprocessing.Process(target=report, args=arguments)
    process.start()
    process.join()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mobilenet_v2", "resnet18"])
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32")
    parser.add_argument("--threads", nargs="*", default=["1"], help="none: no compiles and ratios")
    parser.add_argument("--tune", default="0", help="schedules tried for each function that takes time")
    parser.add_argument("--stability", action="store_true")
    return parser


def _report(graph: Graph, precision: str, threads: str, tune: str) -> None:
    cold = _compile(graph, "tvm", precision, threads=threads, tune=tune)
    warm = _compile(graph, "tvm", precision, threads=threads, tune=tune)
    tvm, ort = _in_turns(graph, cold[0], _compile(graph, "ort_cpu", precision, threads=threads)[0])
    (tvm_s, tvm_least_s), (ort_s, ort_least_s) = ((statistics.median(times), min(times)) for _, times in (tvm, ort))
    errors = compare(ort[0], tvm[0]).values()
    worst = max(error.relative_max or 0.0 for error in errors)
    print(
        f"{graph.name}, {threads} threads: compile {cold[1]:.1f} CPU-s, with tiles cached {warm[1]:.1f} CPU-s; "
        f"tvm {tvm_s * 1e3:.2f} ms, ort {ort_s * 1e3:.2f} ms, ratio {tvm_s / ort_s:.2f}; shortest "
        f"{tvm_least_s * 1e3:.2f}, {ort_least_s * 1e3:.2f}, {tvm_least_s / ort_least_s:.2f}; error {worst:.1e}",
        flush=True,
    )


def _compile(graph: Graph, compiler: str, precision: str, **options: str) -> tuple[Artefact, float]:
    segment = Segment(
        graph=graph,
        device=load_device("host"),
        processor="cpu",
        compiler=compiler,
        precision=precision,
        options=tuple(options.items()),
    )
    before_s = _children_s()
    artefact = compile_segment(segment, Path(tempfile.mkdtemp()), Limits())
    return artefact, _children_s() - before_s


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _in_turns(graph: Graph, *artefacts: Artefact) -> list[tuple[Outputs, list[float]]]:
    """Return (outputs, times) of each artefact.

    Each has a process, and those whose turn it is not are stopped: the threads of both pools wait awake for a while.
    """
    served = [_served(graph, artefact) for artefact in artefacts]
    found: list[tuple[Outputs, list[float]]] = [(pipe.recv(), []) for pipe, _ in served]
    for _, process in served:
        os.kill(process, signal.SIGSTOP)
    for _ in range(BLOCKS):
        for (pipe, process), (_, times) in zip(served, found, strict=True):
            os.kill(process, signal.SIGCONT)
            pipe.send("go on")
            times.extend(pipe.recv())
            os.kill(process, signal.SIGSTOP)
    for pipe, process in served:
        os.kill(process, signal.SIGCONT)
        pipe.send("")
    return found


def _served(graph: Graph, artefact: Artefact) -> tuple[Connection, int]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(graph, artefact, there))
    process.start()
    assert process.pid is not None
    return here, process.pid


def _serve(graph: Graph, artefact: Artefact, pipe: Connection) -> None:
    with get_compiler(artefact.compiler).load(artefact) as session:
        pipe.send(session.run(random_inputs(graph, 1)))
        feed = random_inputs(graph, 0)
        while pipe.recv():
            session.run(feed)
            times = []
            for _ in range(RUNS):
                start = time.perf_counter()
                session.run(feed)
                times.append(time.perf_counter() - start)
            pipe.send(times)


def _report_stability(graph: Graph) -> None:
    """Print how much slower the sweep's choice is than the best of its candidates, function by function."""
    from compilers.tvm import frontend, runtime, sweep
    from compilers.tvm.cache import TileCache
    from compilers.tvm.targets import host_target

    runtime.use_threads(1)
    target = host_target()
    module = frontend.fuse(frontend.import_graph(graph.proto()), target)
    functions = {gv.name_hint: f for gv, f in module.functions.items() if gv.name_hint != "main"}
    calls = frontend.count_calls(module)
    chooser = sweep.Sweep(target=target, threads=1, candidates=2, cache=TileCache(Path(tempfile.mkdtemp())))
    decisions = chooser.decide(functions, calls)
    total_s = sum((d.time_s or 0.0) * calls[name] for name, d in decisions.items())
    for tried in (2, REMEASURED):
        losses = []
        for name, decision in decisions.items():
            spent_s = (decision.time_s or 0.0) * calls[name]
            if decision.build == "tiled" and spent_s >= sweep.RELEVANT_SHARE * total_s:
                losses.append((_loss(functions[name], decision.config, target, tried), spent_s))
        near = sum(loss <= 1.05 for loss, _ in losses)
        mean = sum(loss * share for loss, share in losses) / sum(share for _, share in losses)
        print(
            f"{graph.name}: of {len(losses)} functions that matter, {near} within 5 % of the best of {tried} "
            f"candidates, the worst {max(losses)[0]:.2f}, weighted by time {mean:.3f}",
            flush=True,
        )


def _loss(func: object, chosen: object, target: object, tried: int) -> float:
    """Return the chosen tile's time over the best one's: medians of tensors in several places, each timed in turns."""
    from compilers.tvm import sweep
    from compilers.tvm.schedule import analyse, schedule
    from compilers.tvm.targets import registers_of
    from compilers.tvm.tiles import candidates

    nest = analyse(func)
    assert nest is not None
    tiles = dict.fromkeys((chosen, *candidates(nest, registers_of(target), tried)))
    scheduled = {str(i): schedule(func, tile, threads=1) for i, tile in enumerate(tiles)}
    calls = {
        name: functools.partial(kernel, *sweep.arguments_of(func, scheduled[name]))
        for name, kernel in sweep.build_each(scheduled, target)
    }
    places = [calls, *({name: sweep.elsewhere(call) for name, call in calls.items()} for _ in range(PLACES - 1))]
    least_s = [_least_s(place) for place in places]
    median_s = {name: statistics.median(place[name] for place in least_s) for name in calls}
    return median_s["0"] / min(median_s.values())


def _least_s(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest of runs in turns."""
    least_s = {name: float("inf") for name in calls}
    for call in calls.values():
        call()
    for _ in range(40):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least_s[name] = min(least_s[name], time.perf_counter() - start)
    return least_s


if __name__ == "__main__":
    main()
