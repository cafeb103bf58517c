"""ONNX to a Relax module of fused functions, convolutions in NHWC.

Imports TVM; only reached through the methods of `TvmCompiler`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from compilers.adapter import CompilerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    Converter = Callable[["_Importer", list[Any], dict[str, Any]], Any]

Array = np.ndarray[Any, Any]

_LAYOUTS: Final = {"relax.nn.conv2d": ["NHWC", "HWIO"]}


def import_graph(model: onnx.ModelProto) -> Any:  # noqa: ANN401
    """Import a model whose shapes are static.

    Raises:
        CompilerError: TVM's importer lacks an operator or refuses one of its forms.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    try:
        return _Importer(None, "float32").from_onnx(model.graph, opsets.get("", opsets.get("ai.onnx", 1)))
    except Exception as error:  # the importer raises everything from TypeError to its own types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise CompilerError(f"TVM's ONNX importer refused the graph: {reason}") from error


def fuse(module: Any, target: Any) -> Any:  # noqa: ANN401
    """Lay convolutions out as NHWC, fold constants, lower to TIR and fuse."""
    passes = relax.transform
    with target, tvm.transform.PassContext(opt_level=3):
        module = passes.DecomposeOpsForInference()(module)
        module = passes.CanonicalizeBindings()(_fold(module))
        module = passes.Normalize()(passes.ConvertLayout(_LAYOUTS)(module))
        module = passes.CanonicalizeBindings()(_fold(module))
        return tvm.transform.Sequential(
            [
                passes.FoldConstant(),
                passes.EliminateCommonSubexpr(),
                relax.backend.DispatchSampling(),
                relax.backend.DispatchSortScan(),
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.DeadCodeElimination(),
                passes.FuseOps(),
                passes.FuseTIR(),
                passes.DeadCodeElimination(),
            ]
        )(module)


def count_calls(module: Any) -> Counter[str]:  # noqa: ANN401
    """Count the call sites of each fused function in `main`."""
    calls: Counter[str] = Counter()

    def visit(expr: Any) -> None:  # noqa: ANN401
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            calls[expr.args[0].name_hint] += 1

    relax.analysis.post_order_visit(module["main"], visit)
    return calls


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer with converters that keep the NHWC chain whole.

    The stock ones for Clip, HardSigmoid, HardSwish, QuantizeLinear and DequantizeLinear give operators through
    which ConvertLayout does not pass (docs/vendor_bugs.md): a pair of transposes around each. Arithmetic with
    0-d constants passes, and fuses into the convolution before it.

    `steps` maps what QuantizeLinear gave to the same integers as floats: a DequantizeLinear behind it needs no
    cast there and back.
    """

    steps: dict[Any, Any]

    def from_onnx(self, graph: onnx.GraphProto, opset: int) -> Any:  # noqa: ANN401
        """Import a graph."""
        self.steps = {}
        return super().from_onnx(graph, opset)

    def emit(self, expr: Any) -> Any:  # noqa: ANN401
        """Give an expression its type."""
        return self.bb.normalize(expr)

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:  # noqa: ANN401
        convert = _CONVERTERS.get(op_name)
        converted = convert(self, list(inputs), attrs) if convert else None
        if converted is not None:
            return converted
        return super()._convert_operator(op_name, inputs, attrs, opset)


def _is_float(expr: Any) -> bool:  # noqa: ANN401
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype).startswith("float")


def _constant(inputs: list[Any], position: int) -> Array | None:
    """Return the input at `position` when it is given and constant."""
    value = inputs[position] if position < len(inputs) else None
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def _scalar(like: Any, value: float) -> Any:  # noqa: ANN401
    return relax.const(value, str(like.ty.dtype))


def _clamp(importer: _Importer, x: Any, low: float | None, high: float | None) -> Any:  # noqa: ANN401
    if low is not None:
        x = importer.emit(relax.op.maximum(x, _scalar(x, low)))
    if high is not None:
        x = importer.emit(relax.op.minimum(x, _scalar(x, high)))
    return x


def _clip(importer: _Importer, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert Clip of floats with bounds that are constant and not NaN; None leaves any other to TVM's converter."""
    bounds = []
    for position, attribute in ((1, "min"), (2, "max")):
        given = position < len(inputs) and inputs[position] is not None
        bound = _constant(inputs, position) if given else attrs.get(attribute)
        if given and bound is None:
            return None
        bounds.append(None if bound is None else float(np.asarray(bound).item()))
    if not _is_float(inputs[0]) or any(bound is not None and np.isnan(bound) for bound in bounds):
        return None
    return _clamp(importer, inputs[0], bounds[0], bounds[1])


