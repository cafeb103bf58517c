"""Counting rules of what works on one element, or on one window of elements, at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphs.work.operation import Operation, UnknownError, Work
from graphs.work.products import interpolation

if TYPE_CHECKING:
    from graphs.work.products import Rule


def moves(_: Operation) -> Work:
    """Count nothing: data is moved or renamed, not computed."""
    return Work()


def per_output(steps: int) -> Rule:
    """Count `steps` operations on each element of the first output."""
    return lambda op: Work(0, steps * op.out_size())


def per_input(steps: int) -> Rule:
    """Count `steps` operations on each element of the first input."""
    return lambda op: Work(0, steps * op.size())


def normalisation(steps: int, *optional: int) -> Rule:
    """Count `steps` operations on each element of input 0, and one more for each optional input that is there."""
    return lambda op: Work(0, op.size(0) * (steps + sum(op.has(port) for port in optional)))


def variadic(final: int = 0) -> Rule:
    """Count n - 1 operations on each output element for n inputs, and `final` at the end."""
    return lambda op: Work(0, op.out_size() * (len(op.inputs) - 1 + final))


def clip(op: Operation) -> Work:
    """Count one comparison for each bound; before opset 11 both are attributes."""
    bounds = op.has(1) + op.has(2) + sum(op.attribute(name) is not None for name in ("min", "max"))
    return Work(0, op.out_size() * bounds)


def pool(*, last: int, steps: int = 1) -> Rule:
    """Count `steps` operations on each element of a window, and `last` when it is reduced (-1: one fewer)."""

    def rule(op: Operation) -> Work:
        window = math.prod(op.attribute("kernel_shape", ()))
        return Work(0, op.out_size() * (steps * window + last))

    return rule


def resize(op: Operation) -> Work:
    """Count the weighted sums of linear (2 taps) and cubic (4 taps) interpolation over the axes that change."""
    taps = {"nearest": 0, "linear": 2, "cubic": 4, "bilinear": 2}.get(str(op.attribute("mode", b"nearest"), "utf-8"))
    if taps is None:
        raise UnknownError("the mode of interpolation is not known")
    if taps == 0:
        return Work()
    before, after = op.shape(0), op.out()
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    return Work(0, op.out_size() * interpolation(taps**changed) if changed else 0)


def grid_sample(op: Operation) -> Work:
    """Count the interpolation between the neighbours of each point of the grid."""
    mode = str(op.attribute("mode", b"linear"), "utf-8")
    rank = len(op.shape(0)) - 2
    taps = {"nearest": 1, "bilinear": 2, "linear": 2, "bicubic": 4, "cubic": 4}.get(mode)
    if taps is None:
        raise UnknownError("the mode of interpolation is not known")
    return Work(0, op.out_size() * interpolation(taps**rank))


def roi_align(op: Operation) -> Work:
    """Count 4-neighbour interpolation at each sample; a sampling ratio of 0 depends on the size of the regions."""
    ratio = op.attribute("sampling_ratio", 0)
    if ratio < 1:
        raise UnknownError("the number of samples depends on the regions")
    samples = ratio * ratio
    return Work(0, op.out_size() * (samples * interpolation(4) + samples))


def max_roi_pool(op: Operation) -> Work:
    """Count one comparison for each input element of each region, at most: regions are data."""
    regions, channels = op.shape(1)[0], op.shape(0)[1]
    return Work(0, regions * channels * math.prod(op.shape(0)[2:]))


def sort_like(op: Operation) -> Work:
    """Count n log2 n comparisons."""
    size = op.size(0)
    return Work(0, size * max(1, math.ceil(math.log2(max(size, 2)))))


def top_k(op: Operation) -> Work:
    """Count a heap of k elements: log2(k + 1) comparisons for each element."""
    kept = op.out()[op.attribute("axis", -1)]
    return Work(0, op.size(0) * max(1, math.ceil(math.log2(kept + 1))))


def non_max_suppression(op: Operation) -> Work:
    """Count about 12 operations for each pair of boxes of a class, at most: which pairs meet is data."""
    batch, classes, boxes = op.shape(1)
    return Work(0, 12 * batch * classes * boxes * (boxes - 1) // 2)


def lrn(op: Operation) -> Work:
    """Square and sum `size` neighbours, then scale, add, raise to a power and divide."""
    return Work(0, op.size(0) * (2 * op.attribute("size", 1) + 4))


def determinant(op: Operation) -> Work:
    """Count a LU decomposition: 2/3 n^3 operations for each matrix."""
    rows = op.shape(0)[-1]
    return Work(0, op.out_size() * (2 * rows**3 // 3 + rows))


def transform(op: Operation) -> Work:
    """Count a fast Fourier transform of the output's length: 5 n log2 n for each."""
    axis = op.attribute("axis", 1)
    if op.has(2):  # from opset 20 on the axis is an input, -2 by default
        value = op.value(2)
        if value is None:
            raise UnknownError("the axis is not constant")
        axis = int(value)
    length = max(op.out()[axis], op.shape(0)[axis])
    return Work(0, (op.out_size() // 2 // max(op.out()[axis], 1)) * _fft(length))


def short_time_transform(op: Operation) -> Work:
    """Count one windowed Fourier transform for each frame."""
    batch, frames, bins, _ = op.out()
    length = op.shape(2)[0] if op.has(2) else 2 * (bins - 1)
    return Work(0, batch * frames * (_fft(length) + length * op.has(2)))


def _fft(length: int) -> int:
    return math.ceil(5 * length * math.log2(max(length, 2)))


def affine_grid(op: Operation) -> Work:
    """Multiply each homogeneous coordinate by the matrix: `rank` products and sums for each output value."""
    return Work(0, op.out_size() * 2 * (op.out()[-1]))


def rotary(op: Operation) -> Work:
    """Two products and a sum for each element that is rotated; an unrotated rest is copied."""
    return Work(0, 3 * op.size(0))


def softmax_loss(op: Operation) -> Work:
    """Log-softmax of every score (5), then pick and average one for each sample."""
    return Work(0, 5 * op.size(0) + 2 * op.size(1))


def gelu(exact: int, approximate: int) -> Rule:
    """Count the error-function form, or the tanh form where the node asks for it."""
    return lambda op: Work(0, op.size(0) * (approximate if op.attribute("approximate", b"none") == b"tanh" else exact))


def scatter(op: Operation) -> Work:
    """Count one operation for each update that is reduced into the data; plain scattering only moves."""
    return Work(0, op.size(2) if op.attribute("reduction", b"none") not in (b"none", b"") else 0)


def embed_layer_normalisation(steps: int) -> Rule:
    """Count the sum of two or three embeddings, then `steps` operations for the normalisation."""
    return lambda op: Work(0, op.out_size() * (steps + 1 + op.has(4)))


def activated_group_norm(steps: int, *optional: int) -> Rule:
    """Count `steps` on each element, one for each optional addend, and 2 for the SiLU that may follow."""

    def rule(op: Operation) -> Work:
        activated = 2 * bool(op.attribute("activation", 0))
        return Work(0, op.size(0) * (steps + activated + sum(op.has(port) for port in optional)))

    return rule
