"""Tiles that move fewer bytes (R13): among those within a share of the fastest, the one with the least DRAM traffic.

What that costs in time and saves in energy follows from the device file's coefficients; the interval is over all values
that their bounds allow, the same ones for both choices.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments import store
from experiments.console import plain_table
from experiments.tiles_error import percent
from experiments.tiles_plot import short_layer
from experiments.units import interval, seconds, size
from partition.tile import GpuMachine, NpuMachine, evaluate_gpu, evaluate_npu, search_gpu, search_npu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from partition import Device, Figure
    from partition.tile import Cost, GpuResult, GpuTile, Layer, Machine, NpuResult, NpuTile

Array = NDArray[np.float64]

# Fields of a machine whose energy is each coefficient times its quantity; the last quantity is the time.
COEFFICIENTS: Final = ("mac_j", "dram_j_per_byte", "on_chip_j_per_byte", "active_w")
_FIELDS: Final = (
    "operator", "processor", "count", "fastest_tile", "frugal_tile", "fastest_s", "frugal_s", "fastest_dram_bytes",
    "frugal_dram_bytes", "energy_change_j", "energy_change_low_j", "energy_change_high_j",
)  # fmt: skip
_MOST_ROWS: Final = 10


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A value after a change over that before, less 1, and its bounds."""

    typical: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The fastest tile of a layer, and the frugal one, each with its quantities in the order of COEFFICIENTS."""

    layer: Layer
    count: int
    fastest: NpuTile | GpuTile
    frugal: NpuTile | GpuTile
    costs: tuple[Cost, Cost]
    fastest_of: Array
    frugal_of: Array

    @property
    def differs(self) -> bool:
        """Whether anything is saved: of equal traffic the frugal tile is the fastest."""
        return self.costs[1].dram_bytes < self.costs[0].dram_bytes


def choose(
    layer: Layer, count: int, machine: Machine, slack_ratio: float, fastest: NpuResult | GpuResult | None = None
) -> Choice:
    """Find the fastest tile, if not known, and that with the least DRAM traffic which takes at most that share longer.

    Raises:
        TileError: the machine has no legal tile for the layer.
    """
    fastest = fastest or _search(layer, machine, objective="latency")
    at_most_s = (1.0 + slack_ratio) * fastest.cost.latency_s
    frugal = _search(layer, machine, objective="traffic", at_most_s=at_most_s)
    return Choice(
        layer=layer, count=count, fastest=fastest.tile, frugal=frugal.tile, costs=(fastest.cost, frugal.cost),
        fastest_of=_quantities(layer, machine, fastest.tile), frugal_of=_quantities(layer, machine, frugal.tile),
    )  # fmt: skip


def _search(layer: Layer, machine: Machine, **how: Any) -> Any:  # noqa: ANN401 - either result
    if isinstance(machine, NpuMachine):
        return search_npu(layer, machine, **how)
    assert isinstance(machine, GpuMachine)
    return search_gpu(layer, machine, **how)


def _quantities(layer: Layer, machine: Machine, tile: Any) -> Array:  # noqa: ANN401 - either tile
    """Return what each coefficient is multiplied with: the energy where it is 1 and all others 0."""
    evaluate: Any = evaluate_npu if isinstance(machine, NpuMachine) else evaluate_gpu
    nothing: dict[str, Any] = dict.fromkeys(COEFFICIENTS, 0.0)
    units = [dataclasses.replace(machine, **{**nothing, name: 1.0}) for name in COEFFICIENTS]
    return np.array([evaluate(layer, unit, tile).energy_j for unit in units])


def coefficients(device: Device, processor: str, precision: str) -> tuple[Array, tuple[str, ...]]:
    """Return low, typical and high of each coefficient as rows, and the keys that the device file lacks (0 here)."""
    chip = device.processor(processor)
    figures: Mapping[str, Figure | None] = {
        f"processors.{processor}.energy_j_per_mac.{precision}": chip.energy_j_per_mac.get(precision),
        "dram.j_per_byte": device.dram_j_per_byte,
        f"processors.{processor}.tile.on_chip_j_per_byte": chip.tile.on_chip_j_per_byte if chip.tile else None,
        f"processors.{processor}.active_w": chip.active_w,
    }
    rows = [(f.low, f.value, f.high) if f is not None else (0.0, 0.0, 0.0) for f in figures.values()]
    return np.array(rows).T, tuple(key for key, figure in figures.items() if figure is None)


def saved_j(fastest_of: Array, frugal_of: Array, bounds: Array) -> tuple[float, float, float]:
    """Return the change of energy, typical, low and high: the sum over coefficients within their bounds."""
    change = frugal_of - fastest_of
    ends = bounds[[0, 2]] * change
    return float(bounds[1] @ change), float(ends.min(axis=0).sum()), float(ends.max(axis=0).sum())


def changes(fastest_of: Array, frugal_of: Array, bounds: Array) -> tuple[Change, Change]:
    """Return the relative change of energy and of mean power.

    Both are ratios of sums that are linear in each coefficient, so their ends are at corners of the bounds.
    """
    corners = np.array([*itertools.product(*zip(bounds[0], bounds[2], strict=True)), bounds[1]])
    energy = (corners @ frugal_of) / (corners @ fastest_of) - 1.0
    slower = frugal_of[-1] / fastest_of[-1]
    power = (energy + 1.0) / slower - 1.0
    found = (Change(typical=float(v[-1]), low=float(v.min()), high=float(v.max())) for v in (energy, power))
    return next(found), next(found)


def print_frugal(
    layers: Mapping[Layer, int],
    machines: Sequence[tuple[Machine, Device, str, str, Mapping[Layer, NpuResult | GpuResult]]],
    slack_ratio: float,
    folder: Path,
    console: Console,
) -> None:
    """Print and write what the frugal tiles of each machine cost and save.

    A machine comes with its device, processor and precision, and the fastest tiles that are known already.
    """
    console.print(
        f"\ntiles with the least DRAM traffic among those at most {percent(slack_ratio)} slower than the fastest, each"
        " operator alone; energies by the device file's coefficients, over all that their bounds allow:",
        style="bold",
    )
    rows: list[dict[str, object]] = []
    for machine, device, processor, precision, fastest in machines:
        choices = [choose(layer, count, machine, slack_ratio, fastest.get(layer)) for layer, count in layers.items()]
        bounds, lacking = coefficients(device, processor, precision)
        console.print(f"  {machine.name}: {_summary(choices, bounds, lacking)}")
        _print_table(choices, bounds, lacking, console)
        rows.extend(_lines(choices, machine.name, bounds, lacking))
    store.write_csv(folder / "frugal.csv", _FIELDS, rows)


def _summary(choices: Sequence[Choice], bounds: Array, lacking: Sequence[str]) -> str:
    changed = [c for c in choices if c.differs]
    if not changed:
        return f"the fastest tile of all {len(choices)} operators has the least traffic already"
    fastest_of = np.sum([c.count * c.fastest_of for c in choices], axis=0)
    frugal_of = np.sum([c.count * c.frugal_of for c in choices], axis=0)
    before, after = (sum(c.count * c.costs[place].dram_bytes for c in choices) for place in (0, 1))
    told = (
        f"{len(changed)} of {len(choices)} operators change; together latency"
        f" {frugal_of[-1] / fastest_of[-1] - 1:+.1%}, DRAM traffic {after / before - 1:+.1%} ({size(before)} to"
        f" {size(after)})"
    )
    if lacking:
        return f"{told}; energy not known, as the device file gives no {', '.join(lacking)}"
    energy, power = changes(fastest_of, frugal_of, bounds)
    return f"{told}, energy {_change(energy)}, mean power {_change(power)}{_certainty(energy)}"


def _change(change: Change) -> str:
    return interval(*(f"{value:+.1%}" for value in (change.typical, change.low, change.high)))


def _certainty(energy: Change) -> str:
    if energy.high < 0.0:
        return ": saved wherever the figures are"
    if energy.low > 0.0:
        return ": the longer time costs more than the traffic saves, wherever the figures are"
    return ": within their bounds the energy may rise or fall"


def _print_table(choices: Iterable[Choice], bounds: Array, lacking: Sequence[str], console: Console) -> None:
    changed = sorted(
        (c for c in choices if c.differs),
        key=lambda c: c.count * (c.costs[1].dram_bytes - c.costs[0].dram_bytes),
    )
    if not changed:
        return
    table = plain_table("  operator", "", "fastest", "frugal", "latency", "traffic", "energy", no_wrap=True)
    for c in changed[:_MOST_ROWS]:
        fast, slow = c.costs
        energy = "-" if lacking else _change(changes(c.fastest_of, c.frugal_of, bounds)[0])
        table.add_row(
            f"  {short_layer(c.layer)}", f"x{c.count}", str(c.fastest), str(c.frugal),
            f"{seconds(fast.latency_s)} {slow.latency_s / fast.latency_s - 1:+.1%}",
            f"{size(fast.dram_bytes)} {slow.dram_bytes / fast.dram_bytes - 1:+.1%}", energy,
        )  # fmt: skip
    console.print(table)
    if len(changed) > _MOST_ROWS:
        console.print(f"  and {len(changed) - _MOST_ROWS} more in frugal.csv")


def _lines(
    choices: Sequence[Choice], processor: str, bounds: Array, lacking: Sequence[str]
) -> Iterator[dict[str, object]]:
    for c in choices:
        typical, low, high = (None,) * 3 if lacking else saved_j(c.fastest_of, c.frugal_of, bounds)
        yield {
            "operator": c.layer.name, "processor": processor, "count": c.count, "fastest_tile": str(c.fastest),
            "frugal_tile": str(c.frugal), "fastest_s": c.costs[0].latency_s, "frugal_s": c.costs[1].latency_s,
            "fastest_dram_bytes": c.costs[0].dram_bytes, "frugal_dram_bytes": c.costs[1].dram_bytes,
            "energy_change_j": typical, "energy_change_low_j": low, "energy_change_high_j": high,
        }  # fmt: skip
