"""R14, an NPU that loses to the CPU because it keeps waking up, and R16, the remedies one by one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.arguments import UserError
from experiments.evaluator.dynamics import (
    Cost,
    Machine,
    Point,
    RcChain,
    Result,
    Sleep,
    Surroundings,
    Trace,
    poisson,
    simulate,
)
from experiments.evaluator.dynamics.compare import crossing
from experiments.scenarios.given import PUBLISHED, Given, origin
from experiments.scenarios.study import Study
from experiments.units import seconds, significant, watts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.published import Table

_AMBIENT_C: Final = 25.0
_HORIZON_S: Final = 4 * 3600.0
_REPORTED_PER_S: Final = 1.25  # what the slower of the report's two machines can serve
_SOUGHT_PER_S: Final = (0.02, 1.1)
_SHARE_OF_EACH: Final = 0.4
_LONGEST_SHARE: Final = 0.1  # of the time simulated, so that there are ten batches or so to take a mean of
_RAIL_W: Final = 5.33  # of the NPU under ResNet-50 (AMD RyzenAI-SW, read off a plot)
_RATES_PER_S: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WakeUp:
    """What the 1500 ms of R14 consist of: stated parts, and the two that follow from them.

    `work_s` is the latency that the remedies of R16 leave; cold caches are what is left of the total.
    """

    work_s: float
    wake_s: float
    graph_s: float
    weights_s: float
    cold_s: float

    @property
    def restore_s(self) -> float:
        """Graph and weights together."""
        return self.graph_s + self.weights_s


def wake_up(given: Given = PUBLISHED) -> WakeUp:
    """Split the NPU's 1500 ms.

    Raises:
        UserError: its parts take longer than the whole.
    """
    table = given.table("R14")
    work_s = float(given.table("R16").rows[-1][1])
    total_s = _latency(table, "npu") - work_s
    graph_s = (table.fact("graph_reload_low_s") + table.fact("graph_reload_high_s")) / 2
    weights_s = table.fact("weights_share_ratio") * total_s
    cold_s = total_s - table.fact("wake_s") - graph_s - weights_s
    if cold_s < 0.0:
        raise UserError(
            f"the NPU's {seconds(total_s + work_s)} are less than their parts: {seconds(work_s)} of work, waking, graph"
            " and weights; give a longer latency_s of the npu, or a shorter wake_s and graph_reload"
        )
    return WakeUp(work_s=work_s, wake_s=table.fact("wake_s"), graph_s=graph_s, weights_s=weights_s, cold_s=cold_s)


def _latency(table: Table, processor: str) -> float:
    try:
        return float(table.row(processor)["latency_s"])
    except KeyError as error:
        raise UserError(error.args[0]) from error


def npu_machine(given: Given = PUBLISHED) -> Machine:
    """Return the NPU of R14 as a machine."""
    parts, table = wake_up(given), given.table("R14")
    sleep = Sleep(
        idle_w=0.2 * _RAIL_W,
        dwell_s=table.fact("dwell_s"),
        save_s=table.fact("save_s"),
        wake_s=parts.wake_s,
        wake_spread_s=table.fact("wake_spread_s"),
        restore_s=parts.restore_s,
        cold_s=parts.cold_s,
        wake_j=(table.fact("wake_j_low") + table.fact("wake_j_high")) / 2,
    )
    # An eighth of the time and a quarter of the energy is DRAM: an assumption that only R16's precision step uses.
    energy_j = _RAIL_W * parts.work_s
    cost = Cost(
        compute_s=0.875 * parts.work_s,
        fixed_s=0.125 * parts.work_s,
        compute_j=0.75 * energy_j,
        memory_j=0.25 * energy_j,
    )
    return Machine(cost=cost, chain=_laptop(given), sleep=sleep)


def cpu_machine(given: Given = PUBLISHED) -> Machine:
    """Return the CPU of R14: no power state that a request would notice."""
    return Machine(cost=Cost(compute_s=_latency(given.table("R14"), "cpu")), chain=_laptop(given))


def _laptop(given: Given) -> RcChain:
    """Return one lump whose resistance is that of R16's powers and temperatures over 25 degC."""
    rows = [row for row in given.table("R16").rows if not np.isnan(row[3])]
    if not rows or min(row[3] for row in rows) <= _AMBIENT_C:
        raise UserError(f"R16 needs a temperature_c above the air's {_AMBIENT_C:g} degC")
    resistance = float(np.mean([(row[3] - _AMBIENT_C) / row[2] for row in rows]))
    return RcChain(names=("die",), capacities_j_per_k=(40.0,), resistances_k_per_w=(resistance,))


