"""R11, temperature and on-chip memory, and R12, does a streaming frame meet its deadline."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from experiments.arguments import UserError
from experiments.scenarios.study import Study
from experiments.units import seconds, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.published import Table
    from experiments.scenarios.given import Given
    from graphs import Graph

_HALF_PRECISION_SCALE_BITS = 16


def r11(given: Given) -> Study:
    """Interpolate the violation table, and read off it what spreading the activations is worth in K."""
    table = given.table("R11")
    for column in table.columns:
        if len(table.rows) < 2 or (np.diff(table.column(column)) <= 0).any():
            raise UserError(f"{table.report}: {column} must rise from row to row, over two rows or more")
    spread, rows = table.fact("spread_violation_ratio"), table.column("temperature_c")
    middle_c = rows[len(rows) // 2]
    try:
        cooler_c = temperature_of(table, spread)
    except ValueError as error:
        raise UserError(f"spread_violation_ratio is outside the table ({spread:.2%})") from error
    shown = sorted({*rows, *((low + high) / 2 for low, high in itertools.pairwise(rows))})
    lines = [
        f"{t:5.1f} degC: worst path {path_at(table, t) * 1e9:.2f} ns, {violations_at(table, t):6.2%} violations"
        for t in shown
    ]
    gain_k = middle_c - cooler_c
    return Study(
        name="R11",
        title="timing violations over temperature (between the rows: log-odds linear in temperature)",
        lines=(
            *lines,
            f"spreading the activations, {spread:.1%} violations, is worth {gain_k:.1f} K at {middle_c:g} degC",
        ),
        figures={"spread_equivalent_c": cooler_c, "spread_gain_k": gain_k},
        assumptions=(
            f"{spread:.1%} with activations spread is read against the row at {middle_c:g} degC, which nobody says",
        ),
    )


def violations_at(table: Table, temperature_c: float) -> float:
    """Return the share of violations, interpolated in log-odds so that it stays between 0 and 1.

    Raises:
        ValueError: the temperature is outside the table; nothing is extrapolated.
    """
    odds = [_log_odds(ratio) for ratio in table.column("violation_ratio")]
    return 1.0 / (1.0 + math.exp(-_between(table.column("temperature_c"), odds, temperature_c)))


def path_at(table: Table, temperature_c: float) -> float:
    """Return the worst path in seconds, linear between the rows.

    Raises:
        ValueError: the temperature is outside the table.
    """
    return _between(table.column("temperature_c"), table.column("path_s"), temperature_c)


def temperature_of(table: Table, violation_ratio: float) -> float:
    """Return the temperature at which that share of paths is violated.

    Raises:
        ValueError: the table does not reach that share.
    """
    odds = [_log_odds(ratio) for ratio in table.column("violation_ratio")]
    return _between(odds, table.column("temperature_c"), _log_odds(violation_ratio))


def _log_odds(ratio: float) -> float:
    return math.log(ratio / (1.0 - ratio))


def _between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    if not xs[0] <= x <= xs[-1]:
        raise ValueError(f"{x:g} is outside the published range {xs[0]:g} to {xs[-1]:g}; nothing is extrapolated")
    for (x0, y0), (x1, y1) in zip(zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False):
        if x <= x1:
            return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return float(ys[-1])


def r12(given: Given) -> Study:
    """Stream a model's weights once per frame through the DMA and count the copies that fit the deadline."""
    table = given.table("R12")
    frame_s = table.fact("frame_s")
    parts = _parameters(given.graph)
    lines, figures = [], {}
    for row in (dict(zip(table.columns, values, strict=True)) for values in table.rows):
        for part, parameters in parts.items():
            byte_count = weight_bytes(parameters, row["bits"], row["block"])
            for speed in ("slow", "fast"):
                rate = table.fact(f"{speed}_dma_bytes_per_s")
                copy_s, copies = byte_count / rate, int(frame_s / (byte_count / rate))
                verdict = f"fits, {copies} copies at most" if copies else "does NOT fit"
                lines.append(
                    f"{row['weights']}, {part}: {size(byte_count)} at {size(rate)}/s: {seconds(copy_s)}, {verdict}"
                )
                figures[f"{row['weights']}, {part}, {speed}"] = {"copy_s": copy_s, "copies": copies}
    return Study(
        name="R12",
        title=f"does a frame of {seconds(frame_s)} fit the DMA? (all weights move once per copy)",
        lines=tuple(lines),
        figures=figures,
        assumptions=("block-wise: a 16-bit scale per block; compute and activations hide behind the DMA",),
    )


def _parameters(graph: Graph | None) -> dict[str, int]:
    """Return the parameters of each part that is streamed: of one's own model, or of Whisper-tiny."""
    if graph is not None:
        if not graph.parameters:
            raise UserError(f"{graph.name} has no parameters to stream")
        return {graph.name: graph.parameters}
    from graphs import zoo

    encoder = zoo.build("whisper_tiny_encoder").parameters
    return {"encoder": encoder, "encoder and decoder": encoder + zoo.build("whisper_tiny_decoder").parameters}


def weight_bytes(parameters: int, bits: int, block: int) -> float:
    """Return the bytes of packed weights: a 16-bit scale per block, none where the scales are per channel."""
    scale_bits = _HALF_PRECISION_SCALE_BITS / block if block else 0.0
    return parameters * (bits + scale_bits) / 8.0
