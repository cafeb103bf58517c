"""Latency on Apple's Neural Engine: a small roofline fitted on the few points that Apple has published.

    t = overhead + macs * width / rate + (weights + activations) * width / bandwidth

with `width` the bytes of an element (2 for fp16, 1 for int8 weights and activations). The three coefficients
per chip are fitted by non-negative least squares on relative errors. The interval is what leaving one point out
and predicting it from the others misses at worst; it says nothing about networks of another kind (transformers
with long sequences, operators that the Neural Engine leaves to the CPU).

Source of the networks' points: Apple, coremltools documentation, "Performance" page of the quantization guide
(apple.github.io/coremltools/docs-guides/source/opt-quantization-perf.html): medians by Xcode, iOS 17, all
compute units. The work was counted on our own builds of the same networks (see tests/unit).

Nobody has published such networks on an M-series engine, only kernels, for the M4, without Core ML: chains of 1x1
convolutions (github.com/maderix/ANE, README) and matrix products (maderix.substack.com, "Inside the M4 Apple Neural
Engine", part 2). Its fit takes these and the networks of the A17 Pro, whose engine has 16 cores too and 35 TOPS for 38.
One product of 2048 x 2048, which fills the memory near the engine, is four times as slow as the rest says: hence the
interval.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.artefact import Estimate, Latency, Source
from compilers.coreml.work import Work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partition import Processor

WIDTH_BYTES: Final = MappingProxyType({"fp16": 2, "int8": 1})

NETWORKS: Final[Mapping[str, Work]] = MappingProxyType(
    {
        "mobilenet_v2": Work(macs=300_774_272, weights=3_487_818, activations=14_159_464),
        "resnet50": Work(macs=4_089_184_256, weights=25_530_472, activations=39_443_432),
        "mobilevit_v2": Work(macs=1_812_090_880, weights=4_894_146, activations=83_020_904),
    }
)


def _convolutions(count: int) -> Work:
    """Return the work of a chain of 1x1 convolutions, 512 channels to 512, on 64 x 64 pixels."""
    each = 512 * 64 * 64
    return Work(macs=count * 512 * each, weights=count * 512 * 512, activations=count * 2 * each)


def _product(size: int) -> Work:
    """Return the work of one product of square matrices."""
    return Work(macs=size**3, weights=size**2, activations=2 * size**2)


KERNELS: Final[Mapping[str, Work]] = MappingProxyType(
    {
        "128 convolutions": _convolutions(128),
        "64 convolutions": _convolutions(64),
        "product of 256": _product(256),
        "product of 2048": _product(2048),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One published latency of a network or kernel; "int8" is W8A8, weights and activations."""

    network: str
    precision: str
    latency_s: float

    @property
    def work(self) -> Work:
        """The work that took so long."""
        return NETWORKS[self.network] if self.network in NETWORKS else KERNELS[self.network]


def _points(table: Mapping[str, tuple[float, ...]]) -> tuple[Point, ...]:
    return tuple(
        Point(network=network, precision=precision, latency_s=milliseconds / 1e3)
        for network, known in table.items()
        for precision, milliseconds in zip(("fp16", "int8"), known, strict=False)
    )


