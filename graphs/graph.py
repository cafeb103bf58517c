"""What a model is to the rest of the house: `Graph`, `Node` and `TensorSpec`, frozen views with a content digest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy as np
    import onnx

    from graphs.weights import Weight

# onnx and numpy each cost 0.2 s to import, so this module names dtypes itself and imports both inside functions.
DTYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
"""TensorProto.DataType -> numpy (or ml_dtypes) name."""

_BITS = {
    "float32": 32, "float16": 16, "float64": 64, "bfloat16": 16, "complex64": 64, "complex128": 128, "bool": 8,
    "uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "uint32": 32, "int32": 32, "uint64": 64, "int64": 64,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
}  # fmt: skip


class GraphError(ValueError):
    """Every bad-model condition; the message is one sentence that a user can act on.

    A name in it may come from a damaged file: what does not print, a line's end among it, is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


def size_of(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the packed size in bytes of a tensor, or None for a dtype without a fixed width (string, sequence)."""
    bits = _BITS.get(dtype)
    return None if bits is None else (math.prod(shape) * bits + 7) // 8


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one tensor; a shape that is not fully known is None."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    """numpy's name; "bfloat16", "int4", ... for what numpy lacks; "string"; "unknown" when inference stopped."""

    @property
    def size_bytes(self) -> int | None:
        """Return the packed size, or None when shape or width is unknown."""
        return None if self.shape is None else size_of(self.dtype, self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One operation and its work for one inference; a count of None is unknown, never free."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    """Tensor names in port order; "" is an omitted optional input."""
    outputs: tuple[str, ...]
    macs: int | None
    """Multiply-accumulates of convolutions and matrix products, bias not counted."""
    elementwise: int | None
    """Scalar operations that are not part of a multiply-accumulate."""
    weight_bytes: int | None
    read_bytes: int | None
    """Activation bytes read."""
    write_bytes: int | None
    captured: tuple[str, ...] = ()
    """Outer tensors that the bodies of If, Loop and Scan read without listing them as inputs."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Return every tensor the node depends on: inputs that are there, then captured values, each once."""
        return tuple(dict.fromkeys([*filter(None, self.inputs), *self.captured]))


class Graph:
    """One model as a value: checked, bound, shaped and counted.

    Made by `load`, `from_proto`, `extract`, `quantise` or the zoo, not by hand. Nothing that a caller gets from
    it is shared with it. Two graphs are equal when their digests are.
    """

    __slots__ = ("_base_dir", "_body", "_digest", "_infos", "_name", "_nodes", "_tensors", "_weights")

    def __init__(
        self,
        *,
        name: str,
        body: onnx.ModelProto,
        weights: Mapping[str, Weight],
        infos: Mapping[str, onnx.ValueInfoProto],
        tensors: Mapping[str, TensorSpec],
        nodes: Iterable[Node],
        base_dir: Path | None,
    ) -> None:
        self._name = name
        self._body = body
        """The model without its initialisers and value infos; nodes in topological order."""
        self._weights = MappingProxyType(dict(weights))
        self._infos = MappingProxyType(dict(infos))
        """Type of every activation whose type is known, as ONNX states it (it can hold half-known shapes)."""
        self._tensors = MappingProxyType(dict(tensors))
        self._nodes = tuple(nodes)
        self._base_dir = base_dir
        self._digest: str | None = None

    def __repr__(self) -> str:
        return f"<Graph {self._name}: {len(self._nodes)} nodes>"

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Graph) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def name(self) -> str:
        """Return the file's stem or the name it was built under; not part of the identity."""
        return self._name

    @property
    def base_dir(self) -> Path | None:
        """Return the folder that the locations of external data are relative to, or None without such data."""
        return self._base_dir

    @property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of everything that decides what the model computes.

        Weights, attributes, shapes, names, order of nodes and opsets count; documentation, producer, metadata,
        file location and the way weights are stored do not.
        """
        if self._digest is None:
            from graphs.digest import digest_of

            self._digest = digest_of(self._body, self._weights, self._tensors)
        return self._digest

    def proto(self) -> onnx.ModelProto:
        """Return the model as a copy that the caller may change, with inferred value infos.

        External data stays external, relative to `base_dir`; `save` writes a file that stands alone.

        Raises:
            GraphError: The weights held in memory pass the 2 GB limit of a protobuf; use `save`.
        """
        from graphs.onnx_io import to_proto

        return to_proto(self)

    def nodes(self) -> tuple[Node, ...]:
        """Return the operations in topological order."""
        return self._nodes

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return what an inference must be fed, in the model's order; initialisers are not inputs."""
        return tuple(self._tensors[info.name] for info in self._body.graph.input)

    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return what an inference gives, in the model's order."""
        return tuple(self._spec(info.name) for info in self._body.graph.output)

    def tensors(self) -> Mapping[str, TensorSpec]:
        """Return every activation by name, with or without a known shape."""
        return self._tensors

    def initializers(self) -> Mapping[str, TensorSpec]:
        """Return every constant by name: initialisers, sparse ones by their dense shape, and Constant nodes."""
        return MappingProxyType({name: weight.spec for name, weight in self._weights.items()})

    def constant(self, name: str) -> np.ndarray:
        """Return a constant's values, read-only, without copying them where numpy can view them.

        Raises:
            GraphError: The graph has no constant of that name.
        """
        if name not in self._weights:
            raise GraphError(f"{self._name} has no constant '{name}': `initializers()` lists them")
        return self._weights[name].array()

    @property
    def opset(self) -> int:
        """Return the version of the default operator set."""
        return next((entry.version for entry in self._body.opset_import if entry.domain == ""), 1)

    @property
    def macs(self) -> int | None:
        """Return the multiply-accumulates of one inference, or None when those of any node are unknown."""
        counts = [node.macs for node in self._nodes]
        return None if None in counts else sum(filter(None, counts))

    @property
    def weight_bytes(self) -> int:
        """Return the size of all constants that a node reads, each counted once."""
        from graphs.work import weight_bytes

        return weight_bytes(self._body.graph, self.initializers())

    @property
    def parameters(self) -> int:
        """Return the number of trainable values, as papers count them; see `graphs.work.parameters`."""
        from graphs.work import parameters

        return parameters(self._body.graph, self.initializers())

    @property
    def is_quantised(self) -> bool:
        """Tell whether activations are quantised: then this is the int8 form, and there is no float form of it."""
        return any(node.op_type == "QuantizeLinear" for node in self._nodes)

    def uncosted_nodes(self) -> Mapping[str, str]:
        """Return the nodes without a full work count, each with why."""
        from graphs.work import why_uncosted

        reasons = ((node.name, why_uncosted(node, self._tensors)) for node in self._nodes)
        return MappingProxyType({name: reason for name, reason in reasons if reason is not None})

    def _spec(self, name: str) -> TensorSpec:
        """Return an activation's or a constant's spec (a constant may be a graph output)."""
        return self._tensors[name] if name in self._tensors else self._weights[name].spec
