"""One model, some of its nodes in int8 and the rest in float: mixed from the float and the QDQ form of one graph.

Both forms come from the same folding and fusing, so they share the names of nodes and tensors. A tensor that int8
nodes make and float nodes read is dequantised by its maker; one that float nodes make is quantised by its reader.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import onnx

from graphs.error import OutputError, compare
from graphs.graph import GraphError
from graphs.onnx_io import from_proto
from graphs.quantisation.prepare import prepare
from graphs.quantisation.runtime import open_session, vendor_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from graphs.graph import Graph

    Array = npt.NDArray[Any]

_RAW: Final = "_QuantizeLinear_Input"
_CODED: Final = "_QuantizeLinear_Output"
_BACK: Final = "_DequantizeLinear_Output"
_CONVERSIONS: Final = {"QuantizeLinear", "DequantizeLinear"}
_LEFT_OUT: Final = {"Relu", "Clip"}  # saturation at the ends of the quantised range stands in for them
_OPSET: Final = 13


def float_form(graph: Graph) -> Graph:
    """Give the float graph that recipe ``int8`` quantises: folded and fused, with the names that its result has.

    Raises:
        GraphError: As `quantise`.
    """
    with vendor_errors(f"Folding {graph.name}"):
        model = prepare(graph, opset=_OPSET)
    return from_proto(model, name=f"{graph.name}-float")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """A mixed graph. `owners` maps each of its nodes to the nodes of the float form that it may go with.

    That is one node; for the QuantizeLinear of a tensor made in float it is every int8 reader, of which the first to
    run must take it.
    """

    graph: Graph
    owners: Mapping[str, tuple[str, ...]]


class Mixer:
    """Mixes a float form with what `quantise(graph, "int8", ...)` made of the same graph.

    `bound` names the nodes that the QDQ graph lacks, and the node whose quantised range stands in for each: both are
    int8 or neither. Raise GraphError when the two are not forms of one graph.
    """

    def __init__(self, floating: Graph, quantised: Graph) -> None:
        self.floating, self.quantised = floating, quantised
        self.float, self.int8 = floating.proto(), quantised.proto()
        self.reads = {node.name: node.reads for node in floating.nodes()}
        self.lowered_reads = {node.name: node.reads for node in quantised.nodes()}
        self.made_by = {name: node.name for node in floating.nodes() for name in node.outputs if name}
        self.nodes = {node.name: node for node in self.int8.graph.node if node.op_type not in _CONVERSIONS}
        constants = {tensor.name for tensor in self.int8.graph.initializer}
        self.back = {n.output[0]: n for n in self.int8.graph.node if n.op_type == "DequantizeLinear"}
        self.coder = {
            n.input[0].removesuffix(_RAW) if n.input[0] not in self.made_by else n.input[0]: n
            for n in self.int8.graph.node
            if n.op_type == "QuantizeLinear" and n.input[0] not in constants
        }
        self.coded = {coder.output[0]: name for name, coder in self.coder.items()}
        self.bound = self._bound()
        graph = self.float.graph
        self.infos = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}

    def _bound(self) -> dict[str, str]:
        makers = {name: node.name for node in self.nodes.values() for name in node.output}
        bound: dict[str, str] = {}
        read_by = {name: node for node, names in self.reads.items() for name in names}
        for node in reversed(self.float.graph.node):
            if node.name in self.nodes:
                continue
            made = node.output[0]
            # Of a chain (a Relu of a Relu) the last one's range is there, and the others go where it goes.
            maker = makers.get(made) or makers.get(f"{made}{_RAW}") or bound.get(read_by.get(made, ""))
            if node.op_type not in _LEFT_OUT or maker is None:
                raise GraphError(f"int8 and float forms of {self.floating.name} differ at {node.name!r}: use either.")
            bound[node.name] = maker
        if unknown := sorted(set(self.nodes) - set(self.reads)):
            raise GraphError(f"int8 and float forms of {self.floating.name} differ at {unknown[0]!r}: use either.")
        return dict(reversed(bound.items()))

    def mix(self, lowered: Collection[str]) -> Mixture:
        """Give the graph in which the float form's nodes ``lowered`` are int8.

        Raises:
            GraphError: A name is unknown, or a node and what stands in for it are parted.
        """
        chosen = frozenset(lowered)
        if unknown := sorted(chosen - set(self.reads)):
            raise GraphError(f"{self.floating.name} has no node {unknown[0]!r}.")
        for node, maker in self.bound.items():
            if (node in chosen) != (maker in chosen):
                raise GraphError(f"{node!r} is part of {maker!r} in int8: both are, or neither is.")
        return _Mixing(self, chosen).mixture()

    @cached_property
    def whole(self) -> Mixture:
        """The graph in which everything is int8: to the bit what the QDQ graph computes, without shared conversions."""
        return self.mix(tuple(self.reads))

    def errors(
        self, parts: Iterable[Collection[str]], feed: Mapping[str, Array], reference: Mapping[str, Array]
    ) -> Iterator[Mapping[str, OutputError]]:
        """Run the graph with each set of nodes alone in int8, without optimisations, and give the errors by output.

        Raises:
            GraphError: As `mix`, or ONNX Runtime cannot run it.
        """
        for part in parts:
            with vendor_errors(f"Running {self.floating.name} with some nodes in int8"):
                session = open_session(_Mixing(self, frozenset(part)).model())
                found = session.run(None, dict(feed))
            names = [spec.name for spec in self.floating.outputs()]
            yield compare(reference, dict(zip(names, found, strict=True)))

    def float_reads(self, node: str, chosen: frozenset[str]) -> tuple[str, ...]:
        """Name the tensors that a node reads as they are, neither coded nor constant."""
        if node not in chosen:
            return self.reads[node]
        return tuple(name for name in self.lowered_reads.get(node, ()) if name not in self.back)

    def coded_reads(self, node: str) -> Iterator[str]:
        """Name the float tensors that an int8 node reads in coded form."""
        for name in self.lowered_reads.get(node, ()):
            if name in self.back and self.back[name].input[0] in self.coded:
                yield self.coded[self.back[name].input[0]]


class _Mixing:
    """One mixture under construction."""

    def __init__(self, forms: Mixer, chosen: frozenset[str]) -> None:
        self.forms, self.chosen = forms, chosen
        self.nodes: list[onnx.NodeProto] = []
        self.owners: dict[str, tuple[str, ...]] = {}
        self.infos: dict[str, onnx.ValueInfoProto] = dict(forms.infos)
        self.used: Counter[str] = Counter()
        order = [node.name for node in forms.float.graph.node]
        self.wanted_float = {name for node in order for name in forms.float_reads(node, chosen)}
        self.wanted_float |= {spec.name for spec in forms.floating.outputs()}
        self.readers: dict[str, list[str]] = {}
        for node in order:
            for name in forms.coded_reads(node) if node in chosen else ():
                self.readers.setdefault(name, []).append(node)
        self.ready: set[str] = set()

    def mixture(self) -> Mixture:
        model = self.model()
        return Mixture(graph=from_proto(model, name=f"{self.forms.quantised.name}-mixed"), owners=self.owners)

    def model(self) -> onnx.ModelProto:
        names: tuple[set[str], set[str]] = (set(), set())  # constants read by float nodes, by nodes of the QDQ graph
        for node in self.forms.float.graph.node:
            if node.name in self.chosen:
                self._lower(node.name)
            else:
                self._add(node, (node.name,))
                names[0].update(node.input)
        lowered = [n for n in self.nodes if not (n.name in self.forms.reads and n.name not in self.chosen)]
        names[1].update(name for node in lowered for name in node.input)
        return self._model(names, lowered)

    def _add(self, node: onnx.NodeProto, owners: tuple[str, ...]) -> None:
        self.nodes.append(node)
        self.owners[node.name] = owners

    def _lower(self, name: str) -> None:
        if name not in self.forms.nodes:
            return
        for read in self.forms.coded_reads(name):
            maker = self.forms.made_by.get(read)
            if maker not in self.chosen and read not in self.ready:
                self.ready.add(read)
                self._add(_node_like(self.forms.coder[read], read), tuple(self.readers[read]))
        node = copy.deepcopy(self.forms.nodes[name])
        for port, read in enumerate(node.input):
            if read in self.forms.back:
                node.input[port] = self._dequantised(self.forms.back[read], name)
        made = [out.removesuffix(_RAW) if out not in self.forms.made_by else out for out in node.output]
        coded = [out for out in made if out in self.forms.coder]
        for port, out in enumerate(made):
            node.output[port] = f"{out}{_RAW}" if out in self.forms.coder else out
        self._add(node, (name,))
        for out in coded:
            self._code(out, name)

    def _code(self, made: str, owner: str) -> None:
        """Quantise what an int8 node has made, and give it back in float where somebody reads it so."""
        coder = self.forms.coder[made]
        self._know(made, f"{made}{_RAW}")
        self._add(_node_like(coder, f"{made}{_RAW}"), (owner,))
        if made in self.wanted_float:
            back = onnx.helper.make_node(
                "DequantizeLinear", [coder.output[0], *coder.input[1:]], [made], name=f"{made}_to_float"
            )
            back.attribute.extend(coder.attribute)
            self._add(back, (owner,))

    def _dequantised(self, back: onnx.NodeProto, owner: str) -> str:
        """Add a DequantizeLinear of the owner's own, as a shared one would tie its readers together."""
        source = back.input[0]
        stem = source.removesuffix(_CODED)
        self.used[source] += 1
        suffix = "" if self.used[source] == 1 else f"_{self.used[source]}"
        mine = copy.deepcopy(back)
        mine.name, mine.output[0] = f"{stem}_DequantizeLinear{suffix}", f"{stem}{_BACK}{suffix}"
        if source in self.forms.coded:
            self._know(self.forms.coded[source], mine.output[0])
        self._add(mine, (owner,))
        return str(mine.output[0])

    def _know(self, like: str, name: str) -> None:
        """Note that tensor `name` has the type of `like`: shape inference stops at operators of vendors."""
        if like in self.infos:
            info = copy.deepcopy(self.infos[like])
            info.name = name
            self.infos[name] = info

    def _model(self, names: tuple[set[str], set[str]], lowered: list[onnx.NodeProto]) -> onnx.ModelProto:
        whole = self.forms.float
        model = onnx.ModelProto(ir_version=max(whole.ir_version, self.forms.int8.ir_version))
        imports = {entry.domain: entry for form in (whole, self.forms.int8) for entry in form.opset_import}
        model.opset_import.extend(imports.values())
        model.functions.extend(whole.functions)
        graph = model.graph
        graph.name = whole.graph.name
        graph.initializer.extend(self._constants(names, lowered))
        graph.node.extend(self.nodes)
        graph.input.extend(whole.graph.input)
        graph.output.extend(whole.graph.output)
        ends = {value.name for value in (*graph.input, *graph.output)}
        made = {name for node in self.nodes for name in node.output}
        graph.value_info.extend(info for name, info in self.infos.items() if name in made - ends)
        return model

    def _constants(self, names: tuple[set[str], set[str]], lowered: list[onnx.NodeProto]) -> list[onnx.TensorProto]:
        """Take the constants of both forms; one of the QDQ graph that has the name of another one gets its own."""
        captured = {name for node in self.nodes for name in self.forms.reads.get(node.name, ())}
        given_out = {value.name for value in self.forms.float.graph.output}
        kept = {t.name: t for t in self.forms.float.graph.initializer if t.name in names[0] | captured | given_out}
        for tensor in self.forms.int8.graph.initializer:
            if tensor.name not in names[1]:
                continue
            same = kept.get(tensor.name)
            if same is not None and same.SerializeToString() != tensor.SerializeToString():
                tensor = _renamed(tensor, lowered)  # noqa: PLW2901
            kept[tensor.name] = tensor
        return list(kept.values())


def _node_like(coder: onnx.NodeProto, source: str) -> onnx.NodeProto:
    node = copy.deepcopy(coder)
    node.input[0] = source
    return node


def _renamed(tensor: onnx.TensorProto, readers: list[onnx.NodeProto]) -> onnx.TensorProto:
    mine = copy.deepcopy(tensor)
    mine.name = f"{tensor.name}_int8"
    for node in readers:
        node.input[:] = [mine.name if name == tensor.name else name for name in node.input]
    return mine
