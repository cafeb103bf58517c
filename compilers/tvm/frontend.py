"""ONNX to a Relax module of fused functions, convolutions in NHWC.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from compilers.adapter import CompilerError
from compilers.tvm import names
from compilers.tvm.converters import CONVERTERS
from compilers.tvm.expressions import is_constant, operator_name, static_shape
from compilers.tvm.extremes import LEGALISED
from compilers.tvm.fast_math import vectorisable
from compilers.tvm.packing import pack
from compilers.tvm.quantised import Quantised
from compilers.tvm.refusals import prepare
from compilers.tvm.shared import shared
from compilers.tvm.weights import mark_constants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from graphs import Graph


Array = np.ndarray[Any, Any]

INTEGER_MACS: Final = "edgefrontier.integer_macs"
"""The attribute of an imported module that counts the multiply-adds in integers."""
_CALLS: Final = "edgefrontier.calls"
_NODES: Final = "edgefrontier.nodes"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
# Of a transposed convolution the wheel lowers one layout only.
_LAYOUTS: Final = {"relax.nn.conv2d": ["NHWC", "HWIO"], "relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}


def read(graph: Graph) -> Any:  # noqa: ANN401
    """Import a graph, with what the importer lacks written in what it has (`refusals.prepare`).

    Raises:
        CompilerError: as `import_graph`, and where nothing can replace a node.
    """
    prepared = prepare(graph)
    for node, reason in prepared.refused.items():
        raise CompilerError(f"node {node!r}: {reason}")
    return import_graph(prepared.graph.proto(), prepared.owners)


def import_graph(model: onnx.ModelProto, owners: Mapping[str, str] = _NONE) -> Any:  # noqa: ANN401
    """Import a model whose shapes are static; a node of `owners` counts as another.

    Raises:
        CompilerError: TVM's importer lacks an operator or refuses one of its forms.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    try:
        importer = _Importer(None, "float32")
        module = importer.from_onnx(model.graph, opsets.get("", opsets.get("ai.onnx", 1)))
        module = names.number_variables(module, importer.numbers)
        nodes = [owners.get(name, name) for name in importer.nodes]
        return module.with_attrs({INTEGER_MACS: importer.quantised.macs, _NODES: json.dumps(nodes)})
    except Exception as error:  # the importer raises everything from TypeError to its own types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise CompilerError(f"TVM's ONNX importer refused the graph: {reason}") from error


def halve(module: Any) -> Any:  # noqa: ANN401
    """Compute in float16, sums included, as the runtimes of mobile GPUs do; inputs and outputs stay as they are."""
    passes = relax.transform
    return passes.ToMixedPrecision(out_dtype="float16")(passes.DecomposeOpsForInference()(module))


def fuse(module: Any, target: Any) -> Any:  # noqa: ANN401
    """Lay convolutions out as NHWC, fold constants, lower to TIR and fuse."""
    passes = relax.transform
    nodes = json.loads(str(module.attrs[_NODES]))
    with target, tvm.transform.PassContext(opt_level=3):
        module = passes.DecomposeOpsForInference()(passes.DeadCodeElimination()(module))
        module = passes.CanonicalizeBindings()(_fold(module))
        if _has_convolution(module):  # the pass dies of some operators that have no layout, such as unique
            module = _laid_out(module)
        module = vectorisable(pack(passes.CanonicalizeBindings()(_fold(module)), target))
        module = tvm.transform.Sequential(
            [
                passes.EliminateCommonSubexpr(),
                relax.backend.DispatchSampling(),
                relax.backend.DispatchSortScan(),
                tvm.transform.module_pass(lambda module, _: _lowered(module), opt_level=0, name="lowered"),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.DeadCodeElimination(),
            ]
        )(module)
        fused = passes.FuseOps()(module)
        numbers = names.nodes_of_calls(module, fused)
        calls = {
            name: [[*dict.fromkeys(nodes[number] for number in call)] for call in each]
            for name, each in numbers.items()
        }
        lowered = mark_constants(passes.DeadCodeElimination()(passes.FuseTIR()(fused)))
        if str(target.kind.name) == "llvm":  # the printers of GPU languages write a variable's value at each use
            lowered.update({gv: shared(f) for gv, f in lowered.functions.items() if isinstance(f, tvm.tirx.PrimFunc)})
        return lowered.with_attr(_CALLS, json.dumps(calls))


def _lowered(module: Any) -> Any:  # noqa: ANN401
    """Lower the calls; a shape computed at run time has to stand in them itself, and FoldConstant puts it there."""
    passes = relax.transform
    module, before = passes.LegalizeOps(LEGALISED)(module), 0
    while (left := _unlowered(module)) not in (0, before):
        module, before = passes.LegalizeOps(LEGALISED)(passes.FoldConstant()(module)), left
    return module


def _unlowered(module: Any) -> int:  # noqa: ANN401
    found: list[Any] = []

    def visit(expr: Any) -> None:  # noqa: ANN401
        found.extend([expr] if isinstance(_op(expr), tvm.ir.Op) and _op(expr).get_attr("FLegalize") else [])

    relax.analysis.post_order_visit(module["main"], visit)
    return len(found)


def _laid_out(module: Any) -> Any:  # noqa: ANN401
    """Lay convolutions out as NHWC; where ConvertLayout dies of another operator, with a transpose on either side."""
    passes = relax.transform
    try:
        return passes.Normalize()(passes.ConvertLayout(_LAYOUTS)(module))
    except Exception:  # noqa: BLE001  # its internal errors are of several types (docs/vendor_bugs.md)
        traceback.print_exc()  # into the compile log
        module["main"] = _Layouts(module).visit_expr(module["main"])
        return module


