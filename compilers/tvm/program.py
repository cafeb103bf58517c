"""The order in which a fused module calls its functions, for those who run its kernels without TVM's machine.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import relax

from compilers.adapter import CompilerError
from compilers.tvm.blocks import UnscheduledError, sizes
from compilers.tvm.expressions import is_constant, operator_name
from compilers.tvm.gpu_code import Program, Step, Value

if TYPE_CHECKING:
    from collections.abc import Container

    import numpy as np

    Array = np.ndarray[Any, Any]


def program_of(module: Any, built: Container[str]) -> tuple[Program, dict[str, Array]]:  # noqa: ANN401
    """Return what `main` does call by call, and its constants by the name that the calls give them.

    `built` names the functions that became kernels; the others are changes of shape, which TVM leaves out.

    Raises:
        CompilerError: `main` does something else than call functions.
    """
    reader = _Reader(module, built)
    main = module["main"]
    inputs = tuple(reader.value(parameter) for parameter in main.params)
    for block in main.body.blocks:
        for binding in block.bindings:
            reader.bind(binding.var, binding.value)
    outputs = reader.values(main.body.body)
    return Program(inputs=inputs, outputs=outputs, steps=tuple(reader.steps)), reader.constants


class _Reader:
    def __init__(self, module: Any, built: Container[str]) -> None:  # noqa: ANN401
        self.steps: list[Step] = []
        self.constants: dict[str, Array] = {}
        self._module, self._built = module, built
        self._known: dict[Any, tuple[Value, ...]] = {}
        self._count = 0

    def value(self, expr: Any) -> Value:  # noqa: ANN401
        """Return the one tensor that an expression is, a new one for a variable that is not bound."""
        (value,) = self._known.get(expr) or (self._constant(expr) if is_constant(expr) else self._new(expr, expr.ty))
        return value

    def values(self, expr: Any) -> tuple[Value, ...]:  # noqa: ANN401
        """Return the tensors of an expression: several for a tuple."""
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field) for field in expr.fields)
        return self._known.get(expr) or (self.value(expr),)

    def bind(self, variable: Any, expr: Any) -> None:  # noqa: ANN401
        """Read one binding of `main`."""
        if isinstance(expr, relax.TupleGetItem):
            self._known[variable] = (self._known[expr.tuple_value][expr.index],)
        elif operator_name(expr) == "relax.call_tir" and len(expr.args) == 2:
            self._known[variable] = self._call(variable, expr.args[0], expr.args[1])
        elif isinstance(expr, relax.Tuple | relax.Var) or is_constant(expr):
            self._known[variable] = self.values(expr)
        else:
            what = operator_name(expr) or type(expr).__name__
            raise CompilerError(f"TVM leaves {what} to its own runtime, which has no OpenCL in this wheel")

    def _call(self, variable: Any, function: Any, arguments: Any) -> tuple[Value, ...]:  # noqa: ANN401
        name = str(function.name_hint)
        inputs = tuple(self.value(argument) for argument in arguments)
        if name not in self._built:
            if not relax.analysis.has_reshape_pattern(self._module[function]):
                raise CompilerError(f"TVM made no kernel of its function {name}")
            (out,) = self._new(variable, variable.ty)
            return (Value(name=inputs[0].name, shape=out.shape, dtype=out.dtype),)
        outputs = self._new(variable, variable.ty)
        self.steps.append(Step(function=name, arguments=(*inputs, *outputs)))
        return outputs

    def _new(self, key: Any, kind: Any) -> tuple[Value, ...]:  # noqa: ANN401
        kinds = list(getattr(kind, "fields", (kind,)))
        self._known[key] = tuple(self._named(each) for each in kinds)
        return self._known[key]

    def _constant(self, expr: Any) -> tuple[Value, ...]:  # noqa: ANN401
        (value,) = self._new(expr, expr.ty)
        self.constants[value.name] = expr.value.numpy()
        return (value,)

    def _named(self, kind: Any) -> Value:  # noqa: ANN401
        self._count += 1
        try:
            return Value(name=f"v{self._count}", shape=sizes(kind.shape.values), dtype=str(kind.dtype))
        except UnscheduledError as reason:
            raise CompilerError(f"no program of kernels: {reason}") from reason
