"""Lookalikes of known networks with synthetic costs, for the search benchmarks only. Nothing here was measured.

A layer is a convolution or a cheap operator with multiply-adds, weights and an output size; costs are a roofline
per place with log-normal noise, a dispatch per segment and a copy per move, so that no place wins everywhere.
"""

from __future__ import annotations

import dataclasses
import math
import random

from partition.search import Cost, Place, Problem, Space, Tensor, Transfer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    name: str
    inputs: tuple[str, ...]
    macs: int
    weight_bytes: int
    out_bytes: int
    group: int


class Net:
    """Collects layers; `fuse` puts element-wise operators into the group of the convolution before them."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.shape: dict[str, tuple[int, int]] = {"x": (3, 224)}
        self._group = 0

    def conv(self, source: str, channels: int, kernel: int = 1, stride: int = 1, *, depthwise: bool = False) -> str:
        width, side = self.shape[source]
        side //= stride
        fan = kernel * kernel * (1 if depthwise else width)
        return self._add("conv", (source,), channels, side, fan * channels * side * side, fan * channels)

    def act(self, source: str) -> str:
        channels, side = self.shape[source]
        return self._add("act", (source,), channels, side, channels * side * side, 0)

    def add(self, left: str, right: str) -> str:
        channels, side = self.shape[left]
        return self._add("add", (left, right), channels, side, channels * side * side, 0)

    def concat(self, *sources: str) -> str:
        side = self.shape[sources[0]][1]
        return self._add("concat", sources, sum(self.shape[s][0] for s in sources), side, 0, 0)

    def pool(self, source: str, stride: int = 2) -> str:
        channels, side = self.shape[source]
        return self._add("pool", (source,), channels, max(side // stride, 1), 9 * channels * side * side, 0)

    def resize(self, source: str) -> str:
        channels, side = self.shape[source]
        return self._add("resize", (source,), channels, side * 2, 0, 0)

    def _add(self, kind: str, inputs: tuple[str, ...], channels: int, side: int, macs: int, weights: int) -> str:
        name = f"{kind}{len(self.layers)}"
        fused = kind in {"act", "add"} and self.layers and self.layers[-1].name in inputs
        self._group += 0 if fused else 1
        self.shape[name] = (channels, side)
        self.layers.append(
            Layer(
                name=name,
                inputs=inputs,
                macs=macs,
                weight_bytes=weights,
                out_bytes=channels * side * side,
                group=self._group,
            )
        )
        return name


def resnet50() -> Net:
    """122 operators, 16 bottlenecks."""
    net = Net()
    value = net.pool(net.act(net.conv("x", 64, 7, 2)))
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            skip = net.conv(value, width * 4, 1, stride) if block == 0 else value
            inner = net.act(net.conv(value, width, 1))
            inner = net.act(net.conv(inner, width, 3, stride))
            value = net.act(net.add(net.conv(inner, width * 4, 1), skip))
    value = net.pool(value, 7)
    net.conv(net.act(value), 1000, 1)
    return net


def googlenet() -> Net:
    """Nine inception modules of four branches."""
    net = Net()
    value = net.pool(net.act(net.conv("x", 64, 7, 2)))
    value = net.act(net.conv(value, 64, 1))
    value = net.pool(net.act(net.conv(value, 192, 3)))
    table = [(64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None, (192, 96, 208, 16, 48, 64)]
    table += [
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ]
    table += [None, (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)]
    for row in table:
        value = net.pool(value) if row is None else _inception(net, value, row)
    net.conv(net.pool(value, 7), 1000, 1)
    return net


def _inception(net: Net, value: str, row: tuple[int, ...]) -> str:
    one = net.act(net.conv(value, row[0], 1))
    three = net.act(net.conv(net.act(net.conv(value, row[1], 1)), row[2], 3))
    five = net.act(net.conv(net.act(net.conv(value, row[3], 1)), row[4], 5))
    pool = net.act(net.conv(net.pool(value, 1), row[5], 1))
    return net.concat(one, three, five, pool)


def yolov5s() -> Net:
    """Backbone of C3 blocks, a path-aggregation neck and three heads."""
    net = Net()
    net.shape["x"] = (3, 640)
    value = _cba(net, _cba(net, "x", 32, 6, 2), 64, 3, 2)
    kept = []
    for channels, blocks in ((64, 1), (128, 2), (256, 3), (512, 1)):
        value = _c3(net, value, channels, blocks, shortcut=True)
        kept.append(value)
        if channels < 512:
            value = _cba(net, value, channels * 2, 3, 2)
    value = _cba(net, value, 256, 1)
    pools = [value]
    for _ in range(3):
        pools.append(net.pool(pools[-1], 1))
    low = _cba(net, _cba(net, net.concat(*pools), 512, 1), 256, 1)
    mid = _cba(net, _c3(net, net.concat(net.resize(low), kept[2]), 256, 1, shortcut=False), 128, 1)
    small = _c3(net, net.concat(net.resize(mid), kept[1]), 128, 1, shortcut=False)
    middle = _c3(net, net.concat(_cba(net, small, 128, 3, 2), mid), 256, 1, shortcut=False)
    large = _c3(net, net.concat(_cba(net, middle, 256, 3, 2), low), 512, 1, shortcut=False)
    for head in (small, middle, large):
        net.conv(head, 255, 1)
    return net


def _cba(net: Net, value: str, channels: int, kernel: int, stride: int = 1) -> str:
    return net.act(net.conv(value, channels, kernel, stride))


def _c3(net: Net, value: str, channels: int, blocks: int, *, shortcut: bool) -> str:
    left = _cba(net, value, channels // 2, 1)
    for _ in range(blocks):
        inner = _cba(net, _cba(net, left, channels // 2, 1), channels // 2, 3)
        left = net.add(inner, left) if shortcut else inner
    return _cba(net, net.concat(left, _cba(net, value, channels // 2, 1)), channels, 1)


def residual_chain(count: int) -> Net:
    """A chain of `count` operators with a skip over every three."""
    net = Net()
    value = net.conv("x", 64, 3, 4)
    while len(net.layers) + 3 <= count:
        value = net.add(net.conv(net.conv(value, 64, 3), 64, 3), value)
    while len(net.layers) < count:
        value = net.conv(value, 64, 3)
    return net


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A processor of no particular chip: multiply-adds and bytes per second, joules, dispatch."""

    name: str
    macs_s: float
    bytes_s: float
    j_per_mac: float
    j_per_byte: float
    dispatch_s: float
    dispatch_j: float


