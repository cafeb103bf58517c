"""R14, an NPU that loses to the CPU because it keeps waking up, and R16, the remedies one by one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

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
from experiments.published import Table, load_table
from experiments.scenarios.study import Study
from experiments.units import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

_AMBIENT_C: Final = 25.0
_HORIZON_S: Final = 4 * 3600.0
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


def wake_up() -> WakeUp:
    """Split the NPU's 1500 ms."""
    table = load_table("R14")
    work_s = float(load_table("R16").rows[-1][1])
    total_s = table.row("npu")["latency_s"] - work_s
    graph_s = (table.fact("graph_reload_low_s") + table.fact("graph_reload_high_s")) / 2
    weights_s = table.fact("weights_share_ratio") * total_s
    return WakeUp(
        work_s=work_s,
        wake_s=table.fact("wake_s"),
        graph_s=graph_s,
        weights_s=weights_s,
        cold_s=total_s - table.fact("wake_s") - graph_s - weights_s,
    )


def npu_machine(rest_w: float = 0.0, active_w: float = 5.33) -> Machine:
    """Return the NPU of R14 as a machine; 5.33 W is its rail under ResNet-50 (AMD RyzenAI-SW, read off a plot)."""
    parts, table = wake_up(), load_table("R14")
    sleep = Sleep(
        idle_w=0.2 * active_w,
        dwell_s=table.fact("dwell_s"),
        save_s=table.fact("save_s"),
        wake_s=parts.wake_s,
        wake_spread_s=table.fact("wake_spread_s"),
        restore_s=parts.restore_s,
        cold_s=parts.cold_s,
        wake_j=(table.fact("wake_j_low") + table.fact("wake_j_high")) / 2,
    )
    # An eighth of the time and a quarter of the energy is DRAM: an assumption that only R16's precision step uses.
    energy_j = active_w * parts.work_s
    cost = Cost(
        compute_s=0.875 * parts.work_s,
        fixed_s=0.125 * parts.work_s,
        compute_j=0.75 * energy_j,
        memory_j=0.25 * energy_j,
    )
    return Machine(cost=cost, chain=_laptop(), sleep=sleep, rest_w=rest_w)


def cpu_machine() -> Machine:
    """Return the CPU of R14: no power state that a request would notice."""
    return Machine(cost=Cost(compute_s=load_table("R14").row("cpu")["latency_s"]), chain=_laptop())


def _laptop() -> RcChain:
    """Return one lump whose resistance is that of R16's powers and temperatures over 25 degC."""
    rows = [row for row in load_table("R16").rows if not np.isnan(row[3])]
    resistance = float(np.mean([(row[3] - _AMBIENT_C) / row[2] for row in rows]))
    return RcChain(names=("die",), capacities_j_per_k=(40.0,), resistances_k_per_w=(resistance,))


def r14(seed: int = 0) -> Study:
    """Sweep the request rate, find where the NPU starts to win, and check the counts that the report gives."""
    table, parts = load_table("R14"), wake_up()
    npu, cpu = npu_machine(), cpu_machine()
    lines = [
        (
            f"1500 ms = {seconds(parts.work_s)} work + {seconds(parts.wake_s)} waking + {seconds(parts.graph_s)} graph"
            f" + {seconds(parts.weights_s)} weights + {seconds(parts.cold_s)} cold caches"
        )
    ]
    rows = []
    for rate in _RATES_PER_S:
        at_npu, at_cpu = _run(npu, rate, seed), _run(cpu, rate, seed)
        rows.append((rate, _mean(at_npu), _mean(at_cpu), at_npu))
        lines.append(
            f"{rate:4.2f} requests/s: NPU {seconds(_mean(at_npu)):>7}, CPU {seconds(_mean(at_cpu)):>7},"
            f" {60 * at_npu.wakes / at_npu.horizon_s:4.1f} wakes/min, useful {at_npu.useful_ratio:.0%}"
        )
    break_even = break_even_rate_per_s(npu, cpu, seed)
    half = _run(npu, 0.5, seed)
    wakes = 60 * half.wakes / half.horizon_s
    lines.append(f"the NPU wins above {break_even:.2f} requests/s (mean latency, Poisson arrivals, queueing included)")
    lines.append(
        f"at 0.5 requests/s: {wakes:.1f} wakes/min (published"
        f" {table.facts['wakes_per_minute_low']} to {table.facts['wakes_per_minute_high']} at half load),"
        f" useful {half.useful_ratio:.0%} of the busy time (published: below {table.row('npu')['useful_ratio']:.0%})"
    )
    return Study(
        name="R14",
        title="why the NPU is slower than the CPU, and the request rate at which that ends",
        lines=tuple(lines),
        figures={
            "break_even_per_s": break_even,
            "wakes_per_minute": wakes,
            "useful_ratio": half.useful_ratio,
            "latency_s": {str(rate): {"npu": n, "cpu": c} for rate, n, c, _ in rows},
        },
        assumptions=(
            "600 ms of work is what R16's remedies leave; cold caches are the remainder of the 1500 ms",
            "the deviation of the wake-up is a normal one; the dwell is its mean",
        ),
    )


