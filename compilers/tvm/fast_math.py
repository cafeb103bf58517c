"""Softmax, sigmoid, erf, tanh and GELU by polynomials, which vectorise; the C library's are called for each element.

Imports TVM; only reached through the methods of `TvmCompiler`.

Of the largest value, TVM's polynomials are within 3e-7 of the exact functions. Exp alone stays the library's: the
polynomial for it ends at exp(88), and the exact one goes on to infinity.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx, topi


def vectorisable(module: Any) -> Any:  # noqa: ANN401
    """Replace the functions of `main` on float32."""
    return _FastMath(module).replaced()


@relax.expr_functor.mutator
class _FastMath(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any) -> None:  # noqa: ANN401
        super().__init__(module)
        self._module = module

    def replaced(self) -> Any:  # noqa: ANN401
        main = self._module.get_global_var("main")
        self.builder_.update_func(main, self.visit_expr(self._module[main]))
        return self.builder_.finalize()

    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if not name.startswith("relax.") or str(getattr(call.ty, "dtype", "")) != "float32":
            return call
        x = call.args[0] if call.args else None
        if name == "relax.nn.softmax":
            return self._te(topi.nn.fast_softmax, x, int(call.attrs.axis))
        by_element = {
            "relax.erf": topi.fast_erf,
            "relax.nn.gelu": _gelu,
            "relax.sigmoid": _sigmoid,
            "relax.tanh": topi.fast_tanh,
        }.get(name)
        return self._te(by_element, x) if by_element else call

    def _te(self, compute: Any, *args: Any) -> Any:  # noqa: ANN401
        return self.builder_.call_te(compute, *args, primfunc_name_hint=compute.__name__.strip("_"))


def _gelu(x: Any) -> Any:  # noqa: ANN401
    half = topi.multiply(x, 0.5)
    return topi.multiply(half, topi.add(topi.fast_erf(topi.multiply(x, math.sqrt(0.5))), 1.0))


def _sigmoid(x: Any) -> Any:  # noqa: ANN401
    return topi.divide(tirx.const(1.0, x.dtype), topi.add(topi.fast_exp(topi.negative(x)), 1.0))