def r14(given: Given) -> Study:
    """Sweep the request rate, find where the NPU starts to win, and check the counts that the report gives."""
    table, parts, seed = given.table("R14"), wake_up(given), given.seed
    npu, cpu = npu_machine(given), cpu_machine(given)
    pace = 1.0 / (max(parts.work_s, cpu.cost.latency_s()) * _REPORTED_PER_S)  # how much faster than in the report
    lines = [
        (
            f"{seconds(_latency(table, 'npu'))} = {seconds(parts.work_s)} work + {seconds(parts.wake_s)} waking"
            f" + {seconds(parts.graph_s)} graph + {seconds(parts.weights_s)} weights + {seconds(parts.cold_s)} cold"
            " caches"
        )
    ]
    rows = []
    for rate in (pace * reported for reported in _RATES_PER_S):
        at_npu, at_cpu = _run(npu, rate, pace, seed), _run(cpu, rate, pace, seed)
        rows.append((rate, _mean(at_npu), _mean(at_cpu), at_npu))
        lines.append(
            f"{significant(rate, 2):>6} requests/s: NPU {seconds(_mean(at_npu)):>7}, CPU {seconds(_mean(at_cpu)):>7},"
            f" {60 * at_npu.wakes / at_npu.horizon_s:4.1f} wakes/min, useful {at_npu.useful_ratio:.0%}"
        )
    found = crossing(lambda rate: _ahead(npu, cpu, rate, pace, seed), *(pace * rate for rate in _SOUGHT_PER_S))
    lines.append(_won(found))
    half = _run(npu, 0.5 * pace, pace, seed)
    wakes = 60 * half.wakes / half.horizon_s
    lines.append(
        f"at {significant(0.5 * pace, 2)} requests/s: {wakes:.1f} wakes/min (published"
        f" {table.facts['wakes_per_minute_low']} to {table.facts['wakes_per_minute_high']} at half load),"
        f" useful {half.useful_ratio:.0%} of the busy time ({origin(table)}: below"
        f" {table.row('npu')['useful_ratio']:.0%})"
    )
    return Study(
        name="R14",
        title="why the NPU is slower than the CPU, and the request rate at which that ends",
        lines=tuple(lines),
        figures={
            "break_even_per_s": None if found is None else found[0],
            "wakes_per_minute": wakes,
            "useful_ratio": half.useful_ratio,
            "latency_s": {f"{rate:.6g}": {"npu": n, "cpu": c} for rate, n, c, _ in rows},
        },
        assumptions=(
            f"{seconds(parts.work_s)} of work is what R16's remedies leave; cold caches are the remainder",
            "the deviation of the wake-up is a normal one; the dwell is its mean",
        ),
    )


def _won(found: tuple[float, bool] | None) -> str:
    if found is None:
        return "the same one wins at every rate: there is no break-even"
    rate, above = found
    way = "above" if above else "below"
    return f"the NPU wins {way} {significant(rate, 2)} requests/s (mean latency, Poisson arrivals, queueing included)"


def _ahead(first: Machine, second: Machine, rate: float, pace: float, seed: int) -> bool:
    return _mean(_run(first, rate, pace, seed)) < _mean(_run(second, rate, pace, seed))


def _run(machine: Machine, rate_per_s: float, pace: float, seed: int) -> Result:
    """Simulate as many requests as the report's machines answer in four hours."""
    horizon_s = _HORIZON_S / pace
    return simulate(
        machine, poisson(rate_per_s, horizon_s, seed), horizon_s=horizon_s, step_s=min(1.0 / pace, 1.0), seed=seed
    )


def _mean(result: Result) -> float:
    mean_s = result.mean_s()
    assert mean_s is not None, "four hours have requests at every rate of the sweep"
    return mean_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Remedy:
    title: str
    machine: Machine
    trace: Trace
    waits_s: float = 0.0


