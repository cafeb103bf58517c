"""Layers as tiles see them: the loop nest of a convolution, a matrix product, a pool or a normalisation."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphs import Graph, Node

CONV: Final = "conv"
MATMUL: Final = "matmul"
DEPTHWISE: Final = "depthwise"
POOL: Final = "pool"
NORM: Final = "norm"

ELEMENT_BYTES: Final = {"fp32": 4, "fp16": 2, "int8": 1}
# A sum is kept in 32 bits, whatever the operands.
SUM_BYTES: Final = 4

# How often a normalisation reads its row: a sum, a sum of squares or of exponentials, and the result.
_NORM_PASSES: Final = {
    "Softmax": 3, "LogSoftmax": 3, "LayerNormalization": 3, "RMSNormalization": 2, "InstanceNormalization": 3,
    "GroupNormalization": 3, "GlobalAveragePool": 1, "GlobalMaxPool": 1, "ReduceMean": 1, "ReduceSum": 1,
    "ReduceMax": 1,
}  # fmt: skip
_POOLS: Final = ("MaxPool", "AveragePool")


class TileError(ValueError):
    """Say in one sentence why something cannot be tiled."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One operator as a loop nest; extents in elements.

    `y` and `x` are the output's rows and columns, `k` its channels and `c` the channels that one output sums
    over, both per group. A matrix product has its rows along `x`. In a depthwise convolution, a pool and a
    normalisation each channel is by itself (`c` is 1, `groups` is 1); a normalisation has one row of `k`
    elements for each position. `pads` are top and left.
    """

    name: str
    op_type: str
    kind: str
    k: int
    c: int = 1
    y: int = 1
    x: int = 1
    batch: int = 1
    groups: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    in_y: int = 1
    in_x: int = 1
    passes: int = 1

    def __post_init__(self) -> None:
        extents = {
            "k": self.k, "c": self.c, "y": self.y, "x": self.x, "batch": self.batch, "groups": self.groups,
            "kernel": min(self.kernel), "stride": min(self.stride), "dilation": min(self.dilation),
            "input rows": self.in_y, "input columns": self.in_x,
        }  # fmt: skip
        for what, extent in extents.items():
            if extent < 1:
                raise TileError(f"{self.name or self.op_type}: {what} is {extent}, and every size must be at least 1")

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def padded(self) -> bool:
        """Tell whether windows reach beyond the image on any side."""
        sizes = ((self.y, self.in_y), (self.x, self.in_x))
        return any(
            (out - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1) + 1 > inside
            for i, (out, inside) in enumerate(sizes)
        )

    @property
    def all_pads(self) -> tuple[int, int, int, int]:
        """Padding as ONNX has it: top, left, and bottom and right as far as the windows reach."""
        after = [
            (out - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1) + 1 - inside - self.pads[i]
            for i, (out, inside) in enumerate(((self.y, self.in_y), (self.x, self.in_x)))
        ]
        return (*self.pads, max(0, after[0]), max(0, after[1]))

    @property
    def per_channel(self) -> bool:
        """Tell whether an output channel reads its own input channel only."""
        return self.kind in (DEPTHWISE, POOL, NORM)

    @property
    def positions(self) -> int:
        """Output positions of all batches."""
        return self.batch * self.y * self.x

    @property
    def macs(self) -> int:
        """Multiply-adds (pools and normalisations: elements read) of one run."""
        return self.positions * self.groups * self.k * self.c * self.taps * self.passes

    @property
    def weights(self) -> int:
        """Elements of the second operand; 0 where there is none."""
        return 0 if self.kind in (POOL, NORM) else self.groups * self.k * self.c * self.taps

    @property
    def in_channels(self) -> int:
        """Input channels of all groups."""
        return self.groups * (self.k if self.per_channel else self.c)

    @property
    def inputs(self) -> int:
        """Elements of the data input."""
        return self.batch * self.in_y * self.in_x * self.in_channels

    @property
    def outputs(self) -> int:
        """Elements of the output; a reduction leaves one for each position."""
        if self.kind == NORM and self.passes == 1:
            return self.positions
        return self.positions * self.groups * self.k

    @property
    def signature(self) -> tuple[object, ...]:
        """All but the name: layers with the same signature have the same tiles."""
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "name")

    def minimal_bytes(self, width: int) -> int:
        """Bytes that cross the memory interface when each tensor does so once; elements of `width` bytes."""
        return (self.inputs + self.weights + self.outputs) * width


def element_bytes(precision: str) -> int:
    """Return the width of an element.

    Raises:
        TileError: the precision is none of fp32, fp16, int8.
    """
    if precision not in ELEMENT_BYTES:
        raise TileError(f"unknown precision {precision!r}; use one of {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[precision]


def convolution(
    name: str,
    *,
    shape: tuple[int, int, int, int],
    k: int,
    groups: int = 1,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int],
) -> Layer:
    """Return a convolution of an input [batch, channels, rows, columns]; `pads` as ONNX: top, left, bottom, right.

    Raises:
        TileError: a size is below 1, the groups do not divide the channels, or the kernel is larger than the
            padded input.
    """
    batch, channels, rows, columns = shape
    if groups < 1 or channels % groups or k % groups:
        raise TileError(f"{name}: {groups} groups do not divide {channels} input and {k} output channels")
    depthwise = groups > 1 and groups == channels
    return Layer(
        name=name,
        op_type="Conv",
        kind=DEPTHWISE if depthwise else CONV,
        k=k if depthwise else k // groups,
        c=1 if depthwise else channels // groups,
        groups=1 if depthwise else groups,
        batch=batch,
        **_window(name, (rows, columns), kernel, stride, dilation, pads),
    )


def pool(
    name: str,
    op_type: str,
    *,
    shape: tuple[int, int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Layer:
    """Return a pool over an input [batch, channels, rows, columns]."""
    window = _window(name, shape[2:], kernel, stride, dilation, pads)
    return Layer(name=name, op_type=op_type, kind=POOL, k=shape[1], batch=shape[0], **window)


def matmul(name: str, *, rows: int, c: int, k: int, batch: int = 1, op_type: str = "MatMul") -> Layer:
    """Return `batch` products [rows, c] x [c, k], each with a right-hand side of its own."""
    return Layer(name=name, op_type=op_type, kind=MATMUL, k=k, c=c, x=rows, in_x=rows, groups=batch)


def normalisation(name: str, op_type: str, *, rows: int, span: int) -> Layer:
    """Return a normalisation or reduction over `span` elements, `rows` times.

    Raises:
        TileError: the operator is not one that spans an axis.
    """
    if op_type not in _NORM_PASSES:
        raise TileError(f"{op_type} spans no axis; those that do are {', '.join(sorted(_NORM_PASSES))}")
    passes = _NORM_PASSES[op_type]
    return Layer(name=name, op_type=op_type, kind=NORM, k=span, x=rows, in_x=rows, passes=passes)


def _window(
    name: str,
    size: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> dict[str, Any]:
    if min((*size, *kernel, *stride, *dilation)) < 1 or min(pads) < 0:
        raise TileError(f"{name}: sizes, kernel, stride and dilation must be at least 1 and padding at least 0")
    span = [dilation[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
    out = [(size[i] + pads[i] + pads[i + 2] - span[i]) // stride[i] + 1 for i in (0, 1)]
    if min(out) < 1:
        raise TileError(f"{name}: a {span[0]}x{span[1]} window does not fit the padded input of {size[0]}x{size[1]}")
    return {
        "y": out[0], "x": out[1], "in_y": size[0], "in_x": size[1], "kernel": kernel, "stride": stride,
        "dilation": dilation, "pads": (pads[0], pads[1]),
    }  # fmt: skip


# --- from a graph --------------------------------------------------------------------------------------------


def layers_of(graph: Graph) -> tuple[tuple[Layer, ...], Mapping[str, str]]:
    """Return the layers of a graph in its order, and for each other node why it has no tile."""
    attributes = {proto.name: proto for proto in graph.proto().graph.node}
    shapes = {name: spec.shape for name, spec in {**graph.initializers(), **graph.tensors()}.items()}
    layers, refused = [], {}
    for node in graph.nodes():
        try:
            layers.append(_layer(node, _attributes(attributes[node.name]), shapes))
        except TileError as why:
            refused[node.name] = str(why)
    return tuple(layers), refused


def _attributes(proto: Any) -> dict[str, Any]:  # noqa: ANN401 - onnx's, which partition does not import
    return {a.name: list(a.ints) or a.s.decode() or a.i for a in proto.attribute}


def _layer(node: Node, attributes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...] | None]) -> Layer:
    build = _BUILDERS.get(node.op_type)
    if build is None:
        raise TileError(f"{node.op_type} has no tiles: it is no convolution, matrix product, pool or normalisation")
    known = [shapes.get(name) for name in (*node.inputs[:2], node.outputs[0]) if name]
    if any(shape is None for shape in known):
        raise TileError(f"{node.name}: a shape is not known; bind the symbolic dimensions")
    return build(node, attributes, [shape for shape in known if shape is not None])


_Shapes = list[tuple[int, ...]]


def _image(node: Node, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return a 1-D or 2-D feature map as [batch, channels, rows, columns]."""
    if len(shape) == 3:
        return shape[0], shape[1], 1, shape[2]
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    raise TileError(f"{node.name}: {node.op_type} over {len(shape) - 2} spatial axes has no tiles here")


