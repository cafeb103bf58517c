"""A whole graph on an NPU: what stays in its memory from one operator to the next, and what overlaps there.

Operators run in the graph's order. A tensor stays on the chip, in the blocked layout, until its last reader, unless
others need the room: then the one whose next reader is farthest goes to DRAM, in part if that is enough. Operators
whose weights and results fit the memory together form a window, within which DMA, matrix unit and vector threads
work at the same time; windows follow one another, and the first operator of each has to wait for its own transfers.
So a smaller memory costs transfers and overlap. No figure is fitted to whole models.

Bringing the graph's input into the blocked layout comes first. The vendor's compiler cuts an input into tiles for all
vector threads only where memory is short, so more memory can be slower: `_WHOLE_SHARE`. What a compiler does beyond one
pass over each tensor, and layout changes of the graph's output, are left out.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from partition.tile.npu import NpuTile
from partition.tile.npu_cost import Grid
from partition.tile.operators import CONV, MATMUL, NORM, Layer, TileError, layers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphs import Graph, Node, TensorSpec
    from partition.tile.npu import NpuMachine

# Names for the same bytes, and operators whose result can grow where their input shrinks.
_NO_WORK: Final = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Constant", "Dropout", "Cast"})
_LIMITS: Final = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "BatchNormalization"})
_IN_PLACE: Final = _NO_WORK | _LIMITS | {"Concat", "Add", "Mul"}
# Weights and copies that do not leave half of the memory to activations are brought and made in pieces.
_WEIGHT_SHARE: Final = 0.5
# An input whose blocked form takes no more of the memory is left whole, for one vector thread. In the traces, 224x224x3
# in int8 (1.5 MiB blocked) is whole at 8 MB and in 28 tiles at 4 MB; in fp16 (3.1 MiB) it is in tiles at 8 MB too.
_WHOLE_SHARE: Final = 0.25
# A channel shuffle is done in plain rows: the map leaves the blocked layout, is put together and shuffled by one vector
# thread and goes back. Cycles for each byte, all of it, from the int8 trace of ShuffleNetV2 at 8 MB.
_SHUFFLE_CYCLES: Final = 1.4
_IMAGE_AXES: Final = 4
_NEVER: Final = 1 << 60


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WholeCost:
    """One run of a graph, by our model; `spilled_bytes` are activations written to DRAM that are no graph output."""

    latency_s: float
    dram_bytes: float
    spilled_bytes: float
    windows: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """One operator: its tensors, bytes of its weights and of copies it needs, and cycles by unit (vector: all threads).

    The channels of a group are cut out into blocks of their own and put together again, so grouped convolutions copy.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: bool
    weight_bytes: float
    copy_bytes: float
    matrix: float
    vector: float
    starts: float


def whole_cost(graph: Graph, machine: NpuMachine) -> WholeCost:
    """Return the cost of the graph with the machine's memory.

    Raises:
        TileError: a shape is not known.
    """
    sizes, works = _sizes(graph, machine), _works(graph, machine)
    ends = _names(graph.inputs()), _names(graph.outputs())
    memory = _Memory(sizes, works, ends, machine.budget_bytes)
    windows = _Windows(machine)
    windows.cycles += sum(_entry_cycles(spec, machine) for spec in graph.inputs())
    for place, work in enumerate(works):
        moved = memory.run(place, work)
        fresh = work.weight_bytes + work.copy_bytes + memory.held(work.outputs)
        windows.add(work, work.weight_bytes + moved, fresh, memory.held(memory.resident) - memory.held(work.outputs))
    windows.close()
    return WholeCost(
        latency_s=windows.cycles / machine.clock_hz,
        dram_bytes=memory.read + memory.written + sum(work.weight_bytes for work in works),
        spilled_bytes=memory.written - sum(sizes[name] for name in ends[1]),
        windows=windows.count,
    )


