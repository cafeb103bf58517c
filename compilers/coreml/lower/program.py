"""A whole ONNX graph to a MIL program: names, inputs and outputs, constants, one node after the other."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower import fold
from compilers.coreml.lower.control import CONTROL, lower_control
from compilers.coreml.lower.functions import FOLDED_ONLY, definition, has_definition
from compilers.coreml.lower.node import Mil, Node
from compilers.coreml.lower.table import TABLE
from compilers.coreml.lower.value import MAX_RANK, MIL_DTYPE, Value
from compilers.coreml.vendor import builder, coremltools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

    from compilers.coreml.vendor import MilVar
    from graphs import Graph
    from graphs import Node as GraphNode

# Core ML's model inputs and outputs hold these only; the rest is carried in a wider type and cast inside.
_CARRIER: Final = {"bool": "int32", "uint8": "int32", "int8": "int32", "int64": "int32"}

# Words of MIL's text form: coremltools renames a tensor that has one, and the package's border is then not found.
_KEYWORDS: Final = frozenset(
    {"any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string", "state", "block"}
    | {"bf16", "fp16", "fp32", "fp64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """A model input or output: its ONNX side and the name it has in the package."""

    name: str
    mil_name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def carrier_dtype(self) -> str:
        """The numpy type of the array that crosses the package's border."""
        return _CARRIER.get(self.dtype, self.dtype)

    @property
    def carrier_shape(self) -> tuple[int, ...]:
        """The shape of that array: Core ML has no rank-0 inputs."""
        return self.shape or (1,)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lowered:
    """A MIL program and how its names relate to the ONNX graph."""

    program: Any
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    node_of: Mapping[str, str]  # MIL operation name -> ONNX node name


def lower(model: onnx.ModelProto, target: str) -> Lowered:
    """Translate a checked model with static shapes into a MIL program for `target` ("iOS17").

    Raises:
        CompilerError: a node, attribute, input or type is not handled; the sentence names it.
    """
    return _GraphLowering(model, target).run()


def node_refusals(graph: Graph) -> dict[str, str]:
    """Map each node whose operator has no lowering to the reason; attributes are judged by `lower` only."""
    return {
        node.name: f"operator {_key(node)} has no Core ML lowering"
        for node in graph.nodes()
        if not has_lowering(node, graph.opset)
    }


def has_lowering(node: onnx.NodeProto | GraphNode, opset: int) -> bool:
    """Tell whether there is a way from the operator to MIL: its own, its ONNX definition, or folding away."""
    known = node.op_type in FOLDED_ONLY or _key(node) in CONTROL or _key(node) in TABLE
    return known or has_definition(node.op_type, node.domain, opset)


def _key(node: onnx.NodeProto | GraphNode) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


