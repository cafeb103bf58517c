"""`experiments.knobs`, step by step: every combination of option values compiled and simulated, for each model."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

from compilers import Action, CompilerError, Estimate, Limits, compile_segment, get_compiler
from experiments import store
from experiments.arguments import UserError
from experiments.candidates import see_options
from experiments.console import open_console, plain_table
from experiments.knob_plot import draw_knobs
from experiments.model import calibration_for, load_model, variant
from experiments.units import interval, seconds, significant, size
from partition import Device, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

Axis = tuple[str, tuple[str, ...]]

_OPTIMISATION: Final = "htp_graph_finalization_optimization_mode"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command line as values."""

    models: Sequence[str]
    device: str
    backend: str
    precision: str
    axes: Sequence[Axis]
    bindings: Sequence[tuple[str, int]]
    out: Path
    seed: int
    time_limit_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One combination on one model: its estimate, or why there is none."""

    model: str
    setting: tuple[tuple[str, str], ...]
    estimate: Estimate | None
    reason: str


def sweep(options: Options) -> int:
    """Sweep, print, draw and write; return the exit code.

    Raises:
        UserError, GraphError, DeviceError: the arguments, a model or the device cannot be used.
    """
    console = open_console()
    device = load_device(options.device)
    processor = _simulated(options.backend, device)
    axes = tuple(options.axes) or _default_axes(device, processor)
    points: list[Point] = []
    try:
        for model in options.models:
            for point in _points(model, device, processor, axes, options, console):
                points.append(point)  # noqa: PERF402 - what came before Ctrl-C is reported
    except KeyboardInterrupt:
        if points:
            _report(points, axes, device, options, console)
        raise
    return _report(points, axes, device, options, console)


def _report(points: Sequence[Point], axes: Sequence[Axis], device: Device, options: Options, console: Console) -> int:
    _print(points, axes, console)
    folder = (
        options.out
        / "knobs"
        / f"{'-'.join(dict.fromkeys(p.model for p in points))[:80]}-{device.name}-{options.precision}"
    )
    store.open_run(folder)
    header = ("model", "device", "backend", "precision", *(key for key, _ in axes), "latency_s", "latency_low_s",
              "latency_high_s", "latency_source", "dram_bytes", "spill_bytes", "reason")  # fmt: skip
    store.write_csv(folder / "knobs.csv", header, _lines(points, device, options))
    drawn = draw_knobs(points, axes, f"{device.title}, {options.precision}", folder / "knobs")
    console.print(f"\nwrote knobs.csv{', knobs.png and knobs.svg' if drawn else ''} to {folder}")
    return 0 if drawn else 1


def _simulated(backend: str, device: Device) -> str:
    """Return the processor that the backend simulates, or say why it simulates none."""
    compiler = get_compiler(backend)
    whys = {p.name: compiler.why_not(Action.ESTIMATE, device, p.name) for p in device.processors if p.kind == "npu"}
    able = next((name for name, why in whys.items() if why is None), None)
    if able is None:
        why = "; ".join(filter(None, whys.values())) or f"{device.name} has no npu"
        raise UserError(f"there is no simulation to sweep: {why}")
    return able


def _default_axes(device: Device, processor: str) -> tuple[Axis, ...]:
    most = int(device.processor(processor).ids["qnn"]["vtcm_mb"])
    sizes = tuple(str(size_mb) for size_mb in (1, 2, 4, 8, 16) if size_mb <= most)
    return ("vtcm_mb", sizes), (_OPTIMISATION, ("1", "2", "3"))


def _points(
    model: str, device: Device, processor: str, axes: Sequence[Axis], options: Options, console: Console
) -> Iterator[Point]:
    graph = load_model(model, options.bindings, options.seed)
    store.open_run(options.out)
    build = options.out / "build"
    form = variant(graph, options.precision, calibration_for(graph, None, options.seed), build)
    combinations = list(itertools.product(*([(key, value) for value in values] for key, values in axes)))
    segments = [
        Segment(
            graph=form,
            device=device,
            processor=processor,
            compiler=options.backend,
            precision=options.precision,
            options=setting,
        )
        for setting in combinations
    ]
    see_options(segments)
    for number, segment in enumerate(segments):
        if not console.is_terminal:
            console.print(f"[{number + 1}/{len(segments)}] {form.name} {_text(segment.options)}")
        yield _point(segment, options)


def _point(segment: Segment, options: Options) -> Point:
    try:
        artefact = compile_segment(segment, options.out / "build", Limits(time_s=options.time_limit_s))
        estimate = get_compiler(segment.compiler).estimate(artefact)
    except CompilerError as error:
        return Point(model=segment.graph.name, setting=segment.options, estimate=None, reason=error.reason)
    return Point(model=segment.graph.name, setting=segment.options, estimate=estimate, reason="")


def _print(points: Sequence[Point], axes: Sequence[Axis], console: Console) -> None:
    table = plain_table("model", *(key for key, _ in axes), "simulated", "spill", "DRAM traffic", "remark")
    for point in points:
        table.add_row(point.model, *(value for _, value in point.setting), *_cells(point))
    console.print(table)
    for line in effects(points, axes):
        console.print(line)


def _cells(point: Point) -> tuple[str, str, str, str]:
    estimate = point.estimate
    if estimate is None:
        return "-", "-", "-", point.reason
    latency = estimate.latency
    time = interval(seconds(latency.typical_s), seconds(latency.low_s), seconds(latency.high_s))
    return time, size(estimate.spill_bytes), size(estimate.dram_bytes), ""


def effects(points: Sequence[Point], axes: Sequence[Axis]) -> Iterator[str]:
    """Say for each model and axis how far the time moves when only that axis does."""
    for model in dict.fromkeys(point.model for point in points):
        mine = {p.setting: p.estimate.latency.typical_s for p in points if p.model == model and p.estimate}
        for key, values in axes:
            ratios = _ratios(mine, key)
            if not ratios:
                continue
            effect = "has no effect on the simulated time"
            if max(ratios) > 1:
                effect = f"changes the simulated time by a factor of up to {significant(max(ratios))}"
            yield f"{model}: {key} ({', '.join(values)}) {effect}"


def _ratios(times: dict[tuple[tuple[str, str], ...], float], key: str) -> list[float]:
    """Return slowest over fastest for each group of settings that differ in `key` alone."""
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for setting, time_s in times.items():
        groups.setdefault(tuple(pair for pair in setting if pair[0] != key), []).append(time_s)
    return [max(group) / min(group) for group in groups.values() if len(group) > 1]


def _lines(points: Sequence[Point], device: Device, options: Options) -> Iterator[dict[str, object]]:
    for point in points:
        about = {
            "model": point.model,
            "device": device.name,
            "backend": options.backend,
            "precision": options.precision,
        }
        estimate = point.estimate
        costs = {} if estimate is None else {
            "latency_s": estimate.latency.typical_s,
            "latency_low_s": estimate.latency.low_s,
            "latency_high_s": estimate.latency.high_s,
            "latency_source": estimate.latency.source.value,
            "dram_bytes": estimate.dram_bytes,
            "spill_bytes": estimate.spill_bytes,
        }  # fmt: skip
        yield {**about, **dict(point.setting), **costs, "reason": point.reason}


def _text(setting: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting)