class _Windows:
    """Adds up the time of the windows, and the starts of tiles and transfers."""

    def __init__(self, machine: NpuMachine) -> None:
        self.cycles, self.count = 0.0, 0
        self._machine = machine
        self._open: list[tuple[float, float, float]] = []
        self._bytes = 0.0

    def add(self, work: _Work, moved: float, fresh: float, live: float) -> None:
        """Put an operator into the open window if its `fresh` bytes fit beside the `live` ones, else into a new one."""
        if self._bytes + fresh + live > self._machine.budget_bytes:
            self.close()
        machine = self._machine
        self._open.append((moved / machine.dma_bytes, work.matrix, work.vector / machine.vector_threads))
        self._bytes += fresh
        self.cycles += work.starts

    def close(self) -> None:
        """End the window: its first operator in series, since nothing of it was brought in before, then the others."""
        if not self._open:
            return
        first, *others = self._open
        units = [sum(unit) for unit in zip(*others, strict=True)] or [0.0]
        self.cycles += sum(first) + max(units)
        self.count += 1
        self._open, self._bytes = [], 0.0


class _Memory:
    """What is on the chip, tensor by tensor, and the bytes that were read and written for want of room."""

    def __init__(
        self,
        sizes: Mapping[str, float],
        works: Sequence[_Work],
        ends: tuple[frozenset[str], frozenset[str]],
        budget: float,
    ) -> None:
        self._sizes, self._budget, self._results = sizes, budget, ends[1]
        self._readers: dict[str, list[int]] = {name: [] for name in sizes}
        for place, work in enumerate(works):
            for name in work.inputs:
                self._readers[name].append(place)
        self.resident: dict[str, float] = {}
        self._in_dram = {name: sizes[name] for name in ends[0]}
        self.read = self.written = 0.0

    def held(self, names: Iterable[str]) -> float:
        """Bytes of these tensors that are on the chip."""
        return sum(self.resident.get(name, 0.0) for name in names)

    def run(self, place: int, work: _Work) -> float:
        """Bring in what the operator reads, make room for what it writes, and return the bytes moved for both."""
        before = self.read + self.written
        self.read += sum(self._sizes[name] for name in work.inputs) - self.held(work.inputs)
        ended = [name for name in work.inputs if self._next(name, place) == _NEVER]
        self.resident.update({name: self._sizes[name] for name in work.outputs})
        self._make_room(place, work, ended)
        for name in work.outputs:
            if name in self._results:
                self._write(name, self._sizes[name])
        for name in ended:
            self.resident.pop(name, None)
        return self.read + self.written - before

    def _make_room(self, place: int, work: _Work, ended: Sequence[str]) -> None:
        room = self._budget - min(work.weight_bytes + work.copy_bytes, _WEIGHT_SHARE * self._budget)
        excess = self.held(self.resident) - room
        if work.in_place:
            excess -= min(self.held(ended), self.held(work.outputs))
        for name in sorted(self.resident.keys() - set(ended), key=lambda name: (-self._next(name, place), name)):
            if excess <= 0:
                return
            gone = min(self.resident[name], excess)
            self.resident[name] -= gone
            excess -= gone
            self._write(name, self._sizes[name] - self.resident[name])

    def _write(self, name: str, least: float) -> None:
        """Have at least that many of the tensor's bytes in DRAM."""
        missing = max(0.0, least - self._in_dram.get(name, 0.0))
        self._in_dram[name] = self._in_dram.get(name, 0.0) + missing
        self.written += missing

    def _next(self, name: str, place: int) -> int:
        return next((reader for reader in self._readers[name] if reader > place), _NEVER)


# --- the graph's work ----------------------------------------------------------------------------------------


def _names(specs: Iterable[TensorSpec]) -> frozenset[str]:
    return frozenset(spec.name for spec in specs)


def _sizes(graph: Graph, machine: NpuMachine) -> dict[str, float]:
    """Return the bytes of each tensor on the chip, in whole blocks; of the graph's inputs those in DRAM."""
    inputs, outputs = _names(graph.inputs()), _names(graph.outputs())
    sizes = {}
    for name, spec in graph.tensors().items():
        if spec.shape is None:
            raise TileError(f"the shape of {name} is not known; it follows from the data, or from a symbolic dimension")
        if name in inputs:
            sizes[name] = float(spec.size_bytes or 0)
        elif name in outputs:
            sizes[name] = float(math.prod(spec.shape) * machine.element_bytes)
        else:
            sizes[name] = _blocked_bytes(spec.shape, machine)
    return sizes


def _blocked_bytes(shape: tuple[int, ...], machine: NpuMachine) -> float:
    """Return the bytes of a feature map [batch, channels, rows, columns] in whole blocks; others have no blocks."""
    blocks = (1, machine.columns, machine.block_y, machine.block_x) if len(shape) == 4 else (1,) * len(shape)
    return float(math.prod(math.ceil(s / b) * b for s, b in zip(shape, blocks, strict=True)) * machine.element_bytes)


