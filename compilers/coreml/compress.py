"""Compression of a converted model through coremltools.optimize, each method a value of the option `compress`.

Weights of 2048 elements and more are compressed, as coremltools does by default. Methods that need iOS18 say so.
k-means tables come from the optimal one-dimensional clustering that coremltools ships (deterministic, no
scikit-learn). W8A8 quantises the activations with ranges that our executor saw (compilers/coreml/calibrate.py): the
vendor's own calibration needs a Mac, and in 9.0 it keeps the last sample's ranges only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import warnings
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.vendor import TARGETS, coremltools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One way to compress: what it does, the least deployment target, and whether activations become 8-bit."""

    title: str
    target: str
    weights: Callable[[Any], Any]
    activations: bool = False


def _linear(**settings: object) -> Callable[[Any], Any]:
    # uint8, not int8: signed bytes come out wrong on the GPU and Neural Engine before iOS18 (coremltools #2114).
    def run(model: Any) -> Any:  # noqa: ANN401 - coremltools models
        optimize = _optimize()
        config = optimize.OpLinearQuantizerConfig(mode="linear_symmetric", **settings)
        return optimize.linear_quantize_weights(model, optimize.OptimizationConfig(global_config=config))

    return run


def _palette(bits: int, **settings: object) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:  # noqa: ANN401 - coremltools models
        optimize = _optimize()
        config = optimize.OpPalettizerConfig(mode="custom", lut_function=lambda w: cluster(w, bits), **settings)
        return optimize.palettize_weights(model, optimize.OptimizationConfig(global_config=config))

    return run


def _prune(share: float) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:  # noqa: ANN401 - coremltools models
        optimize = _optimize()
        config = optimize.OpMagnitudePrunerConfig(target_sparsity=share)
        return optimize.prune_weights(model, optimize.OptimizationConfig(global_config=config))

    return run


def _pruned_palette(share: float, bits: int) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:  # noqa: ANN401 - coremltools models
        optimize = _optimize()
        config = optimize.OpPalettizerConfig(mode="custom", lut_function=lambda w: cluster(w, bits))
        pruned = _prune(share)(model)
        return optimize.palettize_weights(
            pruned, optimize.OptimizationConfig(global_config=config), joint_compression=True
        )

    return run


_BLOCK: Final = 32

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "w8": Method(title="8-bit weights, one scale a channel", target="iOS16", weights=_linear(dtype="uint8")),
        "w8-tensor": Method(
            title="8-bit weights, one scale a tensor",
            target="iOS16",
            weights=_linear(dtype="uint8", granularity="per_tensor"),
        ),
        "w4": Method(
            title=f"4-bit weights, one scale per {_BLOCK} input channels; others stay",
            target="iOS18",
            weights=_linear(dtype="int4", granularity="per_block", block_size=_BLOCK),
        ),
        "w4-channel": Method(title="4-bit weights, one scale a channel", target="iOS18", weights=_linear(dtype="int4")),
        "palette8": Method(title="table of 256 weights a tensor", target="iOS16", weights=_palette(8)),
        "palette6": Method(title="table of 64 weights a tensor", target="iOS16", weights=_palette(6)),
        "palette4": Method(title="table of 16 weights a tensor", target="iOS16", weights=_palette(4)),
        "palette4-grouped": Method(
            title="table of 16 weights per 16 channels",
            target="iOS18",
            weights=_palette(4, granularity="per_grouped_channel", group_size=16),
        ),
        "prune50": Method(title="the smaller half of the weights removed", target="iOS16", weights=_prune(0.5)),
        "prune75": Method(title="the smallest 75 % of the weights removed", target="iOS16", weights=_prune(0.75)),
        "prune50-palette4": Method(
            title="half of the weights removed, a table of 16 for the rest",
            target="iOS18",
            weights=_pruned_palette(0.5, 4),
        ),
        "w8a8": Method(
            title="8-bit weights a channel and 8-bit activations a tensor",
            target="iOS17",
            weights=_linear(dtype="uint8"),
            activations=True,
        ),
    }
)


def method(name: str) -> Method:
    """Return the method of that name.

    Raises:
        CompilerError: there is none; the sentence lists them.
    """
    if name not in METHODS:
        raise CompilerError(f"option compress={name!r} is not known; there are {', '.join(METHODS)}")
    return METHODS[name]


def target_for(chosen: Method, stated: str | None, default: str) -> str:
    """Return the deployment target: the stated one, or the default raised to what the method needs.

    Raises:
        CompilerError: the stated target is too old for the method.
    """
    least = TARGETS.index(chosen.target)
    if stated in TARGETS and TARGETS.index(stated) < least:
        raise CompilerError(f"compression with {chosen.title} needs target {chosen.target}, not {stated}")
    return stated or TARGETS[max(least, TARGETS.index(default))]


def compress(model: Any, chosen: Method, ranges: Mapping[str, tuple[float, float]] | None = None) -> Any:  # noqa: ANN401 - coremltools models
    """Return the compressed model; a method with activations needs the `ranges` of the float model's tensors.

    Raises:
        CompilerError: coremltools fails, or nothing in the model qualifies.
    """
    try:
        with _quiet():
            if chosen.activations:
                assert ranges is not None, "activations need ranges"
                model = _quantised_activations(model, ranges)
            return chosen.weights(model)
    except Exception as error:
        raise CompilerError(f"coremltools failed to compress with {chosen.title}: {error}") from error


def cluster(weights: Array, bits: int) -> tuple[Array, Array]:
    """Return the k-means table of 2**bits entries and the index of each weight, flat, as uint8."""
    from coremltools._deps import _kmeans1d

    values, inverse, counts = np.unique(weights.reshape(-1), return_inverse=True, return_counts=True)
    table = np.zeros(1 << bits, weights.dtype)
    if len(values) <= len(table):
        table[: len(values)] = values
        return table, inverse.reshape(-1).astype(np.uint8)
    found = _kmeans1d.cluster(values.astype(np.float64), len(table), weights=counts)
    table[:] = found.centroids
    return table, np.array(found.clusters, np.uint8)[inverse.reshape(-1)]


def _quantised_activations(model: Any, ranges: Mapping[str, tuple[float, float]]) -> Any:  # noqa: ANN401 - coremltools models
    """Do what linear_quantize_activations does after its calibration, with ranges from elsewhere."""
    from coremltools.converters.mil.mil.passes.graph_pass import PassOption
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY
    from coremltools.models.utils import _apply_graph_pass

    optimize = _optimize()
    config = optimize.OptimizationConfig(
        global_config=optimize.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8")
    )
    stats = {name: {"rmin": low, "rmax": high} for name, (low, high) in ranges.items()}
    passes = [
        PASS_REGISTRY["compression::insert_prefix_quantize_dequantize_pair"],
        PASS_REGISTRY["compression::insert_suffix_quantize_dequantize_pair"],
    ]
    for each in passes:
        each.set_options([PassOption("config", config), PassOption("activation_stats", stats)])
    passes.append(PASS_REGISTRY["common::dequantize_quantize_pair_elimination"])
    return _apply_graph_pass(model, passes, spec_version=model.get_spec().specificationVersion, skip_model_load=True)


def _optimize() -> Any:  # noqa: ANN401 - the package has no types
    coremltools()
    import coremltools.optimize.coreml as optimize

    return optimize


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence coremltools: a warning per weight that stays (the facts count those), bars, folders left to Python."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
