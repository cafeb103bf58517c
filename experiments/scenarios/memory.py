"""R11, temperature and on-chip memory, and R12, does a streaming frame meet its deadline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from experiments.published import Table, load_table
from experiments.scenarios.study import Study
from experiments.units import seconds, size

if TYPE_CHECKING:
    from collections.abc import Sequence

_HALF_PRECISION_SCALE_BITS = 16


def r11(_seed: int = 0) -> Study:
    """Interpolate the violation table, and read off it what spreading the activations is worth in K."""
    table = load_table("R11")
    spread = table.fact("spread_violation_ratio")
    cooler_c = temperature_of(table, spread)
    lines = [
        f"{t:5.1f} degC: worst path {path_at(table, t) * 1e9:.2f} ns, {violations_at(table, t):6.2%} violations"
        for t in (85.0, 90.0, 95.0, 102.0, 108.0, 115.0)
    ]
    gain_k = 102.0 - cooler_c
    return Study(
        name="R11",
        title="timing violations over temperature (between the published points: log-odds linear in temperature)",
        lines=(*lines, f"spreading the activations, {spread:.1%} violations, is worth {gain_k:.1f} K at 102 degC"),
        figures={"spread_equivalent_c": cooler_c, "spread_gain_k": gain_k},
        assumptions=("the published 2.1 % is read against the row at 102 degC, which the report does not say",),
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


def r12(_seed: int = 0) -> Study:
    """Stream Whisper-tiny's weights once per frame through the DMA and count the copies that fit the deadline."""
    from graphs import zoo

    table = load_table("R12")
    frame_s = table.fact("frame_s")
    encoder = zoo.build("whisper_tiny_encoder").parameters
    parts = {"encoder": encoder, "encoder and decoder": encoder + zoo.build("whisper_tiny_decoder").parameters}
    lines, figures = [], {}
    for weights in table.column("weights"):
        row = table.row(weights)
        for part, parameters in parts.items():
            byte_count = weight_bytes(parameters, row["bits"], row["block"])
            for speed in ("slow", "fast"):
                rate = table.fact(f"{speed}_dma_bytes_per_s")
                copy_s, copies = byte_count / rate, int(frame_s / (byte_count / rate))
                verdict = f"fits, {copies} copies at most" if copies else "does NOT fit"
                lines.append(f"{weights}, {part}: {size(byte_count)} at {size(rate)}/s: {seconds(copy_s)}, {verdict}")
                figures[f"{weights}, {part}, {speed}"] = {"copy_s": copy_s, "copies": copies}
    return Study(
        name="R12",
        title=f"does a frame of {seconds(frame_s)} fit the DMA? (all weights move once per copy)",
        lines=tuple(lines),
        figures=figures,
        assumptions=("block-wise: one 16-bit scale per 32 weights; compute and activations hide behind the DMA",),
    )


def weight_bytes(parameters: int, bits: int, block: int) -> float:
    """Return the bytes of packed weights: a 16-bit scale per block, none where the scales are per channel."""
    scale_bits = _HALF_PRECISION_SCALE_BITS / block if block else 0.0
    return parameters * (bits + scale_bits) / 8.0
