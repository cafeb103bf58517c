"""Build one ONNX model in code: the tensors, their shapes and random weights that keep activations in range.

Weights are random by design. What a trained network gets from batch normalisation, a random one must get from
somewhere else, or a ResNet-50 ends with outputs of 14,000 that no 16-bit or 8-bit format holds. So every
`Value` carries the mean and the mean square that its elements are expected to have, and each convolution or
matrix product is scaled (He et al. 2015) and shifted so that its output has mean 0 and the standard deviation
asked for: the folded form of the batch normalisation that the published model has at that place.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphs.graph import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

BIAS_STD = 0.05
"""Spread of the random biases, relative to the output's standard deviation."""

MEAN_CERTAINTY = 0.75
"""Share of a tensor's squared mean that counts as common to its channels.

Channels differ in their means, so less than all of it is removed by a shift; with 1.0 each layer comes out a few
percent too large and 50 layers end at 40 times the scale (measured on ResNet-50).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """An activation: its name, its shape and the statistics that its elements are expected to have."""

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0
    power: float = 1.0
    """Mean square, which 8 and 16 bits must hold."""

    @property
    def variance(self) -> float:
        """Return the expected mean square about `mean`, never 0 because it is divided by."""
        return max(self.power - MEAN_CERTAINTY * self.mean**2, 1e-6)

    @property
    def rms(self) -> float:
        """Return the expected root mean square."""
        return math.sqrt(self.power)


class Net:
    """Collect nodes and initialisers in topological order, under scoped names as in a PyTorch state dict.

    The random stream is consumed in construction order: the same seed and the same options give the same bytes.
    """

    def __init__(self, name: str, *, seed: int, opset: int = 17) -> None:
        self.name = name
        self.seed = seed
        self.opset = opset
        self.parameters = 0
        """Parameters by the published convention: what `sum(p.numel() for p in model.parameters())` gives."""
        # Filled in place: every copy of 350 MB of weights costs a tenth of a second.
        self._model = onnx.ModelProto(producer_name="edgefrontier")
        self._graph = self._model.graph
        self._rng = np.random.default_rng(seed)
        self._scope: list[str] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix every name made inside with `name`."""
        self._scope.append(name)
        yield
        self._scope.pop()

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> Value:
        """Add a graph input; float inputs are expected to have mean 0 and variance 1."""
        self._graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        return Value(name=name, shape=tuple(shape))

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | str],
        shape: Sequence[int],
        *,
        name: str = "",
        like: Value | None = None,
        **attributes: object,
    ) -> Value:
        """Add a node with one output of the given shape; its statistics are those of `like`, else mean 0, power 1."""
        (output,) = self.nodes(op_type, inputs, [shape], name=name, like=like, **attributes)
        return output

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[Value | str],
        shapes: Sequence[Sequence[int]],
        *,
        name: str = "",
        like: Value | None = None,
        **attributes: object,
    ) -> tuple[Value, ...]:
        """Add a node with one output per shape."""
        if any(side < 1 for shape in shapes for side in shape):
            raise GraphError(f"the input of zoo model {self.name} is too small: nothing is left at {op_type}")
        path = self._unique("/".join(["", *self._scope, name or op_type]))
        outputs = [f"{path}_output_{index}" for index in range(len(shapes))]
        sources = [source if isinstance(source, str) else source.name for source in inputs]
        node = helper.make_node(op_type, sources, outputs, name=path)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._graph.node.append(node)
        mean, power = (like.mean, like.power) if like else (0.0, 1.0)
        return tuple(
            Value(name=output, shape=tuple(shape), mean=mean, power=power)
            for output, shape in zip(outputs, shapes, strict=True)
        )

    def normal(self, shape: Sequence[int], std: float, mean: float = 0.0) -> npt.NDArray[np.float32]:
        """Draw float32 values from the model's random stream."""
        values = self._rng.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        if mean:
            values += np.float32(mean)
        return values

    def parameter(self, name: str, array: Array, *, count: int | None = None) -> str:
        """Add a trained tensor and count it, `count` where the published model has another number of elements."""
        self.parameters += array.size if count is None else count
        return self.buffer(name, array)

    def buffer(self, name: str, array: Array) -> str:
        """Add a named tensor that is stored but is no parameter (running statistics, positions)."""
        return self._store(".".join([*self._scope, name]), array)

    def constant(self, array: Array, name: str = "constant") -> str:
        """Return the name of an initialiser that holds `array` and is not a parameter; equal ones are shared."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._store(name, array)
        return self._constants[key]

    def scalar(self, value: float) -> str:
        """Return the name of a float32 scalar."""
        return self.constant(np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        """Return the name of a one-dimensional int64 tensor (a shape, axes, bounds of a slice)."""
        return self.constant(np.array(values, np.int64))

    def finish(self, outputs: dict[str, Value], *, source: str) -> onnx.ModelProto:
        """Return the model with its outputs renamed; `source` says where the architecture is published."""
        self._rename({value.name: name for name, value in outputs.items()})
        for name, value in outputs.items():
            info = helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape)
            self._graph.output.append(info)
        doc = f"Architecture: {source}. Random weights, seed {self.seed}: accuracy means nothing here."
        self._graph.name, self._graph.doc_string, self._model.doc_string = self.name, doc, doc
        opset = helper.make_opsetid("", self.opset)
        self._model.opset_import.append(opset)
        self._model.ir_version = helper.find_min_ir_version_for([opset])
        facts = {"weights": "random", "seed": str(self.seed), "published_parameters": str(self.parameters)}
        helper.set_model_props(self._model, facts)
        return self._model

    def _rename(self, names: dict[str, str]) -> None:
        for node in self._graph.node:
            node.input[:] = [names.get(item, item) for item in node.input]
            node.output[:] = [names.get(item, item) for item in node.output]

    def _store(self, name: str, array: Array) -> str:
        path = self._unique(name)
        little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
        self._graph.initializer.add(
            name=path,
            dims=array.shape,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            raw_data=little_endian.tobytes(),
        )
        return path

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate


def scaled(value: Value, *, mean: float, power: float) -> Value:
    """Return `value` with other expected statistics."""
    return replace(value, mean=mean, power=power)
