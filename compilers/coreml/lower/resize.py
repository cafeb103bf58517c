"""Resize and Upsample: ask the reference for the interpolation matrix of each axis, then apply it.

Every coordinate, nearest, cubic and antialias mode is a linear map along one axis. ONNX Runtime resizes the
rows of an identity matrix, which gives that map exactly; it is emitted as a repetition, a gather, or a matrix
product. MIL's own resize operators are used for no mode that they might round differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.adapter import CompilerError
from compilers.coreml.lower.fold import evaluate
from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS

if TYPE_CHECKING:
    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar

Array = np.ndarray[Any, Any]

_COPIED = (
    "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode",
)  # fmt: skip


@lowers("Resize", "Upsample")
def _resize(node: Node) -> None:
    node.need_dtype(*FLOATS)
    attributes = {name: node.attr(name) for name in _COPIED}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        node.refuse("attribute coordinate_transformation_mode=tf_crop_and_resize is not handled")
    node.attr("extrapolation_value")  # used by tf_crop_and_resize only
    if node.op_type == "Resize" and node.opset >= 11 and node.has(1):
        node.value(1)  # roi: used by tf_crop_and_resize only
    result = node.x()
    for axis, (size, target) in _targets(node).items():
        result = _apply(node, result, axis, _matrix(node, attributes, size, target))
    node.out(result if result is not node.x() else node.mil.identity(x=result))


def _targets(node: Node) -> dict[int, tuple[int, dict[str, Array]]]:
    """Return, per resized axis, its size and the scales or sizes input of a one-axis Resize."""
    shape = node.shape()
    axes = [node.normal_axis(a, len(shape)) for a in (node.ints("axes") or range(len(shape)))]
    scales, sizes = _scales_and_sizes(node)
    if sizes is not None:
        node.require("keep_aspect_ratio_policy", "stretch", default="stretch")
        wanted = dict(zip(axes, sizes, strict=True))
        return {a: (shape[a], {"sizes": np.array([shape[a], n])}) for a, n in wanted.items() if n != shape[a]}
    node.attr("keep_aspect_ratio_policy")  # about sizes only
    if scales is None:
        node.refuse("neither scales nor sizes")
    factors = dict(zip(axes, scales, strict=True))
    return {a: (shape[a], {"scales": np.array([1, f], np.float32)}) for a, f in factors.items() if f != 1}


def _scales_and_sizes(node: Node) -> tuple[list[float] | None, list[int] | None]:
    if node.op_type == "Upsample" and node.opset < 9:
        return [float(s) for s in node.attr("scales")], None
    at = 1 if node.op_type == "Upsample" or node.opset < 11 else 2
    scales = node.const(at) if node.has(at) else np.empty(0)
    sizes = node.const(3) if node.has(3) and node.op_type == "Resize" and node.opset >= 11 else np.empty(0)
    return ([float(s) for s in scales] or None), ([int(s) for s in sizes] or None)


def _matrix(node: Node, attributes: dict[str, Any], size: int, target: dict[str, Array]) -> Array:
    """Return the (out, in) matrix of one axis, from the reference kernel on an identity matrix."""
    import onnx

    identity = np.eye(size, dtype=np.float32)
    arrays: list[Array | None]
    if node.op_type == "Upsample" or node.opset < 11:
        names, arrays = ["x", "scales"], [identity, target["scales"]]
    else:
        names = ["x", "", "scales" if "scales" in target else "", "sizes" if "sizes" in target else ""]
        arrays = [identity, None, target.get("scales"), target.get("sizes")]
    if node.op_type == "Resize" and node.opset == 11:  # where roi and scales may be empty, but not left out
        empty = np.empty(0, np.float32)
        names = ["x", "roi", "scales", *(["sizes"] if "sizes" in target else [])]
        arrays = [identity, empty, target.get("scales", empty), *([target["sizes"]] if "sizes" in target else [])]
    extra = {"scales": target["scales"].tolist()} if node.op_type == "Upsample" and node.opset < 9 else {}
    if extra:
        names, arrays = names[:1], arrays[:1]
    proto = onnx.helper.make_node(node.op_type, names, ["y"], name="axis", **attributes, **extra)
    try:
        (rows,) = evaluate(proto, arrays, [onnx.helper.make_opsetid("", node.opset)])
    except CompilerError as error:
        node.refuse(f"attributes {attributes}: {error.reason}")
    return np.ascontiguousarray(rows.T)


def _apply(node: Node, x: MilVar, axis: int, matrix: Array) -> MilVar:
    mil = node.mil
    if _is_selection(matrix):
        source = matrix.argmax(axis=1)
        factor, rest = divmod(len(matrix), matrix.shape[1])
        repeats = not rest and np.array_equal(source, np.repeat(np.arange(matrix.shape[1]), factor))
        if repeats and len(x.shape) == 4 and axis >= 2:
            name = "scale_factor_height" if axis == 2 else "scale_factor_width"
            return mil.upsample_nearest_neighbor(x=x, **{name: factor})
        indices = node.constant(source.astype(np.int32))
        return mil.gather(x=x, indices=indices, axis=axis, batch_dims=0, validate_indices=False)
    weights = node.constant(matrix.astype(node.dtype()))
    last = len(x.shape) - 1
    if axis == last:
        return mil.matmul(x=x, y=weights, transpose_y=True)
    if axis == last - 1:
        return mil.matmul(x=weights, y=x)
    order = list(range(last + 1))
    order[axis], order[last] = order[last], order[axis]
    product = mil.matmul(x=mil.transpose(x=x, perm=order), y=weights, transpose_y=True)
    return mil.transpose(x=product, perm=order)


def _is_selection(matrix: Array) -> bool:
    return bool(np.all((matrix == 0) | (matrix == 1)) and np.all(matrix.sum(axis=1) == 1))


# ONNX reflects about the outermost pixels' centres or about their edges, as align_corners says.
_PADDINGS: Final = {
    ("zeros", False): "constant",
    ("zeros", True): "constant",
    ("border", False): "border",
    ("border", True): "border",
    ("reflection", True): "reflection",
    ("reflection", False): "symmetric",
}


@lowers("GridSample")
def _grid_sample(node: Node) -> None:
    # Nearest is refused: MIL does not say which pixel a point half way between two is.
    node.need_dtype(*FLOATS)
    node.require("mode", "linear", "bilinear")
    if len(node.shape()) != 4:
        node.refuse(f"a grid over {len(node.shape()) - 2} axes is not handled, only over 2")
    aligned = bool(node.attr("align_corners"))
    result = node.mil.resample(
        x=node.x(0),
        coordinates=node.x(1),
        sampling_mode="bilinear",
        padding_mode=_PADDINGS[str(node.attr("padding_mode")), aligned],
        padding_value=node.like(0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=aligned,
    )
    node.out(result)
