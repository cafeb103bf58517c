"""One ONNX node while it is lowered: it keeps account of everything that was read, and refuses the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower.value import Blockwise, Quantised, Value, mil_array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import onnx

    from compilers.coreml.vendor import MilVar

Array = np.ndarray[Any, Any]


class Mil:
    """The MIL builder with the node's name on every operation, and its errors as refusals."""

    def __init__(self, builder: Any, prefix: str, names: Callable[[str], str]) -> None:  # noqa: ANN401
        self._builder = builder
        self._prefix = prefix
        self._names = names

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        make = getattr(self._builder, op_type)

        def build(**arguments: object) -> MilVar:
            name = self._names(f"{self._prefix}_{op_type}" if op_type != "const" else f"{self._prefix}_const")
            try:
                return make(name=name, **arguments)
            except Exception as error:
                raise CompilerError(f"coremltools refuses MIL {op_type}: {error}") from error

        return build


class Node:
    """What a lowering function sees of one node.

    Reading marks an attribute or input as handled; `finish` refuses a node of which anything that matters was
    not handled. So a lowering cannot forget an attribute: it either reads it or the model is refused.
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        schema: onnx.defs.OpSchema,
        values: Mapping[str, Value],
        mil: Mil,
        used_outputs: Collection[str],
    ) -> None:
        import onnx

        self.op_type = proto.op_type
        self.opset = schema.since_version
        self.mil = mil
        self.produced: dict[str, Value] = {}
        self._proto = proto
        self._values = values
        self._used_outputs = used_outputs
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        self._defaults = {
            name: onnx.helper.get_attribute_value(a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.type
        }
        self._read_attributes: set[str] = set()
        self._read_inputs: set[int] = set()

    # -- what the node says ---------------------------------------------------------------------------------

    def refuse(self, why: str) -> NoReturn:
        """Refuse the node: `why` names the attribute, input or value that is not handled."""
        raise CompilerError(f"node {self._proto.name!r} ({self.op_type}): {why}")

    def attr(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - an attribute has any ONNX type
        """Read an attribute: the node's value, else the operator's default, else `default`."""
        self._read_attributes.add(name)
        value = self._attributes.get(name, self._defaults.get(name, default))
        return value.decode() if isinstance(value, bytes) else value

    def require(self, name: str, *allowed: object, default: object = None) -> None:
        """Refuse the node unless the attribute has one of these values."""
        value = self.attr(name, default)
        if value not in allowed:
            self.refuse(f"attribute {name}={value} is not handled, only {', '.join(map(str, allowed))}")

    @property
    def arity(self) -> int:
        """How many inputs the node lists, omitted ones included."""
        return len(self._proto.input)

    @property
    def outputs(self) -> int:
        """How many outputs the node lists."""
        return len(self._proto.output)

    def uses_output(self, index: int) -> bool:
        """Tell whether anything reads the output."""
        return index < self.outputs and self._proto.output[index] in self._used_outputs

    def has(self, index: int) -> bool:
        """Tell whether the input is present."""
        return index < self.arity and bool(self._proto.input[index])

    def value(self, index: int) -> Value:
        """Return an input and mark it as read."""
        if not self.has(index):
            self.refuse(f"input {index} is missing")
        self._read_inputs.add(index)
        return self._values[self._proto.input[index]]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the static shape of an input."""
        return self.value(index).shape

    def dtype(self, index: int = 0) -> str:
        """Return the ONNX element type of an input, as a numpy name."""
        return self.value(index).dtype

    def x(self, index: int = 0) -> MilVar:
        """Return an input as a MIL variable; a constant becomes one on first use."""
        value = self.value(index)
        if value.long_shape is not None:
            self.refuse(f"input {index} has shape {value.long_shape}; Core ML takes rank 5 at most")
        return self.squeezed(index)

    def squeezed(self, index: int = 0) -> MilVar:
        """Return an input as a MIL variable that lacks its axes of size 1 when its rank is above 5."""
        value = self.value(index)
        if value.var is None:
            value.var = self.materialise(value)
        return value.var

    def const(self, index: int) -> Array:
        """Return an input that must be known now.

        Raises:
            CompilerError: the input is computed while the model runs.
        """
        value = self.value(index)
        if isinstance(value.quantised, Quantised):
            return value.quantised.dense()
        if value.const is None:
            self.refuse(f"input {index} ({self._proto.input[index]!r}) must be a constant")
        return value.const

    def optional_const(self, index: int) -> Array | None:
        """Return an input that must be known now, or None when it is omitted; never None for a computed one."""
        return self.const(index) if self.has(index) else None

    def ints(self, name: str, index: int | None = None) -> list[int] | None:
        """Read integers from the attribute `name`, or from input `index` where later opsets moved them."""
        values = self.attr(name)
        if values is None and index is not None:
            array = self.optional_const(index)
            values = None if array is None else array.reshape(-1)
        return None if values is None else [int(v) for v in values]

    def is_const(self, index: int) -> bool:
        """Tell whether an input is known now, without reading it."""
        if not self.has(index):
            return False
        value = self._values[self._proto.input[index]]
        return value.const is not None or isinstance(value.quantised, Quantised)

    def axis(self, name: str = "axis", *, rank: int | None = None, default: int | None = None) -> int:
        """Read an axis attribute as a non-negative number."""
        return self.normal_axis(int(self.attr(name, default)), len(self.shape()) if rank is None else rank)

    def normal_axis(self, axis: int, rank: int) -> int:
        """Return an axis in [0, rank) or refuse."""
        if not -rank <= axis < max(rank, 1):
            self.refuse(f"axis {axis} is outside rank {rank}")
        return axis % rank if rank else 0

    def need_dtype(self, *allowed: str, index: int = 0) -> None:
        """Refuse the node unless the input has one of these element types."""
        if self.dtype(index) not in allowed:
            self.refuse(f"input {index} of type {self.dtype(index)} is not handled, only {', '.join(allowed)}")

    # -- what the lowering says -----------------------------------------------------------------------------

    def constant(self, array: Array) -> MilVar:
        """Make a MIL constant."""
        if not array.size:
            self.refuse("an empty tensor is not handled")
        return self.mil.const(val=mil_array(array, f"a constant of node {self._proto.name!r}"))

    def like(self, number: float) -> MilVar:
        """Make a scalar MIL constant of the first input's element type."""
        return self.constant(np.array(number, self.dtype(0)))

    def out(self, var: MilVar, dtype: str | None = None, index: int = 0) -> None:
        """Hand over an output; its ONNX element type is the first input's unless said otherwise."""
        name = self._proto.output[index]
        self.produced[name] = Value(name=name, dtype=dtype or self.dtype(0), var=var)

    def out_long(self, var: MilVar, shape: tuple[int, ...], dtype: str | None = None) -> None:
        """Hand over an output of rank above 5, of which `var` lacks the axes of size 1."""
        name = self._proto.output[0]
        self.produced[name] = Value(name=name, dtype=dtype or self.dtype(0), var=var, long_shape=shape)

    def out_like(self, var: MilVar, dtype: str) -> None:
        """Hand over an output of the first input's shape, made of `squeezed` when that is long."""
        shape = self.value(0).long_shape
        if shape is None:
            self.out(var, dtype)
        else:
            self.out_long(var, shape, dtype)

    def out_const(self, array: Array, index: int = 0) -> None:
        """Hand over an output whose value is known now."""
        self.out_value(Value(name=self._proto.output[index], dtype=str(array.dtype), const=array), index)

    def out_value(self, value: Value, index: int = 0) -> None:
        """Hand over an output that is a constant or another value under a new name."""
        self.produced[self._proto.output[index]] = value

    def finish(self) -> dict[str, Value]:
        """Return the outputs.

        Raises:
            CompilerError: an attribute, input or used output was not handled.
        """
        for name, value in self._attributes.items():
            if name not in self._read_attributes and self._defaults.get(name) != value:
                self.refuse(f"attribute {name}={value} is not handled")
        for index, name in enumerate(self._proto.input):
            if name and index not in self._read_inputs:
                self.refuse(f"input {index} ({name!r}) is not handled")
        for index, name in enumerate(self._proto.output):
            if name in self._used_outputs and name not in self.produced:
                self.refuse(f"output {index} ({name!r}) is not handled")
        return self.produced

    def materialise(self, value: Value) -> MilVar:
        """Make the MIL variable of a constant."""
        if isinstance(value.quantised, Blockwise):
            return self._blockwise(value.quantised)
        if value.quantised is not None:
            q = value.quantised
            return self.mil.constexpr_affine_dequantize(
                quantized_data=q.data, zero_point=q.zero_point, scale=q.scale, axis=np.int32(q.axis)
            )
        assert value.const is not None, "a value is a constant or has a variable"
        return self.constant(value.const)

    def _blockwise(self, constant: Blockwise) -> MilVar:
        from coremltools.converters.mil.mil import types

        dtype = types.nptype_from_builtin(types.string_to_builtin(str(constant.data.dtype)))
        arguments = {} if constant.zero_point is None else {"offset": constant.zero_point.astype(dtype)}
        try:
            return self.mil.constexpr_blockwise_shift_scale(
                data=constant.data.astype(dtype), scale=constant.scale, **arguments
            )
        except CompilerError as error:
            self.refuse(f"{constant.data.dtype} weights in blocks need target iOS18: {error.reason}")