# Milliseconds for fp16 and, where known, W8A8: iPhone 15 Pro (A17 Pro), iPhone 14 Pro (A16), M4.
_A17_PRO: Final = _points({"mobilenet_v2": (0.49, 0.20), "resnet50": (1.38, 0.77), "mobilevit_v2": (1.36, 1.03)})
_M4: Final = _points(
    {
        "128 convolutions": (14.8, 7.8),
        "64 convolutions": (7.5, 4.0),
        "product of 256": (0.101,),
        "product of 2048": (2 * 2048**3 / 5.7e12 * 1e3,),  # published as 5.7 TFLOPS
    }
)
PUBLISHED: Final[Mapping[str, tuple[Point, ...]]] = MappingProxyType(
    {
        "a17_pro": _A17_PRO,
        "a16": _points({"mobilenet_v2": (0.48, 0.27), "resnet50": (1.52, 0.94), "mobilevit_v2": (1.38, 1.18)}),
        "m4": (*_A17_PRO, *_M4),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """Fitted coefficients; `fit_ratio` and `left_out_ratio` are the worst factors between model and point."""

    overhead_s: float
    s_per_mac_byte: float
    s_per_byte: float
    fit_ratio: float
    left_out_ratio: float

    def seconds(self, work: Work, precision: str) -> float:
        """Return the modelled latency of one inference."""
        coefficients = np.array([self.overhead_s, self.s_per_mac_byte, self.s_per_byte])
        return float(_row(work, precision) @ coefficients)


def _row(work: Work, precision: str) -> np.ndarray[Any, Any]:
    width = WIDTH_BYTES[precision]
    return np.array([1.0, work.macs * width, (work.weights + work.activations) * width])


def _solve(points: Sequence[Point]) -> np.ndarray[Any, Any]:
    """Return the non-negative coefficients with the least squared relative error: try every support."""
    rows = np.array([_row(p.work, p.precision) / p.latency_s for p in points])
    best, least = np.zeros(rows.shape[1]), np.inf
    for count in range(1, rows.shape[1] + 1):
        for support in map(list, itertools.combinations(range(rows.shape[1]), count)):
            part = np.linalg.lstsq(rows[:, support], np.ones(len(points)), rcond=None)[0]
            error = float(np.sum((rows[:, support] @ part - 1) ** 2))
            if np.all(part >= 0) and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[support] = part
    return best


def _worst_ratio(coefficients: np.ndarray[Any, Any], points: Sequence[Point]) -> float:
    ratios = [float(_row(p.work, p.precision) @ coefficients) / p.latency_s for p in points]
    return max(max(r, 1 / r) for r in ratios)


@functools.cache
def fit(chip: str) -> Roofline:
    """Fit the roofline of a chip on its published points."""
    points = PUBLISHED[chip]
    coefficients = _solve(points)
    fit_ratio = _worst_ratio(coefficients, points)
    left_out = [_worst_ratio(_solve([q for q in points if q is not p]), [p]) for p in points]
    return Roofline(
        overhead_s=float(coefficients[0]),
        s_per_mac_byte=float(coefficients[1]),
        s_per_byte=float(coefficients[2]),
        fit_ratio=fit_ratio,
        left_out_ratio=max(fit_ratio, *left_out),
    )


def _chip(processor: Processor) -> str:
    return processor.ids.get("coreml", {}).get("chip", "") if processor.kind == "npu" else ""


def why_not(processor: Processor | None) -> str | None:
    """Return None when the processor is a Neural Engine with published points, else what is missing."""
    if processor is not None and _chip(processor) in PUBLISHED:
        return None
    name = "that processor" if processor is None else processor.title
    return (
        f"no latency was published for {name} that a model could be fitted on; there are points for "
        f"the Neural Engines of {', '.join(PUBLISHED)}; measure on the device itself"
    )


def facts(processor: Processor) -> tuple[tuple[str, str], ...]:
    """Return what an artefact needs to be estimated later."""
    chip = _chip(processor)
    if chip not in PUBLISHED:
        return ()
    roofline = fit(chip)
    error = f"{roofline.fit_ratio - 1:.0%} fitted, {roofline.left_out_ratio - 1:.0%} left out"
    return (("chip", chip), ("latency_model_error", error))


def estimate(work: Work, *, chip: str, precision: str) -> Estimate:
    """Model the latency of an artefact, with the interval of the fit.

    Raises:
        CompilerError: no points for the chip, or none for the precision.
    """
    if chip not in PUBLISHED:
        raise CompilerError(f"no latency model for chip {chip or 'of this processor'}; have {', '.join(PUBLISHED)}")
    if precision not in WIDTH_BYTES:
        raise CompilerError(f"no latency was published for {precision} on the Neural Engine; use fp16 or int8")
    roofline = fit(chip)
    typical = roofline.seconds(work, precision)
    ratio = roofline.left_out_ratio
    latency = Latency(typical_s=typical, low_s=typical / ratio, high_s=typical * ratio, source=Source.MODELLED)
    return Estimate(latency=latency, uncosted_nodes=work.uncosted_nodes)
