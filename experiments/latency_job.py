"""What `experiments.latency` does: compile for this machine, then measure in a fresh process."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from compilers import Artefact, CompilerError, Limits, UnknownBackendError, compile_segment, get_compiler, in_child
from experiments import store
from experiments.arguments import UserError
from experiments.candidates import known_backends
from experiments.console import open_console, plain_table
from experiments.environment import environment
from experiments.evaluator import Meter, find_meter
from experiments.evaluator.modes import (
    Dispatch,
    Duel,
    Profile,
    Sustained,
    aligned,
    burst,
    dispatch,
    duel,
    profile,
    sustained,
)
from experiments.evaluator.noise import autocorrelation, effective_samples
from experiments.evaluator.run import metered
from experiments.model import calibration_for, load_model, variant
from experiments.units import interval, joules, seconds
from graphs import Graph, GraphError, from_proto, random_inputs
from partition import Segment, load_device

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from compilers import KernelTime, Session
    from experiments.evaluator.power.window import MeasuredEnergy

_KERNEL_RUNS = 20
_STEADY_BUDGET_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    load_s: float
    profile: Profile
    burst_s: tuple[float, ...]
    sustained: Sustained
    energy: MeasuredEnergy | None
    no_energy: str


def run(options: argparse.Namespace) -> int:
    """Do the whole job and return the exit code.

    Raises:
        UserError: the arguments or the model cannot be used.
        CompilerError: a backend cannot compile or run the model.
    """
    try:
        known_backends([name for name in (options.backend, options.against) if name])
    except UnknownBackendError as error:
        raise UserError(str(error)) from error
    graph = _null_model() if options.dispatch else _graph(options)
    store.open_run(options.out)
    if options.dispatch:
        return _run_dispatch(graph, options)
    feed = _feed(graph, options)
    limits = Limits(time_s=600.0 + 2 * options.sustained)
    first = _compiled(options.backend, graph, options, limits)
    if options.kernels:
        _print_kernels(first, in_child(_kernels, first, feed, limits=limits))
        return 0
    if options.against is None:
        meter = find_meter("cpu")
        settings = (options.idle, options.sustained, options.offset)
        measured = in_child(_measure, first, feed, settings, meter, limits=limits)
        _print_measured(first, measured, meter)
        _store(graph.name, first, measured, options)
        return 0
    second = _compiled(options.against, graph, options, limits)
    found = in_child(_duel, first, second, feed, (options.offset, options.seed), limits=limits)
    _print_duel(first, second, found)
    return 0


def _run_dispatch(null: Graph, options: argparse.Namespace) -> int:
    limits = Limits(time_s=600.0)
    artefact = _compiled(options.backend, null, options, limits)
    found = in_child(_dispatch, artefact, limits=limits)
    print(
        f"dispatch of {artefact.compiler} on this machine's CPU, one Relu on one number, {found.calls} calls, less the"
        f" clock's own time:\n"
        f"median {seconds(found.median_s)}, p99 {seconds(found.p99_s)}; mean {seconds(found.mean_s)} (deviation"
        f" {seconds(found.deviation_s)}), worst jitter {seconds(found.worst_jitter_s)}\n"
        "it is the floor of any call through this runtime from Python; it is not the dispatch of an accelerator, whose"
        " figure is the device file's, nor does it hold any transfer"
    )
    _write(options.out / f"dispatch-{artefact.compiler}.json", artefact, dataclasses.asdict(found))
    return 0


def _kernels(artefact: Artefact, feed: dict[str, NDArray[Any]]) -> tuple[KernelTime, ...]:
    return get_compiler(artefact.compiler).profile(artefact, feed, _KERNEL_RUNS)


def _print_kernels(artefact: Artefact, kernels: tuple[KernelTime, ...]) -> None:
    total_s = sum(kernel.time_s for kernel in kernels)
    table = plain_table()
    for heading, justify in (("share", "right"), ("time", "right"), ("kernel", "left"), ("nodes", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for kernel in sorted(kernels, key=lambda k: -k.time_s):
        nodes = ", ".join(kernel.nodes) or "none: the backend's own"
        table.add_row(f"{kernel.time_s / total_s:.1%}", seconds(kernel.time_s), kernel.kernel, nodes)
    console = open_console()
    console.print(table)
    console.print(
        f"{len(kernels)} kernels of {artefact.compiler}, {seconds(total_s)} in all: each the shortest of {_KERNEL_RUNS}"
        " runs, watched one by one, which takes time of its own and leaves out what lies between them",
    )


def _null_model() -> Graph:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "null", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return from_proto(model, name="null")


def _dispatch(artefact: Artefact) -> Dispatch:
    feed = {"x": np.ones(1, dtype=np.float32)}
    with _loaded(artefact) as session:
        return dispatch(lambda: session.run(feed))


def _graph(options: argparse.Namespace) -> Graph:
    try:
        graph = load_model(options.model, options.bindings, options.seed)
        if options.precision == "int8":
            data = calibration_for(graph, None, options.seed)
            return variant(graph, "int8", data, options.out / "build")
    except GraphError as error:
        raise UserError(str(error)) from error
    return graph


def _feed(graph: Graph, options: argparse.Namespace) -> dict[str, NDArray[Any]]:
    feed = random_inputs(graph, options.seed)
    try:
        for array in feed.values():
            aligned(array, offset_bytes=options.offset)  # refuses a bad offset before anything is compiled
    except ValueError as error:
        raise UserError(f"--offset: {error}") from error
    return feed


def _compiled(name: str, graph: Graph, options: argparse.Namespace, limits: Limits) -> Artefact:
    segment = Segment(
        graph=graph, device=load_device("host"), processor="cpu", compiler=name, precision=options.precision
    )
    print(f"compiling with {name}", file=sys.stderr)
    return compile_segment(segment, options.out / "build", limits)


def _store(name: str, artefact: Artefact, measured: _Measured, options: argparse.Namespace) -> None:
    """Keep every raw sample beside the results of the other commands."""
    path = options.out / f"latency-{name}-{artefact.compiler}-{artefact.precision}.json"
    about = {"offset_bytes": options.offset, "seed": options.seed, "compile_s": artefact.compile_s}
    _write(path, artefact, {**about, **dataclasses.asdict(measured)})


def _write(path: Path, artefact: Artefact, found: Mapping[str, object]) -> None:
    store.write_json(path, {**environment([], [artefact.compiler]), "command": sys.argv, **found})
    print(f"raw samples: {path}")


def _measure(
    artefact: Artefact, feed: dict[str, NDArray[Any]], settings: tuple[float, float, int], meter: Meter | str
) -> _Measured:
    """Measure in this fresh process; buffers are placed here, since their address does not survive a pipe."""
    idle_s, sustained_s, offset = settings
    placed = {name: aligned(array, offset_bytes=offset) for name, array in feed.items()}
    begin = time.perf_counter()
    with _loaded(artefact) as session:
        load_s = time.perf_counter() - begin

        def call() -> dict[str, np.ndarray[Any, Any]]:
            return session.run(placed)

        found = profile(call, idle_s=idle_s, budget_s=_STEADY_BUDGET_S)
        in_burst_s = burst(call)
        slow = sustained(call, duration_s=sustained_s, window_s=sustained_s / 20)
        energy, no_energy = (None, meter) if isinstance(meter, str) else metered(meter, call)
        return _Measured(
            load_s=load_s, profile=found, burst_s=in_burst_s, sustained=slow, energy=energy, no_energy=no_energy
        )


def _duel(first: Artefact, second: Artefact, feed: dict[str, NDArray[Any]], settings: tuple[int, int]) -> Duel:
    offset, seed = settings
    placed = {name: aligned(array, offset_bytes=offset) for name, array in feed.items()}
    with _loaded(first) as a, _loaded(second) as b:
        return duel(lambda: a.run(placed), lambda: b.run(placed), seed=seed)


def _loaded(artefact: Artefact) -> Session:
    session = get_compiler(artefact.compiler).load(artefact)
    if not type(session).on_device:
        session.close()
        raise CompilerError(f"{artefact.compiler} runs on an emulator here: its times mean nothing")
    return session


def _print_measured(artefact: Artefact, measured: _Measured, meter: Meter | str) -> None:
    found, samples = measured.profile, measured.profile.samples
    latency = samples.latency()
    print(f"compile      {seconds(artefact.compile_s)} (cached artefacts keep their first time)")
    print(f"load         {seconds(measured.load_s)}, in a fresh process")
    print(f"cold         {seconds(samples.cold_s)}, the first inference: {found.cold_ratio:.2f} times the steady one")
    steady = interval(seconds(latency.typical_s), seconds(latency.low_s), seconds(latency.high_s))
    worth = effective_samples(samples.steady_s)
    print(
        f"steady       {steady}; {len(samples.steady_s)} samples, autocorrelation"
        f" {autocorrelation(samples.steady_s):.2f}, worth {worth:.0f} independent ones"
    )
    after = sorted(found.after_idle_s)
    print(
        f"after idle   {seconds(after[len(after) // 2])} after {seconds(found.idle_s)}"
        f" ({found.after_idle_ratio:.2f} times, {len(after)} pauses)"
    )
    print(f"burst of {len(measured.burst_s):<3} {seconds(min(measured.burst_s))} to {seconds(max(measured.burst_s))}")
    print(f"sustained    {_sustained(measured.sustained)}")
    print(f"energy       {_energy(measured, meter)}")
    for warning in samples.warnings():
        print(f"note: {warning}")


def _sustained(slow: Sustained) -> str:
    """Say how the run ended; one window is its start and its end, and shows no change."""
    if len(slow.medians_s) == 1:
        return f"not known: the run is too short for more than one call of {seconds(slow.medians_s[0])} (--sustained)"
    return (
        f"{seconds(slow.medians_s[-1])} at the end of {seconds(slow.window_s * 20)}:"
        f" {slow.slowdown:.2f} times the start"
    )


def _energy(measured: _Measured, meter: Meter | str) -> str:
    energy = measured.energy
    if energy is None or isinstance(meter, str):
        return f"not measured: {measured.no_energy}"
    return (
        f"{joules(energy.gross_j)} (+- {joules(energy.uncertainty_j)}) with idling, {joules(energy.net_j)} above idle;"
        f" {meter.title}, {energy.samples} readings over {seconds(energy.window_s)}"
    )


def _print_duel(first: Artefact, second: Artefact, found: Duel) -> None:
    ratio = found.ratio
    names = {"first": first.compiler, "second": second.compiler}
    verdict = "a tie" if found.verdict == "tie" else f"{names[found.verdict]} is faster"
    print(
        f"{second.compiler} over {first.compiler}, {len(found.first_s)} pairs in random order:"
        f" {ratio.typical:.3f} ({ratio.low:.3f} to {ratio.high:.3f}, 99 %): {verdict}"
    )
