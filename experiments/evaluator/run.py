"""Load an artefact in a child process, run it, and bring back outputs, times and memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray

from compilers import Artefact, Limits, Session, get_compiler, in_child
from experiments.evaluator.measure import MIN_SAMPLES, SAMPLES, Samples, calls_per_sample, measure
from experiments.evaluator.power.sensor import SensorError
from experiments.evaluator.power.sysfs import hottest_c
from experiments.evaluator.power.window import MeasuredEnergy, WindowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.evaluator.power.meter import Meter

Feed = dict[str, NDArray[Any]]
_REPEAT_SAMPLES: Final = 30
_REPEAT_BUDGET_S: Final = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One visit to a child process.

    `samples` and `peak_memory_bytes` (resident growth from before the load) are None unless the session
    runs on the device that the segment asked for; memory and energy are of this machine's processes only. `energy` is
    what the meter measured, None without one; where it was asked and could not, `no_energy` says why. `temperature_c`
    is this machine's hottest thermal zone before and after the timing, None where there is none.
    """

    outputs: Feed
    samples: Samples | None
    peak_memory_bytes: int | None
    energy: MeasuredEnergy | None = None
    no_energy: str = ""
    temperature_c: tuple[float, float] | None = None


def run_artefact(
    artefact: Artefact, feed: Feed, *, limits: Limits, budget_s: float | None, meter: Meter | None = None
) -> Run:
    """Run the artefact in a child; time and meter it when `budget_s` is given and the session is on the device.

    Raises:
        CompilerError: the backend cannot load or run it, or the child died.
    """
    return in_child(_run, artefact, feed, budget_s, meter, limits=limits)


def fresh_median(artefact: Artefact, feed: Feed, *, limits: Limits) -> float:
    """Return the median latency in seconds that another fresh process comes to, from fewer samples than the first.

    Raises:
        CompilerError: the backend cannot load or run it, or the child died.
    """
    return in_child(_median, artefact, feed, limits=limits)


def _median(artefact: Artefact, feed: Feed) -> float:
    with get_compiler(artefact.compiler).load(artefact) as session:
        return _timed(session, feed, _REPEAT_BUDGET_S, samples=_REPEAT_SAMPLES).medians_s[0]


def _run(artefact: Artefact, feed: Feed, budget_s: float | None, meter: Meter | None) -> Run:
    process = psutil.Process()
    compiler = get_compiler(artefact.compiler)
    before = process.memory_info().rss
    with compiler.load(artefact) as session:
        on_device = type(session).on_device
        cool_c = hottest_c()
        timed = _timed(session, feed, budget_s) if on_device and budget_s else None
        hot_c = hottest_c()
        outputs = session.run(feed)
        here = on_device and session.here
        peak = process.memory_info().rss - before if here else None
        energy, no_energy = metered(meter, lambda: session.run(feed)) if timed and meter and here else (None, "")
    return Run(
        outputs={name: np.asarray(array) for name, array in outputs.items()},
        samples=timed,
        peak_memory_bytes=max(peak, 0) if peak is not None else None,
        energy=energy,
        no_energy=no_energy,
        temperature_c=(cool_c, hot_c) if timed and here and cool_c is not None and hot_c is not None else None,
    )


def metered(meter: Meter, call: Callable[[], object]) -> tuple[MeasuredEnergy | None, str]:
    """Return the energy of a call, or None and why not; apart from any latency, since reading disturbs the clock."""
    try:
        return meter.measure(call), ""
    except (SensorError, WindowError) as error:
        return None, str(error)


def _timed(session: Session, feed: Feed, budget_s: float, *, samples: int = SAMPLES) -> Samples:
    """Time the session by the clock of the machine that does the work."""
    if session.here:
        return measure(lambda: session.run(feed), samples=samples, budget_s=budget_s)
    cold_s, warm_s = session.device_times_s(feed, samples=2)
    calls = calls_per_sample(warm_s)
    affordable = max(int(budget_s / max(calls * warm_s, 1e-9)), MIN_SAMPLES)
    steady_s = session.device_times_s(feed, samples=min(affordable, samples), calls=calls)
    return Samples(cold_s=cold_s, steady_s=steady_s, calls_per_sample=calls)
