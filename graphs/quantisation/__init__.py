"""Lower the precision of a graph: one entry point, `quantise(graph, recipe, calibration)`.

The result is a graph like any other: it runs on ONNX Runtime, and its error is a comparison of outputs
(`graphs.error`) or of layers (`layer_errors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphs.graph import GraphError
from graphs.quantisation.calibration import Calibration
from graphs.quantisation.layers import layer_errors
from graphs.quantisation.ranges import METHODS
from graphs.quantisation.runtime import vendor_errors

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx

    from graphs.graph import Graph
    from graphs.quantisation.ranges import Method

__all__ = ["METHODS", "RECIPES", "Calibration", "layer_errors", "quantise"]

WEIGHT_ONLY = ("fp16", "w4")
QUANTISED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
RECIPES = ("int8", "int8-per-tensor", "w8a16", "mixed", *WEIGHT_ONLY)


def quantise(
    graph: Graph,
    recipe: str,
    calibration: Calibration | None = None,
    *,
    keep_float: Collection[str] = (),
    method: Method = "minmax",
) -> Graph:
    """Give the graph in lower precision, named ``<name>-<recipe>``; the same inputs give the same bytes.

    Recipes: ``int8`` (uint8 activations, symmetric int8 weights, per channel for Conv, ConvTranspose and Gemm),
    ``int8-per-tensor``, ``w8a16`` (uint16 activations), ``mixed`` (``int8`` with the nodes in ``keep_float`` left
    float), ``fp16`` (float16 inside, float32 inputs and outputs), ``w4`` (int4 weights in blocks of 32, float
    activations). The Q/DQ recipes first fold and fuse the graph; a node that remains keeps its name.

    Args:
        graph: A float graph with known shapes, up to 2 GB.
        recipe: One of ``RECIPES``.
        calibration: Data for the ranges of activations; not needed for ``fp16`` and ``w4``.
        keep_float: Names of nodes that stay float, with any recipe.
        method: How ranges are chosen: ``minmax``, ``percentile`` (99.999 % of the values) or ``entropy``.

    Raises:
        GraphError: An unknown recipe, method or node, calibration data that does not fit the graph, or a graph that
            ONNX Runtime cannot take.
    """
    _check_arguments(graph, recipe, calibration, keep_float, method)
    with vendor_errors(f"Quantising {graph.name} with recipe {recipe}"):
        model = _lower(graph, recipe, calibration, keep_float, method)
    from graphs.onnx_io import from_proto

    # Producer and properties name ONNX Runtime's version and files; they say nothing about what is computed.
    model.ClearField("metadata_props")
    return from_proto(model, name=f"{graph.name}-{recipe}")


def _check_arguments(
    graph: Graph, recipe: str, calibration: Calibration | None, keep_float: Collection[str], method: str
) -> None:
    if recipe not in RECIPES:
        raise GraphError(f"There is no quantisation recipe {recipe!r}; there are {', '.join(RECIPES)}.")
    if method not in METHODS:
        raise GraphError(f"There is no calibration method {method!r}; there are {', '.join(METHODS)}.")
    if calibration is None and recipe not in WEIGHT_ONLY:
        raise GraphError(f"Recipe {recipe} needs calibration data for the ranges of activations.")
    if recipe == "mixed" and not keep_float:
        raise GraphError("Recipe mixed needs the nodes that stay float (keep_float); without any it is int8.")
    if recipe not in WEIGHT_ONLY and any(node.op_type in QUANTISED for node in graph.nodes()):
        raise GraphError(f"{graph.name} is quantised already; quantise the float graph that it was made of.")
    if not graph.nodes():
        raise GraphError(f"{graph.name} has no operations, so there is nothing to quantise.")
    unknown = sorted(set(keep_float) - {node.name for node in graph.nodes()})
    if unknown:
        raise GraphError(f"{graph.name} has no nodes {unknown} to keep float.")


def _lower(
    graph: Graph, recipe: str, calibration: Calibration | None, keep_float: Collection[str], method: Method
) -> onnx.ModelProto:
    if recipe == "fp16":
        from graphs.quantisation.half import to_half

        return to_half(graph, keep_float)
    if recipe == "w4":
        from graphs.quantisation.blocks import quantise_blocks

        return quantise_blocks(graph, keep_float)
    from graphs.quantisation.qdq import RECIPES as WIDTHS
    from graphs.quantisation.qdq import quantise_qdq

    assert calibration is not None, "checked with the other arguments"
    widths = WIDTHS["int8" if recipe == "mixed" else recipe]
    return quantise_qdq(graph, widths, calibration, keep_float, method)
