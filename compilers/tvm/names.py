"""Which ONNX nodes each call of a fused function computes, so that a time can be given to nodes.

TVM's passes keep the names of variables and nothing else of where a call came from. So the importer's results get
names that carry the number of their node; fusion, which drops names and shares functions, is followed call by call.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import tvm
from tvm import relax

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LAYOUT_CHANGE: Final = "transpose"
_NAME: Final = re.compile(r"onnx(\d+)_")


def number_variables(module: Any, numbers: Mapping[Any, int]) -> Any:  # noqa: ANN401
    """Name each variable of `main` after its node; `numbers` maps what the importer returned for a node to its number.

    What a converter computes on the way to its result belongs to the same node.
    """
    main = module["main"]
    owners: dict[Any, int] = {}
    for binding in _bindings(main):
        number = numbers.get(binding.value, numbers.get(binding.var))
        if number is not None:
            owners[binding.var] = number
    for binding in reversed(list(_bindings(main))):
        if binding.var in owners:
            for used in relax.analysis.free_vars(binding.value):
                owners.setdefault(used, owners[binding.var])
    module["main"] = _Namer(module, owners).visit_expr(main)
    return module


def nodes_of_calls(before: Any, after: Any) -> dict[str, list[list[int]]]:  # noqa: ANN401
    """Map each function of the fused module to the node numbers of each of its calls, in the order in which they run.

    `before` is the module whose calls `FuseOps` grouped into those of `after`. Layout changes belong to no node.
    """
    sources = _Sources(before["main"])
    found: dict[str, list[list[int]]] = defaultdict(list)
    values: dict[Any, Any] = dict(zip(after["main"].params, before["main"].params, strict=True))
    for binding in _bindings(after["main"]):
        called = _called(binding.value, after)
        if called is None:
            continue
        name, arguments, inner = called
        numbers: set[int] = set()
        scope = (
            {param: values.get(argument) for param, argument in zip(inner.params, arguments, strict=True)}
            if inner
            else values
        )
        for step in _bindings(inner) if inner else (binding,):
            source = sources.take(step.value, scope)
            scope[step.var] = source
            numbers |= sources.numbers(source)
            values[binding.var] = source
        found[name].append(sorted(numbers))
    return dict(found)


class _Sources:
    """The calls before fusion, by what they call and with which variables; each is taken once.

    A layout change that ConvertLayout put behind a call has taken the call's name; the call gets it back.
    """

    def __init__(self, main: Any) -> None:  # noqa: ANN401
        self._waiting: dict[Any, list[Any]] = defaultdict(list)
        self._numbers: dict[Any, set[int]] = {}
        for binding in _bindings(main):
            key = _key(binding.value, {})
            if key is None:
                continue
            self._waiting[key].append(binding.var)
            self._numbers[binding.var] = _number(binding.var)
            for used in binding.value.args[1] if key[0].startswith(_LAYOUT_CHANGE) else ():
                if not self._numbers.get(used, {0}):
                    self._numbers[used] = self._numbers[binding.var]

    def take(self, call: Any, scope: Mapping[Any, Any]) -> Any | None:  # noqa: ANN401
        waiting = self._waiting.get(_key(call, scope), [])
        return waiting.pop(0) if waiting else None

    def numbers(self, variable: Any) -> set[int]:  # noqa: ANN401
        return self._numbers.get(variable, set())


def _key(call: Any, scope: Mapping[Any, Any]) -> Any | None:  # noqa: ANN401
    if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_tir"):
        return None
    arguments = [scope.get(a, a) for a in call.args[1] if isinstance(a, relax.Var)]
    return call.args[0].name_hint, tuple(a for a in arguments if a is not None)


def _called(value: Any, module: Any) -> tuple[str, list[Any], Any | None] | None:  # noqa: ANN401
    """Return the name of the function that a binding calls, its arguments, and its body when fusion made it."""
    if not isinstance(value, relax.Call):
        return None
    if isinstance(value.op, tvm.ir.GlobalVar):
        return value.op.name_hint, list(value.args), module[value.op]
    if value.op == tvm.ir.Op.get("relax.call_tir"):
        return value.args[0].name_hint, list(value.args[1]), None
    return None


def _bindings(function: Any) -> Iterator[Any]:  # noqa: ANN401
    for block in function.body.blocks:
        yield from block.bindings


def _number(variable: Any) -> set[int]:  # noqa: ANN401
    named = _NAME.match(variable.name)
    return {int(named[1])} if named else set()


@relax.expr_functor.mutator
class _Namer(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, owners: Mapping[Any, int]) -> None:  # noqa: ANN401
        super().__init__(module)
        self._owners = owners

    def visit_var_binding_(self, binding: Any) -> None:  # noqa: ANN401
        number = self._owners.get(binding.var)
        if number is None:
            super().visit_var_binding_(binding)
            return
        emit = self.builder_.emit if isinstance(binding.var, relax.DataflowVar) else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(self.visit_expr(binding.value), f"onnx{number}_"))
