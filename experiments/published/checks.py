"""Do a published table's figures agree with each other, and which frontier do they imply?"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.frontier import frontier
from experiments.published.tables import load_table, table_names
from experiments.units import joules, quantity, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.published.tables import Table

_TOLERANCE: Final = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One statement about a table, and whether its figures bear it out."""

    holds: bool
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Implied:
    """The rows on the frontier of a pair of objectives, and which row dominates each of the others."""

    objectives: tuple[str, str]
    on: tuple[str, ...]
    dominated_by: dict[str, str]


def checks(table: Table) -> tuple[Check, ...]:
    """Return the checks that apply to this table; one of somebody's own may have a published one's name."""
    published = table.name in table_names() and table.report == load_table(table.name).report
    return tuple((_CHECKS.get(table.name, _columns) if published else _columns)(table))


def implied_frontiers(table: Table, objectives: tuple[str, ...] = ()) -> tuple[Implied, ...]:
    """Return the frontier for each pair of the table's objectives, or of those given.

    Raises:
        KeyError: an objective is no column of the table.
    """
    chosen = objectives or (*table.minimise, *table.maximise)
    return tuple(_implied(table, pair) for pair in itertools.combinations(chosen, 2))


def _implied(table: Table, pair: tuple[str, str]) -> Implied:
    columns = [np.array(table.column(name), dtype=float) for name in pair]
    signs = [-1.0 if name in table.maximise else 1.0 for name in pair]
    points = np.stack([sign * column for sign, column in zip(signs, columns, strict=True)], axis=1)
    names = [str(row[0]) for row in table.rows]
    on = frontier(points)
    dominated = {}
    for i, name in enumerate(names):
        if not on[i]:
            better = (points <= points[i]).all(axis=1) & (points < points[i]).any(axis=1) & on
            dominated[name] = names[int(np.argmax(better))]
    return Implied(objectives=pair, on=tuple(n for n, o in zip(names, on, strict=True) if o), dominated_by=dominated)


def _same(what: str, computed: float, stated: float, write: Callable[[float], str]) -> Check:
    holds = abs(computed / stated - 1.0) <= _TOLERANCE
    return Check(holds=holds, text=f"{what}: {write(computed)} by the table, {write(stated)} stated")


def _columns(table: Table) -> Iterator[Check]:
    """Hold what a table states against what follows from its other columns: energy, and operations per watt."""
    has = set(table.columns)
    for row in (dict(zip(table.columns, values, strict=True)) for values in table.rows):
        name = row[table.columns[0]]
        if {"latency_s", "power_w", "energy_j"} <= has:
            yield _same(f"{name}: power x latency", row["power_w"] * row["latency_s"], row["energy_j"], joules)
        energy_j = row.get("energy_j") or row.get("power_w", 0.0) * row.get("latency_s", 0.0)
        if energy_j and {"gops_per_w", "macs"} <= has:
            yield _same(f"{name}: GOPs/W", 2.0 * row["macs"] / energy_j / 1e9, row["gops_per_w"], _number)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _r1(table: Table) -> Iterator[Check]:
    macs = table.fact("macs")
    energies = table.column("energy_j")
    for name, energy_j, stated in zip(table.column("backend"), energies, table.column("gops_per_w"), strict=True):
        computed = 2.0 * macs / energy_j / 1e9
        yield _same(f"{name}: {joules(energy_j)} per inference; GOPs/W", computed, stated, _number)
    highest = max(table.column("power_w"))
    yield Check(holds=highest <= table.fact("cap_w"), text=f"power stays under the cap: {highest:.3g} W at most")


def _r2(table: Table) -> Iterator[Check]:
    ratios = [n / g for n, g in zip(table.column("npu_latency_s"), table.column("gpu_latency_s"), strict=True)]
    yield _same("NPU over GPU, the worst", max(ratios), table.fact("headline_ratio"), _number)


def _r3(table: Table) -> Iterator[Check]:
    for name, cold, steady, stated in table.rows:
        yield _same(f"{name}, cold over steady", cold / steady, stated, _number)
    other = load_table("R2").row("YOLOv5s")
    steady = table.row("YOLOv5s")["steady_latency_s"]
    npu, gpu = other["npu_latency_s"], other["gpu_latency_s"]
    text = (
        f"YOLOv5s: {seconds(steady)} in the steady state is neither R2's NPU ({seconds(npu)}) nor GPU ({seconds(gpu)})"
    )
    yield Check(holds=steady in {npu, gpu}, text=text)


def _r4(table: Table) -> Iterator[Check]:
    for _, size, passes, bandwidth, stated, compute_s in table.rows:
        memory_s = size * passes / bandwidth
        yield _same("bytes x passes / bandwidth", memory_s, stated, seconds)
        yield Check(
            holds=memory_s > compute_s, text=f"memory is the limit: {memory_s / compute_s:.1f} times the compute"
        )


def _r5(table: Table) -> Iterator[Check]:
    losses = [1.0 - foreign / own for _, own, foreign in table.rows]
    yield _same("smallest loss with the GPU's tile", min(losses), table.fact("stated_loss_low_ratio"), _percent)
    yield _same("largest loss with the GPU's tile", max(losses), table.fact("stated_loss_high_ratio"), _percent)


def _r8(table: Table) -> Iterator[Check]:
    for name, _, deviation_s, worst_s in table.rows:
        text = f"{name}: worst jitter {seconds(worst_s)} is {worst_s / deviation_s:.1f} deviations of"
        yield Check(holds=worst_s >= deviation_s, text=f"{text} {seconds(deviation_s)}")