def _hard_sigmoid(importer: _Importer, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    x = inputs[0]
    if not _is_float(x):
        return None
    scaled = importer.emit(relax.op.multiply(x, _scalar(x, attrs.get("alpha", 0.2))))
    shifted = importer.emit(relax.op.add(scaled, _scalar(x, attrs.get("beta", 0.5))))
    return _clamp(importer, shifted, 0.0, 1.0)


def _hard_swish(importer: _Importer, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    gate = _hard_sigmoid(importer, inputs, {"alpha": 1 / 6, "beta": 0.5})
    return None if gate is None else importer.emit(relax.op.multiply(inputs[0], gate))


def _quantize(importer: _Importer, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert QuantizeLinear with one constant scale and zero point for the whole tensor."""
    x, scale, zero = inputs[0], _constant(inputs, 1), _constant(inputs, 2)
    if not _is_float(x) or scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
        return None
    limits = np.iinfo(zero.dtype)
    # Divided, not multiplied by the inverse: ONNX divides, and the last bit decides a rounding.
    steps = importer.emit(relax.op.divide(x, _scalar(x, float(scale.item()))))
    rounded = importer.emit(relax.op.round(steps))
    shifted = importer.emit(relax.op.add(rounded, _scalar(x, float(zero.item()))))
    clamped = _clamp(importer, shifted, float(limits.min), float(limits.max))
    quantised = importer.emit(relax.op.astype(clamped, str(zero.dtype)))
    importer.steps[quantised] = clamped
    return quantised


def _dequantize(importer: _Importer, inputs: list[Any], _attrs: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Convert DequantizeLinear of an activation with one constant float32 scale and zero point."""
    x, scale, zero = inputs[0], _constant(inputs, 1), _constant(inputs, 2)
    if isinstance(x, tvm.ir.GenericConst) or scale is None or zero is None:
        return None
    if scale.size != 1 or scale.dtype != np.float32 or zero.dtype.itemsize > 1:
        return None
    wide = importer.steps[x] if x in importer.steps else importer.emit(relax.op.astype(x, "float32"))
    steps = importer.emit(relax.op.subtract(wide, _scalar(wide, float(zero.item()))))
    return importer.emit(relax.op.multiply(steps, _scalar(wide, float(scale.item()))))


_CONVERTERS: Final[dict[str, Converter]] = {
    "Clip": _clip,
    "DequantizeLinear": _dequantize,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "QuantizeLinear": _quantize,
}


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
        return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None


def _fold_permute(arrays: list[Array | None], call: Any) -> Array | None:  # noqa: ANN401
    axes = None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
    return np.ascontiguousarray(np.transpose(_known(arrays[0]), axes))


def _fold_reshape(arrays: list[Array | None], call: Any) -> Array | None:  # noqa: ANN401
    shape = call.ty.shape if isinstance(call.ty, relax.TensorType) else None
    if shape is None or any(not isinstance(extent, tvm.tirx.IntImm) for extent in shape.values):
        return None
    return _known(arrays[0]).reshape([int(extent) for extent in shape.values])


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


def _known(array: Array | None) -> Array:
    assert array is not None
    return array


_FOLDERS: Final[dict[str, Callable[[list[Array | None], Any], Array | None]]] = {
    "relax.permute_dims": _fold_permute,
    "relax.reshape": _fold_reshape,
    "relax.dequantize": _fold_dequantize,
}
