"""Where the error comes from: each tensor of a quantised graph against the float one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphs.error import OutputError, output_error
from graphs.quantisation.calibration import check_feed
from graphs.quantisation.half import inlined
from graphs.quantisation.runtime import expose, open_session, vendor_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from graphs.graph import Graph

    Array = npt.NDArray[Any]


def layer_errors(graph: Graph, quantised: Graph, feed: Mapping[str, Array]) -> Mapping[str, OutputError]:
    """Compare every float activation that both graphs have, in the order of the float graph.

    Both run on ONNX Runtime without optimisations. A tensor with a Q/DQ pair is taken after the pair, as its readers
    see it. The error adds up along the graph: the layer that loses most is where the SQNR falls most from its inputs
    to its outputs. Tensors that folding has removed are left out.

    Args:
        graph: The float graph.
        quantised: What ``quantise`` made of it.
        feed: One array per graph input.

    Returns:
        Tensor name -> error; ``sqnr_db`` is None where the verdict says why.

    Raises:
        GraphError: The feed does not fit the graph, or a graph does not run.
    """
    check_feed(graph, feed, "The feed")
    there = quantised.tensors()
    seen = {
        name: next((seen for seen in (f"{name}_DequantizeLinear_Output", name) if seen in there), None)
        for name in dict.fromkeys(output for node in graph.nodes() for output in node.outputs if output)
        if graph.tensors()[name].dtype.startswith("float")
    }
    pairs = {name: other for name, other in seen.items() if other is not None}
    reference = _activations(graph, list(pairs), feed)
    outputs = _activations(quantised, list(pairs.values()), feed)
    return {name: output_error(reference[name], outputs[other]) for name, other in pairs.items()}


def _activations(graph: Graph, tensors: list[str], feed: Mapping[str, Array]) -> dict[str, Array]:
    with vendor_errors(f"Running {graph.name} for its layers"):
        session = open_session(expose(inlined(graph), tensors))
        return dict(zip(tensors, session.run(None, dict(feed)), strict=True))
