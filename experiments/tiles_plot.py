"""Pictures of `experiments.tiles`: the loss matrix, heat maps of tile sizes, and the frontiers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.picture import pyplot, save
from experiments.tiles_error import short_error
from experiments.units import tick
from partition.tile import (
    GpuMachine,
    GpuTile,
    Layer,
    Machine,
    NpuMachine,
    NpuSpace,
    NpuTile,
    Point,
    TileError,
    balanced_space,
    power_space,
    search_gpu,
    search_npu,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

    from experiments.tiles_cross import Loss

_MOST_TICKS: Final = 16
_FEWEST_COLUMNS: Final = 3
_LONGEST_NAME: Final = 60
_AXES: Final = {"y": "output rows", "x": "output columns", "k": "output channels"}


def draw_losses(matrix: Sequence[Loss], npu: NpuMachine, gpu: GpuMachine, stem: Path) -> None:
    """Draw throughput lost by kind of operator and direction, and how many tiles could not be built at all."""
    plt = pyplot()
    kinds, directions = list(dict.fromkeys(m.kind for m in matrix)), list(dict.fromkeys(m.direction for m in matrix))
    cells = {(m.kind, m.direction): m for m in matrix}
    values = np.array([[cells[k, d].median_ratio if cells[k, d].median_ratio is not None else np.nan
                        for d in directions] for k in kinds], dtype=float)  # fmt: skip
    figure, axis = plt.subplots(figsize=(8.2, 1.8 + 0.85 * len(kinds)), layout="constrained")
    image = axis.imshow(100 * values, cmap="viridis_r", vmin=0, vmax=100, aspect="auto")
    axis.set_facecolor("#dddddd")
    for row, kind in enumerate(kinds):
        for column, direction in enumerate(directions):
            cell = cells[kind, direction]
            text = "none can be built" if cell.median_ratio is None else f"{100 * cell.median_ratio:.0f} %"
            note = "".join(f"\n{cause}" for cause in cell.cause.split("; ") if cause)
            note += f" ({cell.refused} of {cell.layers})" if cell.refused else ""
            dark = cell.median_ratio is not None and cell.median_ratio > 0.5
            axis.text(
                column, row, text + note, ha="center", va="center", fontsize=9, color="white" if dark else "black"
            )
    axis.set_xticks(range(len(directions)), directions)
    axis.set_yticks(range(len(kinds)), kinds)
    figure.colorbar(image, label="throughput lost, median, %")
    axis.set_title("Tiles carried over unchanged, modelled\n" + "\n".join(map(_title, (npu, gpu))), fontsize=9)
    save(figure, stem)


def draw_heat_maps(layer: Layer, npu: NpuMachine, gpu: GpuMachine, stem: Path) -> None:
    """Draw the best latency for each pair of tile sizes, all else free, on both machines; grey is illegal."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 5.2), layout="constrained")
    space, kernels = balanced_space(layer, npu), power_space(layer, gpu)
    rows = "y" if len(space.y) > 1 else "x"
    columns = _second_axis(layer, npu, space, rows)

    def on_npu(row: int, column: int) -> float:
        sizes: dict[str, Any] = {rows: (row,), columns: (column,)}
        return search_npu(layer, npu, dataclasses.replace(space, **sizes)).cost.latency_s

    def on_gpu(block_x: int, block_y: int) -> float:
        return search_gpu(
            layer, gpu, dataclasses.replace(kernels, block_x=(block_x,), block_y=(block_y,))
        ).cost.latency_s

    of_tile = {axis: (_thin(getattr(space, axis)), f"{name} of a tile") for axis, name in _AXES.items()}
    _heat(figure, axes[0], on_npu, of_tile[rows], of_tile[columns])
    _heat(
        figure,
        axes[1],
        on_gpu,
        (kernels.block_x, "threads along positions"),
        (kernels.block_y, "threads along channels"),
    )
    for axes_of, machine in zip(axes, (npu, gpu), strict=True):
        axes_of.set_title(_title(machine), fontsize=10)
    figure.suptitle(
        f"{_named(layer)}: best modelled latency for each pair of sizes\ngrey: no legal tile (lanes, weight alignment, "
        "threads, registers or memory)", fontsize=10,
    )  # fmt: skip
    save(figure, stem)


def _second_axis(layer: Layer, npu: NpuMachine, space: NpuSpace, rows: str) -> str:
    """Return output channels, or another axis where lanes and weight alignment leave next to no choice of them."""

    def legal(k: int) -> bool:
        try:
            search_npu(layer, npu, dataclasses.replace(space, k=(k,), y=space.y[:1], x=space.x[:1]))
        except TileError:
            return False
        return True

    if rows == "x" or len(space.x) == 1 or sum(map(legal, space.k)) >= _FEWEST_COLUMNS:
        return "k"
    return "x"