def break_even_rate_per_s(first: Machine, second: Machine, seed: int) -> float:
    """Return the Poisson rate above which `first` has the lower mean latency, by bisection on common arrivals.

    Raises:
        ValueError: it is ahead, or behind, at both ends.
    """
    low, high = 0.02, 1.1
    if _ahead(first, second, low, seed) or not _ahead(first, second, high, seed):
        raise ValueError(f"there is no break-even between {low:g} and {high:g} requests/s")
    for _ in range(10):
        middle = (low + high) / 2
        if _ahead(first, second, middle, seed):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _ahead(first: Machine, second: Machine, rate: float, seed: int) -> bool:
    return _mean(_run(first, rate, seed)) < _mean(_run(second, rate, seed))


def _run(machine: Machine, rate_per_s: float, seed: int) -> Result:
    return simulate(machine, poisson(rate_per_s, _HORIZON_S, seed), horizon_s=_HORIZON_S, step_s=1.0, seed=seed)


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


def r16(seed: int = 0) -> Study:
    """Apply each remedy alone to the machine as found, then all of them, and set the case study beside it."""
    rate, horizon_s = 0.5, 3600.0
    trace = poisson(rate, horizon_s, seed)
    table = load_table("R16")
    found = npu_machine()
    bare = simulate(found, trace, horizon_s=horizon_s, step_s=0.5, seed=seed)
    # The rest of the package is what the published power leaves beside the NPU's own mean.
    base = dataclasses.replace(found, rest_w=table.rows[0][2] - float(bare.power_w.mean()))
    lines = ["remedy                                        mean      p99    power     die"]
    figures = {}
    for remedy in _remedies(base, trace, rate, horizon_s, seed):
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
            "air of 25 degC; the rest of the package draws what the published 14.8 W leaves beside the NPU",
            "the case study does not name its steps, so none is matched to a remedy",
            "a batch of 4 takes 2.2 times the work of 1; int4 halves the weights and takes 0.6 of the compute time",
        ),
    )


def _case_study(table: Table) -> Sequence[str]:
    return [
        f"published, {row[0]:31} {seconds(row[1]):>8}           {row[2]:5.1f} W"
        + ("" if np.isnan(row[3]) else f"  {row[3]:4.1f} degC")
        for row in table.rows
    ]


def _remedies(base: Machine, trace: Trace, rate: float, horizon_s: float, seed: int) -> tuple[_Remedy, ...]:
    parts, table, sleep = wake_up(), load_table("R16"), base.sleep
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
    fed = _burst_batches(rate, int(table.fact("batch")), table.fact("largest_gap_s"), horizon_s, seed)
    on_demand = dataclasses.replace(base, points=slow, policy="ondemand")
    every = dataclasses.replace(base, cost=small, sleep=awake)
    return (
        _Remedy(title="as found", machine=base, trace=trace),
        _Remedy(title="as found, clock on demand", machine=on_demand, trace=trace),
        _Remedy(
            title="minimum clock raised to the maximum", machine=dataclasses.replace(on_demand, policy="performance"),
            trace=trace,
        ),
        _Remedy(title="batch of 4, gaps of 200 ms at most", machine=base, trace=fed[0], waits_s=fed[1]),
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
    starts = poisson(rate / batch, horizon_s, seed).arrivals_s
    assert starts is not None, "a Poisson trace has arrivals"
    released = starts + (batch - 1) * gap_s
    works = np.full(len(released), 2.2)
    trace = Trace(title=f"runs of {batch}", arrivals_s=released, works=works)
    return trace, gap_s * (batch - 1) / 2