@relax.expr_functor.mutator
class _Layouts(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        call = self.visit_expr_post_order(call)
        if operator_name(call) != "relax.nn.conv2d":
            return call
        data, weight = (
            self.builder_.emit(relax.op.permute_dims(value, axes))
            for value, axes in zip(call.args, ([0, 2, 3, 1], [2, 3, 1, 0]), strict=True)
        )
        attrs = call.attrs
        result = relax.op.nn.conv2d(
            data,
            weight,
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            groups=int(attrs.groups),
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_layout="NHWC",
            out_dtype=attrs.out_dtype,
        )
        return relax.op.permute_dims(self.builder_.emit(result), [0, 3, 1, 2])


def fused(imported: Any, target: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """Return the fused module for a target, and its functions by name."""
    module = fuse(imported, target)
    return module, {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}


def _has_convolution(module: Any) -> bool:  # noqa: ANN401
    found: list[str] = []
    relax.analysis.post_order_visit(module["main"], lambda expr: found.append(getattr(_op(expr), "name", "")))
    return "relax.nn.conv2d" in found


def _op(expr: Any) -> Any:  # noqa: ANN401
    return expr.op if isinstance(expr, relax.Call) else None


def nodes_of(module: Any) -> dict[str, list[list[str]]]:  # noqa: ANN401
    """Map each function of a fused module to the ONNX nodes of each of its calls, in the order in which they run."""
    found: dict[str, list[list[str]]] = json.loads(str(module.attrs[_CALLS]))
    return found


def count_calls(module: Any) -> Counter[str]:  # noqa: ANN401
    """Count the call sites of each fused function in `main`."""
    calls: Counter[str] = Counter()

    def visit(expr: Any) -> None:  # noqa: ANN401
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            calls[expr.args[0].name_hint] += 1

    relax.analysis.post_order_visit(module["main"], visit)
    return calls


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer with converters of our own in place of some of its.

    `converters` has them. Q/DQ graphs become integer arithmetic (`quantised`).
    """

    quantised: Quantised
    nodes: list[str]
    numbers: dict[Any, int]

    def from_onnx(self, graph: onnx.GraphProto, opset: int) -> Any:  # noqa: ANN401
        """Import a graph; `nodes` lists its nodes and `numbers` says which of them a result is of."""
        self.nodes, self.numbers = [], {}
        stock = super()._convert_operator
        self.quantised = Quantised(self.bb, lambda op, inputs, attrs: stock(op, onnx_input(inputs), attrs, opset))
        return super().from_onnx(graph, opset)

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:  # noqa: ANN401
        convert = CONVERTERS.get(op_name)
        converted = convert(self.bb, list(inputs), attrs) if convert else None
        if converted is None:
            converted = self.quantised.lower(op_name, list(inputs), attrs)
        if converted is None:
            converted = super()._convert_operator(op_name, inputs, attrs, opset)
        self._number(converted, str(attrs["tvm_custom"]["name"]))
        return converted

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Leave the question to `refusals`, which also knows what only this importer takes."""

    def _number(self, converted: Any, node: str) -> None:  # noqa: ANN401
        for result in (converted, self.quantised.steps_of(converted)):
            if isinstance(result, relax.Expr):
                self.numbers.setdefault(result, len(self.nodes))
        self.nodes.append(node)


def _fold(module: Any) -> Any:  # noqa: ANN401
    """Evaluate layout changes and dequantisation of constants with numpy.

    FoldConstant compiles a kernel for each: 5 s for the weights of a MobileNet, 0.03 s here.
    """
    module["main"] = _Folder(module).visit_expr(module["main"])
    return module


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:  # noqa: ANN401
        call = self.visit_expr_post_order(call)
        fold = _FOLDERS.get(getattr(call.op, "name", ""))
        arrays = [self._constant(argument) for argument in call.args] if fold else []
        if fold is None or arrays[0] is None:
            return call
        folded = fold(arrays, call)
        return call if folded is None else relax.const(folded)

    def _constant(self, expr: Any) -> np.ndarray[Any, Any] | None:  # noqa: ANN401
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr.value.numpy() if is_constant(expr) else None


def _fold_permute(arrays: list[Array | None], call: Any) -> Array | None:  # noqa: ANN401
    axes = None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
    return np.ascontiguousarray(np.transpose(_known(arrays[0]), axes))


def _fold_reshape(arrays: list[Array | None], call: Any) -> Array | None:  # noqa: ANN401
    shape = static_shape(call)
    return None if shape is None else _known(arrays[0]).reshape(shape)


def _fold_dequantize(arrays: list[Array | None], call: Any) -> Array | None:  # noqa: ANN401
    if any(array is None for array in arrays) or str(call.attrs.out_dtype) != "float32":
        return None
    data, scale, zero = (_known(array) for array in arrays)
    along = [1] * data.ndim
    if data.ndim:
        along[int(call.attrs.axis)] = -1
    scale, zero = (part.reshape(along) if part.ndim else part for part in (scale, zero))
    # The difference is exact in int32; TVM and ONNX both round once, in the product.
    return (data.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale.astype(np.float32)


def _fold_astype(arrays: list[Array | None], call: Any) -> Array | None:  # noqa: ANN401
    # Not to bfloat16 or float8, which numpy lacks.
    dtype = str(call.attrs.dtype)
    return _known(arrays[0]).astype(dtype) if dtype in np.sctypeDict else None


def _known(array: Array | None) -> Array:
    assert array is not None
    return array


_FOLDERS: Final[dict[str, Callable[[list[Array | None], Any], Array | None]]] = {
    "relax.astype": _fold_astype,
    "relax.permute_dims": _fold_permute,
    "relax.reshape": _fold_reshape,
    "relax.dequantize": _fold_dequantize,
}
