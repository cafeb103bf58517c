"""Value ranges of activations over the calibration data: min-max, percentile or entropy.

Not on onnxruntime's calibrators: its entropy method starts with 128 bins for 128 levels, which leaves one candidate
(no clipping at all, 1.32), its histograms depend on the order of the batches, and it keeps every activation of every
batch until the end. Here memory holds the activations of one batch, and the second pass over the data gives
histograms with exact ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx

from graphs.graph import GraphError
from graphs.quantisation.calibration import check_feed
from graphs.quantisation.runtime import expose, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from graphs.graph import Graph
    from graphs.quantisation.calibration import Calibration

    Array = npt.NDArray[Any]
    Bounds = dict[str, tuple[float, float]]

Method = Literal["minmax", "percentile", "entropy"]
METHODS: tuple[Method, ...] = ("minmax", "percentile", "entropy")
BINS = 2048
# Levels on one side of zero for values on both sides; those on one side only have all of uint8 (Migacz, GTC 2017).
TWO_SIDED_LEVELS, ONE_SIDED_LEVELS = 128, 256
# The entropy method may saturate this share at most. Without a bound it cuts off everything where no value is near
# zero (a HardSigmoid's 0.14..0.86: 11 dB instead of 21 dB at the output of MobileNetV3-Small).
ENTROPY_CLIPPED = 0.001
# TensorRT tries every bin; every eighth of 2048 moves the threshold by 0.4 % and is eight times as fast.
THRESHOLD_STEP = 8
PERCENTILE = 99.999


def collect_ranges(
    model: onnx.ModelProto, tensors: Sequence[str], graph: Graph, calibration: Calibration, method: Method
) -> Bounds:
    """Give (low, high) of each tensor over all batches.

    Args:
        model: The prepared float model, typed.
        tensors: Float tensors of the main graph.
        graph: The graph that the feeds must fit.
        calibration: The batches; read once for ``minmax``, twice for the others.
        method: How to choose the range.

    Raises:
        GraphError: A feed that does not fit the graph, or a tensor that is not finite.
    """
    if not tensors:
        return {}
    bounds = _bounds(model, tensors, graph, calibration)
    if method == "minmax":
        return bounds
    varying = {name: ends for name, ends in bounds.items() if ends[0] < ends[1]}
    histograms = _histograms(model, varying, calibration)
    narrow = _percentile if method == "percentile" else _entropy
    return bounds | {name: narrow(histograms[name], *varying[name]) for name in varying}


def _bounds(model: onnx.ModelProto, tensors: Sequence[str], graph: Graph, calibration: Calibration) -> Bounds:
    """Reduce inside the session: what comes back per batch is two numbers a tensor."""
    session = open_session(_with_extrema(model, tensors))
    lows, highs = np.full(len(tensors), np.inf), np.full(len(tensors), -np.inf)
    for index, feed in enumerate(calibration):
        check_feed(graph, feed, f"Calibration batch {index} of {calibration.source}")
        extrema = np.array([value.item() for value in session.run(None, feed)], np.float64)
        # NaN must survive into the check below; np.minimum keeps it, np.fmin would not.
        lows, highs = np.minimum(lows, extrema[0::2]), np.maximum(highs, extrema[1::2])
    empty = (lows == np.inf) & (highs == -np.inf)  # that is what a reduction of no elements gives
    lows[empty] = highs[empty] = 0.0
    _refuse_unbounded(model, tensors, np.isfinite(lows) & np.isfinite(highs), calibration)
    return {name: (float(low), float(high)) for name, low, high in zip(tensors, lows, highs, strict=True)}


def _with_extrema(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    names = [f"edgefrontier.{kind}.{index}" for index in range(len(tensors)) for kind in ("low", "high")]
    augmented = expose(model, names)
    for index, tensor in enumerate(tensors):
        for operation, output in zip(("ReduceMin", "ReduceMax"), names[2 * index : 2 * index + 2], strict=True):
            node = onnx.helper.make_node(operation, [tensor], [output], name=output, keepdims=1)
            augmented.graph.node.append(node)
    return augmented


def _refuse_unbounded(
    model: onnx.ModelProto, tensors: Sequence[str], finite: npt.NDArray[np.bool_], calibration: Calibration
) -> None:
    if finite.all():
        return
    tensor = tensors[int(np.argmin(finite))]
    users = [node.name for node in model.graph.node if tensor in (*node.input, *node.output)]
    raise GraphError(
        f"Tensor {tensor!r} is not finite on the calibration data ({calibration.source}), so it has no 8- or "
        f"16-bit range: keep the nodes {users} float, or calibrate with other data."
    )


def _histograms(model: onnx.ModelProto, bounds: Bounds, calibration: Calibration) -> dict[str, Array]:
    """Count each tensor's values in ``BINS`` equal bins between its ends."""
    counts = {name: np.zeros(BINS, np.int64) for name in bounds}
    session = open_session(expose(model, bounds))
    for feed in calibration:
        for name, values in zip(bounds, session.run(None, feed), strict=True):
            counts[name] += np.histogram(values, BINS, range=bounds[name])[0]
    return counts


