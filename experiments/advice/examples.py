"""Evaluations to learn from: zoo models and dense layers, in batches, at request rates, on a device's processors."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from experiments.evaluator.dynamics.assemble import power_states
from experiments.evaluator.energy import UnknownFigureError
from experiments.evaluator.roofline import boundary_bytes, roofline_latency
from experiments.published.rules import density_rule, flow_chart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from partition import Device, Processor

_BATCHES: Final = (1, 4, 16)
_RATES_PER_S: Final = (0.2, 2.0, 20.0, 200.0)
_LAYERS: Final = (16, 64, 256, 1024, 4096)
_PUBLISHED_NAMES: Final = {"igpu": "gpu"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One inference of a model: what there is to compute and to move."""

    name: str
    macs: int
    parameters: int
    boundary_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One evaluated case: its features, the fastest processor, and what the published rules would have chosen."""

    group: str
    features: Mapping[str, float]
    fastest: str
    density: str
    chart: str


def dense_layers() -> tuple[Work, ...]:
    """Return matrix-vector products, for what is smaller than any model of the zoo."""
    return tuple(Work(name=f"dense {n}", macs=n * n, parameters=n * n, boundary_bytes=8 * n) for n in _LAYERS)


def zoo_works() -> tuple[Work, ...]:
    """Return the work of every zoo model; takes some seconds, since each is built."""
    from graphs import zoo

    return tuple(_zoo_work(name) for name in zoo.names())


def _zoo_work(name: str) -> Work:
    from graphs import zoo

    graph = zoo.build(name)
    assert graph.macs is not None, "the zoo has shapes everywhere"
    return Work(name=name, macs=graph.macs, parameters=graph.parameters, boundary_bytes=boundary_bytes(graph))


def make_examples(device: Device, works: Sequence[Work]) -> tuple[Example, ...]:
    """Evaluate every work in every batch and at every rate that some processor can sustain."""
    found = []
    for work in works:
        for batch in _BATCHES:
            for rate in _RATES_PER_S:
                latencies = dict(_latencies(device, work, batch, rate))
                if len(latencies) > 1:
                    found.append(_example(work, batch, rate, latencies))
    return tuple(found)


def features(macs: float, parameters: float, batch: int, rate_per_s: float) -> dict[str, float]:
    """Return the features of a case, named as a person would read them."""
    return {
        "GMACs per call": macs * batch / 1e9,
        "million parameters": parameters / 1e6,
        "batch": float(batch),
        "calls per second": rate_per_s,
    }


def _example(work: Work, batch: int, rate: float, latencies: Mapping[str, float]) -> Example:
    billions = work.parameters / 1e9
    density, chart = density_rule(billions, batch), flow_chart(billions)
    return Example(
        group=work.name,
        features=features(work.macs, work.parameters, batch, rate),
        fastest=min(latencies, key=latencies.__getitem__),
        density=_PUBLISHED_NAMES.get(density, density),
        chart=_PUBLISHED_NAMES.get(chart, chart),
    )


def _latencies(device: Device, work: Work, batch: int, rate_per_s: float) -> Iterator[tuple[str, float]]:
    """Yield mean latency by processor: service, and waking after each gap that is longer than the dwell.

    Arrivals are Poisson, so a gap is longer with probability exp(-rate x dwell); queueing is left out, but a
    processor that cannot sustain the rate is too.
    """
    for processor in device.processors:
        service_s = _fastest_precision(device, processor, work, batch)
        if service_s is None or rate_per_s * service_s >= 1.0:
            continue
        sleep, _ = power_states(device, processor)
        asleep = math.exp(-rate_per_s * sleep.dwell_s) if math.isfinite(sleep.dwell_s) else 0.0
        yield processor.kind, service_s + asleep * sleep.overhead_s


def _fastest_precision(device: Device, processor: Processor, work: Work, batch: int) -> float | None:
    widths = {"fp32": 4, "fp16": 2, "int8": 1}
    found = []
    for precision, width in widths.items():
        dram_bytes = work.parameters * width + work.boundary_bytes * batch
        try:
            latency = roofline_latency(device, processor, precision, macs=work.macs * batch, dram_bytes=dram_bytes)
        except UnknownFigureError:
            continue  # this processor has no rate in this precision
        found.append(latency.typical_s)
    return min(found, default=None)