def _entry_cycles(spec: TensorSpec, machine: NpuMachine) -> float:
    """Return the cycles that bringing a feature map into blocks takes, on one vector thread or on all."""
    if spec.shape is None or len(spec.shape) != 4:
        return 0.0
    blocked = _blocked_bytes(spec.shape, machine)
    whole = blocked <= _WHOLE_SHARE * machine.budget_bytes
    return blocked * machine.in_cycles_per_byte / (1 if whole else machine.vector_threads)


def _works(graph: Graph, machine: NpuMachine) -> list[_Work]:
    layers = {layer.name: layer for layer in layers_of(graph)[0]}
    tensors, constants = graph.tensors(), graph.initializers()
    shuffles = _shuffles(graph)
    return [
        _work(node, tensors, constants, layers.get(node.name), machine, shuffled=node.name in shuffles)
        for node in graph.nodes()
    ]


def _work(
    node: Node,
    tensors: Mapping[str, TensorSpec],
    constants: Mapping[str, TensorSpec],
    layer: Layer | None,
    machine: NpuMachine,
    *,
    shuffled: bool,
) -> _Work:
    inputs = tuple(dict.fromkeys(name for name in node.inputs if name in tensors))
    outputs = tuple(name for name in node.outputs if name in tensors)
    width = machine.element_bytes
    shapes = [tensors[name].shape or () for name in (*inputs, *outputs)]
    # The producer limits its result on the way.
    fused = node.op_type in _LIMITS and len(inputs) == 1
    matrix = vector = starts = copies = 0.0
    if layer is not None:
        matrix, vector, tiles = _cycles(layer, machine)
        starts = 2 * machine.transfer_cycles + tiles * machine.tile_cycles
        copies = _copy_bytes(layer, machine)
        vector += copies * machine.in_cycles_per_byte
    elif shuffled:
        vector = math.prod(shapes[0]) * width * _SHUFFLE_CYCLES * machine.vector_threads
    elif node.op_type not in _NO_WORK and not fused:
        # One pass of the vector unit, at the rate at which it changes layouts.
        vector = sum(map(math.prod, shapes)) * width * machine.in_cycles_per_byte
    return _Work(
        inputs=inputs, outputs=outputs, in_place=node.op_type in _IN_PLACE,
        weight_bytes=float(sum(math.prod(constants[n].shape or ()) for n in node.inputs if n in constants) * width),
        copy_bytes=copies, matrix=matrix, vector=vector, starts=starts,
    )  # fmt: skip


def _shuffles(graph: Graph) -> frozenset[str]:
    """Name the nodes that move channels of a feature map in groups: two axes change places, rows and columns stay."""
    orders = {
        node.name: list(attribute.ints)
        for node in graph.proto().graph.node
        if node.op_type == "Transpose"
        for attribute in node.attribute
    }
    return frozenset(
        name
        for name, order in orders.items()
        if len(order) > _IMAGE_AXES
        and [order[0], *order[-2:]] == [0, len(order) - 2, len(order) - 1]
        and order != sorted(order)
    )


def _copy_bytes(layer: Layer, machine: NpuMachine) -> float:
    """Return the bytes of the blocks that hold each group's input and output apart."""
    if layer.groups == 1 or layer.kind != CONV:
        return 0.0
    ends = ((layer.c, layer.in_y, layer.in_x), (layer.k, layer.y, layer.x))
    return layer.groups * sum(_blocked_bytes((layer.batch, *end), machine) for end in ends)


def _cycles(layer: Layer, machine: NpuMachine) -> tuple[float, float, float]:
    """Return the cycles on the matrix unit, those of all vector threads, and the number of tiles: bands of blocks."""
    rows = 1 if layer.kind in (MATMUL, NORM) else min(layer.y, machine.block_y)
    columns = min(layer.x, machine.block_y * machine.block_x) if layer.kind in (MATMUL, NORM) else layer.x
    grid = Grid.of_tile(layer, machine, NpuTile(y=rows, x=columns, k=layer.k, c=layer.c))
    compute, tiles = float(grid.compute[0, 0]), float(grid.turns[0, 0])
    if grid.vector_compute:
        return 0.0, compute, tiles
    return compute, layer.inputs * machine.element_bytes * machine.strided_cycles(layer), tiles
