"""Cut a sub-model out of a graph: valid by itself, sharing the weights with the graph it came from."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import onnx

from graphs.graph import DTYPES, Graph, GraphError
from graphs.nodes import all_nodes, bodies, reads

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from graphs.graph import Node, TensorSpec

_OF_SHAPES = frozenset({"Shape", "Size", "EyeLike"})
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip


def extract(graph: Graph, nodes: Collection[str]) -> Graph:
    """Return the sub-model made of some nodes, given by name in any order.

    Inputs are the tensors that come from outside, in the order of the graph's inputs and then of their making;
    what the bodies of If, Loop and Scan capture is among them. Outputs are the tensors that an outside node reads or
    that the graph gives out, in the order of their making. An initialiser goes into each part that reads it; one
    that the graph gives out is an output of the part with its first node, and an input given out is none of any part.
    The counts and shapes are those found for the whole.

    Raises:
        GraphError: A name is unknown; the nodes cannot run in one go, as a path leaves and comes back; nothing
            outside reads what they make; or a tensor at the border has no known dtype.
    """
    chosen = _chosen(graph, nodes)
    _check_convex(graph, chosen)
    inside = [node for node in graph.nodes() if node.name in chosen]
    inputs, outputs = _border(graph, inside)
    if not outputs:
        raise GraphError(f"no result of {_some(chosen)} is read outside or given out: cut elsewhere")
    return _assemble(graph, inside, inputs, outputs)


def unused_inputs(graph: Graph) -> tuple[str, ...]:
    """Return the graph inputs that no node reads and no output passes on; a run has to feed them all the same."""
    read = {name for node in graph.nodes() for name in node.reads} | {spec.name for spec in graph.outputs()}
    return tuple(spec.name for spec in graph.inputs() if spec.name not in read)


def fixed_outputs(graph: Graph) -> frozenset[str]:
    """Return the graph outputs whose values are the same for all inputs: no path leads to them but one of shapes."""
    decided = {spec.name for spec in graph.inputs()}
    for node in graph._body.graph.node:  # noqa: SLF001
        if (_reads_values(node, graph.tensors()) and not decided.isdisjoint(reads(node))) or _draws(node):
            decided.update(node.output)
    return frozenset(spec.name for spec in graph.outputs() if spec.name not in decided)


def _reads_values(node: onnx.NodeProto, tensors: Mapping[str, TensorSpec]) -> bool:
    """Tell a node whose results depend on more than the known shape of what it reads."""
    if node.domain or node.op_type not in _OF_SHAPES:
        return True
    return node.input[0] in tensors and tensors[node.input[0]].shape is None


def _draws(node: onnx.NodeProto) -> bool:
    return any(one.op_type in _RANDOM for one in (node, *(n for body in bodies(node) for n in all_nodes(body))))


def _chosen(graph: Graph, nodes: Collection[str]) -> frozenset[str]:
    if isinstance(nodes, str):
        raise GraphError(f"'{nodes}' is one name: give a collection of node names")
    chosen = frozenset(nodes)
    if not chosen:
        raise GraphError(f"no nodes to cut out of {graph.name} were given: name at least one")
    names = [node.name for node in graph.nodes()]
    for name in sorted(chosen.difference(names)):
        close = get_close_matches(name, names, n=1)
        hint = f": did you mean '{close[0]}'?" if close else ": `nodes()` lists them"
        raise GraphError(f"{graph.name} has no node '{name}'{hint}")
    return chosen


def _check_convex(graph: Graph, chosen: frozenset[str]) -> None:
    """Refuse a set that an outside node both depends on and feeds."""
    inside: set[str] = set()
    left: dict[str, str] = {}  # tensor made outside from a result of the part -> node that makes it
    for node in graph.nodes():
        if node.name in chosen:
            back = next((name for name in node.reads if name in left), None)
            if back is not None:
                raise GraphError(
                    f"{_some(chosen)} cannot run as one part: '{left[back]}' outside needs a result of it and gives "
                    f"'{back}' to '{node.name}' inside; add '{left[back]}', or cut into two parts"
                )
            inside.update(node.outputs)
        elif any(name in inside or name in left for name in node.reads):
            left.update(dict.fromkeys(filter(None, node.outputs), node.name))


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _border(graph: Graph, inside: list[Node]) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the tensors that come in and those that go out."""
    chosen = {node.name for node in inside}
    made = {name for node in inside for name in node.outputs if name}
    constants = graph.initializers() if graph.nodes()[0].name in chosen else {}
    needed = {name for node in inside for name in node.reads} - made
    read_outside = {name for node in graph.nodes() if node.name not in chosen for name in node.reads}
    given_out = [spec.name for spec in graph.outputs()]
    # The graph's own outputs keep their order; what only crosses the cut follows in the order of its making.
    going = dict.fromkeys([*given_out, *(name for name in graph.tensors() if name in read_outside)])
    tensors = {**constants, **graph.tensors()}
    coming = [tensors[name] for name in graph.tensors() if name in needed]
    return coming, [tensors[name] for name in going if name in made or name in constants]


def _assemble(graph: Graph, inside: list[Node], inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Graph:
    names = dict.fromkeys(spec.name for spec in inputs)
    names.update(dict.fromkeys(name for node in inside for name in node.outputs if name))
    read = {name for node in inside for name in node.reads} | {spec.name for spec in outputs}
    infos = {name: info for name, info in graph._infos.items() if name in names}  # noqa: SLF001  # one package
    infos_of_ends = {info.name: info for info in graph._body.graph.output} | infos  # noqa: SLF001
    ends = {spec.name for spec in graph.outputs()}
    for spec in (*inputs, *outputs):
        _check_border(spec, infos_of_ends, needs_rank=spec.name not in ends)
    weights = {name: weight for name, weight in graph._weights.items() if name in read}  # noqa: SLF001
    return Graph(
        name=graph.name,
        body=_body(graph, inside, *([infos_of_ends[spec.name] for spec in specs] for specs in (inputs, outputs))),
        weights=weights,
        infos=infos,
        tensors={name: graph.tensors()[name] for name in names},
        nodes=inside,
        base_dir=graph.base_dir if any(weight.external for weight in weights.values()) else None,
    )


def _check_border(spec: TensorSpec, infos: dict[str, onnx.ValueInfoProto], *, needs_rank: bool) -> None:
    """Refuse a border tensor that no runtime could be told about; only an output of the whole may lack its rank."""
    info = infos.get(spec.name)
    if info is None or spec.dtype not in DTYPES.values():
        raise GraphError(f"the tensor '{spec.name}' has no known dtype ({spec.dtype}): cut before or after it")
    if needs_rank and not info.type.tensor_type.HasField("shape"):
        raise GraphError(f"the tensor '{spec.name}' has no known rank: cut before or after it")


def _body(
    graph: Graph, inside: list[Node], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """Return the part's body; functions, opsets and metadata stay, whether or not the part needs them all."""
    whole = graph._body  # noqa: SLF001  # one package
    body = onnx.ModelProto(ir_version=whole.ir_version)
    body.opset_import.extend(whole.opset_import)
    body.functions.extend(whole.functions)
    body.metadata_props.extend(whole.metadata_props)
    chosen = {node.name for node in inside}
    body.graph.name = whole.graph.name
    body.graph.node.extend(node for node in whole.graph.node if node.name in chosen)
    body.graph.input.extend(inputs)
    body.graph.output.extend(outputs)
    tensors = {name for node in inside for name in (*node.reads, *node.outputs)}
    annotations = whole.graph.quantization_annotation
    body.graph.quantization_annotation.extend(note for note in annotations if note.tensor_name in tensors)
    return body
