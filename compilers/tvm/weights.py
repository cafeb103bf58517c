"""Constant weights in the order in which a tile reads them: block by block of output channels.

Imports TVM; only reached through the methods of `TvmCompiler`.

A tile of 32 channels of `[height, width, input, 512]` reads 128 bytes and steps over 1,920, half a page for each step:
beyond the caches neither the prefetcher nor the page table keeps up. From `[16, height, width, input, 32]` the same
tile reads front to back. The layout belongs to the schedule, so a scheduled function says which of its parameters are
laid out anew (`LAID_OUT`), and who calls it lays out what it passes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import tvm
from tvm import relax

from compilers.tvm.expressions import is_constant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]

CONSTANTS: Final = "edgefrontier.constants"
"""The attribute of a fused function that lists its parameters which every call passes a constant for."""
LAID_OUT: Final = "edgefrontier.laid_out"
"""The attribute of a scheduled function that lists its `Layout`s."""
_CALL: Final = "relax.call_tir"
_SPATIAL: Final = 0  # tvm.tirx.IterVar.DataPar


class Layout(NamedTuple):
    """A parameter whose `axis` is split: the blocks become the first axis, the axis within a block the one at `to`."""

    parameter: int
    axis: int
    block: int
    to: int

    def place(self, *at: Any) -> list[Any]:  # noqa: ANN401
        """Return where an element is found."""
        rest = [*at[: self.axis], *at[self.axis + 1 :]]
        return [at[self.axis] // self.block, *rest[: self.to - 1], at[self.axis] % self.block, *rest[self.to - 1 :]]

    def of(self, array: Array) -> Array:
        """Lay out an array."""
        before, after = array.shape[: self.axis], array.shape[self.axis + 1 :]
        split = array.reshape(*before, -1, self.block, *after)
        return np.ascontiguousarray(np.moveaxis(split, (self.axis, self.axis + 1), (0, self.to)))


def mark_constants(module: Any) -> Any:  # noqa: ANN401
    """Write on each fused function which of its parameters are constants at every call."""
    constants: dict[Any, list[frozenset[int]]] = defaultdict(list)

    def visit(expr: Any) -> None:  # noqa: ANN401
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get(_CALL):
            arguments = enumerate(expr.args[1].fields)
            constants[expr.args[0]].append(frozenset(i for i, argument in arguments if is_constant(argument)))

    relax.analysis.post_order_visit(module["main"], visit)
    for name, each in constants.items():
        always = sorted(frozenset.intersection(*each))
        if always:
            module[name] = module[name].with_attr(CONSTANTS, json.dumps(always))
    return module


def lay_out(sch: Any, reduction: Any, block: int, *, in_place: bool) -> list[Layout]:  # noqa: ANN401
    """Lay the constants that a reduction reads out in blocks of its last output axis, and say how.

    The axis within a block goes to the end, or stays `in_place` where an instruction reads what follows it too.
    """
    func = sch.mod["main"]
    constants = json.loads(str((func.attrs or {}).get(CONSTANTS, "[]")))
    channel = [axis.var for axis in sch.get(reduction).iter_vars if int(axis.iter_type) == _SPATIAL][-1]
    done = []
    for position, region in enumerate(sch.get(reduction).reads):
        parameter = next((i for i in constants if region.source.same_as(func.params[i])), None)
        axes = [i for i, part in enumerate(region.region) if channel.same_as(part.min)]
        if parameter is None or len(axes) != 1 or int(region.source.shape[axes[0]]) == block:
            continue
        to = axes[0] + 1 if in_place else len(region.region)
        done.append(Layout(parameter, axes[0], block, to))
        sch.transform_layout(reduction, ("read", position), done[-1].place)
    return done


def written_on(func: Any, layouts: list[Layout]) -> Any:  # noqa: ANN401
    """Return the scheduled function with its layouts written on it."""
    return func.with_attr(LAID_OUT, json.dumps(layouts)) if layouts else func


def laid_out(arrays: Sequence[Array], func: Any) -> list[Array]:  # noqa: ANN401
    """Return the arguments of a fused function as the scheduled one takes them."""
    layouts = {layout.parameter: layout for layout in _layouts(func)}
    return [layouts[i].of(array) if i in layouts else array for i, array in enumerate(arrays)]


def lay_out_constants(module: Any) -> Any:  # noqa: ANN401
    """Lay out what `main` passes to the scheduled functions of its module; `module` stays as it is."""
    layouts = {gv.name_hint: found for gv, func in module.functions.items() if (found := _layouts(func))}
    if not layouts:
        return module
    laid = tvm.IRModule({gv.name_hint: func for gv, func in module.functions.items()}, attrs=module.attrs)
    for name, func in laid.functions.items():  # a call is checked against the type of the name that it calls
        relax.expr._update_type(name, func.ty)  # noqa: SLF001 - TVM offers no other way
    laid["main"] = _Constants(laid, layouts).visit_expr(laid["main"])
    return laid


def _layouts(func: Any) -> list[Layout]:  # noqa: ANN401
    return [Layout(*fields) for fields in json.loads(str((func.attrs or {}).get(LAID_OUT, "[]")))]


@relax.expr_functor.mutator
class _Constants(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, layouts: Mapping[str, list[Layout]]) -> None:  # noqa: ANN401
        super().__init__(module)
        self._module = module
        self._layouts = layouts

    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        if call.op != tvm.ir.Op.get(_CALL):
            return call
        name, arguments = call.args[0].name_hint, list(call.args[1].fields)
        for layout in self._layouts.get(name, ()):
            constant = arguments[layout.parameter].value.numpy()
            arguments[layout.parameter] = relax.const(layout.of(constant))
        return relax.Call(
            call.op, [self._module.get_global_var(name), relax.Tuple(arguments)], call.attrs, call.ty_args
        )