UNITS = (
    Unit(name="cpu", macs_s=60e9, bytes_s=9e9, j_per_mac=9e-12, j_per_byte=60e-12, dispatch_s=3e-6, dispatch_j=2e-6),
    Unit(
        name="gpu", macs_s=900e9, bytes_s=22e9, j_per_mac=4e-12, j_per_byte=75e-12, dispatch_s=30e-6, dispatch_j=20e-6
    ),
    Unit(
        name="npu", macs_s=600e9, bytes_s=16e9, j_per_mac=1e-12, j_per_byte=55e-12, dispatch_s=40e-6, dispatch_j=12e-6
    ),
)


def problem(net: Net, *, fused: bool = False, dispatch: bool = True, seed: int = 0) -> Problem:
    """Turn a lookalike into a problem of three places; `fused` makes one node of each group."""
    rng = random.Random(seed)  # noqa: S311 - synthetic costs, no secret
    groups: dict[str, list[Layer]] = {}
    for layer in net.layers:
        groups.setdefault(f"g{layer.group}" if fused else layer.name, []).append(layer)
    owner = {layer.name: name for name, layers in groups.items() for layer in layers}
    places = tuple(Place(processor=unit.name) for unit in UNITS)
    costs = {
        (name, place): _cost(layers, unit, rng)
        for name, layers in groups.items()
        for place, unit in zip(places, UNITS, strict=True)
    }
    move = Transfer(latency_s=12e-6, bytes_per_s=6e9, energy_j=1e-6, energy_j_per_byte=100e-12)
    return Problem(
        nodes=tuple(groups),
        tensors=_tensors(net, owner),
        places=places,
        transfers={(a.name, b.name): move for a in UNITS for b in UNITS if a is not b},
        costs=costs,
        dispatch=(
            {p: Cost(latency_s=u.dispatch_s, energy_j=u.dispatch_j) for p, u in zip(places, UNITS, strict=True)}
            if dispatch
            else {}
        ),
        restriction=Space.FUSED_GROUP_BORDERS if fused else None,
    )


def _cost(layers: list[Layer], unit: Unit, rng: random.Random) -> Cost:
    latency = energy = 0.0
    for layer in layers:
        moved = layer.weight_bytes + 2 * layer.out_bytes
        noise = math.exp(rng.gauss(0, 0.25))
        latency += noise * max(layer.macs / unit.macs_s, moved / unit.bytes_s)
        energy += math.exp(rng.gauss(0, 0.15)) * (layer.macs * unit.j_per_mac + moved * unit.j_per_byte)
    return Cost(
        latency_s=latency, energy_j=energy, memory_bytes=sum(layer.weight_bytes + layer.out_bytes for layer in layers)
    )


def _tensors(net: Net, owner: dict[str, str]) -> tuple[Tensor, ...]:
    readers: dict[str, dict[str, None]] = {"x": {}}
    for layer in net.layers:
        readers[layer.name] = {}
        for source in layer.inputs:
            if owner.get(source) != owner[layer.name]:
                readers[source][owner[layer.name]] = None
    sized = [("x", 3 * net.shape["x"][1] ** 2, None)]
    sized += [(layer.name, layer.out_bytes, owner[layer.name]) for layer in net.layers]
    ends = {layer.name for layer in net.layers} - {source for layer in net.layers for source in layer.inputs}
    return tuple(
        Tensor(
            name=name,
            size_bytes=size,
            producer=producer,
            consumers=tuple(readers[name]),
            source="cpu" if producer is None else None,
            target="cpu" if name in ends else None,
        )
        for name, size, producer in sized
        if readers[name] or name in ends
    )