def _pair(values: Sequence[int] | None) -> tuple[int, int]:
    """Return (rows, columns) of an attribute, 1 where it is not given; one of a single axis is for the columns."""
    numbers = list(values or (1,))
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def _pads(
    node: Node,
    attributes: Mapping[str, Any],
    size: tuple[int, int],
    out: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[int, int, int, int]:
    """Return the padding, from auto_pad where the node says so, as it follows from the output's size."""
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        total = [max(0, (out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 - size[i]) for i in (0, 1)]
        first = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total]
        return first[0], first[1], total[0] - first[0], total[1] - first[1]
    if mode not in ("NOTSET", "VALID", 0):
        raise TileError(f"{node.name}: auto_pad {mode!r} is not one of ONNX")
    pads = attributes.get("pads") or [0, 0, 0, 0]
    return (0, pads[0], 0, pads[1]) if len(pads) == 2 else (pads[0], pads[1], pads[2], pads[3])


def _conv_node(node: Node, attributes: Mapping[str, Any], shapes: _Shapes) -> Layer:
    shape, out = _image(node, shapes[0]), _image(node, shapes[-1])
    weight = _image(node, shapes[1])
    kernel = (weight[2], weight[3])
    stride, dilation = _pair(attributes.get("strides")), _pair(attributes.get("dilations"))
    pads = _pads(node, attributes, shape[2:], out[2:], kernel, stride, dilation)
    return convolution(
        node.name, shape=shape, k=weight[0], groups=int(attributes.get("group") or 1), kernel=kernel,
        stride=stride, dilation=dilation, pads=pads,
    )  # fmt: skip


def _pool_node(node: Node, attributes: Mapping[str, Any], shapes: _Shapes) -> Layer:
    shape, out = _image(node, shapes[0]), _image(node, shapes[-1])
    kernel, stride = _pair(attributes["kernel_shape"]), _pair(attributes.get("strides"))
    dilation = _pair(attributes.get("dilations"))
    pads = _pads(node, attributes, shape[2:], out[2:], kernel, stride, dilation)
    layer = pool(node.name, node.op_type, shape=shape, kernel=kernel, stride=stride, dilation=dilation, pads=pads)
    # ceil_mode may round the output up; the graph's own shape is what counts.
    return dataclasses.replace(layer, y=out[2], x=out[3])


def _gemm_node(node: Node, attributes: Mapping[str, Any], shapes: _Shapes) -> Layer:
    rows, columns = shapes[-1]
    depth = shapes[0][0] if attributes.get("transA") else shapes[0][1]
    return matmul(node.name, rows=rows, c=depth, k=columns, op_type="Gemm")


def _matmul_node(node: Node, attributes: Mapping[str, Any], shapes: _Shapes) -> Layer:  # noqa: ARG001
    left, right, out = shapes
    if len(left) < 2 or len(right) < 2:
        raise TileError(f"{node.name}: a matrix product with a vector has no tiles here")
    # A right-hand side without batch serves all rows of the left one.
    batch = math.prod(right[:-2])
    rows = math.prod(out[:-1]) // batch
    return matmul(node.name, rows=rows, c=left[-1], k=right[-1], batch=batch)


def _norm_node(node: Node, attributes: Mapping[str, Any], shapes: _Shapes) -> Layer:
    shape, out = shapes[0], shapes[-1]
    span = _span(node, attributes, shape, out)
    return normalisation(node.name, node.op_type, rows=math.prod(shape) // span, span=span)


def _span(node: Node, attributes: Mapping[str, Any], shape: tuple[int, ...], out: tuple[int, ...]) -> int:
    if node.op_type in ("Softmax", "LogSoftmax"):
        return shape[int(attributes.get("axis", -1))]
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        axis = int(attributes.get("axis", -1))
        return math.prod(shape[axis:] if axis < 0 else shape[axis % len(shape) :])
    if node.op_type == "InstanceNormalization":
        return math.prod(shape[2:])
    if node.op_type == "GroupNormalization":
        return math.prod(shape[1:]) // int(attributes["num_groups"])
    return math.prod(shape) // math.prod(out)


_BUILDERS: Final[Mapping[str, Callable[[Node, Mapping[str, Any], _Shapes], Layer]]] = {
    "Conv": _conv_node,
    "Gemm": _gemm_node,
    "MatMul": _matmul_node,
    **dict.fromkeys(_POOLS, _pool_node),
    **dict.fromkeys(_NORM_PASSES, _norm_node),
}