def draw_frontiers(
    layer: Layer,
    npu_front: Sequence[Point[NpuTile]],
    gpu_front: Sequence[Point[GpuTile]],
    machines: tuple[NpuMachine, GpuMachine],
    stem: Path,
) -> None:
    """Draw on-chip memory against latency of all tiles on the frontier; the colour is their energy."""
    from matplotlib.colors import LogNorm

    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 4.8), layout="constrained")
    costs = [[(max(p.on_chip_bytes, 1.0), p.latency_s, p.energy_j) for p in front] for front in (npu_front, gpu_front)]
    for axis, front, machine in zip(axes, costs, machines, strict=True):
        points = np.array(front)
        low, high = points[:, 2].min(), points[:, 2].max()
        norm = LogNorm(vmin=low, vmax=max(high, 1.01 * low))
        dots = axis.scatter(points[:, 0], points[:, 1], c=points[:, 2], norm=norm, cmap="viridis_r", s=26, zorder=3)
        _ticks(figure.colorbar(dots, ax=axis, label="energy"), "J")
        _scale(axis, points)
        axis.set_title(f"{_title(machine)}; {len(front)} tiles", fontsize=10)
    figure.suptitle(
        f"{_named(layer)}, modelled: tiles that no other beats in latency, energy and memory",
        fontsize=10,
    )
    save(figure, stem)


def short_layer(layer: Layer) -> str:
    """Return the shape of a layer in a few words."""
    window = "" if layer.taps == 1 else f" {layer.kernel[0]}x{layer.kernel[1]}"
    stride = "" if max(layer.stride) == 1 else f"/{max(layer.stride)}"
    groups = "" if layer.groups == 1 else f" x{layer.groups}"
    dilation = "" if max(layer.dilation) == 1 else f" dilated {max(layer.dilation)}"
    batch = "" if layer.batch == 1 else f" batch {layer.batch}"
    channels = f"{layer.k}" if layer.per_channel else f"{layer.c}>{layer.k}"
    return f"{layer.kind} {channels}{groups}{window}{stride}{dilation} {layer.y}x{layer.x}{batch}"


def _named(layer: Layer) -> str:
    """Return the shape with the name, of which the end tells more than the start where it is too long for a title."""
    name = layer.name if len(layer.name) <= _LONGEST_NAME else f"...{layer.name[-_LONGEST_NAME:]}"
    return f"{short_layer(layer)} ({name})"


def _title(machine: Machine) -> str:
    return f"{machine.name}: {short_error(machine)}"


def _scale(axis: Axes, points: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    for column, (name, unit, target, setter) in enumerate(
        (("on-chip memory", "B", axis.xaxis, axis.set_xscale), ("latency", "s", axis.yaxis, axis.set_yscale))
    ):
        if points[:, column].max() > 4 * points[:, column].min():
            setter("log")
            wide = points[:, column].max() > 1e3 * points[:, column].min()
            target.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
            target.set_minor_locator(NullLocator())
        else:
            target.set_major_locator(MaxNLocator(6))
        target.set_major_formatter(FuncFormatter(lambda v, _, unit=unit: tick(v, unit)))
        target.set_label_text(name)
    axis.tick_params(axis="x", rotation=30)
    axis.grid(visible=True, which="both", color="#dddddd", linewidth=0.5)
    axis.set_axisbelow(True)


def _heat(
    figure: Figure,
    axis: Axes,
    latency: Callable[[int, int], float],
    rows: tuple[Sequence[int], str],
    columns: tuple[Sequence[int], str],
) -> None:
    from matplotlib.colors import LogNorm

    values = np.full((len(rows[0]), len(columns[0])), np.nan)
    for i, row in enumerate(rows[0]):
        for j, column in enumerate(columns[0]):
            try:
                values[i, j] = latency(row, column)
            except TileError:
                continue  # stays grey: the pair has no legal tile
    low, high = np.nanmin(values), np.nanmax(values)
    image = axis.imshow(
        values, cmap="viridis_r", norm=LogNorm(low, max(high, 1.01 * low)), aspect="auto", origin="lower"
    )
    axis.set_facecolor("#dddddd")
    best = np.unravel_index(np.nanargmin(values), values.shape)
    axis.plot(best[1], best[0], marker="*", color="#D55E00", markersize=13, markeredgecolor="white")
    axis.set_yticks(range(len(rows[0])), [str(v) for v in rows[0]], fontsize=8)
    axis.set_xticks(range(len(columns[0])), [str(v) for v in columns[0]], fontsize=8, rotation=45)
    axis.set(ylabel=rows[1], xlabel=columns[1])
    _ticks(figure.colorbar(image, ax=axis, label="latency (star: least)"), "s")


def _ticks(bar: Colorbar, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: tick(v, unit)))


def _thin(sizes: Sequence[int]) -> Sequence[int]:
    """Keep at most a page of sizes, evenly, both ends included."""
    if len(sizes) <= _MOST_TICKS:
        return sizes
    return [sizes[round(i * (len(sizes) - 1) / (_MOST_TICKS - 1))] for i in range(_MOST_TICKS)]