class _Names:
    """Names that MIL can hold: identifiers, each used once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(_KEYWORDS)
        self._next: collections.Counter[str] = collections.Counter()

    def __call__(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        base = base if re.match(r"[A-Za-z_]", base) else f"_{base}"
        name = base
        while name in self._taken:
            self._next[base] += 1
            name = f"{base}_{self._next[base]}"
        self._taken.add(name)
        return name


class _GraphLowering:
    def __init__(self, model: onnx.ModelProto, target: str) -> None:
        self._model = model
        self._graph = model.graph
        self._target = target
        self._opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        self._names = _Names()
        self._values: dict[str, Value] = {}
        self._node_of: dict[str, str] = {}
        self._owner = ""  # the graph's node whose body or definition is being lowered
        self._declared = _infos(self._graph)
        self._used = _read_names(self._graph)

    def run(self) -> Lowered:
        coremltools()
        from coremltools.converters.mil.mil import Function, Program

        self._read_constants()
        inputs = tuple(self._input_ports())
        reserved = [self._names(info.name) for info in self._graph.output]
        if not inputs:
            raise CompilerError("the graph has no inputs; Core ML cannot hold a model of constants only")
        placeholders = {port.mil_name: _placeholder(port) for port in inputs}
        with Function(placeholders, opset_version=_target(self._target)) as function:
            for port in inputs:
                self._bind_input(port, function.inputs[port.mil_name])
            for node in self._graph.node:
                self._lower_node(node)
            # Only now: a node that is refused says more than an output whose shape it leaves open.
            outputs = tuple(map(_port, self._graph.output, reserved))
            function.set_outputs([self._output(port) for port in outputs])
        program = Program()
        program.add_function("main", function)
        return Lowered(program=program, inputs=inputs, outputs=outputs, node_of=self._node_of)

    # -- borders --------------------------------------------------------------------------------------------

    def _read_constants(self) -> None:
        from onnx import numpy_helper

        if self._graph.sparse_initializer:
            raise CompilerError("sparse initialisers are not handled by the Core ML lowering")
        for tensor in self._graph.initializer:
            array = numpy_helper.to_array(tensor)
            self._values[tensor.name] = Value(name=tensor.name, dtype=str(array.dtype), const=array)

    def _input_ports(self) -> Iterator[Port]:
        initialisers = {t.name for t in self._graph.initializer}
        for info in self._graph.input:
            if info.name not in initialisers:
                yield _port(info, self._names(info.name))

    def _bind_input(self, port: Port, var: MilVar) -> None:
        mil = self._mil(port.mil_name)
        if not port.shape:
            var = mil.squeeze(x=var, axes=[0])
        if port.dtype == "bool":
            var = mil.not_equal(x=var, y=np.int32(0))
        elif port.dtype in ("uint8", "int8"):
            var = mil.cast(x=var, dtype=port.dtype)
        self._values[port.name] = Value(name=port.name, dtype=port.dtype, var=var)

    def _output(self, port: Port) -> MilVar:
        node = _port_node(self._values, port, self._mil(port.mil_name))
        var = node.x(0)
        if tuple(var.shape) != port.shape:
            raise CompilerError(f"output {port.name!r} came out as {tuple(var.shape)}, the graph says {port.shape}")
        if port.dtype in ("bool", "uint8", "int8"):
            var = node.mil.cast(x=var, dtype="int32")
        if not port.shape:
            var = node.mil.expand_dims(x=var, axes=[0])
        # An own variable with the reserved name; it also parts outputs that alias an input or each other.
        return builder().identity(x=var, name=port.mil_name)

    # -- nodes ----------------------------------------------------------------------------------------------

    def _lower_node(self, proto: onnx.NodeProto) -> None:
        inputs = [self._values[name] if name else None for name in proto.input]
        if fold.foldable(proto) and all(v is None or v.const is not None for v in inputs):
            self._fold(proto, inputs)
        elif _key(proto) in CONTROL:
            self._lower_control(proto)
        elif _key(proto) in TABLE:
            self._lower_by_table(proto)
        elif has_definition(proto.op_type, proto.domain, self._opsets.get("ai.onnx", 1)):
            self._lower_by_definition(proto)
        else:
            raise CompilerError(f"node {proto.name!r}: operator {_key(proto)} has no Core ML lowering")

    def _lower_by_table(self, proto: onnx.NodeProto) -> None:
        node = Node(proto, self._schema(proto), self._values, self._mil(proto.name), self._used)
        try:
            TABLE[_key(proto)](node)
            produced = node.finish()
        except CompilerError as error:
            raise _named(error, proto) from error
        for value in produced.values():
            self._check(proto, value)
        self._values.update(produced)

    def _lower_by_definition(self, proto: onnx.NodeProto) -> None:
        """Lower the nodes by which ONNX defines the operator, which may have definitions of their own."""
        values = {name: self._values[name] for name in proto.input if name}
        inner = definition(self._model, proto, values)
        self._used |= {name for node in inner for name in node.input} | _read_names(
            *(g for n in inner for g in _bodies(n))
        )
        with self._inside(proto):
            for node in inner:
                self._lower_node(node)

    def _lower_control(self, proto: onnx.NodeProto) -> None:
        try:
            with self._inside(proto):
                results = lower_control(proto, self, self._opsets.get("ai.onnx", 1))
        except CompilerError as error:
            raise _named(error, proto) from error
        for name, result in zip(proto.output, results, strict=True):
            if name:
                value = dataclasses.replace(result, name=name)
                self._check(proto, value)
                self._values[name] = value

    @contextlib.contextmanager
    def _inside(self, proto: onnx.NodeProto) -> Iterator[None]:
        """Give what is lowered inside to the graph's own node."""
        before = self._owner
        self._owner = before or proto.name
        try:
            yield
        finally:
            self._owner = before

    def value(self, name: str) -> Value | None:
        """Return a tensor by its ONNX name; None for an omitted one."""
        return self._values[name] if name else None

    def body(self, graph: onnx.GraphProto, bound: Mapping[str, Value]) -> list[Value]:
        """Lower the nodes of a body in a scope of its own, its inputs bound to values, and return its outputs."""
        from onnx import numpy_helper

        outside = self._values, self._declared
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        known = {n: Value(name=n, dtype=str(a.dtype), const=a) for n, a in constants.items()}
        self._values = {**self._values, **known, **bound}
        self._declared = {**self._declared, **_infos(graph)}
        try:
            for index, node in enumerate(graph.node):
                self._lower_node(node if node.name else _with_name(node, f"{self._owner}/{node.op_type}_{index}"))
            return [self._values[info.name] for info in graph.output]
        finally:
            self._values, self._declared = outside

    def emit(self, op_type: str, *operands: Value, **attributes: int) -> Value:
        """Lower one more ONNX node for the owner, and return its output."""
        import onnx

        names = [f"{self._owner}/{op_type}/{index}" for index in range(len(operands))]
        self._values.update(zip(names, operands, strict=True))
        output = f"{self._owner}/{op_type}"
        self._lower_node(onnx.helper.make_node(op_type, names, [output], name=output, **attributes))  # type: ignore[arg-type] # its stub takes each attribute for a name
        return self._values.pop(output)

    def _fold(self, proto: onnx.NodeProto, inputs: list[Value | None]) -> None:
        arrays = [None if v is None else v.const for v in inputs]
        results = fold.evaluate(proto, arrays, self._model.opset_import)
        for name, array in zip((o for o in proto.output if o), results, strict=True):
            self._values[name] = Value(name=name, dtype=str(array.dtype), const=array)

    def _schema(self, proto: onnx.NodeProto) -> onnx.defs.OpSchema:
        import onnx

        domain = proto.domain if proto.domain not in ("", "ai.onnx") else ""
        if domain == "com.microsoft":  # ONNX Runtime's own; those in our table have neither versions nor attributes
            return onnx.defs.OpSchema(proto.op_type, domain, 1)
        version = self._opsets.get(domain or "ai.onnx", 1)
        try:
            return onnx.defs.get_schema(proto.op_type, version, domain)
        except onnx.defs.SchemaError as error:
            reason = f"node {proto.name!r}: ONNX has no schema for {_key(proto)} at opset {version}"
            raise CompilerError(reason) from error

    def _check(self, proto: onnx.NodeProto, value: Value) -> None:
        """Hold the MIL result against the shape and type that ONNX infers: MIL's own inference has bugs."""
        where = f"node {proto.name!r} ({proto.op_type})"
        if (value.long_shape is None and len(value.shape) > MAX_RANK) or (0 in value.shape and value.const is None):
            raise CompilerError(f"{where}: result shape {value.shape}; Core ML takes rank 1 to 5, none empty")
        if value.var is not None and _mil_dtype(value.var) != MIL_DTYPE.get(value.dtype):
            raise CompilerError(f"{where}: result is MIL {_mil_dtype(value.var)}, but {value.dtype} was expected")
        info = self._declared.get(value.name)
        if info is None:
            return
        dtype, shape = _tensor_type(info)
        if shape is not None and shape != value.shape:
            raise CompilerError(f"{where}: result has shape {value.shape}, ONNX says {shape}")
        if dtype != value.dtype:
            raise CompilerError(f"{where}: result has type {value.dtype}, ONNX says {dtype}")

    def _mil(self, node_name: str) -> Mil:
        def name(wanted: str) -> str:
            unique = self._names(wanted)
            self._node_of[unique] = self._owner or node_name
            return unique

        return Mil(builder(), node_name, name)