def grid_checks(table: Table) -> Iterator[Check]:
    """Check a table of latency over clock and load (R9): rows by clock, columns by load."""
    grid = np.array([row[1:] for row in table.rows])
    yield Check(holds=bool((np.diff(grid, axis=0) < 0).all()), text="latency falls with the clock at every load")
    yield Check(holds=bool((np.diff(grid, axis=1) > 0).all()), text="latency rises with the load at every clock")
    faster, gain = table.column("clock_hz")[-1] / table.column("clock_hz")[0], grid[0, 0] / grid[-1, 0]
    text = f"{faster:.3g} times the clock gives {gain:.2f} times the speed: part does not follow it"
    yield Check(holds=1.0 < gain < faster, text=text)


def _r10(table: Table) -> Iterator[Check]:
    for device, threshold, below, above in table.rows:
        yield Check(
            holds=above > below, text=f"{device}: {above / below:.1f} times as steep above {threshold:g} degC as below"
        )


def _r11(table: Table) -> Iterator[Check]:
    for name in ("path_s", "violation_ratio"):
        yield Check(holds=bool((np.diff(table.column(name)) > 0).all()), text=f"{name} rises with temperature")


def _r13(table: Table) -> Iterator[Check]:
    misses, power = table.column("last_level_miss_ratio"), table.column("relative_power")
    fewer, saved = 1 - misses[1] / misses[0], 1 - power[1] / power[0]
    text = f"{fewer:.0%} fewer misses go with {saved:.1%} less power: they cost {saved / fewer:.0%} of it, if no more"
    yield Check(holds=misses[1] < misses[0] and power[1] < power[0], text=text)


def _r14(table: Table) -> Iterator[Check]:
    parts_s = table.fact("wake_s") + table.fact("graph_reload_high_s") + table.fact("save_s")
    npu_s = table.row("npu")["latency_s"]
    yield Check(
        holds=parts_s < npu_s, text=f"stated waking, reload and save take {seconds(parts_s)} of {seconds(npu_s)}"
    )
    rest_s = npu_s * (1.0 - table.row("npu")["useful_ratio"])
    yield Check(
        holds=rest_s >= parts_s,
        text=f"60 % useful leaves {seconds(rest_s)} of overhead, {seconds(rest_s - parts_s)} more than is stated",
    )


def _r15(_table: Table) -> Iterator[Check]:
    from experiments.published.rules import density_rule, flow_chart

    sizes = (0.3, 1.0, 1.8, 3.0, 4.5, 7.0)
    grid = [(size, batch) for size in sizes for batch in (1, 4)]
    differ = [(s, b) for s, b in grid if density_rule(s, b) != flow_chart(s)]
    example = next(iter(differ), None)
    text = f"the rule and the flow chart differ in {len(differ)} of {len(grid)} cases"
    if example is not None:
        size, batch = example
        verdicts = f"{density_rule(size, batch)} against {flow_chart(size)}"
        text += f", for example {size:g}e9 parameters, batch {batch}: {verdicts}"
    yield Check(holds=not differ, text=text)
    # 0.8 to 3.2 = parameters x batch / 1e9, and parameters are at most that: 4e9 can never be passed there.
    yield Check(holds=False, text="its middle step asks for over 4e9 parameters where it has at most 3.2e9: never NPU")


def _r16(table: Table) -> Iterator[Check]:
    latencies, powers = table.column("latency_s"), table.column("power_w")
    yield Check(
        holds=bool((np.diff(latencies) < 0).all() and (np.diff(powers) < 0).all()), text="each step improves both"
    )
    pairs = [(c, w) for c, w in zip(table.column("temperature_c"), powers, strict=True) if not np.isnan(c)]
    resistances = [(c - 25.0) / w for c, w in pairs]
    spread = max(resistances) / min(resistances) - 1.0
    text = f"{min(resistances):.2f} to {max(resistances):.2f} K/W over 25 degC: one cooler, if the air was that"
    yield Check(holds=spread < 0.1, text=text)


_CHECKS: Final[dict[str, Callable[[Any], Iterator[Check]]]] = {
    "R1": _r1, "R2": _r2, "R3": _r3, "R4": _r4, "R5": _r5, "R8": _r8, "R9": grid_checks, "R10": _r10, "R11": _r11,
    "R13": _r13, "R14": _r14, "R15": _r15, "R16": _r16,
}  # fmt: skip


_UNITS: Final = {
    "k_per_s": "K/s", "bytes_per_s": "B/s", "flops_per_s": "FLOP/s", "hz": "Hz", "bytes": "B", "s": "s", "w": "W",
    "j": "J",
}  # fmt: skip


def write_value(column: str, value: object) -> str:
    """Write a cell for people, by the unit that ends its column's name."""
    if not isinstance(value, int | float) or np.isnan(value):
        return "-" if isinstance(value, float) else str(value)
    unit = next((unit for end, unit in _UNITS.items() if f"_{column}".endswith(f"_{end}")), None)
    if unit is not None and not column.endswith("_per_w"):
        return quantity(float(value), unit)
    if column.endswith("_ratio"):
        return f"{value:.2%}" if abs(value) < 1.5 else f"{value:g} times"
    if column.endswith("_per_k"):
        return f"{value:.2%}/K"
    return f"{value:g}" + {"_c": " degC", "_k": " K"}.get(column[-2:], "")
