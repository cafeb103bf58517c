"""Which fused function holds an ONNX node, so that a plan's tiles for nodes reach the functions.

Imports TVM; only reached through the methods of `TvmCompiler`.

A node that has tiles is a reduction, and so is the function around it; what else fusion put there has no tile.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

from compilers.adapter import CompilerError
from compilers.tvm.blocks import UnscheduledError
from compilers.tvm.frontend import nodes_of
from compilers.tvm.gpu_schedule import analyse_gpu
from partition.tile import layers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphs import Graph
    from partition import Segment, Tile

T = TypeVar("T")


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
    """Map each node with tiles to the function that reduces for it; a node that two reduce for is left out."""
    at: dict[str, set[str]] = {}
    for name, calls in nodes_of(module).items():
        if name in functions and _is_nest(functions[name]):
            for node in itertools.chain.from_iterable(calls):
                at.setdefault(node, set()).add(name)
    tiled = {layer.name for layer in layers_of(graph)[0]}
    return {node: next(iter(names)) for node, names in at.items() if node in tiled and len(names) == 1}


def _is_nest(func: Any) -> bool:  # noqa: ANN401
    try:
        return analyse_gpu(func) is not None
    except UnscheduledError:
        return False


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