def _infos(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Return what the graph declares of its tensors; bodies need not say anything of theirs."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    return {info.name: info for info in infos if info.type.tensor_type.elem_type or info.type.WhichOneof("value")}


def _with_name(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    copy: onnx.NodeProto = type(node).FromString(node.SerializeToString())
    copy.name = name
    return copy


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in (a.g, *a.graphs) if g.node or g.output]


def _read_names(*graphs: onnx.GraphProto) -> set[str]:
    """Return every name that a node or an output of the graphs reads, in bodies too."""
    names = {name for graph in graphs for node in graph.node for name in node.input}
    names |= {info.name for graph in graphs for info in graph.output}
    bodies = [body for graph in graphs for node in graph.node for body in _bodies(node)]
    return names | (_read_names(*bodies) if bodies else set())


def _named(error: CompilerError, proto: onnx.NodeProto) -> CompilerError:
    where = f"node {proto.name!r}"
    reason = error.reason if where in error.reason else f"{where} ({proto.op_type}): {error.reason}"
    return CompilerError(reason, log=error.log)


def _port(info: onnx.ValueInfoProto, mil_name: str) -> Port:
    dtype, shape = _tensor_type(info)
    if shape is None:
        raise CompilerError(f"tensor {info.name!r} has no static shape; bind its dimensions first")
    if dtype not in MIL_DTYPE:
        raise CompilerError(f"model input or output {info.name!r} has type {dtype}, which Core ML cannot hold")
    if len(shape) > MAX_RANK or 0 in shape:
        raise CompilerError(f"tensor {info.name!r} has shape {shape}; Core ML takes rank 1 to 5, none empty")
    return Port(name=info.name, mil_name=mil_name, dtype=dtype, shape=shape)


def _port_node(values: Mapping[str, Value], port: Port, mil: Mil) -> Node:
    import onnx

    identity = onnx.helper.make_node("Identity", [port.name], [port.mil_name], name=f"output {port.name}")
    schema = onnx.defs.get_schema("Identity")
    return Node(identity, schema, values, mil, frozenset())


def _tensor_type(info: onnx.ValueInfoProto) -> tuple[str, tuple[int, ...] | None]:
    import onnx

    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        raise CompilerError(f"{info.name!r} is no tensor (a sequence, map or optional); Core ML cannot hold it")
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return dtype, None
    return dtype, tuple(int(d.dim_value) for d in tensor.shape.dim)


def _placeholder(port: Port) -> Any:  # noqa: ANN401 - a MIL placeholder
    from coremltools.converters.mil.mil import types

    mil_type = types.string_to_builtin(MIL_DTYPE[port.carrier_dtype])
    return builder().placeholder(port.carrier_shape, mil_type, name=port.mil_name)


def _target(name: str) -> Any:  # noqa: ANN401 - a coremltools enum
    targets = coremltools().target
    if not hasattr(targets, name):
        raise CompilerError(f"coremltools has no deployment target {name!r}")
    return getattr(targets, name)


def _mil_dtype(var: MilVar) -> str:
    from coremltools.converters.mil.mil import types

    return str(types.builtin_to_string(var.dtype))