def r16(given: Given) -> Study:
    """Apply each remedy alone to the machine as found, then all of them, and set the case study beside it."""
    rate, horizon_s, seed = 0.5, 3600.0, given.seed
    trace = poisson(rate, horizon_s, seed)
    table = given.table("R16")
    found = npu_machine(given)
    if np.isnan(table.rows[0][3]):
        raise UserError("R16 needs the temperature_c of its first row, from which the remedies start")
    bare = simulate(found, trace, horizon_s=horizon_s, step_s=0.5, seed=seed)
    # The rest of the package is what the published power leaves beside the NPU's own mean.
    rest_w = table.rows[0][2] - float(bare.power_w.mean())
    if rest_w < 0.0:
        raise UserError(
            f"the package's {watts(table.rows[0][2])} are less than the NPU's own mean, by {watts(-rest_w)}"
        )
    base = dataclasses.replace(found, rest_w=rest_w)
    lines = ["remedy                                        mean      p99    power     die"]
    figures = {}
    for remedy in _remedies(base, trace, rate, horizon_s, given):
        settled = Surroundings(ambient_c=((0.0, _AMBIENT_C),), start_c=(table.rows[0][3],))
        result = simulate(
            remedy.machine, remedy.trace, horizon_s=horizon_s, step_s=0.5, surroundings=settled, seed=seed
        )
        mean_s, p99_s = _mean(result) + remedy.waits_s, (result.quantile_s(0.99) or 0.0) + remedy.waits_s
        power_w = float(result.power_w.mean())
        die_c = float(result.temperatures_c[len(result.time_s) // 2 :, 0].mean())
        lines.append(f"{remedy.title:42} {seconds(mean_s):>8} {seconds(p99_s):>8}  {power_w:5.1f} W  {die_c:4.1f} degC")
        figures[remedy.title] = {"mean_s": mean_s, "p99_s": p99_s, "power_w": power_w, "die_c": die_c}
    lines.append("waking takes longer than the clock needs to rise: a minimum clock only helps what stays awake")
    lines.extend(_case_study(table))
    return Study(
        name="R16",
        title=f"remedies one by one, {rate:g} requests/s (Poisson)",
        lines=tuple(lines),
        figures=figures,
        assumptions=(
            f"air of 25 degC; the rest of the package draws what {watts(table.rows[0][2])} leave beside the NPU",
            "the case study does not name its steps, so none is matched to a remedy",
            f"each more in a batch takes {_SHARE_OF_EACH:g} of the work of 1",
            "int4 halves the weights and takes 0.6 of the compute time",
        ),
    )


def _case_study(table: Table) -> Sequence[str]:
    return [
        f"{origin(table) + ', ' + row[0]:42} {seconds(row[1]):>8}           {row[2]:5.1f} W"
        + ("" if np.isnan(row[3]) else f"  {row[3]:4.1f} degC")
        for row in table.rows
    ]


def _remedies(base: Machine, trace: Trace, rate: float, horizon_s: float, given: Given) -> tuple[_Remedy, ...]:
    parts, table, sleep = wake_up(given), given.table("R16"), base.sleep
    slow = (Point(clock_ratio=1.0, supply_ratio=1.0), Point(clock_ratio=0.6, supply_ratio=0.8))
    awake = dataclasses.replace(sleep, dwell_s=float("inf"))
    buffered = dataclasses.replace(sleep, restore_s=max(0.0, parts.restore_s - parts.wake_s))
    layered = dataclasses.replace(sleep, restore_s=max(parts.graph_s, parts.restore_s - parts.work_s))
    cost = base.cost
    small = dataclasses.replace(
        cost, compute_s=0.6 * cost.compute_s, fixed_s=0.5 * cost.fixed_s, compute_j=0.6 * cost.compute_j,
        memory_j=0.5 * cost.memory_j,
    )  # fmt: skip
    light = dataclasses.replace(sleep, restore_s=parts.graph_s + 0.5 * parts.weights_s)
    batch, gap_s = round(table.fact("batch")), table.fact("largest_gap_s")
    fed = _burst_batches(rate, batch, gap_s, horizon_s, given.seed)
    on_demand = dataclasses.replace(base, points=slow, policy="ondemand")
    every = dataclasses.replace(base, cost=small, sleep=awake)
    return (
        _Remedy(title="as found", machine=base, trace=trace),
        _Remedy(title="as found, clock on demand", machine=on_demand, trace=trace),
        _Remedy(
            title="minimum clock raised to the maximum", machine=dataclasses.replace(on_demand, policy="performance"),
            trace=trace,
        ),
        _Remedy(
            title=f"batch of {batch}, gaps of {seconds(gap_s)} at most", machine=base, trace=fed[0], waits_s=fed[1]
        ),
        _Remedy(title="double buffering (restore while waking)", machine=_with(base, buffered), trace=trace),
        _Remedy(title="layer-wise loading (restore while working)", machine=_with(base, layered), trace=trace),
        _Remedy(title="keep awake, clock on demand", machine=_with(on_demand, awake), trace=trace),
        _Remedy(title="keep awake, and the minimum clock raised", machine=_with(base, awake), trace=trace),
        _Remedy(
            title="precision: int4 weights", machine=dataclasses.replace(base, cost=small, sleep=light), trace=trace
        ),
        _Remedy(title="keep awake and int4", machine=every, trace=trace),
    )  # fmt: skip


def _with(machine: Machine, sleep: Sleep) -> Machine:
    return dataclasses.replace(machine, sleep=sleep)


def _burst_batches(rate: float, batch: int, gap_s: float, horizon_s: float, seed: int) -> tuple[Trace, float]:
    """Let the requests come in runs of `batch` with gaps of `gap_s`, served as one; return their mean wait too."""
    if batch / rate + (batch - 1) * gap_s > _LONGEST_SHARE * horizon_s:
        raise UserError(
            f"a batch of {batch} with gaps of {seconds(gap_s)} takes too long to fill for the {seconds(horizon_s)} that"
            " are simulated; give a smaller batch or largest_gap_s"
        )
    starts = poisson(rate / batch, horizon_s, seed).arrivals_s
    assert starts is not None, "a Poisson trace has arrivals"
    released = starts + (batch - 1) * gap_s
    works = np.full(len(released), 1.0 + _SHARE_OF_EACH * (batch - 1))
    trace = Trace(title=f"runs of {batch}", arrivals_s=released, works=works)
    return trace, gap_s * (batch - 1) / 2
