"""What each node of a graph does on an NPU's units, tile by tile, as the traces of the vendor's compiler show it.

A feature map lies in blocks of rows, columns and channels and is worked on in bands of one block of rows, so a small
map has few tiles, and vector threads stand idle. What the traces of operators by themselves show beyond the layers'
own loops (`python -m benchmarks.tiles passes`), a pass of the vector unit over a tensor: a function by table, which a
chain of functions of one tensor needs once (in fp16 the matrix unit applies it to what it has made); a sum over
positions, which has one tile and before and after which everything waits; slices and concatenations where groups of
channels fill no whole blocks; tensors of more than four axes in plain rows; pools; in fp16 a normalisation, a limit or
a factor by channel of what no layer made, where a layer's own go into its weights.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from partition.tile.npu import NpuTile
from partition.tile.npu_cost import Grid
from partition.tile.operators import CONV, DEPTHWISE, MATMUL, NORM, POOL, Layer, TileError, layers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphs import Graph, Node, TensorSpec
    from partition.tile.npu import NpuMachine

MATRIX: Final = "matrix"
VECTOR: Final = "vector"
# Names for the same bytes, and operators whose result can grow where their input shrinks.
_NO_WORK: Final = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Constant", "Dropout", "Cast", "Split"}
)
_LIMITS: Final = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu"})
_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Pow"})
_FUNCTIONS: Final = frozenset(
    {"Sigmoid", "HardSigmoid", "HardSwish", "Gelu", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Elu", "Selu", "Softplus",
     "Mish", "Neg", "Abs", "Reciprocal", "Sin", "Cos"}
)  # fmt: skip
_IN_PLACE: Final = _NO_WORK | _LIMITS | _ARITHMETIC | _FUNCTIONS | {"BatchNormalization", "Concat"}
_IMAGES: Final = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize"})
_REDUCTIONS: Final = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax"})
_IMAGE_AXES: Final = 4
# Of the traces: the vector unit's tiles of one band are at most this large, a convolution's have 256 channels, a sum
# over positions is one tile up to 256 channels and then one for each 128, plain rows are cut into pieces of 256 KiB.
_TILE_BYTES: Final = 32 << 10
_TILE_CHANNELS: Final = 256
_SUM_CHANNELS: Final = 128
_PLAIN_BYTES: Final = 256 << 10
# A sum on the matrix unit goes by blocks of channels, and a band of one takes as long as this many bytes at least.
_LEAST_SUM_BYTES: Final = 16 << 10
# Steps of 8-bit windows with strides over an image of few channels, whose windows are laid side by side: 3x3, 6x6 and
# 7x7 take 18, 13 and 15 in the traces. In fp16 each tap is a step.
_IMAGE_STEPS: Final = 16
# An input whose blocked form takes no more of the memory is left whole, for one vector thread. In the traces, 224x224x3
# in int8 (1.5 MiB blocked) is whole at 8 MB and in 28 tiles at 4 MB; in fp16 (3.1 MiB) it is in tiles at 8 MB too.
_WHOLE_SHARE: Final = 0.25
# Channels that come last already, or rows of tokens: the same bytes in blocks.
_SAME_ORDERS: Final = ([0, 2, 3, 1], [0, 3, 1, 2], [0, 2, 1])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One pass: so many tiles of so many cycles each. `whole`: the first tile needs all of what comes before.

    `halo`: a tile needs the rows beyond its own.
    """

    unit: str
    tiles: int
    cycles: float
    whole: bool = False
    halo: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One node: its tensors, its weights and what it does; `transfers` are the weight transfers it starts."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: bool
    weight_bytes: float
    transfers: int
    stages: tuple[Stage, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A tensor in blocks: bands of one block of rows, and bytes with columns and channels filled up."""

    channels: int
    bands: int
    nbytes: float

    @classmethod
    def image(cls, shape: Sequence[int], machine: NpuMachine) -> Form:
        """Lay out [batch, channels, rows, columns]."""
        batch, channels, rows, columns = shape
        blocks = math.ceil(columns / machine.block_x) * math.ceil(channels / machine.columns)
        nbytes = batch * rows * blocks * machine.block_x * machine.columns * machine.element_bytes
        return cls(channels=channels, bands=math.ceil(batch * rows / machine.block_y), nbytes=float(nbytes))

    @classmethod
    def rows(cls, shape: Sequence[int], machine: NpuMachine) -> Form:
        """Lay out [..., channels], whose positions fill whole blocks."""
        channels = shape[-1] if shape else 1
        rows = math.ceil(math.prod(shape[:-1]) / machine.block_x)
        return cls.image((1, channels, rows, machine.block_x), machine)

    @property
    def tiles(self) -> int:
        """Tiles of the vector unit."""
        return self.bands * max(1, math.ceil(self.nbytes / self.bands / _TILE_BYTES))


def works_of(graph: Graph, machine: NpuMachine) -> tuple[list[Work], dict[str, Form]]:
    """Return the work of each node in the graph's order, and the form of each tensor on the chip.

    What brings an image into blocks comes first, as a work of its own with a tensor of its own.

    Raises:
        TileError: a shape is not known.
    """
    forms = _forms(graph, machine)
    reader = _Reader(graph, machine, forms)
    works = [reader.work(node) for node in graph.nodes()]
    entries = [_entry(spec, machine) for spec in graph.inputs() if len(spec.shape or ()) == _IMAGE_AXES]
    blocked = {name: entry.outputs[0] for entry in entries for name in entry.inputs}
    forms |= {
        name: Form.image(spec.shape or (), machine) for spec in graph.inputs() if (name := blocked.get(spec.name))
    }
    renamed = [
        dataclasses.replace(work, inputs=tuple(blocked.get(name, name) for name in work.inputs)) for work in works
    ]
    return entries + renamed, forms


# --- forms ---------------------------------------------------------------------------------------------------


def _forms(graph: Graph, machine: NpuMachine) -> dict[str, Form]:
    nodes, tensors = graph.nodes(), graph.tensors()
    images, sources = _images(nodes, tensors), _group_sources(nodes)
    flat = _flat_ends(nodes, tensors)
    forms = {}
    for name, spec in tensors.items():
        if spec.shape is None:
            raise TileError(f"the shape of {name} is not known; it follows from the data, or from a symbolic dimension")
        if name in flat and name not in sources:
            batch, channels, positions = spec.shape
            forms[name] = Form.rows((batch * positions, channels), machine)
        else:
            source = sources.get(name, name)
            forms[name] = (Form.image if source in images else Form.rows)(_shape(tensors, source), machine)
    return forms


def _images(nodes: Sequence[Node], tensors: Mapping[str, TensorSpec]) -> frozenset[str]:
    """Name the tensors whose second axis is the channels: those of windows, and what is of one size with them."""
    found = {name for node in nodes if node.op_type in _IMAGES for name in (*node.inputs, *node.outputs)}
    same = _ARITHMETIC | _FUNCTIONS | _LIMITS | {"Concat", "Split", "BatchNormalization"}
    groups = [
        [name for name in (*node.inputs, *node.outputs) if len(_shape(tensors, name)) == _IMAGE_AXES]
        for node in nodes
        if node.op_type in same
    ]
    for turn in (groups, groups[::-1], groups):
        for group in turn:
            if found.intersection(group):
                found.update(group)
    return frozenset(name for name in found if len(_shape(tensors, name)) == _IMAGE_AXES)


def _flat_ends(nodes: Sequence[Node], tensors: Mapping[str, TensorSpec]) -> frozenset[str]:
    """Name the ends of normalisations over positions of [batch, channels, positions]: one channel fills a block."""
    return frozenset(
        name
        for node in nodes
        if node.op_type == "InstanceNormalization" and len(_shape(tensors, node.inputs[0])) == _IMAGE_AXES - 1
        for name in (node.inputs[0], node.outputs[0])
    )


def _group_sources(nodes: Sequence[Node]) -> dict[str, str]:
    """Map the ends of such a normalisation to the tensor whose groups it normalises, where the compiler sees that.

    It does for Reshape, InstanceNormalization, Reshape, Mul, unless another reshape comes before and merges with the
    first: MobileViT's first norm of a stage takes 23.7 million cycles in fp16, each other one 0.1.
    """
    makers = {name: node for node in nodes for name in node.outputs}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type != "InstanceNormalization":
            continue
        before, after = makers.get(node.inputs[0]), readers.get(node.outputs[0], [])
        if before is None or before.op_type != "Reshape":
            continue
        maker = makers.get(before.inputs[0])
        scaled = any(reader.op_type == "Mul" for back in after for reader in readers.get(back.outputs[0], []))
        if scaled and maker is not None and maker.op_type not in ("Reshape", "Transpose"):
            found |= dict.fromkeys((node.inputs[0], node.outputs[0]), before.inputs[0])
    return found


def _shape(tensors: Mapping[str, TensorSpec], name: str) -> tuple[int, ...]:
    return (tensors[name].shape or ()) if name in tensors else ()


# --- nodes ---------------------------------------------------------------------------------------------------


class _Reader:
    """Reads nodes in the graph's order; `_source` names the tensor that a tensor is a function of."""

    def __init__(self, graph: Graph, machine: NpuMachine, forms: Mapping[str, Form]) -> None:
        self._machine, self._forms = machine, forms
        self._layers = {layer.name: layer for layer in layers_of(graph)[0]}
        self._tensors, self._constants = graph.tensors(), graph.initializers()
        self._orders, self._groups = _orders(graph), _group_sources(graph.nodes())
        self._flat = _flat_ends(graph.nodes(), self._tensors) - self._groups.keys()
        self._makers = {name: node for node in graph.nodes() for name in node.outputs}
        self._source: dict[str, str] = {}
        self._results = frozenset(spec.name for spec in graph.outputs())
        self._inside = _counts_inside(graph)
        self._passes = dict(machine.passes)

    def work(self, node: Node) -> Work:
        inputs = tuple(dict.fromkeys(name for name in node.inputs if name in self._tensors))
        outputs = tuple(name for name in node.outputs if name in self._tensors)
        constants = [self._constants[name].shape or () for name in node.inputs if name in self._constants]
        layer = self._layer(node)
        stages = list(self._stages(node, inputs, outputs, layer))
        stages += [self._exit(name) for name in outputs if name in self._results]
        return Work(
            inputs=inputs,
            outputs=outputs,
            in_place=node.op_type in _IN_PLACE,
            weight_bytes=float(sum(map(math.prod, constants)) * self._machine.element_bytes),
            transfers=_transfers(_packed(layer, self._machine), self._machine) if layer is not None else 0,
            stages=tuple(stages),
        )

    def _layer(self, node: Node) -> Layer | None:
        """Return the loops of a node.

        A batch normalisation that no convolution took up is a depthwise one, unless the vector unit has a pass for it,
        and so is a mean over windows without strides that counts its border.
        """
        layer = self._layers.get(node.name)
        if node.op_type == "AveragePool" and layer is not None:
            by_matrix = layer.stride == (1, 1) and node.name not in self._inside
            return dataclasses.replace(layer, kind=DEPTHWISE) if by_matrix else layer
        if node.op_type != "BatchNormalization" or "affine" in self._passes or self._folds(node.inputs[0]):
            return layer
        shape = _shape(self._tensors, node.inputs[0])
        if len(shape) != _IMAGE_AXES:
            return None
        _, channels, y, x = shape
        return Layer(name=node.name, op_type="Conv", kind=DEPTHWISE, k=channels, y=y, x=x, in_y=y, in_x=x)

    def _made_by_layer(self, name: str) -> bool:
        maker = self._makers.get(name)
        if maker is not None and (maker.op_type in _LIMITS or self._is_bias(maker)):
            return self._made_by_layer(next((name for name in maker.inputs if name in self._tensors), ""))
        return maker is not None and maker.op_type in ("Conv", "Gemm", "MatMul")

    def _is_bias(self, node: Node) -> bool:
        return node.op_type == "Add" and self._has_constant(node)

    def _has_constant(self, node: Node) -> bool:
        return any(name in self._constants for name in node.inputs)

    def _is_affine(self, node: Node) -> bool:
        """Tell whether it is a constant term or factor, as weights can take up; a constant over a tensor is neither."""
        inverse = node.op_type == "Div" and node.inputs[0] in self._constants
        return node.op_type in ("Add", "Mul", "Div") and self._has_constant(node) and not inverse

    def _folds(self, name: str) -> bool:
        """Tell whether a constant factor or term of that tensor goes into the weights that make it."""
        maker = self._makers.get(name)
        if maker is None:
            return False
        if self._is_affine(maker) or (maker.op_type == "BatchNormalization" and self._has_constant(maker)):
            return self._folds(next((name for name in maker.inputs if name in self._tensors), ""))
        return maker.op_type in ("Conv", "Gemm", "MatMul")

    def _limited_on_the_way(self, name: str) -> bool:
        """Tell whether the unit that makes a tensor cuts it: all do in 8 bits, the matrix unit in fp16."""
        maker = self._makers.get(name)
        summed = maker is not None and maker.op_type in ("Add", "Sub", "AveragePool")
        return "limit" not in self._passes or summed or self._made_by_layer(name)

    def _stages(
        self, node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...], layer: Layer | None
    ) -> Iterator[Stage]:
        if not inputs:
            return  # of constants: computed when the graph is compiled
        if layer is not None:
            yield from self._norm(node) if layer.kind == NORM else _layer_stages(layer, self._machine)
        elif node.op_type in _LIMITS | {"BatchNormalization"}:
            yield from self._limit(node, inputs, outputs)
        elif node.op_type in _FUNCTIONS | _ARITHMETIC:
            yield from self._elementwise(node, inputs, outputs)
        elif self._axes(inputs, outputs) > _IMAGE_AXES and node.op_type in ("Transpose", "Reshape"):
            nbytes = math.prod(_shape(self._tensors, outputs[0])) * self._machine.element_bytes
            yield vector_pass(self._machine, "plain", nbytes, max(1, nbytes // _PLAIN_BYTES), whole=True)
        elif flat := self._flat.intersection((*inputs, *outputs)):
            yield from (self._pass("block", name, whole=True) for name in flat)
        elif node.op_type not in _NO_WORK and outputs:
            yield from self._moved(node, inputs, outputs)

    def _limit(self, node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[Stage]:
        if node.op_type == "BatchNormalization":
            if not self._folds(inputs[0]):
                yield self._pass("affine", outputs[0])
        elif not self._limited_on_the_way(inputs[0]):
            yield self._pass("limit", outputs[0])
        elif node.op_type == "Clip":
            # What makes a value cuts it below 0 on the way; only an upper limit costs anything.
            yield from self._fused("fused_limit", inputs, outputs)

    def _elementwise(self, node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[Stage]:
        if self._is_function(node, inputs, outputs):
            yield from self._function(node, inputs, outputs)
        elif self._is_affine(node) and self._folds(inputs[0]):
            return
        elif node.op_type in ("Add", "Sub") and "matrix_add" in self._passes:
            yield self._sum(outputs[0])
        elif node.op_type != "Add" and self._is_affine(node) and "scale" in self._passes:
            yield self._pass("scale", outputs[0])
        else:
            yield self._pass("multiply" if node.op_type in ("Mul", "Div") else "add", outputs[0])

    def _moved(self, node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[Stage]:
        """Yield what puts a tensor together or in another order; one pass for all that is not known by name."""
        if node.op_type == "Transpose":
            if self._orders[node.name] not in _SAME_ORDERS:
                yield self._pass("transpose", outputs[0], whole=True)
        elif node.op_type != "Concat":
            yield self._pass("add", outputs[0])
        elif any(self._forms[name].channels % self._machine.columns for name in inputs):
            yield self._pass("join", outputs[0])

    def _axes(self, inputs: Sequence[str], outputs: Sequence[str]) -> int:
        return max(len(_shape(self._tensors, name)) for name in (*inputs, *outputs))

    def _pass(self, kind: str, name: str, *, whole: bool = False) -> Stage:
        form = self._forms[name]
        return vector_pass(self._machine, kind, form.nbytes, form.tiles, whole=whole)

    def _is_function(self, node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """Tell whether the node's result is a function of one tensor, element by element."""
        sources = {self._source.get(name, name) for name in inputs}
        scalar = all(
            math.prod(self._constants[name].shape or ()) == 1 for name in node.inputs if name in self._constants
        )
        if len(sources) != 1 or not scalar:
            return False
        self._source[outputs[0]] = sources.pop()
        return True

    def _function(self, node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Stage]:
        """Yield one table for a chain: where the chain begins."""
        if self._source[outputs[0]] not in inputs or len(inputs) > 1:
            return
        if self._made_by_layer(inputs[0]) and "fused_table" in self._passes:
            yield from self._fused("fused_table", inputs, outputs)
            return
        yield self._pass("table", outputs[0])
        if node.op_type == "HardSwish":
            # The runtime makes two nodes of it.
            yield self._pass("multiply", outputs[0])

    def _fused(self, kind: str, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Stage]:
        """Yield what the matrix unit takes for it beyond making its input, where it takes time at all."""
        rate = self._passes.get(kind)
        if rate and self._made_by_layer(inputs[0]):
            form = self._forms[outputs[0]]
            yield Stage(unit=MATRIX, tiles=form.bands, cycles=rate * form.nbytes / form.bands)

    def _sum(self, name: str) -> Stage:
        """Return a sum on the matrix unit, one tile for each block of channels of a band."""
        form, machine = self._forms[name], self._machine
        tiles = form.bands * math.ceil(form.channels / machine.columns)
        nbytes = max(form.nbytes / tiles, _LEAST_SUM_BYTES)
        cycles = machine.matrix_start_cycles + self._passes["matrix_add"] * nbytes
        return Stage(unit=MATRIX, tiles=tiles, cycles=cycles)

    def _norm(self, node: Node) -> Iterator[Stage]:
        form = self._forms[node.inputs[0]]
        if node.op_type in _REDUCTIONS:
            tiles = 1 if form.channels <= _TILE_CHANNELS else math.ceil(form.channels / _SUM_CHANNELS)
            yield vector_pass(self._machine, "mean", form.nbytes, tiles, whole=True)
        elif node.op_type in ("Softmax", "LogSoftmax"):
            yield vector_pass(self._machine, "softmax", form.nbytes, form.tiles)
        else:
            alone = node.op_type == "InstanceNormalization" and node.inputs[0] not in self._groups
            if alone:
                # The sums over all positions first, then the result.
                half = vector_pass(self._machine, "moments", form.nbytes / 2, form.tiles, whole=True)
                yield from (half, half)
            else:
                yield vector_pass(self._machine, "normalise", form.nbytes, form.tiles)

    def _exit(self, name: str) -> Stage:
        elements = math.prod(_shape(self._tensors, name))
        return vector_pass(self._machine, "exit", elements, max(1, elements // _PLAIN_BYTES))


def _entry(spec: TensorSpec, machine: NpuMachine) -> Work:
    """Return what brings a float image into blocks: a cast or a quantisation, then the layout."""
    shape = spec.shape or ()
    blocked = Form.image(shape, machine)
    tiles = 1 if blocked.nbytes <= _WHOLE_SHARE * machine.budget_bytes else blocked.bands
    cast = vector_pass(machine, "cast", math.prod(shape), 1 if machine.element_bytes > 1 else tiles)
    stages = (cast, vector_pass(machine, "block", blocked.nbytes, tiles))
    return Work(
        inputs=(spec.name,), outputs=(blocked_name(spec),), in_place=False, weight_bytes=0.0, transfers=0, stages=stages
    )


def blocked_name(spec: TensorSpec) -> str:
    """Name the tensor that an input image becomes."""
    return f"{spec.name} in blocks"


def vector_pass(machine: NpuMachine, kind: str, nbytes: float, tiles: int, *, whole: bool = False) -> Stage:
    """Return a pass of the vector unit over so many bytes (a cast: elements).

    A kind without a rate of its own has that at which layouts change.
    """
    rate = dict(machine.passes).get(kind, machine.in_cycles_per_byte)
    return Stage(unit=VECTOR, tiles=tiles, cycles=machine.pass_start_cycles + rate * nbytes / tiles, whole=whole)


def _counts_inside(graph: Graph) -> frozenset[str]:
    """Name the means over windows that leave their border out of the count."""
    found = set()
    for node in graph.proto().graph.node:
        given = {attribute.name: attribute for attribute in node.attribute} if node.op_type == "AveragePool" else {}
        counted = "count_include_pad" in given and given["count_include_pad"].i
        if "pads" in given and any(given["pads"].ints) and not counted:
            found.add(node.name)
    return frozenset(found)


def _orders(graph: Graph) -> dict[str, list[int]]:
    found = {node.name: list[int]() for node in graph.proto().graph.node if node.op_type == "Transpose"}
    for node in graph.proto().graph.node:
        for attribute in node.attribute if node.op_type == "Transpose" else ():
            found[node.name] = list(attribute.ints)
    return found


# --- layers --------------------------------------------------------------------------------------------------


def _packed(layer: Layer, machine: NpuMachine) -> Layer:
    """Put as many groups together as a block of channels holds, if that divides them all."""
    if layer.groups == 1 or layer.kind != CONV:
        return layer
    factors = (f for f in range(layer.groups, 1, -1) if layer.groups % f == 0 and f * layer.c <= machine.depth)
    by = next(factors, 1)
    return dataclasses.replace(layer, groups=layer.groups // by, c=layer.c * by, k=layer.k * by)


def _transfers(layer: Layer, machine: NpuMachine) -> int:
    """Return how often weights and biases are brought in: for each group, and for each tile of channels."""
    return layer.groups * math.ceil(layer.k / _TILE_CHANNELS) if layer.weights and _on_matrix(layer, machine) else 0


def _on_matrix(layer: Layer, machine: NpuMachine) -> bool:
    """Tell where it runs; depthwise windows with strides are the vector unit's where that has a rate for them."""
    windows = layer.kind == DEPTHWISE and max(layer.stride) > 1 and "window" in dict(machine.passes)
    return machine.uses_matrix(layer) and not windows


def _layer_stages(layer: Layer, machine: NpuMachine) -> Iterator[Stage]:
    layer = _packed(layer, machine)
    apart = layer.groups > 1 and layer.kind == CONV and layer.c % machine.depth != 0
    flat = layer.kind in (MATMUL, NORM)
    rows = 1 if flat else min(layer.y, machine.block_y)
    columns = min(layer.x, machine.block_y * machine.block_x) if flat else layer.x
    grid = Grid.of_tile(layer, machine, NpuTile(y=rows, x=columns, k=layer.k, c=layer.c))
    bands, compute = int(grid.tiles_s[0, 0]), float(grid.compute[0, 0])
    halo = layer.kernel[0] > 1
    if apart:
        yield _per_group(layer, (layer.c, layer.in_y, layer.in_x), layer.groups, machine)
    if layer.kind == POOL and "pool" in dict(machine.passes):
        yield dataclasses.replace(_pool(layer, bands, machine), halo=halo)
        return
    if layer.kind == POOL or not machine.uses_matrix(layer):
        yield Stage(unit=VECTOR, tiles=bands, cycles=machine.pass_start_cycles + compute / bands, halo=halo)
        return
    whole_in = Form.image((layer.batch, layer.in_channels, layer.in_y, layer.in_x), machine)
    windows = layer.taps > 1 and max(layer.stride) > 1
    if windows and machine.element_bytes == 1 and layer.c * math.prod(layer.stride) <= machine.depth:
        compute *= _IMAGE_STEPS / layer.taps
    if not _on_matrix(layer, machine):
        out = Form.image((layer.batch, layer.k, layer.y, layer.x), machine)
        tiles = bands * math.ceil(layer.k / machine.columns)
        yield dataclasses.replace(vector_pass(machine, "window", out.nbytes * layer.taps, tiles), halo=halo)
        return
    if windows:
        yield vector_pass(machine, "strided", whole_in.nbytes, bands * math.ceil(layer.in_channels / machine.columns))
    elif layer.taps > 1 and (layer.in_y % machine.block_y or layer.in_x % machine.block_x):
        yield vector_pass(machine, "pad", whole_in.nbytes, whole_in.tiles)
    transfers = _transfers(layer, machine)
    # The thread that starts everything waits for weights and biases before it goes on.
    waits = 2 * machine.transfer_cycles * transfers
    tiles = bands * layer.groups * math.ceil(layer.k / _TILE_CHANNELS)
    cycles = (compute + waits) / tiles + machine.matrix_start_cycles
    yield Stage(unit=MATRIX, tiles=tiles, cycles=cycles, halo=halo)
    if apart:
        together = bands * math.ceil(layer.groups * layer.k / _SUM_CHANNELS)
        yield _per_group(layer, (layer.k, layer.y, layer.x), together, machine)


def _pool(layer: Layer, bands: int, machine: NpuMachine) -> Stage:
    """Return a pool: rows and columns of its windows one after the other; few bands go by channels too."""
    out = Form.image((layer.batch, layer.k, layer.y, layer.x), machine)
    tiles = bands if bands >= machine.vector_threads else bands * math.ceil(layer.k / _SUM_CHANNELS)
    return vector_pass(machine, "pool", out.nbytes * sum(layer.kernel), tiles)


def _per_group(layer: Layer, shape: tuple[int, int, int], tiles: int, machine: NpuMachine) -> Stage:
    """Return the copies of groups that fill no block, in so many tiles."""
    one = vector_pass(machine, "copy", Form.image((layer.batch, *shape), machine).nbytes, 1)
    return dataclasses.replace(one, tiles=tiles, cycles=one.cycles * layer.groups / tiles)