def _percentile(counts: Array, low: float, high: float) -> tuple[float, float]:
    """Cut the same share of values at either end, (100 - ``PERCENTILE``) / 2 percent, at bin edges."""
    share = (100 - PERCENTILE) / 200
    cumulated = np.cumsum(counts) / counts.sum()
    edges = np.linspace(low, high, BINS + 1)
    first = int(np.searchsorted(cumulated, share, side="right"))
    last = int(np.searchsorted(cumulated, 1 - share, side="left"))
    return float(edges[first]), float(edges[last + 1])


def _entropy(counts: Array, low: float, high: float) -> tuple[float, float]:
    """Clip both sides at the magnitude that loses the least information in the levels there are."""
    levels = TWO_SIDED_LEVELS if low < 0 < high else ONE_SIDED_LEVELS
    threshold = _best_threshold(_fold(counts, low, high), levels) * max(-low, high) / BINS
    return max(low, -threshold), min(high, threshold)


def _fold(counts: Array, low: float, high: float) -> Array:
    """Turn a histogram over low..high into one of magnitudes over 0..max(-low, high).

    Zero is exact at any threshold, and the zeros behind a Relu would outweigh everything: the first bin takes the
    count of the second (as NVIDIA's pytorch-quantization does).
    """
    edges = np.linspace(low, high, BINS + 1)
    magnitudes = np.abs((edges[:-1] + edges[1:]) / 2) / max(-low, high)
    bins = np.minimum((magnitudes * BINS).astype(np.int64), BINS - 1)
    folded = np.bincount(bins, counts, BINS)
    folded[0] = folded[1]
    return folded


def _best_threshold(counts: Array, levels: int) -> int:
    """Give the number of bins to keep; the rest saturates. Of equals, the largest."""
    kept = np.cumsum(counts)[levels - 1 :: THRESHOLD_STEP] >= (1 - ENTROPY_CLIPPED) * counts.sum()
    candidates = range(levels + THRESHOLD_STEP * int(np.argmax(kept)), BINS + 1, THRESHOLD_STEP)
    return min(candidates, key=lambda bins: (_divergence(counts, bins, levels), -bins))


def _divergence(counts: Array, bins: int, levels: int) -> float:
    """Give the Kullback-Leibler divergence of the clipped distribution from its form in ``levels`` levels."""
    inside = counts[:bins]
    clipped = inside.copy()
    clipped[-1] += counts[bins:].sum()
    starts = np.arange(levels) * bins // levels
    filled = inside > 0
    level = np.repeat(np.arange(levels), np.diff(np.append(starts, bins)))
    totals, occupied = np.add.reduceat(inside, starts), np.add.reduceat(filled.astype(np.int64), starts)
    quantised = np.where(filled, (totals / np.maximum(occupied, 1))[level], 0.0)
    if not quantised.sum():
        return float("inf")
    return _relative_entropy(clipped / clipped.sum(), quantised / quantised.sum())


def _relative_entropy(left: Array, right: Array) -> float:
    # A bin that only the clipped distribution fills would make the sum infinite; TensorRT smooths with an epsilon.
    epsilon = 1e-9
    used = left > 0
    return float(np.sum(left[used] * np.log(left[used] / np.maximum(right[used], epsilon))))
