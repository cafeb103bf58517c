"""Which fused function holds an ONNX node, so that a plan's tiles for nodes reach the functions.

Imports TVM; only reached through the methods of `TvmCompiler`.

TVM forgets the nodes' names. A node that has tiles is a reduction, and so is each function around one: nodes and calls
with the same extents are paired in their order, which the importer keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import tvm
from tvm import relax

from compilers.adapter import CompilerError
from compilers.tvm.blocks import UnscheduledError
from compilers.tvm.gpu_schedule import analyse_gpu
from partition.tile import CONV, DEPTHWISE, MATMUL, layers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from compilers.tvm.gpu_schedule import GpuNest
    from graphs import Graph
    from partition import Segment, Tile
    from partition.tile import Layer

T = TypeVar("T")
_Extents = tuple[int, int, bool]


def tiles_by_function(
    segment: Segment,
    module: Any,  # noqa: ANN401
    functions: Mapping[str, Any],
    read: Callable[..., T],
) -> dict[str, T]:
    """Return the segment's tiles by the name of the function that holds the node; `read` takes the sizes by name.

    Raises:
        CompilerError: a node is not there, has no tiles here or cannot be told from another, its sizes are not those
            that `read` takes, or two nodes share a function and ask for different tiles.
    """
    if not segment.tiles:
        return {}
    at = function_of_nodes(segment.graph, module, functions)
    found: dict[str, tuple[str, T]] = {}
    for tile in segment.tiles:
        name = _function(tile.node, segment.graph, at)
        value = _read(tile, read)
        other, before = found.setdefault(name, (tile.node, value))
        if before != value:
            raise CompilerError(
                f"nodes {other!r} and {tile.node!r} are one function of TVM ({name}), so they cannot have two tiles; "
                "give both the same"
            )
    return {name: value for name, (_, value) in found.items()}


def function_of_nodes(graph: Graph, module: Any, functions: Mapping[str, Any]) -> dict[str, str]:  # noqa: ANN401
    """Map each node with tiles to its function; a node whose extents leave a doubt is left out."""
    nodes: dict[_Extents, list[str]] = {}
    for layer in layers_of(graph)[0]:
        nodes.setdefault(_of_layer(layer), []).append(layer.name)
    nests = {name: nest for name, func in functions.items() if (nest := _nest(func)) is not None}
    calls: dict[_Extents, list[str]] = {}
    for name in _called(module):
        if name in nests:
            calls.setdefault(_of_nest(nests[name]), []).append(name)
    pairs: dict[str, str] = {}
    for extents, names in nodes.items():
        there = calls.get(extents, [])
        if len(there) == len(names) or len(set(there)) == 1:
            pairs |= dict(zip(names, there if len(there) == len(names) else there[:1] * len(names), strict=True))
    return pairs


def _of_layer(layer: Layer) -> _Extents:
    weighted = layer.kind in (CONV, MATMUL, DEPTHWISE)
    outputs = layer.outputs if weighted or layer.passes > 1 else max(layer.outputs, layer.positions)
    return outputs, layer.macs // outputs, weighted


def _of_nest(nest: GpuNest) -> _Extents:
    return nest.batches * nest.positions * nest.channels, nest.reduction, nest.weighted


def _nest(func: Any) -> GpuNest | None:  # noqa: ANN401
    try:
        return analyse_gpu(func)
    except UnscheduledError:
        return None


def _called(module: Any) -> list[str]:  # noqa: ANN401
    """List the functions that `main` calls, in order."""
    names: list[str] = []

    def visit(expr: Any) -> None:  # noqa: ANN401
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            names.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(module["main"], visit)
    return names


def _function(node: str, graph: Graph, at: Mapping[str, str]) -> str:
    if node in at:
        return at[node]
    if node not in {n.name for n in graph.nodes()}:
        raise CompilerError(f"the plan has a tile for {node!r}, and {graph.name} has no such node")
    raise CompilerError(f"the plan has a tile for {node!r}, which is no reduction that TVM keeps as one function")


def _read(tile: Tile, read: Callable[..., T]) -> T:
    try:
        return read(**dict(tile.sizes))
    except (TypeError, ValueError) as error:
        raise CompilerError(f"the plan's tile for {tile.node!r} is none of this processor: {error}") from error
